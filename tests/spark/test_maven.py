"""The plugin as a project of Maven: its tests in JUnit, and what it deploys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from parcae.base.texts import __version__
from parcae.spark.home import SCALA_LINES, find_spark
from parcae.spark.jar import read_jar_note, sources_folder
from tests.conftest import REPOSITORY
from tests.spark.java import maven, plugin_and_tests
from tests.spark.needs import needs_spark


def _ran(*words: str, project: Path | None = None) -> str:
    """What Maven prints; without it or what it needs, the test is skipped."""
    done = maven(*words, project=project or sources_folder())
    if isinstance(done, str):
        pytest.skip(done)
    if done.returncode:
        pytest.fail(done.stdout[-6000:], pytrace=False)
    return done.stdout


@needs_spark
def test_the_tests_in_java_pass() -> None:
    plugin_and_tests()
    spark = find_spark()
    said = _ran(f"-Dscala.line={spark.scala}", f"-Dspark.home={spark.path}", "test")
    all_passed = r"Tests run: (\d+), Failures: 0, Errors: 0, Skipped: 0$"
    (passed,) = re.findall(all_passed, said, re.MULTILINE)
    assert int(passed) > 60


def deployed(folder: Path, scala: str, *words: str) -> Path:
    """The folder of an artifact of a file repository, deployed from a copy of the project."""
    copy = folder / "tree" / "spark-plugin"
    shutil.copytree(sources_folder(), copy, ignore=shutil.ignore_patterns("target"))
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(REPOSITORY / name, copy.parent)
    repository = folder / "repository"
    into = f"-DaltDeploymentRepository=files::{repository.as_uri()}"
    _ran(*words, f"-Dscala.line={scala}", into, "deploy", project=copy)
    return repository / "io" / "github" / "OWNER" / f"parcae-spark_{scala}" / __version__


@needs_spark
@pytest.mark.slow
@pytest.mark.parametrize("scala", SCALA_LINES)
def test_two_builds_deploy_the_same_bytes(scala: str, tmp_path: Path) -> None:
    first, second = (deployed(tmp_path / name, scala, "-P", "release") for name in ("one", "two"))
    start = f"parcae-spark_{scala}-{__version__}"
    for end in (".jar", "-sources.jar", ".pom"):
        assert (first / f"{start}{end}").read_bytes() == (second / f"{start}{end}").read_bytes()
    for end in (".jar", "-sources.jar", "-javadoc.jar"):
        with zipfile.ZipFile(first / f"{start}{end}") as archive:
            assert len(archive.namelist()) > 30
    with zipfile.ZipFile(first / f"{start}.jar") as archive:
        for name in ("LICENSE", "NOTICE"):
            assert archive.read(f"META-INF/{name}") == (REPOSITORY / name).read_bytes()
    assert read_jar_note(first / f"{start}.jar").scala == scala
    pom = (first / f"{start}.pom").read_text()
    assert "${" not in pom
    # Spark brings all that the plugin uses.
    assert pom.count("<dependency>") == pom.count("<scope>provided</scope>")
    for name in ("name", "description", "url", "license", "developer", "scm"):  # indexes ask
        assert f"<{name}>" in pom


@needs_spark
@pytest.mark.slow
def test_a_spark_takes_the_jar_from_a_repository(tmp_path: Path) -> None:
    """As `--packages` does from Maven Central; no file of this tree is on the class path."""
    spark = find_spark()
    deployed(tmp_path, spark.scala, "-P", "release")
    program = tmp_path / "program.py"
    program.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print('sum', spark.range(1000).selectExpr('sum(id)').first()[0])\n"
    )
    options = {
        "--master": "local[2]",
        "--repositories": (tmp_path / "repository").as_uri(),
        "--packages": f"io.github.OWNER:parcae-spark_{spark.scala}:{__version__}",
    }
    done = subprocess.run(
        [
            spark.command("spark-submit"),
            *(word for pair in options.items() for word in pair),
            "--conf=spark.plugins=parcae.spark.ParcaePlugin",
            f"--conf=spark.jars.ivy={tmp_path}/ivy",
            "--conf=spark.ui.enabled=false",
            program,
        ],
        env={**os.environ, "SPARK_HOME": str(spark.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "sum 499500" in done.stdout, done.stderr[-3000:]
    assert "parcae: on, account by what is learned" in done.stderr
