"""Tests of the doctor: right and wrong Sparks, jars, settings, policy files and services."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.cli.main import app
from parcae.policies.policy_file import export_policy, write_policy
from parcae.service.client import greet
from parcae.service.protocol import frame
from parcae.spark import doctor
from parcae.spark.doctor import Check, CheckResult, CheckTarget, check_fit, examine
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.spark.launch import SparkDefaults, Where
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.spark.fake_service import FakeService
from tests.spark.greeter import Door
from tests.spark.needs import needs_spark

_PLUGIN = "parcae.spark.ParcaePlugin"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.json"
    write_policy(export_policy("srpt", Workload("w", (chain(1, 4, 100, "one"),))), path)
    return path


@pytest.fixture
def jar() -> Path:
    return find_jar(find_spark())


def _write_jar(path: Path, version: str = __version__, scala: str = "2.13") -> None:
    """A jar that says what it is, and holds nothing else."""
    with zipfile.ZipFile(path, "w") as archive:
        note = f"version={version}\nscala={scala}\nspark=3.3.4\njava=11\n"
        archive.writestr("parcae/spark/build.properties", note)


@pytest.fixture
def spark_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a Spark with the installed one's jars and other settings."""
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)

    def make(*lines: str) -> Path:
        home = tmp_path / "spark"
        (home / "conf").mkdir(parents=True)
        (home / "jars").symlink_to(find_spark().jars)
        (home / "conf" / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
        return home

    return make


def _checks(name: str, **options: Any) -> list[Check]:
    """The doctor's lines of that name; without a Spark unless one is given."""
    options.setdefault("spark_home", Path("/nowhere"))
    return [check for check in examine(CheckTarget(**options)) if check.name == name]


@needs_spark
def test_a_whole_installation_is_right(
    spark_with: Callable[..., Path], jar: Path, policy: Path
) -> None:
    home = spark_with(
        "# the plugin",
        f"spark.plugins           {_PLUGIN}",
        f"spark.driver.extraClassPath={jar}",
        f"spark.parcae.policy : {policy}",
    )
    checks = list(examine(CheckTarget(spark_home=home)))
    assert [check.name for check in checks] == [
        "spark",
        "jar",
        "members",
        "java",
        "settings",
        "policy",
    ]
    assert {check.state for check in checks} == {CheckResult.OK}
    assert f"{policy}: srpt, version 3, 1 job, written today" in checks[-1].text


def _without_note(name: str, content: bytes) -> tuple[str, bytes]:
    return (name, b"" if name.endswith("build.properties") else content)


def _with_a_cut_class(name: str, content: bytes) -> tuple[str, bytes]:
    return (name, content[:100] if name.endswith("/ParcaePlugin.class") else content)


@needs_spark
@pytest.mark.parametrize(
    ("changed", "wrong", "text"),
    [
        (_without_note, "jar", "is no jar of the plugin"),
        (_with_a_cut_class, "members", "ParcaePlugin.class: java.io.EOFException"),
    ],
)
def test_a_damaged_jar_is_named_once_and_everything_else_is_checked(
    spark_with: Callable[..., Path],
    jar: Path,
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[str, bytes], tuple[str, bytes]],
    wrong: str,
    text: str,
) -> None:
    damaged = tmp_path / jar.name
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(damaged, "w") as target:
        for name in source.namelist():
            target.writestr(*changed(name, source.read(name)))
    monkeypatch.setattr(doctor, "find_jar", lambda _: damaged)
    home = spark_with("spark.parcae.orderTtlMs 900")
    checks = list(examine(CheckTarget(spark_home=home, policy=policy)))
    (found,) = [check for check in checks if check.state is CheckResult.WRONG]
    assert found.name == wrong
    assert text in found.text
    assert [check.name for check in checks][-3:] == ["java", "settings", "policy"]


@needs_spark
def test_a_damaged_jar_of_a_spark_is_named(jar: Path, tmp_path: Path) -> None:
    core = next(find_spark().jars.glob("spark-core_*.jar"))
    with zipfile.ZipFile(core) as archive:
        start = archive.getinfo("org/apache/spark/scheduler/Pool.class").header_offset
    content = bytearray(core.read_bytes())
    content[start + 100 : start + 400] = bytes(300)
    (tmp_path / core.name).write_bytes(content)
    assert "the class org.apache.spark.scheduler.Pool" in check_fit(jar, tmp_path)[1]


