"""The settings that turn the plugin on in a Spark application, as arguments of Spark's commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote

import pydantic.dataclasses

from parcae.base.errors import ConfigError
from parcae.base.options import option
from parcae.service.client import host_and_port
from parcae.spark import kubernetes
from parcae.spark.home import SparkHome

CLASS_PATH = "spark.driver.extraClassPath"
PLUGINS = "spark.plugins"
#: What YARN copies to the containers. Spark adds the user's `--jars` and `--files` to these two.
SHIPPED_JARS = "spark.yarn.dist.jars"
SHIPPED_FILES = "spark.yarn.dist.files"
#: The settings that are lists, and what separates their parts; ours are joined with the user's.
_LISTS = {CLASS_PATH: os.pathsep, PLUGINS: ",", SHIPPED_JARS: ",", SHIPPED_FILES: ","}
#: The class that `spark.plugins` names.
PLUGIN_CLASS = "parcae.spark.ParcaePlugin"
#: The name of the Secret for a driver's pod, unless the user gives another one.
SECRET = "parcae"


class Where(StrEnum):
    """Where the driver runs: beside the command that starts it, or in a container or a pod."""

    CLIENT = "client"
    YARN_CLUSTER = "yarn-cluster"
    KUBERNETES_CLUSTER = "kubernetes-cluster"


#: The settings that name a file of the driver's machine, and its name in a container or a Secret.
FILES = {
    "spark.parcae.policy": "parcae-policy.json",
    "spark.parcae.secretFile": kubernetes.SERVICE_SECRET,
    "spark.parcae.tls.ca": "parcae-ca.pem",
}
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

    @property
    def where(self) -> Where:
        """Where the driver of every application runs."""
        master = self.values.get(_MASTER, "")
        if self.values.get(_DEPLOY_MODE) != "cluster":
            return Where.CLIENT
        if master.startswith("k8s://"):
            return Where.KUBERNETES_CLUSTER
        return Where.YARN_CLUSTER if master == "yarn" else Where.CLIENT

    @property
    def secret(self) -> str | None:
        """The Secret that these settings mount where the plugin's files are to be, if any."""
        mounted = [
            name.removeprefix(kubernetes.DRIVER_SECRETS)
            for name, path in self.values.items()
            if name.startswith(kubernetes.DRIVER_SECRETS) and path.rstrip("/") == kubernetes.MOUNT
        ]
        return mounted[-1] if mounted else None

    def class_path(self, where: Where = Where.CLIENT) -> list[Path]:
        """The files on the driver's class path; of a folder with `/*`, its jars, as Java does."""
        places = self.values.get("spark.jars", "").split(",")
        if where is not Where.YARN_CLUSTER:
            places = [*self.values.get(CLASS_PATH, "").split(os.pathsep), *places]
        else:
            places += self.values.get(SHIPPED_JARS, "").split(",")
        files = [local_path(place) for place in places if place.strip()]
        all_jars = (sorted(one.parent.glob("*.jar")) if one.name == "*" else [one] for one in files)
        return [jar for jars in all_jars for jar in jars]

    def shipped(self) -> dict[str, Path]:
        """The files that YARN copies to the driver, by their names there."""
        places = [self.values.get(name, "") for name in ("spark.files", SHIPPED_FILES)]
        found = {}
        for place in filter(None, ",".join(places).split(",")):
            path, _, name = place.strip().partition("#")
            found[name or local_path(path).name] = local_path(path)
        return found

    def joined(self, own: Mapping[str, str]) -> dict[str, str]:
        """Settings, of which those that are lists have these settings' values, too."""
        joined = dict(own)
        for name, separator in _LISTS.items():
            if name in own:
                lists = [own[name], self.values.get(name, "")]
                # A plugin may depend on one before it; ours depends on none.
                in_order = reversed(lists) if name == PLUGINS else lists
                parts = (part.strip() for text in in_order for part in text.split(separator))
                joined[name] = separator.join(dict.fromkeys(filter(None, parts)))
        return joined


