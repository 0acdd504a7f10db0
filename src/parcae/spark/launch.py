"""The settings that turn the plugin on in a Spark application, as arguments of Spark's commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pydantic.dataclasses

from parcae.base.errors import ConfigError
from parcae.base.options import option
from parcae.service.client import host_and_port
from parcae.spark.home import SparkHome

CLASS_PATH = "spark.driver.extraClassPath"
PLUGINS = "spark.plugins"
#: The class that `spark.plugins` names.
PLUGIN_CLASS = "parcae.spark.ParcaePlugin"
_PROPERTY = re.compile(r"\s*([^\s=:#!][^\s=:]*)\s*[=:\s]\s*(.*)")
#: A backslash and what it escapes; Java's programs write "hdfs\://HOST".
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _lines(text: str) -> Iterator[str]:
    """The lines of a file of properties; one that ends in a backslash goes on in the next one."""
    lines = iter(text.splitlines())
    for line in lines:
        whole = line
        while _is_continued(whole):
            whole = whole[:-1] + next(lines, "").lstrip()
        yield whole


def _is_continued(line: str) -> bool:
    is_comment = line.lstrip().startswith(("#", "!"))
    return not is_comment and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _plain(value: str) -> str:
    """A value without the escapes of Java's properties, and without blanks at its ends."""

    def meant(match: re.Match[str]) -> str:
        escaped = match[1]
        is_code = len(escaped) > 1
        return chr(int(escaped[1:], 16)) if is_code else _CONTROLS.get(escaped, escaped)

    return _ESCAPED.sub(meant, value).strip()


@dataclass(frozen=True)
class SparkDefaults:
    """The settings with which every application starts: those in `spark-defaults.conf`."""

    path: Path | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, spark: SparkHome) -> SparkDefaults:
        """The settings that Spark's commands read: from SPARK_CONF_DIR, else its folder `conf`."""
        folder = Path(os.environ.get("SPARK_CONF_DIR") or spark.path / "conf")
        return cls.read(folder / "spark-defaults.conf")

    @classmethod
    def read(cls, path: Path) -> SparkDefaults:
        """The settings in a file of properties; none if it cannot be read."""
        try:
            # Whatever is no UTF-8 stands in a comment or a value; Spark reads ISO 8859-1.
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return cls()
        matches = (_PROPERTY.fullmatch(line) for line in _lines(text))
        return cls(path, {each[1]: _plain(each[2]) for each in matches if each})

    @property
    def plugins(self) -> list[str]:
        """The names of the plugins with which every application starts."""
        return [name.strip() for name in self.values.get(PLUGINS, "").split(",") if name.strip()]

    def class_path(self) -> list[Path]:
        """The files on the driver's class path; of a folder with `/*`, its jars, as Java does."""
        places = self.values.get(CLASS_PATH, "").split(os.pathsep)
        places += self.values.get("spark.jars", "").split(",")
        files = [Path(place.strip().removeprefix("file:")) for place in places if place.strip()]
        all_jars = (sorted(one.parent.glob("*.jar")) if one.name == "*" else [one] for one in files)
        return [jar for jars in all_jars for jar in jars]

    def with_plugin(self, jar: Path) -> dict[str, str]:
        """The plugins and the driver's class path, with Parcae's plugin and its jar added."""
        plugins = dict.fromkeys([*self.plugins, PLUGIN_CLASS])
        paths = [str(jar), self.values.get(CLASS_PATH, "").strip()]
        return {PLUGINS: ",".join(plugins), CLASS_PATH: os.pathsep.join(filter(None, paths))}


#: The option that names a file of settings, which Spark reads instead of the installation's.
_PROPERTIES = "--properties-file"
#: With this option Spark reads both.
_BOTH = "--load-spark-defaults"
#: The options that give a setting as NAME=VALUE, and the setting of the deploy mode.
_SETTINGS = ("--conf", "-c")
_DEPLOY_MODE = "spark.submit.deployMode"
#: Options that take no value, of spark-submit and, in the last line, of spark-sql.
_FLAGS = frozenset(
    {"--verbose", "-v", "--supervise", "--version", "--usage-error", "--help", "-h", _BOTH}
    | {"--silent", "-S", "-H"}
)


