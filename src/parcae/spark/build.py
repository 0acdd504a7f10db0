"""Finds the plugin's jar, packaged with Parcae, or compiles it against the user's Spark."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from parcae.base.errors import ConfigError, InputError
from parcae.base.files import user_caches
from parcae.base.texts import __version__
from parcae.spark.home import SparkHome, find_jdk_tool, find_spark

#: The plugin is compiled for this Java. Spark 3 runs on Java 8, 11 and 17, Spark 4 on 17 and newer.
JAVA_RELEASE = 11

_HASH_DIGITS = 12
#: How many lines of the compiler an error message quotes.
_MAX_LINES = 6
#: The time of all entries of a jar, the first that a zip file can hold. So equal sources give
#: equal jars.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MANIFEST = "META-INF/MANIFEST.MF"
_MANIFEST_WIDTH = 70  # bytes of a line, without its end
_IMPORT = re.compile(r"^import ([\w.]+\.(\w+));", re.MULTILINE)
#: Matches `Name.class.getDeclaredField("member")`, and class and name as arguments of a helper.
_PRIVATE = re.compile(r'\b(\w+)\s*\.class\s*(?:,|\.\s*getDeclared\w+\()\s*"(\w+)"')


def _manifest_name(field: str) -> str:
    """The name of a line of the manifest, e.g. "Parcae-Scala"."""
    name = field.replace("_", "-").title()
    return f"Implementation-{name}" if field == "version" else f"Parcae-{name}"


class JarNote(BaseModel):
    """The description of a jar of the plugin: lines of its manifest."""

    model_config = ConfigDict(alias_generator=_manifest_name, frozen=True, populate_by_name=True)

    version: str
    scala: str
    spark: str
    java: int
    sources: str
    #: Separated by blanks.
    private_members: str


def plugin_folder() -> Path:
    """The folder of the plugin's sources: in the repository, or in an installed package."""
    places = [
        Path(__file__).parents[3] / "spark-plugin",
        Path(sysconfig.get_path("data")) / "share/parcae/spark-plugin",
    ]
    for place in places:
        if (place / "src" / "main").is_dir():
            return place
    where = ", ".join(map(str, places))
    raise ConfigError(f"the plugin's Java sources are not in {where}; install parcae again")


def java_sources(folder: Path) -> list[Path]:
    """All Java files below a folder, sorted."""
    return sorted(folder.rglob("*.java"))


def packaged_folder() -> Path:
    """The folder of the jars in an installed Parcae. In a checkout it does not exist."""
    return Path(__file__).parent / "jars"


def cache_folder() -> Path:
    """The cache of compiled jars: $XDG_CACHE_HOME/parcae/spark, or ~/.cache/parcae/spark."""
    return user_caches() / "parcae" / "spark"


def jar_name(scala: str) -> str:
    """The name of a packaged jar, e.g. "parcae-spark_2.13-0.1.0.jar"."""
    return f"parcae-spark_{scala}-{__version__}.jar"


def sources_hash(folder: Path) -> str:
    """A hash of the plugin's sources; it changes with any of them."""
    digest = hashlib.sha256()
    for path in java_sources(folder / "src" / "main"):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:_HASH_DIGITS]


def private_members(folder: Path) -> list[str]:
    """Spark's members that the sources access by reflection, as "package.Class#member", sorted."""
    members = set()
    for path in java_sources(folder / "src" / "main"):
        text = path.read_text()
        imported = {name: whole for whole, name in _IMPORT.findall(text)}
        for name, member in _PRIVATE.findall(text):
            if imported.get(name, "").startswith("org.apache.spark."):
                members.add(f"{imported[name]}#{member}")
    return sorted(members)


def compile_java(sources: list[Path], target: Path, class_path: str) -> None:
    """Compile Java sources with javac."""
    options = ["-nowarn", "-Xlint:-options", "-encoding", "UTF-8", "--release", str(JAVA_RELEASE)]
    command = [str(find_jdk_tool("javac")), *options, "-d", str(target), "-cp", class_path]
    command += map(str, sources)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines()[:_MAX_LINES]
        raise ConfigError("javac failed:\n" + "\n".join(lines))


