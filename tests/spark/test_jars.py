"""Tests of jars: which is for which Spark, their manifests, and whether they fit a Spark."""

from __future__ import annotations

import os
import re
import struct
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.cli.main import app
from parcae.spark.doctor import check_fit, known_settings
from parcae.spark.home import SparkHome, find_java, find_spark, java_release
from parcae.spark.jar import find_jar, jar_name, jars_folder, read_jar_note, sources_folder
from tests.conftest import REPOSITORY
from tests.spark.java import compile_java, java_sources
from tests.spark.needs import needs_spark


@pytest.fixture
def make_spark(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder that looks like a Spark."""

    def make(version: str = "3.5.9", scala: str = "2.12", folder: str = "spark") -> Path:
        jars = tmp_path / folder / "jars"
        jars.mkdir(parents=True)
        (jars / f"spark-core_{scala}-{version}.jar").touch()
        return jars.parent

    return make


@pytest.fixture
def jar() -> Path:
    """The plugin's jar for the installed Spark."""
    return find_jar(find_spark())


@pytest.mark.parametrize(
    ("version", "scala", "message"),
    [
        ("2.4.8", "2.11", r"Spark 2\.4\.8 .* too old: the plugin needs 3\.3 or newer"),
        ("3.2.4", "2.12", r"too old: the plugin needs 3\.3 or newer"),
        (
            "3.3.0-vendor",
            "2.11",
            r"Scala 2\.11, but the plugin supports only Scala 2\.12 and 2\.13",
        ),
        ("nightly", "2.13", "too old"),
    ],
)
def test_a_spark_that_is_not_supported_is_said(
    make_spark: Callable[..., Path], version: str, scala: str, message: str
) -> None:
    spark = find_spark(make_spark(version, scala))
    with pytest.raises(ConfigError, match=message):
        find_jar(spark)


@pytest.mark.parametrize(
    ("is_checkout", "advice"),
    [(True, "this is a checkout: run `make jars` there"), (False, "install a wheel that has it")],
)
def test_without_a_jar_the_command_says_how_to_get_one(
    make_spark: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_checkout: bool,
    advice: str,
) -> None:
    monkeypatch.setattr("parcae.spark.jar.jars_folder", lambda: tmp_path / "jars")
    if not is_checkout:
        monkeypatch.setattr("parcae.spark.jar.sources_folder", lambda: tmp_path / "absent")
    done = CliRunner().invoke(app, ["spark", "jar", "--spark", str(make_spark())])
    assert isinstance(done.exception, ConfigError)
    assert f"no jar for Spark 3.5.9 (Scala 2.12): {advice}" in str(done.exception)


def test_the_jar_of_the_scala_line_is_printed(
    make_spark: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("parcae.spark.jar.jars_folder", lambda: tmp_path)
    for scala in ("2.12", "2.13"):
        (tmp_path / jar_name(scala)).touch()
    homes = {"2.12": make_spark(), "2.13": make_spark("4.1.4", "2.13", "four")}
    for scala, home in homes.items():
        done = CliRunner().invoke(app, ["spark", "jar", "--spark", str(home)])
        assert done.stdout.strip() == str(tmp_path / f"parcae-spark_{scala}-{__version__}.jar")


def test_a_jar_that_is_older_than_its_sources_is_not_taken(
    make_spark: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("parcae.spark.jar.jars_folder", lambda: tmp_path)
    (tmp_path / jar_name("2.12")).touch()
    os.utime(tmp_path / jar_name("2.12"), (0, 0))
    with pytest.raises(ConfigError, match="is older than the sources in"):
        find_jar(find_spark(make_spark()))


def test_the_spark_of_the_path_is_the_last_that_is_tried(
    make_spark: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = make_spark()
    (home / "bin").mkdir()
    for place in (home / "bin", tmp_path / "links"):
        place.mkdir(exist_ok=True)
    (home / "bin" / "spark-submit").write_text("#!/bin/sh\n")
    (home / "bin" / "spark-submit").chmod(0o755)
    (tmp_path / "links" / "spark-submit").symlink_to(home / "bin" / "spark-submit")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_spark().path == home.resolve()
    monkeypatch.setenv("SPARK_HOME", str(make_spark("4.0.0", "2.13", "other")))
    assert find_spark().version == "4.0.0"


def test_the_spark_that_pip_put_on_the_path_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "lib/python3.11/site-packages/pyspark"
    (package / "jars").mkdir(parents=True)
    (package / "jars" / "spark-core_2.13-4.1.4.jar").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "spark-submit").chmod(0o755)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_spark() == SparkHome(package.resolve(), "4.1.4", "2.13")


@pytest.mark.parametrize(
    ("said", "release"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_412"', 8)],
)
def test_the_release_of_a_java_is_what_it_says(tmp_path: Path, said: str, release: int) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    assert java_release(java) == release


def test_a_java_home_without_a_java_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="bin/java does not exist; install one"):
        find_java()


#: Matches an import, and `Name.class.getDeclaredField("member")` or class and name as arguments.
_IMPORT = re.compile(r"^import ([\w.$]+\.([\w$]+));", re.MULTILINE)
_PRIVATE = re.compile(r'([\w$]+)\s*\.class\s*(?:,|\.\s*getDeclared\w+\()\s*"(\w+)"')


def test_all_that_the_sources_reach_by_reflection_is_looked_up() -> None:
    members = set()
    texts = [path.read_text() for path in java_sources(sources_folder() / "src" / "main")]
    for text in texts:
        imported = {name: whole for whole, name in _IMPORT.findall(text)}
        for name, member in _PRIVATE.findall(text):
            if imported.get(name, "").startswith("org.apache.spark."):
                members.add(f"{imported[name]}#{member}")
    named = r"getDeclared(?:Field|Method)\(\s*\"(\w+)\""
    reached = {member for text in texts for member in re.findall(named, text)}
    assert reached <= {member.partition("#")[2] for member in members}
    linkage = (sources_folder() / "src/main/java/parcae/spark/Linkage.java").read_text()
    assert set(re.findall(r'"(org\.apache\.spark\.[\w.$]+#\w+)"', linkage)) == members
    assert len(members) >= 5


def test_the_project_of_maven_has_the_version_and_the_java_of_the_package() -> None:
    text = (sources_folder() / "pom.xml").read_text()
    package = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f"<version>{__version__}</version>" in text
    assert package["version"] == __version__


@needs_spark
def test_a_jar_says_what_it_was_made_from(jar: Path) -> None:
    note = read_jar_note(jar)
    assert (note.version, note.scala, note.spark) == (__version__, find_spark().scala, "3.3.4")
    with zipfile.ZipFile(jar) as archive:
        content = archive.read("parcae/spark/ParcaePlugin.class")
        assert not any(name.startswith("META-INF/services") for name in archive.namelist())
    (class_version,) = struct.unpack(">H", content[6:8])
    assert class_version - 44 == note.java == 11
    assert jar.parent == jars_folder()


@pytest.mark.parametrize("content", [b"", b"no zip"])
def test_a_file_that_is_no_jar_of_the_plugin_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jar"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="is no jar of the plugin"):
        read_jar_note(path)


@needs_spark
def test_the_jar_fits_the_spark_that_it_was_compiled_against(jar: Path) -> None:
    num_checked, missing = check_fit(jar, find_spark().jars)
    assert missing == []
    assert num_checked > 200


@needs_spark
def test_what_a_spark_lacks_is_named(jar: Path, tmp_path: Path) -> None:
    """A copy of Spark's jars without the core and Jackson."""
    for path in find_spark().jars.glob("*.jar"):
        if not path.name.startswith(("spark-core", "jackson-databind")):
            (tmp_path / path.name).symlink_to(path)
    missing = check_fit(jar, tmp_path)[1]
    assert "the class org.apache.spark.scheduler.Pool" in missing
    assert "the class com.fasterxml.jackson.databind.ObjectMapper" in missing
    member = "org.apache.spark.scheduler.TaskSchedulerImpl.schedulableBuilder"
    assert f"the private member {member}" in missing


_OTHER_POOL = """package org.apache.spark.scheduler;
public interface SchedulableBuilder {
  Pool rootPool();
  void buildPools();
  void addTaskSetManager(Schedulable manager, java.util.Properties properties);
  void newInThisSpark();
}
"""
_OTHER_SCHEDULER = """package org.apache.spark.scheduler;
public class TaskSchedulerImpl implements TaskScheduler0 {
  public Pool rootPool() { return null; }
}
interface TaskScheduler0 {}
"""


@needs_spark
def test_changed_classes_of_a_spark_are_noticed(jar: Path, tmp_path: Path) -> None:
    """A trait with one more method, and a class that lost a field and its parent."""
    spark = find_spark()
    classes = tmp_path / "classes"
    sources = {"SchedulableBuilder": _OTHER_POOL, "TaskSchedulerImpl": _OTHER_SCHEDULER}
    paths = [tmp_path / f"{name}.java" for name in sources]
    for path in paths:
        path.write_text(sources[path.stem])
    compile_java(paths, classes, f"{spark.jars}/*")
    jars = tmp_path / "jars"
    jars.mkdir()
    for path in spark.jars.glob("*.jar"):
        (jars / path.name).symlink_to(path)
    with zipfile.ZipFile(jars / "a-first.jar", "w") as archive:  # before spark-core's
        for path in classes.rglob("*.class"):
            archive.write(path, path.relative_to(classes))
    missing = check_fit(jar, jars)[1]
    body = "a body of org.apache.spark.scheduler.SchedulableBuilder.newInThisSpark in "
    assert f"{body}parcae.spark.guest.GuestBuilder" in missing
    member = "org.apache.spark.scheduler.TaskSchedulerImpl.schedulableBuilder"
    assert f"the private member {member}" in missing


@needs_spark
def test_settings_of_a_jar_are_read_from_its_classes(jar: Path) -> None:
    known = known_settings(jar)
    assert {"spark.parcae.policy", "spark.parcae.jobKey"} <= known
    assert "spark.parcae.polcy" not in known