#: The option that names a file of settings, which Spark reads instead of the installation's.
_PROPERTIES = "--properties-file"
#: With this option Spark reads both.
_BOTH = "--load-spark-defaults"
#: The options that give a setting as NAME=VALUE, and the settings of deploy mode and master.
_SETTINGS = ("--conf", "-c")
_DEPLOY_MODE = "spark.submit.deployMode"
_MASTER = "spark.master"
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

    #: The plugin's jar, see `find_jar`.
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

    @property
    def _files(self) -> dict[str, Path]:
        """The files that are given, by setting."""
        paths = zip(FILES, (self.policy, self.secret_file, self.tls_ca), strict=True)
        return {name: path.resolve() for name, path in paths if path}

    def contents(self) -> dict[str, bytes]:
        """The files of the Secret for a driver's pod, by name."""
        files = {FILES[name]: path for name, path in self._files.items()}
        return kubernetes.read_contents({kubernetes.JAR: self.jar, **files})

    def conf(self, where: Where = Where.CLIENT, secret: str = SECRET) -> dict[str, str]:
        """The settings for Spark, by name; a pod of a driver has the files of that Secret."""
        own = {
            "service": self.service,
            "jobKey": self.job_key,
            "orderTtlMs": self.order_ttl_ms,
            "fallbackExecutors": self.fallback_executors,
        }
        given = {f"spark.parcae.{name}": str(one) for name, one in own.items() if one is not None}
        files = self._files
        if where is Where.CLIENT:
            given |= {name: str(path) for name, path in files.items()}
            return {CLASS_PATH: str(self.jar), PLUGINS: PLUGIN_CLASS, **given}
        if where is Where.KUBERNETES_CLUSTER:
            return {
                f"{kubernetes.DRIVER_SECRETS}{secret}": kubernetes.MOUNT,
                kubernetes.DIGEST_SETTING: kubernetes.digest(self.contents()),
                CLASS_PATH: f"{kubernetes.MOUNT}/{kubernetes.JAR}",
                PLUGINS: PLUGIN_CLASS,
                **given,
                **{name: f"{kubernetes.MOUNT}/{FILES[name]}" for name in files},
            }
        given |= {name: FILES[name] for name in files}
        jars = {SHIPPED_JARS: self.jar.resolve().as_uri()}
        if files:
            shipped = (f"{path.as_uri()}#{FILES[name]}" for name, path in files.items())
            jars[SHIPPED_FILES] = ",".join(shipped)
        return {**jars, PLUGINS: PLUGIN_CLASS, **given}


def spark_arguments(
    settings: PluginSettings, arguments: Sequence[str], spark: SparkHome
) -> list[str]:
    """The user's arguments for spark-submit with the plugin's settings before them.

    Where both set the same, the user's setting is kept. Lists (class paths, plugins, what YARN
    copies) are joined, also with those of the installation's `spark-defaults.conf` or of
    `--properties-file`.

    Example: `spark_arguments(settings, ["--master", "local[4]", "app.py"], find_spark())` ends with
    these three.
    """
    options, application = _split(arguments)
    # The user's own class path and plugins replace those of the defaults, as in Spark.
    user = dict(_defaults(options, spark).values)
    kept: list[str] = []
    given = _given(options, spark)
    plugin_conf = settings.conf(_where(given), given.secret or SECRET)
    for flag, value in options:
        if value is None:
            kept.append(flag)
            continue
        name, _, setting = value.partition("=") if flag in _SETTINGS else ("", "", "")
        if flag == "--driver-class-path" and CLASS_PATH in plugin_conf:
            user[CLASS_PATH] = value
        elif name in _LISTS and name in plugin_conf:
            user[name] = setting
        else:
            plugin_conf.pop(name, None)
            kept += [flag, value]
    plugin_conf = SparkDefaults(values=user).joined(plugin_conf)
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


def is_local(arguments: Sequence[str], spark: SparkHome) -> bool:
    """Whether the user's arguments, or the defaults, keep the whole application on this machine."""
    options, _ = _split(arguments)
    return _given(options, spark).values.get(_MASTER, "local")[:5] == "local"


def needed_secret(arguments: Sequence[str], spark: SparkHome) -> tuple[str, str] | None:
    """The name and the namespace of the Secret that the driver's pod waits for, if it is in one."""
    options, _ = _split(arguments)
    given = _given(options, spark)
    if given.where is not Where.KUBERNETES_CLUSTER:
        return None
    return given.secret or SECRET, given.values.get("spark.kubernetes.namespace", "default")


def _given(options: Sequence[tuple[str, str | None]], spark: SparkHome) -> SparkDefaults:
    """What settings are: those of an option, else a setting, else the defaults."""
    settings = [value.partition("=") for flag, value in options if flag in _SETTINGS and value]
    flags = {"--deploy-mode": _DEPLOY_MODE, "--master": _MASTER}
    return SparkDefaults(
        values={
            **_defaults(options, spark).values,
            **{name: value for name, _, value in settings},
            **{flags[flag]: value for flag, value in options if flag in flags and value},
        }
    )


def _where(given: SparkDefaults) -> Where:
    """Where the driver will run; refused where nothing copies the jar to its machine."""
    where = given.where
    if given.values.get(_DEPLOY_MODE) == "cluster" and where is Where.CLIENT:
        raise ConfigError(
            "with deploy mode cluster the driver runs on another machine, and the plugin's jar "
            "is on this one (only --master yarn and k8s://... bring it there): put the jar there "
            "and use the lines of `parcae spark conf`"
        )
    return where


def local_path(place: str) -> Path:
    """The path of a file of this machine, given as a path or as an address file:..."""
    text = place.strip()
    path = text.removeprefix("file://").removeprefix("file:")
    return Path(path if path == text else unquote(path))


def environment(spark_home: Path, *, is_local: bool = True) -> dict[str, str]:
    """The environment variables for Spark's commands.

    They select this Spark, and this Python unless the user has chosen another one, or the
    application runs on other machines, too, which may not have it.
    """
    variables = {**os.environ, "SPARK_HOME": str(spark_home)}
    if is_local:
        python = variables.setdefault("PYSPARK_PYTHON", sys.executable)
        variables.setdefault("PYSPARK_DRIVER_PYTHON", python)
    return variables