@needs_spark
@pytest.mark.parametrize(
    ("lines", "state", "text"),
    [
        (["spark.master local[2]"], CheckResult.WARNING, f"does not name {_PLUGIN}"),
        ([f"spark.plugins {_PLUGIN}"], CheckResult.WRONG, "names the plugin and no jar"),
        (["spark.master local-parcae[4]"], CheckResult.WRONG, "another scheduler"),
        (["spark.submit.deployMode cluster"], CheckResult.WARNING, "on another machine"),
        (
            ["spark.scheduler.allocation.file /p.xml"],
            CheckResult.WARNING,
            "does not use your pools",
        ),
        (
            [
                "spark.scheduler.allocation.file /p.xml",
                "spark.scheduler.mode FAIR",
                "spark.parcae.pools replace",
            ],
            CheckResult.WARNING,
            "overrides your pools",
        ),
        (
            ["spark.parcae.pools keep"],
            CheckResult.WRONG,
            "is keep and spark.scheduler.mode is not FAIR",
        ),
        (["spark.parcae.pools on"], CheckResult.WRONG, "is on, with which the plugin stays off"),
        (["spark.parcae.orderTtlMs 5s"], CheckResult.WRONG, "orderTtlMs is 5s, with which"),
        (["spark.parcae.retryMs 99"], CheckResult.WRONG, "retryMs is 99, with which"),
        (
            ["spark.parcae.fallbackExecutors -1"],
            CheckResult.WRONG,
            "fallbackExecutors is -1, with which",
        ),
        (["spark.parcae.polcy /x"], CheckResult.WARNING, "no setting spark.parcae.polcy"),
        (
            ["spark.jars /nowhere/parcae-spark.jar", f"spark.plugins a.B, {_PLUGIN}"],
            CheckResult.WRONG,
            "is no jar of the plugin",
        ),
    ],
)
def test_settings_that_do_not_go_with_the_plugin_are_named(
    spark_with: Callable[..., Path], jar: Path, lines: list[str], state: CheckResult, text: str
) -> None:
    assert jar.exists()
    spark = find_spark(spark_with(*lines))
    checks = _of_settings(spark, jar)
    assert state in {check.state for check in checks if text in check.text}, checks


def _of_settings(spark: SparkHome, jar: Path | None) -> list[Check]:
    settings = SparkDefaults.of(spark)
    found = doctor._check_settings(spark, settings, jar, settings.where)
    return [Check("settings", *finding) for finding in found]


@needs_spark
def test_a_folder_of_jars_may_be_on_the_class_path(
    spark_with: Callable[..., Path], jar: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / jar.name).symlink_to(jar)
    lines = (f"spark.driver.extraClassPath {folder}/*", f"spark.plugins {_PLUGIN}")
    spark = find_spark(spark_with(*lines))
    checks = _of_settings(spark, jar)
    assert {check.state for check in checks} == {CheckResult.OK}, checks


@needs_spark
def test_a_jar_of_another_line_or_version_is_named(
    spark_with: Callable[..., Path], tmp_path: Path
) -> None:
    """One jar in the installation's settings, another one on the driver's class path."""
    other = tmp_path / "parcae-spark_2.12.jar"
    old = tmp_path / "parcae-spark-old.jar"
    _write_jar(other, scala="2.12")
    _write_jar(old, version="0.0.1")
    home = spark_with(f"spark.plugins {_PLUGIN}", f"spark.driver.extraClassPath {other}:{old}")
    spark = find_spark(home)
    checks = _of_settings(spark, None)
    found = [(check.state, check.text) for check in checks]
    assert any(state is CheckResult.WRONG and "needs Scala 2.13" in text for state, text in found)
    assert any(state is CheckResult.WARNING and "Parcae 0.0.1" in text for state, text in found)
    assert any("2 jars of the plugin" in text for _, text in found)


_IN_YARN = ("spark.master yarn", "spark.submit.deployMode cluster")


