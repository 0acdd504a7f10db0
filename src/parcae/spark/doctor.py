"""`parcae spark doctor`: checks a Spark installation, the plugin's jar, settings and a service."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from parcae.base.errors import ConfigError, InputError
from parcae.base.loader import read_short
from parcae.base.options import option
from parcae.base.texts import __version__
from parcae.policies.policy_file import read_policy
from parcae.service.client import greet
from parcae.spark import kubernetes
from parcae.spark.home import SparkHome, find_java, find_spark, java_release
from parcae.spark.jar import find_jar, read_jar_note
from parcae.spark.launch import (
    CLASS_PATH,
    FILES,
    PLUGIN_CLASS,
    PLUGINS,
    SHIPPED_FILES,
    SHIPPED_JARS,
    PluginSettings,
    SparkDefaults,
    Where,
    environment,
    local_path,
)

_POLICY = "spark.parcae.policy"
_SERVICE = "spark.parcae.service"
_SECRET = "spark.parcae.secretFile"
_TLS_CA = "spark.parcae.tls.ca"
_POOLS = "spark.parcae.pools"
#: The check of what the driver finds where it runs.
_PLACES = {Where.YARN_CLUSTER: "yarn", Where.KUBERNETES_CLUSTER: "kubernetes"}
#: Settings that name a file which the driver reads.
_READ = (*FILES, "spark.parcae.control", "spark.parcae.state", "spark.scheduler.allocation.file")
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


OK, WARNING, WRONG = CheckResult


class Check(NamedTuple):
    """One line of the doctor's report: what was found, where, and what to do (empty: nothing)."""

    name: str
    state: CheckResult
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields by name; the name is under "check"."""
        return {"check": self.name, **self._asdict()}


#: A check without its name.
Finding = tuple[CheckResult, str, str]


class CheckTarget(BaseModel, frozen=True):
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
    where: Where | None = option(
        None,
        "Where the driver runs: client | yarn-cluster | kubernetes-cluster. (default: by Spark's "
        "own settings)",
    )
    is_run: bool = option(False, "Run a query in a local Spark with the plugin.", "--run")


def examine(target: CheckTarget) -> Iterator[Check]:
    """Run all checks; yields each as soon as it is done.

    Example: `all(check.state is not CheckResult.WRONG for check in examine(CheckTarget()))`.
    """
    spark = jar = None
    try:
        found = find_spark(target.spark_home)
        found.check_supported()
    except ConfigError as error:
        yield _wrong("spark", error)
    else:
        spark = found
        yield Check("spark", OK, f"{spark.version} for Scala {spark.scala} in {spark.path}")
    # Without a Spark, the checks that do not need one run all the same.
    settings = SparkDefaults()
    if spark:
        settings = SparkDefaults.of(spark)
        try:
            found_jar = find_jar(spark)
        except ConfigError as error:
            yield _wrong("jar", error)
        else:
            check = _guarded("jar", partial(_judge_jar, spark, found_jar))
            yield check
            # What a wrong jar needs and has is not looked at.
            jar = None if check.state is WRONG else found_jar
    if spark and jar:
        yield _guarded("members", lambda: _check_members(spark, jar))
    yield _guarded("java", lambda: _check_java(spark, jar))
    where = target.where or settings.where
    if spark:
        for finding in _check_settings(spark, settings, jar, where):
            yield Check("settings", *finding)
    files, service = _planner(target, settings, where)
    if where is not Where.CLIENT:
        for finding in _check_container(settings, service, where):
            yield Check(_PLACES[where], *finding)
    if files.get(_POLICY) or not service:
        yield _guarded("policy", lambda: _check_policy(files.get(_POLICY)))
    if service:
        yield _guarded(
            "service", lambda: _check_service(service, files.get(_SECRET), files.get(_TLS_CA))
        )
    if target.is_run and spark and jar:
        conf = {name: str(path.resolve()) for name, path in files.items()}
        if service:
            conf[_SERVICE] = service
        yield _guarded("run", lambda: _check_run(spark, jar, settings, conf))


def _planner(
    target: CheckTarget, settings: SparkDefaults, where: Where
) -> tuple[dict[str, Path], str | None]:
    """The files that name who plans, by Spark setting, and the service's address if there is one.

    Options of the command come first, then Spark's own settings.
    """
    values = settings.values
    shipped = settings.shipped() if where is Where.YARN_CLUSTER else {}
    # What a Secret brings to a pod is not looked at.
    files = {
        name: option or shipped.get(values[name], Path(values[name]))
        for name, option in (
            (_POLICY, target.policy),
            (_SECRET, target.secret_file),
            (_TLS_CA, target.tls_ca),
        )
        if option or (values.get(name) and not _is_in_pod(values[name], where))
    }
    return files, target.service or values.get(_SERVICE)


def _is_in_pod(path: str, where: Where) -> bool:
    """Whether a file is one of the Secret in the driver's pod."""
    return where is Where.KUBERNETES_CLUSTER and path.startswith(f"{kubernetes.MOUNT}/")


