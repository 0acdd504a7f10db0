"""Tests of the wheel with the plugin's jars: built, installed without a JDK, run in real Sparks."""

from __future__ import annotations

import os
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

from parcae.base.texts import __version__
from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.home import SCALA_LINES, find_spark
from parcae.spark.jar import jar_name, read_jar_note
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import REPOSITORY
from tests.spark.greeter import Door
from tests.spark.java import OUT_OF_REACH
from tests.spark.needs import needs_spark

_TIMEOUT_S = 600


def _make_dist(folder: Path) -> Path:
    """The wheel that `make dist` builds, from a copy of the tree without its caches."""
    left_out = shutil.ignore_patterns(".git", ".venv", ".*_cache", "*.egg-info", "target", "jars")
    shutil.copytree(REPOSITORY, folder, ignore=left_out, symlinks=True)
    (folder / ".venv").mkdir()
    for name in (".learn", ".ready"):  # what `make` takes for installed
        (folder / ".venv" / name).touch()
    command = ["make", "--silent", "dist", f"BIN={Path(sys.executable).parent}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if any(words in done.stdout for words in OUT_OF_REACH):
        pytest.skip("Maven cannot fetch what it needs")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("mvn") is None:
        pytest.skip("needs Maven (apt-get install maven)")
    return _make_dist(tmp_path_factory.mktemp("dist") / "tree")


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
    jars = {path.name: read_jar_note(path) for path in tmp_path.glob("parcae/spark/jars/*")}
    assert set(jars) == {jar_name(scala) for scala in SCALA_LINES}
    for scala in SCALA_LINES:
        note = jars[jar_name(scala)]
        assert (note.version, note.scala, note.spark) == (__version__, scala, "3.3.4")
    again = _make_dist(tmp_path / "again")
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


#: The fixtures do it.
_NOT_RUN = ("make jars", "make dist", "pip install")


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
            assert "parcae: on, account by what is learned" in done.stderr
        if "doctor" in command:
            assert "wrong " not in done.stdout
            assert "ok      members" in done.stdout