@pydantic.dataclasses.dataclass(frozen=True)
class PluginSettings:
    """The settings of the plugin in one application.

    Raises:
        ConfigError: the service is not HOST:PORT.
    """

    #: The plugin's jar, see `build_plugin`.
    jar: Path
    # Also while the service is away.
    policy: Path | None = option(None, "Plan by this file of `parcae export`.")
    service: str | None = option(
        None, "HOST:PORT of a running `parcae serve`, whose orders have precedence."
    )
    secret_file: Path | None = option(None, "The secret that the service asks for.")
    tls_ca: Path | None = option(None, "Certificates (PEM) that the service's must be signed by.")
    job_key: str | None = option(
        None, "Name jobs by this property, as `parcae workload import`.", "--key"
    )
    #: How long an order stays in force after the service's last message; None: 5 s.
    order_ttl_ms: int | None = None
    # None keeps the present ones.
    fallback_executors: int | None = option(
        None,
        "In a shared cluster (docs/spark-cluster.md): executors while the service is away.",
        ge=1,
    )

    def __post_init__(self) -> None:
        if self.service is not None:
            host_and_port(self.service)

    def conf(self) -> dict[str, str]:
        """The settings for Spark, by name."""
        own = {
            "policy": self.policy and self.policy.resolve(),
            "service": self.service,
            "secretFile": self.secret_file and self.secret_file.resolve(),
            "tls.ca": self.tls_ca and self.tls_ca.resolve(),
            "jobKey": self.job_key,
            "orderTtlMs": self.order_ttl_ms,
            "fallbackExecutors": self.fallback_executors,
        }
        given = {f"spark.parcae.{name}": str(own[name]) for name in own if own[name] is not None}
        return {CLASS_PATH: str(self.jar), PLUGINS: PLUGIN_CLASS, **given}


def spark_arguments(
    settings: PluginSettings, arguments: Sequence[str], spark: SparkHome
) -> list[str]:
    """The user's arguments for spark-submit with the plugin's settings before them.

    Where both set the same, the user's setting is kept. Class paths and lists of plugins are
    joined, also with those of the installation's `spark-defaults.conf` or of `--properties-file`.

    Example: `spark_arguments(settings, ["--master", "local[4]", "app.py"], find_spark())` ends with
    these three.
    """
    options, application = _split(arguments)
    # The user's own class path and plugins replace those of the defaults, as in Spark.
    user = dict(_defaults(options, spark).values)
    _refuse_cluster_mode(options, user)
    kept: list[str] = []
    plugin_conf = settings.conf()
    for flag, value in options:
        if value is None:
            kept.append(flag)
            continue
        name, _, setting = value.partition("=") if flag in _SETTINGS else ("", "", "")
        if flag == "--driver-class-path":
            user[CLASS_PATH] = value
        elif name in (CLASS_PATH, PLUGINS):
            user[name] = setting
        else:
            plugin_conf.pop(name, None)
            kept += [flag, value]
    plugin_conf |= SparkDefaults(values=user).with_plugin(settings.jar)
    lines = [part for name, value in plugin_conf.items() for part in ("--conf", f"{name}={value}")]
    return [*lines, *kept, *application]


def _split(arguments: Sequence[str]) -> tuple[list[tuple[str, str | None]], list[str]]:
    """The options, each with its value or None, and the application with its own arguments."""
    left = list(arguments)
    options: list[tuple[str, str | None]] = []
    # The first argument that is no option is the application; what follows are its arguments.
    while left and left[0].startswith("-"):
        option, _, value = left.pop(0).partition("=")
        if option in _FLAGS:
            options.append((option, None))
            continue
        if not value:
            if not left:
                raise ConfigError(f"spark-submit's option {option} lacks its value")
            value = left.pop(0)
        options.append((option, value))
    return options, left


def _defaults(options: Sequence[tuple[str, str | None]], spark: SparkHome) -> SparkDefaults:
    """The settings that Spark reads from files, given the user's options."""
    installed = SparkDefaults.of(spark)
    named = [Path(value) for option, value in options if option == _PROPERTIES and value]
    if not named:
        return installed
    given = SparkDefaults.read(named[-1])
    if (_BOTH, None) in options:
        return SparkDefaults(given.path, {**installed.values, **given.values})
    return given


def _refuse_cluster_mode(
    options: Sequence[tuple[str, str | None]], defaults: Mapping[str, str]
) -> None:
    """Refuse the deploy mode cluster: an option, else a setting, else one of the defaults."""
    settings = [value.partition("=") for option, value in options if option in _SETTINGS and value]
    modes = [defaults.get(_DEPLOY_MODE, "")]
    modes += [value for name, _, value in settings if name == _DEPLOY_MODE]
    modes += [value for option, value in options if option == "--deploy-mode" and value]
    if modes[-1] == "cluster":
        raise ConfigError(
            "with deploy mode cluster the driver runs on another machine, and the plugin's jar "
            "is on this one: put the jar there and use the lines of `parcae spark conf`"
        )


def environment(spark_home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables for Spark's commands.

    They select this Spark, and this Python unless the user has chosen another one.
    """
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    variables = {"PYSPARK_PYTHON": python, "SPARK_HOME": str(spark_home)}
    variables["PYSPARK_DRIVER_PYTHON"] = os.environ.get("PYSPARK_DRIVER_PYTHON", python)
    return {**os.environ, **variables, **(extra or {})}
