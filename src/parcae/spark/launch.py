"""The settings that put a Spark application under a service, and Spark's own commands with them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError

_LOCAL = re.compile(r"local(?:-parcae)?(?:\[(\*|\d+)(?:,\s*(\d+))?\])?")
_CLASS_PATH = "spark.driver.extraClassPath"
DEFAULT_SERVICE = "127.0.0.1:7177"


@dataclass(frozen=True)
class PluginSettings:
    """What the plugin is told.

    Args:
        jar: see `build_plugin`.
        service: HOST:PORT of `parcae serve`.
        secret_file: what both sides must know, or None.
        tls_ca: certificates (PEM) of whoever may sign the service's, or None without TLS.
        job_key: group Spark jobs by this property and name them by it, as `parcae workload import --key`.
        timeout_ms: how long to wait for a reply; the service's own advice where None.
        report: file for the plugin's own numbers at the application's end.
    """

    jar: Path
    service: str = DEFAULT_SERVICE
    secret_file: Path | None = None
    tls_ca: Path | None = None
    job_key: str | None = None
    timeout_ms: int | None = None
    report: Path | None = None

    def conf(self) -> dict[str, str]:
        """Spark settings by name."""
        found = {
            _CLASS_PATH: str(self.jar),
            "spark.parcae.service": self.service,
            "spark.locality.wait": "0s",  # a slot that the service lent is not to wait for a better place
        }
        for name, value in (
            ("secretFile", self.secret_file and self.secret_file.resolve()),
            ("tls.ca", self.tls_ca and self.tls_ca.resolve()),
            ("jobKey", self.job_key),
            ("timeoutMs", self.timeout_ms),
            ("report", self.report and self.report.resolve()),
        ):
            if value is not None:
                found[f"spark.parcae.{name}"] = str(value)
        return found


def parcae_master(master: str) -> str:
    """The master URL under which the plugin takes part.

    Raises:
        ConfigError: a cluster manager that it has no scheduler for.

    Example: `parcae_master("local[4]")` is "local-parcae[4]", `parcae_master("spark://a:7077")` is "spark-parcae://a:7077".
    """
    if local := _LOCAL.fullmatch(master):
        cores, failures = local[1] or "1", local[2]
        return f"local-parcae[{cores},{failures}]" if failures else f"local-parcae[{cores}]"
    if master.startswith("spark://"):
        return "spark-parcae://" + master.removeprefix("spark://")
    if master.startswith("spark-parcae://"):
        return master
    raise ConfigError(
        f"the plugin schedules local[N] and spark://HOST:PORT, not {master!r} (YARN and Kubernetes are not supported)"
    )


def spark_arguments(settings: PluginSettings, arguments: Sequence[str], default_master: str = "local[*]") -> list[str]:
    """The user's arguments for spark-submit with the plugin's settings before them.

    The user's own settings win, but for the master, which becomes the plugin's, and the class path, which the jar joins.

    Raises:
        ConfigError: a master or deploy mode that cannot be.
    """
    left, master, mine = list(arguments), default_master, settings.conf()
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
        name, _, setting = value.partition("=") if option in ("--conf", "-c") else ("", "", "")
        if option == "--master" or name == "spark.master":
            master = setting or value
        elif option == "--deploy-mode" and value != "client":
            raise ConfigError("the driver must run here (deploy mode client): the plugin is on this machine")
        elif option == "--driver-class-path" or name == _CLASS_PATH:
            mine[_CLASS_PATH] = f"{settings.jar}{os.pathsep}{setting or value}"
        else:
            mine.pop(name, None)
            kept += [option, value]
    lines = [part for name, value in mine.items() for part in ("--conf", f"{name}={value}")]
    return ["--master", parcae_master(master), *lines, *kept, *left]


_FLAGS = frozenset({"--verbose", "-v", "--supervise", "--version", "--usage-error", "--help", "-h"})


def environment(spark_home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of Spark's commands: this Spark, and this Python for its workers unless the user chose one."""
    import sys

    own = {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable), "SPARK_HOME": str(spark_home)}
    own["PYSPARK_DRIVER_PYTHON"] = os.environ.get("PYSPARK_DRIVER_PYTHON", own["PYSPARK_PYTHON"])
    return {**os.environ, **own, **(extra or {})}