@pytest.mark.parametrize(
    ("lines", "state", "text"),
    [
        ([], CheckResult.OK, "YARN copies the files that it reads"),
        (
            ["spark.parcae.policy HERE"],
            CheckResult.WARNING,
            "policy is HERE, a path of this machine; the driver runs on another one",
        ),
        (["spark.parcae.control file://HERE"], CheckResult.OK, "YARN copies"),
        (["spark.parcae.control HERE"], CheckResult.WARNING, "control is HERE, a path of this"),
        (["spark.scheduler.allocation.file HERE"], CheckResult.WARNING, "file is HERE, a path"),
        (["spark.parcae.policy policy.json"], CheckResult.WRONG, "YARN copies to no container"),
        (["spark.parcae.policy HERE", "spark.files HERE"], CheckResult.WARNING, "a path of this"),
        (["spark.parcae.policy policy.json", "spark.files HERE"], CheckResult.OK, "copies the"),
        (
            ["spark.parcae.policy p", "spark.yarn.dist.files /x,file://HERE#p"],
            CheckResult.OK,
            "srpt, version 3, 1 job",
        ),
        (
            ["spark.parcae.service 127.0.0.1:7177"],
            CheckResult.WARNING,
            "is the driver's own machine",
        ),
    ],
)
def test_what_a_driver_in_yarn_cannot_read_is_named(
    tmp_path: Path,
    policy: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: list[str],
    state: CheckResult,
    text: str,
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    (tmp_path / "conf").mkdir()
    written = "\n".join([*_IN_YARN, *lines]).replace("HERE", str(policy))
    (tmp_path / "conf" / "spark-defaults.conf").write_text(written)
    checks = [one for name in ("yarn", "policy") for one in _checks(name, spark_home=tmp_path)]
    found = [one for one in checks if text.replace("HERE", str(policy)) in one.text]
    assert [one.state for one in found] == [state], checks
    if state is not CheckResult.OK:
        assert [one.state for one in checks if one.name == "yarn"] == [state]
    # Beside the user, the driver reads its files here.
    assert _checks("yarn", spark_home=tmp_path, where=Where.CLIENT) == []


def test_the_jar_of_a_driver_in_yarn_is_copied_or_on_every_node(tmp_path: Path) -> None:
    jar = tmp_path / "parcae-spark.jar"
    spark = SparkHome(tmp_path, "4.3.0", "2.13")
    (tmp_path / "jars").mkdir()

    def states(**values: str) -> set[CheckResult]:
        given = {name.replace("_", "."): value for name, value in values.items()}
        named = {"spark.plugins": _PLUGIN, **dict(line.split() for line in _IN_YARN), **given}
        settings = SparkDefaults(tmp_path / "conf", named)
        found = [*doctor._check_settings(spark, settings, jar, settings.where)]
        return {state for state, text, _ in found if "jar" in text}

    assert states() == {CheckResult.WRONG}
    assert states(spark_driver_extraClassPath=str(jar)) == {CheckResult.WARNING}
    assert states(spark_yarn_dist_jars=f"hdfs://x.jar,{jar.as_uri()}") == {CheckResult.OK}
    assert states(spark_jars=str(jar)) == {CheckResult.OK}


_IN_A_POD = (
    "spark.master k8s://https://h:6443",
    "spark.submit.deployMode cluster",
    f"spark.plugins {_PLUGIN}",
    "spark.driver.extraClassPath /opt/parcae/parcae-spark.jar",
    "spark.parcae.policy /opt/parcae/parcae-policy.json",
)
_MOUNTED = "spark.kubernetes.driver.secrets.nightly /opt/parcae"


@pytest.mark.parametrize(
    ("lines", "state", "text"),
    [
        ([_MOUNTED], CheckResult.OK, "the driver runs in a pod with the Secret nightly"),
        ([], CheckResult.WARNING, "no Secret is mounted at /opt/parcae in the driver's pod"),
        (
            [_MOUNTED, "spark.parcae.secretFile HERE"],
            CheckResult.WARNING,
            "spark.parcae.secretFile is HERE, a path of this machine; "
            "the driver runs on another one",
        ),
        (
            [_MOUNTED, "spark.parcae.service localhost:7177"],
            CheckResult.WARNING,
            "localhost:7177 is the driver's own machine, which is another one",
        ),
    ],
)
def test_what_a_driver_in_a_pod_cannot_read_is_named(
    tmp_path: Path,
    policy: Path,
    spark_with: Callable[..., Path],
    lines: list[str],
    state: CheckResult,
    text: str,
) -> None:
    home = spark_with(*_IN_A_POD, *lines)
    path = home / "conf" / "spark-defaults.conf"
    path.write_text(path.read_text().replace("HERE", str(policy)))
    (check,) = _checks("kubernetes", spark_home=home)
    assert (check.state, check.text) == (state, text.replace("HERE", str(policy)))
    # What the Secret brings is not looked for on this machine.
    others = [one for name in ("settings", "policy") for one in _checks(name, spark_home=home)]
    assert {one.state for one in others} <= {CheckResult.OK}, others


def test_no_spark_and_an_old_one_are_wrong(tmp_path: Path) -> None:
    (check,) = _checks("spark", spark_home=tmp_path)
    assert check.state is CheckResult.WRONG
    assert "is no Spark" in check.text
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.2.4.jar").touch()
    (check,) = _checks("spark", spark_home=tmp_path)
    assert check.state is CheckResult.WRONG
    assert "needs 3.3 or newer" in check.text


def test_a_missing_jar_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parcae.spark.jar.jars_folder", lambda: tmp_path)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.9.jar").touch()
    (check,) = _checks("jar", spark_home=tmp_path)
    assert check.state is CheckResult.WRONG
    assert "no jar for Spark 3.5.9 (Scala 2.12): this is a checkout: run `make jars`" in check.text