def _wrong(name: str, error: InputError | OSError) -> Check:
    """A failed check with an error's message, which says what to do."""
    if isinstance(error, OSError):
        return Check(name, WRONG, f"{error.filename}: {error.strerror}", "name another file")
    return Check(name, WRONG, " ".join(str(error).split()))


def _guarded(name: str, check: Callable[[], Finding]) -> Check:
    """Run a check; an error of the input becomes a failed check."""
    try:
        return Check(name, *check())
    except (InputError, OSError) as error:
        return _wrong(name, error)


def _judge_jar(spark: SparkHome, jar: Path) -> Finding:
    """Check whether a jar is for this Spark's Scala line and from this version of Parcae."""
    note = read_jar_note(jar)
    advice = "take the jar that `parcae spark jar` prints"
    text = f"{jar}: Parcae {note.version}, Scala {note.scala}, compiled against {note.spark}"
    if note.scala != spark.scala:
        return WRONG, f"{text}; this Spark needs Scala {spark.scala}", advice
    if note.version != __version__:
        return WARNING, f"{text}; this is Parcae {__version__}", advice
    return OK, text, ""


def check_fit(jar: Path, spark_jars: Path) -> tuple[int, list[str]]:
    """Look up everything that the plugin uses in the folder of Spark's jars: the jar can do it.

    Java checks the same, but only when it runs the code that uses a member. Returns how many
    members were looked up, and those that are missing.
    """
    class_path = ":".join(map(str, [jar, *sorted(spark_jars.glob("*.jar"))]))
    done = subprocess.run(
        [find_java(), _FIT_CLASS],
        env={**os.environ, "CLASSPATH": class_path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (line for line in done.stderr.splitlines() if not line.startswith("Picked up"))
        said = next(lines, "no reason given")
        raise ConfigError(
            f"{jar} and {spark_jars} cannot be checked ({said}): replace the damaged jar"
        )
    count, *missing = done.stdout.splitlines()
    return int(count), missing


def known_settings(jar: Path) -> frozenset[str]:
    """The settings `spark.parcae...` that the classes of a jar name."""
    with zipfile.ZipFile(jar) as archive:
        contents = [archive.read(name) for name in archive.namelist() if name.endswith(".class")]
    return frozenset(found.decode() for each in contents for found in _SETTING.findall(each))


def _check_members(spark: SparkHome, jar: Path) -> Finding:
    try:
        find_java()
    except ConfigError:  # which the check of Java reports
        text = "what the plugin uses of Spark was not looked up, since that needs a Java"
        return WARNING, text, "install one, and run this again"
    num_checked, missing = check_fit(jar, spark.jars)
    if not missing:
        return OK, f"Spark has all {num_checked} classes and members that the plugin uses", ""
    shown = "; ".join(missing[:_SHOWN_MISSING])
    text = f"Spark lacks {len(missing)} of {num_checked} that the plugin uses: {shown}"
    return WRONG, text, "please report it"


def _check_java(spark: SparkHome | None, jar: Path | None) -> Finding:
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
        return WRONG, f"{text}; {why} needs {needed} or newer", advice
    if spark and release > newest:
        text += f"; the documents of Spark {spark.version} name {newest} as the newest"
        return WARNING, text, advice
    return OK, text, ""


def _check_container(
    settings: SparkDefaults, service: str | None, where: Where
) -> Iterator[Finding]:
    """What the driver finds in its container or pod: only what YARN or a Secret brings there."""
    is_yarn = where is Where.YARN_CLUSTER
    values = settings.values
    is_whole = True
    if is_yarn and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
        yield WARNING, "neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set", "set one of them"
    if not is_yarn and not settings.secret:
        is_whole = False
        text = f"no Secret is mounted at {kubernetes.MOUNT} in the driver's pod"
        yield WARNING, text, "set what `parcae spark kubernetes --as properties` prints"
    shipped = settings.shipped() if is_yarn else {}
    for name in _READ:
        value = values.get(name, "")
        if not value or value in shipped or "://" in value or _is_in_pod(value, where):
            continue
        is_whole = False
        advice = f"set it to a name, and add FILE#NAME to {SHIPPED_FILES}"
        if not is_yarn:
            advice = "set what `parcae spark kubernetes --as properties` prints"
        if name not in FILES:
            advice = "name a file that every node can read, as on hdfs://"
        if is_yarn and "/" not in value:
            yield WRONG, f"{name} is {value}, which YARN copies to no container", advice
        elif local_path(value).exists():
            text = f"{name} is {value}, a path of this machine; the driver runs on another one"
            yield WARNING, text, advice
    if service and service.rpartition(":")[0] in ("localhost", "127.0.0.1", "[::1]"):
        is_whole = False
        text = f"{service} is the driver's own machine, which is another one"
        yield WARNING, text, "name the host of `parcae serve`"
    if is_whole and is_yarn:
        yield OK, "the driver runs in a container; YARN copies the files that it reads", ""
    elif is_whole:
        yield OK, f"the driver runs in a pod with the Secret {settings.secret}", ""


def _check_settings(
    spark: SparkHome, settings: SparkDefaults, jar: Path | None, where: Where
) -> Iterator[Finding]:
    if settings.path is None:
        yield OK, "no spark-defaults.conf: every application brings its own settings", ""
        return
    source = str(settings.path)
    # Spark also loads every jar in its own folder.
    paths = [*settings.class_path(where), *spark.jars.iterdir()]
    jars = [path for path in paths if _JAR_NAME.fullmatch(path.name)]
    # Whether the settings name the plugin, and one of the jars that Spark loads has it.
    if PLUGIN_CLASS not in settings.plugins:
        text = f"{source}: {PLUGINS} does not name {PLUGIN_CLASS}"
        yield WARNING, text, "add it, or give it to spark-submit by --conf"
    elif jars:
        yield OK, f"{source} names the plugin and {jars[0]}", ""
    elif where is Where.YARN_CLUSTER and any(
        _JAR_NAME.fullmatch(path.name) for path in settings.class_path()
    ):
        text = f"{source}: {CLASS_PATH} names a jar of the plugin, which YARN copies to no node"
        yield WARNING, text, f"name it in {SHIPPED_JARS}, or have it on every node"
    else:
        text = f"{source} names the plugin and no jar: every application fails as it starts"
        name = SHIPPED_JARS if where is Where.YARN_CLUSTER else CLASS_PATH
        yield WRONG, text, f"set {name} to {jar or 'the jar'}"
    for path in jars:
        if path != jar and not _is_in_pod(str(path), where):
            yield _guarded("settings", partial(_judge_jar, spark, path))[1:]
    if len(jars) > 1:
        text = f"the driver's class path has {len(jars)} jars of the plugin; the first one counts"
        yield WARNING, text, "leave one of them"
    for state, text, advice in _clashes(settings, jar):
        yield state, f"{source}: {text}", advice


def _clashes(settings: SparkDefaults, jar: Path | None) -> Iterator[Finding]:
    """Settings that conflict with the plugin."""
    values = settings.values
    master = values.get("spark.master", "")
    if master.startswith(("local-parcae", "spark-parcae")):
        text = f"spark.master is {master}, which starts another scheduler of Parcae"
        yield WRONG, text, "write the plain master, e.g. local[4] or spark://HOST:PORT"
    is_cluster = values.get("spark.submit.deployMode") == "cluster"
    if is_cluster and settings.where is Where.CLIENT:
        text = "spark.submit.deployMode is cluster: the driver runs on another machine"
        yield WARNING, text, "make sure that the driver's machine has the jar and the policy file"
    yield from _clashes_of_pools(values)
    for name, (least, most) in _WHOLE_NUMBERS.items():
        value = values.get(name, str(least))
        # Spark's own times have units ("5s"), the plugin's have none.
        if not re.fullmatch("[0-9]{1,9}", value) or not least <= int(value) <= most:
            text = f"{name} is {value}, with which the plugin follows no service"
            yield WRONG, text, f"set it to a whole number from {least} to {most}"
    own = sorted(key for key in values if key.startswith("spark.parcae."))
    if jar is None or not own:
        return
    # A damaged class is named by the check of the members.
    with contextlib.suppress(ConfigError):
        known = known_settings(jar)
        for unknown in (name for name in own if name not in known):
            yield WARNING, f"the plugin has no setting {unknown}", "correct or remove it"


def _clashes_of_pools(values: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of pools that do not do what they say."""
    how = values.get(_POOLS, "")
    is_fair = values.get("spark.scheduler.mode", "FIFO").upper() == "FAIR"
    has_file = "spark.scheduler.allocation.file" in values
    if how not in ("", "keep", "replace"):
        text = f"{_POOLS} is {how}, with which the plugin stays off"
        yield WRONG, text, "set it to keep or replace, or leave it out"
    elif how == "keep" and not is_fair:
        text = f"{_POOLS} is keep and spark.scheduler.mode is not FAIR: the plugin stays off"
        yield WRONG, text, "set spark.scheduler.mode to FAIR"
    elif has_file and not is_fair:
        text = "spark.scheduler.mode is not FAIR, so Spark does not use your pools"
        yield WARNING, text, "set spark.scheduler.mode to FAIR"
    elif has_file and how == "replace":
        advice = f"leave {_POOLS} out if weights and minimum shares must hold"
        yield WARNING, "the plugin's order overrides your pools", advice


def _check_policy(path: Path | None) -> Finding:
    if path is None:
        return OK, "no file is named: the plugin plans by `account`, with what it learns", ""
    policy = read_policy(path)
    days = (time.time() - path.stat().st_mtime) / _SECONDS_A_DAY
    age = "written today" if days < 1 else f"written {days:.0f} days ago"
    jobs = "1 job" if len(policy.jobs) == 1 else f"{len(policy.jobs)} jobs"
    text = f"{path}: {policy.policy}, version {policy.version}, {jobs}, {age}"
    if not policy.jobs:
        return (
            WARNING,
            f"{text}; it knows no job",
            "make one from your own event logs: docs/spark.md",
        )
    return OK, text, ""


def _check_service(service: str, secret_file: Path | None, tls_ca: Path | None) -> Finding:
    """Check that the service accepts the plugin, and that the plugin would accept the service."""
    secret = read_short(secret_file).rstrip() if secret_file else None
    if secret is not None and not secret:
        raise ConfigError(f"{secret_file} is empty, and the plugin stays off: write the secret")
    welcome = greet(service, secret, tls_ca)
    text = f"{service} schedules by {welcome.policy}"
    if secret and welcome.mac is None:
        # The plugin asks every service for a proof, or anyone could give it orders.
        text = f"{text}, and asks for no secret: the plugin takes no orders from it"
        return WRONG, text, f"start it with --secret-file, or leave {_SECRET} out"
    return OK, f"{text}, and takes the secret" if secret else text, ""


def _check_run(
    spark: SparkHome, jar: Path, settings: SparkDefaults, conf: Mapping[str, str]
) -> Finding:
    """Run a short query in a local Spark with the plugin, and check the plugin's log lines."""
    with tempfile.TemporaryDirectory(prefix="parcae-doctor-") as work:
        logging = Path(work) / "log4j2.properties"
        logging.write_text(_LOGGING)
        # The settings of the check replace the user's, so that it runs on this machine and its log
        # can be read.
        trial_conf = {
            **conf,
            **settings.joined(PluginSettings(jar).conf()),
            "spark.submit.deployMode": "client",
            "spark.parcae.fallbackExecutors": "0",  # a local Spark has no executors to request
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        }
        options = [f"--conf={name}={value}" for name, value in trial_conf.items()]
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


def _judge_run(done: subprocess.CompletedProcess[str]) -> Finding:
    """Judge the trial by its exit code, its output and the plugin's log lines."""
    lines = done.stderr.splitlines()
    said = [line.partition("parcae: ")[2] for line in lines if "parcae: " in line]
    # A failed query counts more than what the plugin says.
    if done.returncode or _TRIAL_SAYS not in done.stdout:
        errors = [line for line in lines if "Exception" in line or "Error" in line]
        reason = " ".join((errors or lines)[:1])
        return WRONG, f"a local Spark ended with {done.returncode}: {reason}", _TRY_STOCK
    for line in said:
        if line.startswith("off"):
            return WRONG, f"the plugin says: {line}", "see docs/spark.md"
    if not any(line.startswith("on") for line in said):
        return WRONG, "the plugin says nothing in a local Spark", "please report it"
    return OK, f"a local Spark ran a query; the plugin says: {said[0]}", ""
