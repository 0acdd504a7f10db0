"""Tests of finding Spark, compiling the plugin, and the settings of applications."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.spark.replaying import running_service
from typer.testing import CliRunner

from parcae.base.errors import ConfigError
from parcae.cli.main import app
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.launch import (
    CLASS_PATH,
    PLUGIN_CLASS,
    PLUGINS,
    PluginSettings,
    SparkDefaults,
    environment,
    is_local,
    spark_arguments,
)
from tests.cli.running import run
from tests.spark.needs import needs_spark

SETTINGS = PluginSettings(Path("/cache/plugin.jar"), service="127.0.0.1:7177")
#: A Spark without settings of its own.
SPARK = SparkHome(Path("/nowhere"), "4.3.0", "2.13")


def test_only_the_jar_is_needed() -> None:
    least = {"spark.driver.extraClassPath": "a.jar", "spark.plugins": PLUGIN_CLASS}
    assert PluginSettings(Path("a.jar")).conf() == least
    secret, trust = Path("/secret"), Path("/ca.pem")
    settings = PluginSettings(
        Path("a.jar"), Path("/p.json"), "h:1", secret, trust, "my.key", 900, fallback_executors=3
    )
    assert settings.conf() == {
        "spark.driver.extraClassPath": "a.jar",
        "spark.plugins": PLUGIN_CLASS,
        "spark.parcae.policy": "/p.json",
        "spark.parcae.service": "h:1",
        "spark.parcae.secretFile": "/secret",
        "spark.parcae.tls.ca": "/ca.pem",
        "spark.parcae.jobKey": "my.key",
        "spark.parcae.orderTtlMs": "900",
        "spark.parcae.fallbackExecutors": "3",
    }


@pytest.mark.parametrize("service", ["localhost", "localhost:", ":7177", "h:x", "h:0", "h:70000"])
def test_a_service_has_a_host_and_a_port(service: str) -> None:
    with pytest.raises(ConfigError, match="the service must be HOST:PORT"):
        PluginSettings(Path("a.jar"), service=service)
    assert PluginSettings(Path("a.jar"), service="[::1]:7177").service == "[::1]:7177"


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--policy", "`parcae export` writes policy files"),
        ("--secret-file", "give the file of the service's secret"),
        ("--tls-ca", "give a file of certificates (PEM)"),
    ],
)
def test_submit_refuses_files_that_are_not_there(option: str, advice: str, tmp_path: Path) -> None:
    done = run(f"parcae spark submit --service h:1 {option} absent -- --version", tmp_path)
    assert done.returncode == 2
    assert done.stderr == f"parcae: {option} absent: No such file or directory; {advice}\n"


def test_conf_warns_of_a_policy_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parcae.cli.spark.find_spark", lambda home: SPARK)
    monkeypatch.setattr("parcae.cli.spark.find_jar", lambda spark: Path("a.jar"))
    done = run("parcae spark conf --policy absent.json", tmp_path)
    assert done.returncode == 0
    assert "warning: --policy absent.json: No such file" in done.stderr
    assert f"spark.parcae.policy={tmp_path}/absent.json" in done.stdout
    (tmp_path / "absent.json").write_text("{}")
    assert run("parcae spark conf --policy absent.json", tmp_path).stderr == ""
    done = run("parcae spark conf --policy absent.json --where yarn-cluster", tmp_path)
    assert done.stdout.splitlines() == [
        f"--conf spark.yarn.dist.jars=file://{tmp_path}/a.jar",
        f"--conf 'spark.yarn.dist.files=file://{tmp_path}/absent.json#parcae-policy.json'",
        f"--conf spark.plugins={PLUGIN_CLASS}",
        "--conf spark.parcae.policy=parcae-policy.json",
    ]


def _conf(arguments: list[str]) -> dict[str, str]:
    pairs = itertools.pairwise(arguments)
    return dict(
        value.split("=", 1) for option, value in pairs if option == "--conf"
    )  # as Spark: the last one counts


def test_the_users_settings_win_and_the_application_keeps_its_arguments() -> None:
    words = "--master=local[4] --conf spark.locality.wait=3s --name n -v app.py --conf x=y"
    given = words.split()
    arguments = spark_arguments(SETTINGS, given, SPARK)
    assert arguments[arguments.index("--master") + 1] == "local[4]"
    assert arguments[arguments.index("app.py") :] == ["app.py", "--conf", "x=y"]
    conf = _conf(arguments[: arguments.index("app.py")])
    assert conf["spark.locality.wait"] == "3s"
    assert conf["spark.parcae.service"] == "127.0.0.1:7177"
    assert conf["spark.driver.extraClassPath"] == "/cache/plugin.jar"
    assert "-v" in arguments
    assert arguments[arguments.index("--name") + 1] == "n"


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("--driver-class-path /b.jar a.py", CLASS_PATH, "/cache/plugin.jar:/b.jar"),
        ("--conf spark.driver.extraClassPath=/b.jar a.py", CLASS_PATH, "/cache/plugin.jar:/b.jar"),
        # Of spark-sql.
        ("-S --driver-class-path /b.jar -e query", CLASS_PATH, "/cache/plugin.jar:/b.jar"),
        ("--conf spark.plugins=a.Plugin a.py", PLUGINS, f"a.Plugin,{PLUGIN_CLASS}"),
    ],
)
def test_the_users_class_path_and_plugins_are_kept_beside_ours(
    given: str, name: str, value: str
) -> None:
    arguments = spark_arguments(SETTINGS, given.split(), SPARK)
    assert _conf(arguments)[name] == value.replace(":", os.pathsep)
    assert "--driver-class-path" not in arguments


def test_plugins_and_class_path_of_the_installation_are_kept_beside_ours(tmp_path: Path) -> None:
    spark = SparkHome(tmp_path, "4.3.0", "2.13")
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    text = f"# caf\xe9\\\n{PLUGINS} a.\\\n  Plugin\n{CLASS_PATH} /a.jar\nspark.jars hdfs://b.jar\n"
    defaults.write_bytes(text.encode("latin-1"))
    conf = _conf(spark_arguments(SETTINGS, ["a.py"], spark))
    assert conf[PLUGINS] == f"a.Plugin,{PLUGIN_CLASS}"
    assert conf[CLASS_PATH] == f"/cache/plugin.jar{os.pathsep}/a.jar"
    own = spark_arguments(SETTINGS, ["--driver-class-path", "/mine.jar", "a.py"], spark)
    assert _conf(own)[CLASS_PATH] == f"/cache/plugin.jar{os.pathsep}/mine.jar"
    given = tmp_path / "given.conf"
    given.write_text(f"{PLUGINS}=b.Plugin\n")
    options = ["--properties-file", str(given)]
    conf = _conf(spark_arguments(SETTINGS, [*options, "a.py"], spark))
    assert conf[PLUGINS] == f"b.Plugin,{PLUGIN_CLASS}"
    assert conf[CLASS_PATH] == "/cache/plugin.jar"
    both = spark_arguments(SETTINGS, [*options, "--load-spark-defaults", "a.py"], spark)
    assert _conf(both)[CLASS_PATH] == f"/cache/plugin.jar{os.pathsep}/a.jar"
    assert both[-1] == "a.py"


def test_values_of_the_installation_may_have_escapes(tmp_path: Path) -> None:
    file = tmp_path / "spark-defaults.conf"
    file.write_text(
        "spark.parcae.service host\\:7177\n"
        "spark.parcae.policy=C\\:\\\\caf\\u00e9\\ 1.json \n"
        "spark.app.name = \\tnightly\\ \n"
    )
    assert SparkDefaults.read(file).values == {
        "spark.parcae.service": "host:7177",
        "spark.parcae.policy": "C:\\caf\xe9 1.json",
        "spark.app.name": "nightly",
    }


def test_the_application_keeps_its_own_dashes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spark = tmp_path / "spark"
    (spark / "bin").mkdir(parents=True)
    (spark / "bin" / "spark-submit").touch()
    commands: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], env: dict[str, str]) -> None:
            assert env["SPARK_HOME"] == str(spark)
            commands.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("subprocess.Popen", Process)
    monkeypatch.setattr("parcae.cli.spark.find_jar", lambda _: Path("p.jar"))
    monkeypatch.setattr("parcae.cli.spark.find_spark", lambda _: SparkHome(spark, "4.3.0", "2.13"))
    line = ["spark", "submit", "--service", "h:1", "--", "--name", "n", "a.py"]
    done = CliRunner().invoke(app, [*line, "--x", "1", "--", "--y"])
    assert done.exit_code == 0, done.output
    assert commands[0][-5:] == ["a.py", "--x", "1", "--", "--y"]


def test_a_service_that_does_not_start_is_quoted_without_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'parcae: this one' >&2\nexit 2\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    log = tmp_path / "service.log"
    log.write_text("parcae: an earlier one\n")
    with (
        pytest.raises(ConfigError, match=r"^the service did not start: this one$"),
        running_service("srpt", "tpch", log=log),
    ):
        pass
    assert log.read_text() == "parcae: an earlier one\nparcae: this one\n"


#: Ends the command as soon as Spark has begun, while `Popen` is still at work.
_ENDED_AT_ONCE = """
import os, signal, subprocess, sys
from parcae.cli.main import main