@needs_spark
@pytest.mark.parametrize(
    ("release", "version", "state", "text"),
    [
        (17, "4.3.0", CheckResult.OK, "17 ("),
        (11, "4.3.0", CheckResult.WRONG, "needs 17 or newer"),
        (8, "3.5.9", CheckResult.WRONG, "needs 11 or newer"),
        (11, "3.3.4", CheckResult.OK, "11 ("),
        (25, "3.5.9", CheckResult.WARNING, "name 17 as the newest"),
        (25, "4.3.0", CheckResult.OK, "25 ("),
    ],
)
def test_the_java_must_be_one_for_spark_and_the_jar(
    jar: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: int,
    version: str,
    state: CheckResult,
    text: str,
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = Check("java", *doctor._check_java(SparkHome(tmp_path, version, "2.13"), jar))
    assert check.state is state
    assert text in check.text


@needs_spark
def test_without_a_java_everything_else_is_checked(
    spark_with: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jar: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    checks = {check.name: check for check in examine(CheckTarget(spark_home=spark_with()))}
    assert (checks["members"].state, checks["java"].state) == (
        CheckResult.WARNING,
        CheckResult.WRONG,
    )
    assert "was not looked up, since that needs a Java" in checks["members"].text


def test_policy_files_are_read(policy: Path, tmp_path: Path) -> None:
    assert _checks("policy", policy=policy)[0].state is CheckResult.OK
    (check,) = _checks("policy", policy=tmp_path / "nowhere.json")
    assert check.state is CheckResult.WRONG
    assert "nowhere.json: No such file" in check.text
    policy.write_text("{}")
    (check,) = _checks("policy", policy=policy)
    assert check.state is CheckResult.WRONG
    assert "write one with `parcae export`" in check.text


@pytest.fixture
def open_door() -> Iterator[Callable[..., Door]]:
    doors = list[Door]()

    def make(**how: Any) -> Door:
        doors.append(Door(**how))
        return doors[-1]

    yield make
    for door in doors:
        door.close()


def test_a_service_is_greeted_and_left(open_door: Callable[..., Door]) -> None:
    door = open_door()
    (check,) = _checks("service", service=door.address)
    assert check == Check("service", CheckResult.OK, f"{door.address} schedules by srpt")
    door.close()
    assert [message["type"] for message in door.received] == ["hello", "bye"]
    assert door.received[0]["protocol"] == 2


def test_the_secret_is_proved_both_ways(open_door: Callable[..., Door], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret that nobody guesses\n")
    door = open_door(secret=b"a secret that nobody guesses")
    (check,) = _checks("service", service=door.address, secret_file=secret)
    assert check.state is CheckResult.OK
    assert check.text.endswith("and takes the secret")
    door = open_door(secret=b"another secret")
    (check,) = _checks("service", service=door.address, secret_file=secret)
    assert check.state is CheckResult.WRONG
    assert "refuses (denied)" in check.text
    assert "the proof is wrong" in check.text


def test_a_secret_with_which_the_plugin_takes_no_orders_is_wrong(
    open_door: Callable[..., Door], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    address = open_door().address
    secret.write_text("a secret that nobody guesses")
    (check,) = _checks("service", service=address, secret_file=secret)
    assert check.state is CheckResult.WRONG
    assert "asks for no secret" in check.text
    secret.write_text("\n")
    (check,) = _checks("service", service=address, secret_file=secret)
    assert check.state is CheckResult.WRONG
    assert "is empty" in check.text


_KNOWN = b"a secret that nobody guesses"


@pytest.mark.parametrize(
    ("door", "secret", "message"),
    [
        ({"secret": _KNOWN}, None, "give its file with --secret-file"),
        ({"secret": _KNOWN, "is_impostor": True}, _KNOWN, "does not know the secret: is it your"),
        ({"protocol": 3}, None, r"bad_protocol.*version 2 is not spoken: 3 is"),
        ({"says": b"HTTP/1.1 400 Bad Request\r\n\r\n"}, None, "not a Parcae service: a frame"),
        ({"says": frame(b"\xff{]")}, None, "not a Parcae service: the message: Invalid JSON"),
        ({"says": frame(b"[]")}, None, "not a Parcae service: .* object"),
        ({"says": struct.pack(">I", 99) + b"[]"}, None, "closed the connection"),
        ({"says": frame(b'{"type":"pong","seq":1}')}, None, "sent pong; Welcome was expected"),
    ],
)
def test_what_is_no_service_for_the_plugin_is_said(
    open_door: Callable[..., Door], door: dict[str, Any], secret: bytes | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        greet(open_door(**door).address, secret)


def test_a_service_that_is_not_there_or_silent_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConfigError, match=r"does not answer within 0\.1 s"):
            greet(f"127.0.0.1:{port}", timeout_s=0.1)
    with pytest.raises(ConfigError, match=r"nothing listens at .*parcae serve"):
        greet(f"127.0.0.1:{port}")
    with pytest.raises(ConfigError, match="cannot be reached"):
        greet("a..b:7177")


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    """It says nothing about the service, which may run."""
    (tmp_path / "empty.pem").touch()
    for name in ("absent.pem", "empty.pem"):
        with pytest.raises(ConfigError, match=f"{name} is no file of CA certificates"):
            greet("127.0.0.1:7177", tls_ca=tmp_path / name)


@needs_spark
def test_a_local_spark_runs_with_the_plugin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jar: Path, policy: Path
) -> None:
    """The command: a right Spark, a line of the plugin's log, JSON, and exit code 0.

    Settings of the installation that only a cluster can follow are not in the way.
    """
    assert jar.exists()
    service = FakeService()
    settings = {
        "spark.submit.deployMode": "cluster",
        "spark.parcae.service": f"127.0.0.1:{service.port}",
        "spark.parcae.fallbackExecutors": "4",
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    (tmp_path / "spark-defaults.conf").write_text(lines)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    words = ["spark", "doctor", "--policy", str(policy), "--run", "--json"]
    port = service.port
    done = CliRunner().invoke(app, words)
    service.close()
    report = json.loads(done.stdout)
    (run,) = [check for check in report["checks"] if check["check"] == "run"]
    assert f"the plugin says: on, by the service 127.0.0.1:{port}" in run["text"]
    assert f"srpt by {policy}" in run["text"]
    assert report["is_right"]
    assert done.exit_code == 0


def test_something_wrong_is_exit_code_1(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["spark", "doctor", "--spark", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.startswith("wrong   spark: ")
    (line,) = [line for line in done.stdout.splitlines() if " policy: " in line]
    assert line.startswith("ok      policy: no file is named: the plugin plans by `account`")


@pytest.mark.parametrize(
    ("code", "out", "err", "text"),
    [
        (0, "sum 499500", "INFO parcae: off, Spark schedules by itself: x", "says: off, Spark"),
        (0, "sum 499500", "WARN else", "says nothing"),
        (0, "sum 1", "INFO parcae: on, srpt", "ended with 0"),
        (1, "", "java.lang.ClassNotFoundException: a.B", "ended with 1: java.lang.ClassNotFound"),
    ],
)
def test_a_trial_that_fails_is_wrong(code: int, out: str, err: str, text: str) -> None:
    check = Check("run", *doctor._judge_run(subprocess.CompletedProcess([], code, out, err)))
    assert check.state is CheckResult.WRONG
    assert text in check.text
