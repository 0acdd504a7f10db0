"""Tests of the wheel with the plugin's jars: built, installed without a JDK, run in real Sparks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.build import (
    COMPILED_AGAINST,
    build_wheel,
    fetch_spark,
    plugin_folder,
    read_jar_note,
    sources_hash,
)
from parcae.spark.home import SparkHome, find_spark
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import REPOSITORY
from tests.spark.greeter import Door
from tests.spark.needs import needs_spark

#: Sparks of PyPI in which the packaged jars are run; "" is the newest.
_VERSIONS = ("3.3.4", "3.4.4", "3.5.9", "4.0.5", "4.1.4", "")
_TIMEOUT_S = 600


def test_without_a_jdk_the_wheel_is_not_built(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("JAVA_HOME", None)
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    command = [sys.executable, "-m", "parcae.spark.build", str(tmp_path / "dist")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("parcae: no JDK was found: no `javac`")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "parcae").exists()  # nothing was fetched


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make dist` builds."""
    try:
        return build_wheel(tmp_path_factory.mktemp("dist"))
    except ConfigError as error:
        if "could not be" in str(error):  # PyPI is out of reach
            pytest.skip(str(error))
        raise


def _environment_without(*names: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel."""

    folder: Path

    def run(self, *words: object, path: str = "") -> subprocess.CompletedProcess[str]:
        """`parcae` of that environment, with its commands and those of `path` on the PATH."""
        return self._start([self.folder / "bin" / "parcae", *map(str, words)], path)

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a document, with Spark's commands on the PATH."""
        spark = find_spark().path / "bin"
        return self._start(["bash", "-c", line], f"{spark}{os.pathsep}{os.environ['PATH']}")

    def _start(self, command: Sequence[str | Path], path: str) -> subprocess.CompletedProcess[str]:
        environment = _environment_without(
            "PYTHONPATH", "SPARK_HOME", "SPARK_CONF_DIR", "JAVA_HOME"
        )
        environment["PATH"] = os.pathsep.join(filter(None, [str(self.folder / "bin"), path]))
        environment["XDG_CACHE_HOME"] = str(self.folder / "cache")  # no jar of the developer's
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an empty environment.

    Its dependencies (PyTorch among them) are not installed again, which would take minutes. A
    `.pth` file makes those of the environment that runs the tests available.
    """
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    # With the sources on its path, pip would find Parcae installed already.
    environment = _environment_without("PYTHONPATH")
    subprocess.run(
        [*command, wheel], env=environment, check=True, capture_output=True, timeout=_TIMEOUT_S
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(folder)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy.json"
    write_policy(export_policy("srpt", Workload("w", (chain(1, 4, 100, "one"),))), path)
    return path


@needs_spark
@pytest.mark.slow
def test_the_wheel_carries_a_jar_for_each_scala_line(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    jars = {path.name: read_jar_note(path) for path in tmp_path.glob("parcae/spark/jars/*.jar")}
    assert len(jars) == 2
    for scala, spark in COMPILED_AGAINST.items():
        note = jars[f"parcae-spark_{scala}-{__version__}.jar"]
        assert (note.version, note.scala, note.spark) == (__version__, scala, spark)
        assert note.sources == sources_hash(plugin_folder())
    again = build_wheel(tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()


@needs_spark
@pytest.mark.slow
def test_an_installed_wheel_needs_no_jdk(installed: Installed, policy: Path) -> None:
    """Run `parcae spark jar` without any Java, and a query with the jar that it prints."""
    done = installed.run("spark", "jar", "--spark", find_spark().path)
    assert done.returncode == 0, done.stderr
    jar = Path(done.stdout.strip())
    assert jar.is_relative_to(installed.folder)
    settings = {
        "spark.driver.extraClassPath": jar,
        "spark.plugins": "parcae.spark.ParcaePlugin",
        "spark.parcae.policy": policy,
        "spark.ui.enabled": "false",
    }
    conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = [find_spark().command("spark-submit"), "--master", "local[2]", *conf]
    run = subprocess.run(
        [*submit, "--class", "parcae.spark.Trial", jar],
        cwd=installed.folder,
        env={**os.environ, "SPARK_HOME": str(find_spark().path)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "sum 499500" in run.stdout
    assert f"parcae: on, srpt by {policy}" in run.stderr


@needs_spark
@pytest.mark.slow
def test_an_installed_wheel_can_compile_its_plugin(installed: Installed) -> None:
    """With a JDK, as a developer would: the wheel has the Java sources."""
    javac = shutil.which("javac")
    assert javac
    words = ("spark", "build", "--fresh", "--spark-home", find_spark().path)
    done = installed.run(*words, path=str(Path(javac).parent))
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(installed.folder / "cache")


#: The fixtures do it.
_NOT_RUN = ("make dist", "pip install")


@needs_spark
@pytest.mark.slow
def test_every_command_of_the_document_runs(installed: Installed, policy: Path) -> None:
    page = (REPOSITORY / "docs" / "spark-jar.md").read_text().splitlines()
    commands = [line.strip() for line in page if line.startswith("    ")]
    assert len([line for line in commands if line.startswith(_NOT_RUN)]) == len(_NOT_RUN)
    commands = [line for line in commands if not line.startswith(_NOT_RUN)]
    assert len(commands) >= 6
    shutil.copy(policy, installed.folder / "policy.json")
    (installed.folder / "secret").write_text("a secret that nobody guesses\n")
    program = str(REPOSITORY / "examples" / "queries.py") + " 100000"
    for command in commands:
        door = Door(secret=b"a secret that nobody guesses") if "--service" in command else None
        line = command.replace("examples/queries.py", program)
        line = line.replace("127.0.0.1:7177", door.address if door else "")
        done = installed.shell(line)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr[-3000:]}"
        if door:
            door.close()
            assert "takes the secret" in done.stdout
        if "queries.py" in command:
            assert "parcae: on, srpt by" in done.stderr
        if "doctor" in command:
            assert "wrong " not in done.stdout
            assert "ok      members" in done.stdout


def _newest() -> str:
    command = [sys.executable, "-m", "pip", "index", "versions", "pyspark"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"pyspark \((\S+)\)", done.stdout)
    if found is None:
        pytest.skip(f"PyPI does not say which PySpark is the newest: {done.stderr[-200:]}")
    return found[1]


def _spark(version: str) -> SparkHome:
    version = version or _newest()
    installed = find_spark()
    if installed.version == version:
        return installed
    try:
        return fetch_spark(version)
    except ConfigError as error:
        pytest.skip(str(error))


@needs_spark
@pytest.mark.slow
@pytest.mark.parametrize("version", _VERSIONS)
def test_the_packaged_jars_run_in_every_spark(
    installed: Installed, policy: Path, version: str
) -> None:
    """A query with the plugin: the right sum, and the log line that says that it orders."""
    spark = _spark(version)
    words = ("spark", "doctor", "--spark", spark.path, "--policy", policy, "--run", "--json")
    done = installed.run(*words, path=os.environ["PATH"])
    checks = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert f"the plugin says: on, srpt by {policy}" in checks["run"]["text"], checks
    assert str(installed.folder) in checks["jar"]["text"]
    assert checks["members"]["state"] == "ok"
    assert done.returncode == 0
