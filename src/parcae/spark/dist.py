"""Builds the wheel with the plugin's jars, one for each Scala line: `make dist`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from parcae.errors import ConfigError, InputError
from parcae.spark.build import cache_folder, compile_plugin, jar_name, java_sources, plugin_folder
from parcae.spark.home import SparkHome, find_jdk_tool, find_spark

#: Version on PyPI of the Spark against which the jar of a Scala line is compiled.
COMPILED_AGAINST = {"2.12": "3.5.9", "2.13": "4.3.0"}

#: The files and folders of the wheel, besides the jars.
_PARTS = ("pyproject.toml", "README.md", "src", "spark-plugin")
_JARS = "src/parcae/spark/jars"
_NOT_COPIED = ("__pycache__", "*.egg-info", "build", "jars")
#: The time of files in the wheel: 1980-01-01, the first that a zip file can hold.
_EPOCH = "315532800"


def fetch_spark(version: str) -> SparkHome:
    """A Spark from PyPI, e.g. "3.5.9", in the cache; it is downloaded at the first call.

    Raises:
        ConfigError: the Spark is not in the cache and cannot be downloaded.
    """
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
    """The Spark for compiling the jar of a Scala line: installed, or downloaded from PyPI.

    Raises:
        ConfigError: the Spark cannot be downloaded.
    """
    version = COMPILED_AGAINST[scala]
    try:
        installed = find_spark()
    except ConfigError:
        return fetch_spark(version)
    return installed if installed.version == version else fetch_spark(version)


def build_jars(folder: Path) -> list[Path]:
    """Compile the plugin's jar for every Scala line into a folder.

    Raises:
        ConfigError: there is no JDK, or a Spark cannot be downloaded.
    """
    find_jdk_tool("javac")  # fails before anything is downloaded
    jars = []
    for scala in COMPILED_AGAINST:
        jar = folder / jar_name(scala)
        compile_plugin(spark_of_line(scala), jar)
        jars.append(jar)
    return jars


def build_wheel(target: Path) -> Path:
    """Build the wheel with the plugin's jars into a folder, from a copy of the checkout.

    Raises:
        ConfigError: there is no JDK or no checkout, or a Spark or setuptools cannot be downloaded.
    """
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
        (wheel,) = made.glob("parcae-*.whl")
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
    wanted += [str(path.relative_to(folder)) for path in java_sources(folder / "src")]
    for part in wanted:
        if not any(name.endswith(f"/{part}") for name in names):
            advice = "add its folder to [tool.setuptools] in pyproject.toml"
            raise ConfigError(f"the wheel lacks {part}: {advice}")


def _pip(words: list[str], failure: str) -> None:
    """Run pip; `failure` begins the message of its error."""
    options = ["--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", words[0], *options, *words[1:]]
    # With fixed times, equal sources give an equal wheel; the caller may set another time.
    environment = {"SOURCE_DATE_EPOCH": _EPOCH, **os.environ}
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
