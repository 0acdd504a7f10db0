"""Tests of jars: which is for which Spark, their manifests, and whether they fit a Spark."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.cli.main import app
from parcae.spark import build as building
from parcae.spark.build import (
    JAVA_RELEASE,
    build_plugin,
    compile_plugin,
    find_jar,
    jar_name,
    java_sources,
    plugin_folder,
    private_members,
    read_jar_note,
    sources_hash,
)
from parcae.spark.doctor import check_fit, known_settings
from parcae.spark.home import SparkHome, find_java, find_spark, java_release
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


@pytest.fixture(scope="module")
def jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin's jar for the installed Spark, compiled in an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build_plugin(find_spark())


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
    with pytest.raises(ConfigError, match=message):
        build_plugin(spark)


def test_without_a_jar_the_command_says_how_to_get_one(
    make_spark: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(building, "packaged_folder", lambda: tmp_path / "packaged")
    done = CliRunner().invoke(app, ["spark", "jar", "--spark", str(make_spark())])
    assert isinstance(done.exception, ConfigError)
    message = str(done.exception)
    assert "no jar for Spark 3.5.9 (Scala 2.12)" in message
    assert "parcae spark build" in message


def test_the_packaged_jar_of_the_scala_line_is_printed(
    make_spark: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(building, "packaged_folder", lambda: tmp_path)
    for scala in ("2.12", "2.13"):
        (tmp_path / jar_name(scala)).touch()
    homes = {"2.12": make_spark(), "2.13": make_spark("4.1.4", "2.13", "four")}
    for scala, home in homes.items():
        done = CliRunner().invoke(app, ["spark", "jar", "--spark", str(home)])
        assert done.stdout.strip() == str(tmp_path / f"parcae-spark_{scala}-{__version__}.jar")
    assert build_plugin(find_spark(homes["2.12"])) == tmp_path / jar_name("2.12")  # not compiled


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


def test_all_that_the_sources_reach_by_reflection_is_known() -> None:
    named = r"getDeclared(?:Field|Method)\(\s*\"(\w+)\""
    texts = [path.read_text() for path in java_sources(plugin_folder() / "src" / "main")]
    reached = {member for text in texts for member in re.findall(named, text)}
    found = private_members(plugin_folder())
    assert "org.apache.spark.scheduler.TaskSchedulerImpl#schedulableBuilder" in found
    assert reached <= {member.partition("#")[2] for member in found}


@needs_spark
def test_a_jar_says_what_it_was_made_from(jar: Path) -> None:
    spark = find_spark()
    note = read_jar_note(jar)
    assert (note.version, note.scala, note.spark) == (__version__, spark.scala, spark.version)
    assert note.sources == sources_hash(plugin_folder())
    assert note.private_members.split() == private_members(plugin_folder())
    with zipfile.ZipFile(jar) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
        assert max(len(line) for line in manifest.split("\r\n")) <= 72  # the format's limit
        content = archive.read("parcae/spark/ParcaePlugin.class")
    (class_version,) = struct.unpack(">H", content[6:8])
    assert class_version - 44 == note.java == JAVA_RELEASE


@needs_spark
def test_the_plugin_is_compiled_once_and_again_when_its_sources_change(
    jar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spark = find_spark()
    assert jar.name.startswith(f"parcae-spark_{spark.scala}-")
    names = set(zipfile.ZipFile(jar).namelist())
    assert not any(name.startswith("META-INF/services") for name in names)
    built = jar.stat().st_mtime_ns
    monkeypatch.setenv("XDG_CACHE_HOME", str(jar.parents[2]))
    assert build_plugin(spark) == jar
    assert jar.stat().st_mtime_ns == built
    assert [path.name for path in jar.parent.iterdir()] == [jar.name]
    (tmp_path / "src" / "main").mkdir(parents=True)
    (tmp_path / "src" / "main" / "Other.java").write_text("class Other {}")
    assert sources_hash(tmp_path) != sources_hash(plugin_folder())


@needs_spark
def test_the_same_sources_give_the_same_jar(jar: Path, tmp_path: Path) -> None:
    again = tmp_path / jar.name
    compile_plugin(find_spark(), again)
    assert again.read_bytes() == jar.read_bytes()


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
    building.compile_java(paths, classes, f"{spark.jars}/*")
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


_LINES = re.compile(r"^    (?=mkdir|javac|jar|java) *(.+)$", re.MULTILINE)


@pytest.mark.slow  # other tests compile the same sources by the package's own command line
@needs_spark
def test_the_lines_of_the_plugins_readme_build_a_jar_and_run_tests(tmp_path: Path) -> None:
    lines = _LINES.findall((plugin_folder() / "README.md").read_text())
    commands = [line.split()[0] for line in lines]
    assert commands == ["mkdir", "javac", "jar", "mkdir", "javac", "java", "java"]
    copy = tmp_path / "spark-plugin"
    shutil.copytree(plugin_folder(), copy)
    environment = {**os.environ, "SPARK_HOME": str(find_spark().path)}
    script = ["bash", "-ec", "\n".join(lines)]
    done = subprocess.run(
        script,
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" checks") == 2
    with zipfile.ZipFile(copy / "build" / "parcae-spark.jar") as archive:
        assert "parcae/spark/ParcaePlugin.class" in archive.namelist()
