"""Finds the plugin's jar for a Spark: Maven builds it, and a wheel of Parcae carries it."""

from __future__ import annotations

import zipfile
from pathlib import Path

from pydantic import BaseModel

from parcae.base.errors import ConfigError
from parcae.base.texts import __version__
from parcae.spark.home import SparkHome

#: The file in the jar that says what it was built from.
_NOTE = "parcae/spark/build.properties"


class JarNote(BaseModel, frozen=True):
    """What a jar of the plugin says of itself."""

    version: str
    scala: str
    spark: str
    java: int


def jars_folder() -> Path:
    """The folder of the jars, in an installed package and in a checkout."""
    return Path(__file__).parent / "jars"


def sources_folder() -> Path:
    """The folder of the plugin's project in a checkout; installed packages have none."""
    return Path(__file__).parents[3] / "spark-plugin"


def jar_name(scala: str) -> str:
    """The name of the jar of a Scala line, e.g. "parcae-spark_2.13-0.1.0.jar"."""
    return f"parcae-spark_{scala}-{__version__}.jar"


def find_jar(spark: SparkHome) -> Path:
    """The jar for this Spark's Scala line; one jar fits all Sparks of a line."""
    spark.check_supported()
    jar = jars_folder() / jar_name(spark.scala)
    sources = [path for path in (sources_folder() / "src" / "main").rglob("*") if path.is_file()]
    build = "run `make jars` there (it needs Maven and a JDK)"
    if not jar.exists():
        advice = f"this is a checkout: {build}" if sources else "install a wheel that has it"
        raise ConfigError(
            f"this Parcae has no jar for Spark {spark.version} (Scala {spark.scala}): {advice}"
        )
    if sources and max(path.stat().st_mtime for path in sources) > jar.stat().st_mtime:
        raise ConfigError(f"{jar} is older than the sources in {sources_folder()}: {build}")
    return jar


def read_jar_note(jar: Path) -> JarNote:
    """Read what a jar of the plugin says of itself."""
    try:
        with zipfile.ZipFile(jar) as archive:
            text = archive.read(_NOTE).decode()
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return JarNote.model_validate(lines)
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no {_NOTE} in it"
        advice = "take the one that `parcae spark jar` prints"
        raise ConfigError(f"{jar} is no jar of the plugin ({reason}): {advice}") from error