class EndedAtOnce(subprocess.Popen):
    def __init__(self, *given, **named):
        super().__init__(*given, stdout=subprocess.PIPE, **named)
        begun = self.stdout.readline().decode()
        os.kill(os.getpid(), signal.SIGTERM)
        print(begun, end="", flush=True)

    def wait(self, timeout=None):
        print(self.stdout.readline().decode(), end="", flush=True)
        return super().wait(timeout)

subprocess.Popen = EndedAtOnce
main()
"""


@needs_spark
@pytest.mark.parametrize(
    "command", [["-m", "parcae.cli.main"], ["-c", _ENDED_AT_ONCE]], ids=["later", "at once"]
)
def test_a_submit_that_is_ended_ends_spark(tmp_path: Path, command: list[str]) -> None:
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "jars").symlink_to(find_spark().jars)
    submit = home / "bin" / "spark-submit"
    submit.write_text(
        "#!/bin/bash\ntrap 'echo ended; exit 7' TERM\necho begun\n"
        "for _ in {1..300}; do sleep 0.1; done\n"
    )
    submit.chmod(0o755)
    words = ["spark", "submit", "--service", "h:1", "--spark-home", str(home), "--", "a.py"]
    with subprocess.Popen(
        [sys.executable, *command, *words], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        if _ENDED_AT_ONCE not in command:  # that one ends itself
            process.terminate()
        assert process.communicate()[0] == "ended\n"
    assert process.returncode == 7


def test_yarn_copies_jar_and_files_to_a_driver_in_the_cluster(tmp_path: Path) -> None:
    spark = SparkHome(tmp_path, "4.3.0", "2.13")
    (tmp_path / "conf").mkdir()
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.write_text(f"spark.yarn.dist.jars /a.jar\n{CLASS_PATH} /nodes/*\n")
    settings = PluginSettings(
        Path("/cache/plugin.jar"), Path("/p, 1.json"), "h:1", Path("/s"), Path("/ca")
    )
    own = "--jars /mine.jar --files /x --conf spark.yarn.dist.files=/y --conf a=b a.py --jars z"
    for mode in (
        ["--master", "yarn", "--deploy-mode", "cluster"],
        ["--conf", "spark.master=yarn", "--conf", "spark.submit.deployMode=cluster"],
    ):
        arguments = spark_arguments(settings, [*mode, *own.split()], spark)
        # Spark itself adds what these two say to the lists of YARN.
        for flag, value in (("--jars", "/mine.jar"), ("--files", "/x")):
            assert arguments[arguments.index(flag) + 1] == value
        assert arguments[-3:] == ["a.py", "--jars", "z"]
        conf = _conf(arguments[:-3])
        assert conf["spark.yarn.dist.jars"] == "file:///cache/plugin.jar,/a.jar"
        assert conf["spark.yarn.dist.files"] == (
            "file:///p%2C%201.json#parcae-policy.json,file:///s#parcae-secret,"
            "file:///ca#parcae-ca.pem,/y"
        )
        assert conf["spark.parcae.policy"] == "parcae-policy.json"
        assert conf["spark.parcae.secretFile"] == "parcae-secret"
        assert conf["spark.parcae.tls.ca"] == "parcae-ca.pem"
        assert conf["spark.parcae.service"] == "h:1"
        assert (conf[PLUGINS], conf["a"]) == (PLUGIN_CLASS, "b")
        assert CLASS_PATH not in conf
    # Beside the user, the driver reads the files where they are.
    conf = _conf(spark_arguments(settings, ["--master", "yarn", "a.py"], spark))
    assert conf["spark.parcae.policy"] == "/p, 1.json"
    assert conf[CLASS_PATH] == f"/cache/plugin.jar{os.pathsep}/nodes/*"
    assert "spark.yarn.dist.jars" not in conf


def test_only_an_application_on_this_machine_gets_this_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    spark = SparkHome(tmp_path, "4.3.0", "2.13")
    for given, expected in (
        (["a.py"], True),
        (["--master", "local[2]", "a.py"], True),
        (["--master", "yarn", "a.py"], False),
        (["--conf", "spark.master=spark://h:1", "a.py"], False),
    ):
        assert is_local(given, spark) is expected
        variables = environment(tmp_path, is_local=expected)
        assert variables.get("PYSPARK_PYTHON") == (sys.executable if expected else None)
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.9")
    assert environment(tmp_path, is_local=False)["PYSPARK_PYTHON"] == "python3.9"
    assert environment(tmp_path)["PYSPARK_DRIVER_PYTHON"] == "python3.9"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--deploy-mode", "cluster", "a.py"], "deploy mode cluster"),
        (
            ["--master", "spark://h:1", "--deploy-mode", "cluster", "a.py"],
            "yarn and k8s",
        ),
        (["--conf", "spark.submit.deployMode=cluster", "a.py"], "deploy mode cluster"),
        (["--master"], "lacks its value"),
    ],
)
def test_what_cannot_be_started_is_said(given: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spark_arguments(SETTINGS, given, SPARK)


def test_the_deploy_mode_of_the_installation_counts(tmp_path: Path) -> None:
    spark = SparkHome(tmp_path, "4.3.0", "2.13")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.submit.deployMode cluster\n")
    for other in (["--verbose"], ["--conf", "spark.submit.deployMode=cluster"]):
        with pytest.raises(ConfigError, match="deploy mode cluster"):
            spark_arguments(SETTINGS, [*other, "a.py"], spark)
    for client in (["--deploy-mode", "client"], ["--conf", "spark.submit.deployMode=client"]):
        assert spark_arguments(SETTINGS, [*client, "a.py"], spark)[-1] == "a.py"


def test_a_spark_without_its_commands_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="spark-submit does not exist"):
        SparkHome(tmp_path, "3.5.9", "2.12").command("spark-submit")
