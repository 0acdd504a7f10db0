"""The settings that turn the plugin on in a Spark application, and Spark's own commands with them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError
from parcae.spark.linkage import PLUGIN_CLASS

_PLUGINS = "spark.plugins"
_CLASS_PATH = "spark.driver.extraClassPath"
#: Options of spark-submit that take no value.
_FLAGS = frozenset({"--verbose", "-v", "--supervise", "--version", "--usage-error", "--help", "-h"})


@dataclass(frozen=True)
class PluginSettings:
    """What the plugin is told.

    Args:
        jar: see `build_plugin`.
        policy: a file of `parcae export`, by which the plugin plans without a service, or while
            the service is away.
        service: HOST:PORT of `parcae serve`, whose orders go first.
        secret_file: what the service and the plugin must both know, or None.
        tls_ca: certificates (PEM) of whoever may sign the service's, or None without TLS.
        job_key: name jobs by this property, as `parcae workload import --key`.
        order_ttl_ms: an order is in force for so long after the service's last word; 5 s if None.
        fallback_executors: where applications share a cluster, executors to ask for while the
            service is away; None: the application keeps what it has.

    Raises:
        ConfigError: neither a policy nor a service.
    """

    jar: Path
    policy: Path | None = None
    service: str | None = None
    secret_file: Path | None = None
    tls_ca: Path | None = None
    job_key: str | None = None
    order_ttl_ms: int | None = None
    fallback_executors: int | None = None

    def __post_init__(self) -> None:
        if self.policy is None and self.service is None:
            raise ConfigError(
                "give a policy file (`parcae export` writes one), the HOST:PORT of a service (`parcae serve`), or both"
            )

    def conf(self) -> dict[str, str]:
        """Spark settings by name."""
        found = {_CLASS_PATH: str(self.jar), _PLUGINS: PLUGIN_CLASS}
        for name, value in (
            ("policy", self.policy and self.policy.resolve()),
            ("service", self.service),
            ("secretFile", self.secret_file and self.secret_file.resolve()),
            ("tls.ca", self.tls_ca and self.tls_ca.resolve()),
            ("jobKey", self.job_key),
            ("orderTtlMs", self.order_ttl_ms),
            ("fallbackExecutors", self.fallback_executors),
        ):
            if value is not None:
                found[f"spark.parcae.{name}"] = str(value)
        return found


def spark_arguments(settings: PluginSettings, arguments: Sequence[str]) -> list[str]:
    """The user's arguments for spark-submit with the plugin's settings before them.

    The user's own settings win; the class path and the plugins of both are put together.

    Raises:
        ConfigError: a driver that does not run on this machine, an option without its value.

    Example: `spark_arguments(settings, ["--master", "local[4]", "app.py"])` ends with the same three.
    """
    left = list(arguments)
    mine = settings.conf()
    kept: list[str] = []
    while left and left[0].startswith("-"):
        option, _, value = left.pop(0).partition("=")
        if option in _FLAGS:
            kept.append(option)
            continue
        if not value:
            if not left:
                raise ConfigError(f"spark-submit's option {option} lacks its value")
            value = left.pop(0)
        is_setting = option in ("--conf", "-c")
        name, _, setting = value.partition("=") if is_setting else ("", "", "")
        if "cluster" in (value if option == "--deploy-mode" else "", _deploy_mode(name, setting)):
            raise ConfigError(
                "with deploy mode cluster the driver runs on another machine, and the plugin's jar "
                "is on this one: put the jar there and use the lines of `parcae spark conf`"
            )
        if option == "--driver-class-path" or name == _CLASS_PATH:
            mine[_CLASS_PATH] = f"{settings.jar}{os.pathsep}{setting or value}"
        elif name == _PLUGINS:
            mine[_PLUGINS] = ",".join(dict.fromkeys([*setting.split(","), PLUGIN_CLASS]))
        else:
            mine.pop(name, None)
            kept += [option, value]
    lines = [part for name, value in mine.items() for part in ("--conf", f"{name}={value}")]
    return [*lines, *kept, *left]


def _deploy_mode(name: str, setting: str) -> str:
    return setting if name == "spark.submit.deployMode" else ""


def environment(spark_home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of Spark's commands: this Spark, and this Python unless the user chose one."""
    import sys

    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    own = {"PYSPARK_PYTHON": python, "SPARK_HOME": str(spark_home)}
    own["PYSPARK_DRIVER_PYTHON"] = os.environ.get("PYSPARK_DRIVER_PYTHON", python)
    return {**os.environ, **own, **(extra or {})}
