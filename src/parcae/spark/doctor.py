"""`parcae spark doctor`: checks a Spark installation, the plugin's jar, settings and a service."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pydantic.dataclasses

from parcae.base.errors import ConfigError, InputError
from parcae.base.loader import read_short
from parcae.base.options import option
from parcae.base.texts import __version__
from parcae.policies.policy_file import read_policy
from parcae.service.client import greet
from parcae.spark.build import find_jar, read_jar_note
from parcae.spark.home import SparkHome, find_java, find_spark, java_release
from parcae.spark.launch import CLASS_PATH, PLUGIN_CLASS, PLUGINS, SparkDefaults, environment

_POLICY = "spark.parcae.policy"
_SERVICE = "spark.parcae.service"
_SECRET = "spark.parcae.secretFile"
_TLS_CA = "spark.parcae.tls.ca"
_POOLS = "spark.parcae.pools"
#: Settings that the plugin reads as whole numbers beside a service: the smallest and the largest.
_WHOLE_NUMBERS = {
    "spark.parcae.orderTtlMs": (100, 999_999_999),
    "spark.parcae.retryMs": (100, 999_999_999),
    "spark.parcae.fallbackExecutors": (0, 999_999),
}
#: The main class of the jar that looks up what the plugin uses; the name of a setting of it.
_FIT_CLASS = "parcae.spark.Linkage"
_SETTING = re.compile(rb"spark\.parcae(?:\.\w+)+")
_JAR_NAME = re.compile(r"parcae-spark.*\.jar")
#: The oldest and the newest Java that Spark's documentation names, from this version of Spark on.
_JAVA_OF_SPARK = {(3, 3): (8, 17), (4, 0): (17, 21), (4, 2): (17, 25)}
#: The trial application, what it prints, and how long Spark may take to start and run it.
_TRIAL_CLASS = "parcae.spark.Trial"
_TRIAL_SAYS = "sum 499500"
_TRIAL_TIMEOUT_S = 180.0
_TRY_STOCK = "try spark-submit without the plugin"
#: How many missing members a line shows.
_SHOWN_MISSING = 3
_SECONDS_A_DAY = 86_400

#: Log settings for the trial: the plugin's lines go to standard error.
_LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %m%n
logger.parcae.name = parcae
logger.parcae.level = info
"""