def compile_plugin(spark: SparkHome, jar: Path) -> None:
    """Compile the plugin against a Spark and write its jar, completely or not at all.

    The jar's bytes depend only on the sources, the Spark and the compiler.
    """
    folder = plugin_folder()
    note = JarNote(
        version=__version__,
        scala=spark.scala,
        spark=spark.version,
        java=JAVA_RELEASE,
        sources=sources_hash(folder),
        private_members=" ".join(private_members(folder)),
    )
    jar.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder as the jar, so that moving the finished jar is one step.
    with tempfile.TemporaryDirectory(dir=jar.parent) as work:
        classes = Path(work) / "classes"
        classes.mkdir()
        try:
            compile_java(java_sources(folder / "src" / "main"), classes, f"{spark.jars}/*")
        except ConfigError as error:
            what = f"the plugin cannot be compiled against Spark {spark.version}"
            raise ConfigError(f"{what}: {error}") from error
        files = {str(path.relative_to(classes)): path for path in classes.rglob("*.class")}
        made = Path(work) / "made.jar"
        _write_jar(made, note, files)
        made.replace(jar)


def _write_jar(jar: Path, note: JarNote, files: Mapping[str, Path]) -> None:
    head = {"Manifest-Version": "1.0", "Implementation-Title": "parcae-spark"}
    lines = {**head, **note.model_dump(by_alias=True)}
    manifest = "".join(_manifest_line(f"{name}: {value}") for name, value in lines.items()) + "\r\n"
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(_MANIFEST, _EPOCH), manifest)
        # Sorted, so that the order of the entries is always the same.
        for name, path in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes())


def _manifest_line(text: str) -> str:
    """A line of a manifest; a long one continues on further lines, which start with a blank."""
    starts = range(_MANIFEST_WIDTH, len(text), _MANIFEST_WIDTH - 1)
    rest = [text[at : at + _MANIFEST_WIDTH - 1] for at in starts]
    return "\r\n ".join([text[:_MANIFEST_WIDTH], *rest]) + "\r\n"


def read_jar_note(jar: Path) -> JarNote:
    """Read the description of a jar of the plugin."""
    try:
        with zipfile.ZipFile(jar) as archive:
            text = archive.read(_MANIFEST).decode()
        # A line break before a blank continues the line.
        unfolded = text.replace("\r\n ", "").splitlines()
        lines = dict(line.split(": ", 1) for line in unfolded if ": " in line)
        return JarNote.model_validate(lines)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no manifest of the plugin"
        advice = "take the one that `parcae spark jar` prints"
        raise ConfigError(f"{jar} is no jar of the plugin ({reason}): {advice}") from error


def _kept_jar(scala: str) -> Path:
    """The path in the cache for a jar of a Scala line, compiled from the present sources."""
    hashed = sources_hash(plugin_folder())
    return cache_folder() / f"parcae-spark_{scala}-{__version__}-{hashed}.jar"


def find_jar(spark: SparkHome) -> Path | None:
    """The jar for this Spark's Scala line: the packaged one, else the one in the cache, else
    None.
    """
    spark.check_supported()
    # The packaged jar comes first: it needs neither sources nor a JDK.
    packaged = packaged_folder() / jar_name(spark.scala)
    if packaged.exists():
        return packaged
    try:
        kept = _kept_jar(spark.scala)
    except ConfigError:  # neither jars nor sources
        return None
    return kept if kept.exists() else None


def build_plugin(spark: SparkHome, *, is_fresh: bool = False) -> Path:
    """The plugin's jar for this Spark: packaged or cached if there is one, else compiled now.

    With `is_fresh` it is compiled even if there is a jar.

    One jar works with all Sparks of a Scala line.
    """
    # A jar in the cache is found by the hash of the sources, so it is never out of date.
    if not is_fresh and (found := find_jar(spark)):
        return found
    spark.check_supported()
    jar = _kept_jar(spark.scala)
    compile_plugin(spark, jar)
    return jar