class CheckResult(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report.

    Args:
        name: what was checked, e.g. "java".
        state: the result.
        text: what was found, and where.
        advice: what to do; empty if nothing is to be done.
    """

    name: str
    state: CheckResult
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields by name; the name is under "check"."""
        return {
            "check": self.name,
            "state": str(self.state),
            "text": self.text,
            "advice": self.advice,
        }


@pydantic.dataclasses.dataclass(frozen=True)
class CheckTarget:
    """What to check.

    Where an option is None, the value in Spark's own settings counts, if there is one.
    """

    spark_home: Path | None = option(
        None,
        "Which Spark; else SPARK_HOME, this Python's PySpark, or that of the PATH.",
        "--spark-home",
        "--spark",
    )
    policy: Path | None = option(None, "A policy file.")
    service: str | None = option(None, "HOST:PORT of `parcae serve`.")
    secret_file: Path | None = option(None, "The secret that the service asks for.")
    tls_ca: Path | None = option(None, "Certificates (PEM) that the service's must be signed by.")
    is_run: bool = option(False, "Run a query in a local Spark with the plugin.", "--run")


def examine(target: CheckTarget) -> Iterator[Check]:
    """Run all checks; yields each as soon as it is done.

    Example: `all(check.state is not State.WRONG for check in examine(Target()))`.
    """
    try:
        spark = find_spark(target.spark_home)
        spark.check_supported()
    except ConfigError as error:
        yield _wrong("spark", error)
        spark = None
    # Without a Spark, the checks that do not need one run all the same.
    jar = None
    if spark:
        yield Check(
            "spark", CheckResult.OK, f"{spark.version} for Scala {spark.scala} in {spark.path}"
        )
        jar, check = _check_jar(spark)
        yield check
    if spark and jar:
        yield _guarded("members", lambda: _check_members(spark, jar))
    yield _guarded("java", lambda: _check_java(spark, jar))
    settings = SparkDefaults.of(spark) if spark else SparkDefaults()
    if spark:
        yield from _check_settings(spark, settings, jar)
    files, service = _planner(target, settings)
    if files.get(_POLICY) or not service:
        yield _guarded("policy", lambda: _check_policy(files.get(_POLICY)))
    if service:
        secret = files.get(_SECRET)
        tls_ca = files.get(_TLS_CA)
        yield _guarded("service", lambda: _check_service(service, secret, tls_ca))
    if target.is_run and spark and jar:
        conf = {name: str(path.resolve()) for name, path in files.items()}
        if service:
            conf[_SERVICE] = service
        yield _guarded("run", lambda: _check_run(spark, jar, settings, conf))


def _planner(target: CheckTarget, settings: SparkDefaults) -> tuple[dict[str, Path], str | None]:
    """The files that name who plans, by Spark setting, and the service's address if there is one.

    Options of the command come first, then Spark's own settings.
    """
    values = settings.values
    options = {_POLICY: target.policy, _SECRET: target.secret_file, _TLS_CA: target.tls_ca}
    paths = {name: option or _path(values.get(name)) for name, option in options.items()}
    files = {name: path for name, path in paths.items() if path}
    return files, target.service or values.get(_SERVICE)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _wrong(name: str, error: InputError | OSError) -> Check:
    """A failed check with an error's message, which says what to do."""
    if isinstance(error, OSError):
        return Check(
            name, CheckResult.WRONG, f"{error.filename}: {error.strerror}", "name another file"
        )
    return Check(name, CheckResult.WRONG, " ".join(str(error).split()))


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """Run a check; an error of the input becomes a failed check."""
    try:
        return check()
    except (InputError, OSError) as error:
        return _wrong(name, error)


def _check_jar(spark: SparkHome) -> tuple[Path | None, Check]:
    jar = find_jar(spark)
    if jar is None:
        text = f"none for Spark {spark.version} (Scala {spark.scala})"
        advice = "install a wheel of Parcae that has it, or run `parcae spark build` (needs a JDK)"
        return None, Check("jar", CheckResult.WRONG, text, advice)
    check = _judge_jar("jar", spark, jar)
    # What a wrong jar needs and has is not looked at.
    return (None if check.state is CheckResult.WRONG else jar), check


def _judge_jar(name: str, spark: SparkHome, jar: Path) -> Check:
    """Check whether a jar is for this Spark's Scala line and from this version of Parcae."""
    try:
        note = read_jar_note(jar)
    except ConfigError as error:
        return _wrong(name, error)
    advice = "take the jar that `parcae spark jar` prints"
    text = f"{jar}: Parcae {note.version}, Scala {note.scala}, compiled against {note.spark}"
    if note.scala != spark.scala:
        return Check(
            name, CheckResult.WRONG, f"{text}; this Spark needs Scala {spark.scala}", advice
        )
    if note.version != __version__:
        return Check(name, CheckResult.WARNING, f"{text}; this is Parcae {__version__}", advice)
    return Check(name, CheckResult.OK, text)


@dataclass(frozen=True)
class JarFit:
    """How a jar of the plugin fits a Spark."""

    num_checked: int
    missing: tuple[str, ...]


def check_fit(jar: Path, spark_jars: Path) -> JarFit:
    """Look up everything that the plugin uses in the folder of Spark's jars: the jar can do it.

    Java checks the same, but only when it runs the code that uses a member.
    """
    members = read_jar_note(jar).private_members
    class_path = ":".join(map(str, [jar, *sorted(spark_jars.glob("*.jar"))]))
    done = subprocess.run(
        [find_java(), _FIT_CLASS, *members],
        env={**os.environ, "CLASSPATH": class_path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (line for line in done.stderr.splitlines() if not line.startswith("Picked up"))
        said = next(lines, "no reason given")
        raise ConfigError(
            f"{jar} and {spark_jars} cannot be checked ({said}): replace the damaged jar, or build "
            "the plugin again (`parcae spark build --fresh`)"
        )
    count, *missing = done.stdout.splitlines()
    return JarFit(int(count), tuple(missing))


def known_settings(jar: Path) -> frozenset[str]:
    """The settings `spark.parcae...` that the classes of a jar name."""
    with zipfile.ZipFile(jar) as archive:
        contents = [archive.read(name) for name in archive.namelist() if name.endswith(".class")]
    return frozenset(found.decode() for each in contents for found in _SETTING.findall(each))


def _check_members(spark: SparkHome, jar: Path) -> Check:
    try:
        find_java()
    except ConfigError:  # which the check of Java reports
        text = "what the plugin uses of Spark was not looked up, since that needs a Java"
        return Check("members", CheckResult.WARNING, text, "install one, and run this again")
    fit = check_fit(jar, spark.jars)
    if not fit.missing:
        text = f"Spark has all {fit.num_checked} classes and members that the plugin uses"
        return Check("members", CheckResult.OK, text)
    shown = "; ".join(fit.missing[:_SHOWN_MISSING])
    text = f"Spark lacks {len(fit.missing)} of {fit.num_checked} that the plugin uses: {shown}"
    return Check(
        "members", CheckResult.WRONG, text, "run `parcae spark build --fresh`, or report it"
    )


def _check_java(spark: SparkHome | None, jar: Path | None) -> Check:
    java = find_java()
    release = java_release(java)
    text = f"{release} ({java})"
    needed = read_jar_note(jar).java if jar else 0
    newest = release
    # The entries are in order of version, so the last one that applies decides.
    for since, (oldest, last) in _JAVA_OF_SPARK.items():
        if spark and spark.release >= since:
            needed = max(needed, oldest)
            newest = last
    advice = "install another one, and set JAVA_HOME to it"
    if release < needed:
        why = f"Spark {spark.version} with the plugin" if spark else "the plugin"
        return Check("java", CheckResult.WRONG, f"{text}; {why} needs {needed} or newer", advice)
    if spark and release > newest:
        text += f"; the documents of Spark {spark.version} name {newest} as the newest"
        return Check("java", CheckResult.WARNING, text, advice)
    return Check("java", CheckResult.OK, text)


def _check_settings(spark: SparkHome, settings: SparkDefaults, jar: Path | None) -> Iterator[Check]:
    name = "settings"
    if settings.path is None:
        text = "no spark-defaults.conf: every application brings its own settings"
        yield Check(name, CheckResult.OK, text)
        return
    where = str(settings.path)
    # Spark also loads every jar in its own folder.
    paths = [*settings.class_path(), *spark.jars.iterdir()]
    jars = [path for path in paths if _JAR_NAME.fullmatch(path.name)]
    yield _check_named(where, settings, jars, jar)
    for path in jars:
        if path != jar:
            yield _judge_jar(name, spark, path)
    if len(jars) > 1:
        text = f"the driver's class path has {len(jars)} jars of the plugin; the first one counts"
        yield Check(name, CheckResult.WARNING, text, "leave one of them")
    for text, state, advice in _clashes(settings.values, jar):
        yield Check(name, state, f"{where}: {text}", advice)


def _check_named(where: str, settings: SparkDefaults, jars: list[Path], jar: Path | None) -> Check:
    """Whether the settings name the plugin, and one of the jars that Spark loads has it."""
    is_named = PLUGIN_CLASS in settings.plugins
    if is_named and not jars:
        text = f"{where} names the plugin and no jar: every application fails as it starts"
        return Check("settings", CheckResult.WRONG, text, f"set {CLASS_PATH} to {jar or 'the jar'}")
    if is_named:
        return Check("settings", CheckResult.OK, f"{where} names the plugin and {jars[0]}")
    text = f"{where}: {PLUGINS} does not name {PLUGIN_CLASS}"
    return Check(
        "settings", CheckResult.WARNING, text, "add it, or give it to spark-submit by --conf"
    )


def _clashes(values: Mapping[str, str], jar: Path | None) -> Iterator[tuple[str, CheckResult, str]]:
    """Settings that conflict with the plugin, as (text, state, advice)."""
    master = values.get("spark.master", "")
    if master.startswith(("local-parcae", "spark-parcae")):
        advice = "write the plain master, e.g. local[4] or spark://HOST:PORT"
        yield (
            f"spark.master is {master}, which starts another scheduler of Parcae",
            CheckResult.WRONG,
            advice,
        )
    if values.get("spark.submit.deployMode") == "cluster":
        advice = "make sure that the driver's machine has the jar and the policy file"
        text = "spark.submit.deployMode is cluster: the driver runs on another machine"
        yield text, CheckResult.WARNING, advice
    yield from _clashes_of_pools(values)
    for name, (least, most) in _WHOLE_NUMBERS.items():
        text = values.get(name, str(least))
        # Spark's own times have units ("5s"), the plugin's have none.
        if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
            what = f"{name} is {text}, with which the plugin follows no service"
            yield what, CheckResult.WRONG, f"set it to a whole number from {least} to {most}"
    own = sorted(key for key in values if key.startswith("spark.parcae."))
    if jar is None or not own:
        return
    try:
        known = known_settings(jar)
    except ConfigError:  # a damaged class, which the check of the members names
        return
    for unknown in own:
        if unknown not in known:
            yield (
                f"the plugin has no setting {unknown}",
                CheckResult.WARNING,
                "correct or remove it",
            )


def _clashes_of_pools(values: Mapping[str, str]) -> Iterator[tuple[str, CheckResult, str]]:
    """Settings of pools that do not do what they say, as (text, state, advice)."""
    how = values.get(_POOLS, "")
    is_fair = values.get("spark.scheduler.mode", "FIFO").upper() == "FAIR"
    has_file = "spark.scheduler.allocation.file" in values
    if how not in ("", "keep", "replace"):
        text = f"{_POOLS} is {how}, with which the plugin stays off"
        yield text, CheckResult.WRONG, "set it to keep or replace, or leave it out"
    elif how == "keep" and not is_fair:
        text = f"{_POOLS} is keep and spark.scheduler.mode is not FAIR: the plugin stays off"
        yield text, CheckResult.WRONG, "set spark.scheduler.mode to FAIR"
    elif has_file and not is_fair:
        text = "spark.scheduler.mode is not FAIR, so Spark does not use your pools"
        yield text, CheckResult.WARNING, "set spark.scheduler.mode to FAIR"
    elif has_file and how == "replace":
        text = "the plugin's order overrides your pools"
        yield (
            text,
            CheckResult.WARNING,
            f"leave {_POOLS} out if weights and minimum shares must hold",
        )


def _check_policy(path: Path | None) -> Check:
    if path is None:
        advice = f"write one with `parcae export`, give it with --policy, and set {_POLICY}"
        return Check(
            "policy", CheckResult.WARNING, "no policy file is named, nor a service", advice
        )
    policy = read_policy(path)
    days = (time.time() - path.stat().st_mtime) / _SECONDS_A_DAY
    age = "written today" if days < 1 else f"written {days:.0f} days ago"
    jobs = "1 job" if len(policy.jobs) == 1 else f"{len(policy.jobs)} jobs"
    text = f"{path}: {policy.policy}, version {policy.version}, {jobs}, {age}"
    if not policy.jobs:
        advice = "make one from your own event logs: docs/spark.md"
        return Check("policy", CheckResult.WARNING, f"{text}; it knows no job", advice)
    return Check("policy", CheckResult.OK, text)


def _check_service(service: str, secret_file: Path | None, tls_ca: Path | None) -> Check:
    """Check that the service accepts the plugin, and that the plugin would accept the service."""
    secret = read_short(secret_file).rstrip() if secret_file else None
    if secret is not None and not secret:
        raise ConfigError(f"{secret_file} is empty, and the plugin stays off: write the secret")
    greeting = greet(service, secret, tls_ca)
    text = f"{service} schedules by {greeting.policy}"
    if secret and not greeting.has_secret:
        # The plugin asks every service for a proof, or anyone could give it orders.
        text = f"{text}, and asks for no secret: the plugin takes no orders from it"
        advice = f"start it with --secret-file, or leave {_SECRET} out"
        return Check("service", CheckResult.WRONG, text, advice)
    return Check("service", CheckResult.OK, f"{text}, and takes the secret" if secret else text)


def _check_run(
    spark: SparkHome, jar: Path, settings: SparkDefaults, conf: Mapping[str, str]
) -> Check:
    """Run a short query in a local Spark with the plugin, and check the plugin's log lines."""
    with tempfile.TemporaryDirectory(prefix="parcae-doctor-") as work:
        logging = Path(work) / "log4j2.properties"
        logging.write_text(_LOGGING)
        # The settings of the check replace the user's, so that it runs on this machine and its log
        # can be read.
        trial_conf = {
            **conf,
            **settings.with_plugin(jar),
            "spark.submit.deployMode": "client",
            "spark.parcae.fallbackExecutors": "0",  # a local Spark has no executors to request
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        }
        options = [
            part for name, value in trial_conf.items() for part in ("--conf", f"{name}={value}")
        ]
        submit = [str(spark.command("spark-submit")), "--master", "local[2]", *options]
        try:
            done = subprocess.run(
                [*submit, "--class", _TRIAL_CLASS, str(jar)],
                cwd=work,
                env=environment(spark.path),
                capture_output=True,
                text=True,
                timeout=_TRIAL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            what = f"a local Spark was stopped after {_TRIAL_TIMEOUT_S:g} s"
            raise ConfigError(f"{what}; {_TRY_STOCK}") from error
    return _judge_run(done)


def _reason(lines: list[str]) -> str:
    """The first line with an error, or else the first line."""
    errors = [line for line in lines if "Exception" in line or "Error" in line]
    return " ".join((errors or lines)[:1])


def _judge_run(done: subprocess.CompletedProcess[str]) -> Check:
    """Judge the trial by its exit code, its output and the plugin's log lines."""
    lines = done.stderr.splitlines()
    plugin_lines = [line.partition("parcae: ")[2] for line in lines if "parcae: " in line]
    # A failed query counts more than what the plugin says.
    off = [line for line in plugin_lines if line.startswith("off")]
    if done.returncode or _TRIAL_SAYS not in done.stdout:
        text = f"a local Spark ended with {done.returncode}: {_reason(lines)}"
        return Check("run", CheckResult.WRONG, text, _TRY_STOCK)
    if off:
        return Check("run", CheckResult.WRONG, f"the plugin says: {off[0]}", "see docs/spark.md")
    if not any(line.startswith("on") for line in plugin_lines):
        text = "the plugin says nothing in a local Spark"
        return Check("run", CheckResult.WRONG, text, "please report it")
    return Check(
        "run", CheckResult.OK, f"a local Spark ran a query; the plugin says: {plugin_lines[0]}"
    )