#: Version on PyPI of the Spark against which the jar of a Scala line is compiled.
COMPILED_AGAINST = {"2.12": "3.5.9", "2.13": "4.3.0"}

#: The files and folders of the wheel, besides the jars.
_PARTS = ("pyproject.toml", "README.md", "src", "spark-plugin")
_JARS = "src/parcae/spark/jars"
_NOT_COPIED = ("__pycache__", "*.egg-info", "build", "jars")
#: The time of files in the wheel: 1980-01-01, the first that a zip file can hold.
_WHEEL_EPOCH = "315532800"


def fetch_spark(version: str) -> SparkHome:
    """A Spark from PyPI, e.g. "3.5.9", in the cache; it is downloaded at the first call."""
    folder = cache_folder() / "sparks" / version
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            target = Path(work) / "made"
            words = ["install", "--no-deps", "--no-compile", "--target", str(target)]
            _pip([*words, f"pyspark=={version}"], f"PySpark {version} could not be fetched")
            if not folder.is_dir():  # another process may have finished first
                target.replace(folder)
    return find_spark(folder / "pyspark")


def spark_of_line(scala: str) -> SparkHome:
    """The Spark for compiling the jar of a Scala line: installed, or downloaded from PyPI."""
    version = COMPILED_AGAINST[scala]
    try:
        installed = find_spark()
    except ConfigError:
        return fetch_spark(version)
    return installed if installed.version == version else fetch_spark(version)


def build_jars(folder: Path) -> list[Path]:
    """Compile the plugin's jar for every Scala line into a folder."""
    find_jdk_tool("javac")  # fails before anything is downloaded
    jars = []
    for scala in COMPILED_AGAINST:
        jar = folder / jar_name(scala)
        compile_plugin(spark_of_line(scala), jar)
        jars.append(jar)
    return jars


def build_wheel(target: Path) -> Path:
    """Build the wheel with the plugin's jars into a folder, from a copy of the checkout."""
    # A copy, since the build writes into its source folder.
    checkout = plugin_folder().parent
    if not (checkout / "pyproject.toml").exists():
        raise ConfigError(
            f"{checkout} is no checkout of Parcae, and the wheel can only be built from one"
        )
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="parcae-dist-") as work:
        copy = Path(work) / "parcae"
        copy.mkdir()
        for name in _PARTS:
            _copy(checkout / name, copy / name)
        jars = build_jars(copy / _JARS)
        # A separate folder, so that a wheel of an earlier build is not taken for this one.
        made = Path(work) / "wheel"
        words = ["wheel", "--no-deps", "--wheel-dir", str(made), str(copy)]
        _pip(words, "the wheel could not be built")
        (wheel,) = made.glob("*.whl")
        _check_wheel(wheel, jars)
        return Path(shutil.copy(wheel, target))


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    else:
        shutil.copy(source, target)


def _check_wheel(wheel: Path, jars: list[Path]) -> None:
    """Refuse a wheel that lacks a jar or a Java source, as when pyproject.toml lacks its folder."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    wanted = [jar.name for jar in jars]
    folder = plugin_folder()
    wanted += [str(path.relative_to(folder)) for path in java_sources(folder / "src" / "main")]
    for part in wanted:
        if not any(name.endswith(f"/{part}") for name in names):
            advice = "add its folder to [tool.setuptools] in pyproject.toml"
            raise ConfigError(f"the wheel lacks {part}: {advice}")


def _pip(words: list[str], failure: str) -> None:
    """Run pip; `failure` begins the message of its error."""
    options = ["--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", words[0], *options, *words[1:]]
    # With fixed times, equal sources give an equal wheel; the caller may set another time.
    environment = {"SOURCE_DATE_EPOCH": _WHEEL_EPOCH, **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise ConfigError(f"{failure}: {' '.join(lines) or done.stderr.strip()[-500:]}")


def main() -> None:
    """Build the wheel and print its path; on an error print one line and exit with code 2."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, nargs="?", default=Path("dist"))
    try:
        print(build_wheel(parser.parse_args().target))
    except (InputError, OSError) as error:
        print(f"parcae: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
