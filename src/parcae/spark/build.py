"""Compiles the plugin against the user's own Spark; every jar is kept, by Spark version and the sources' hash."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from parcae.errors import ConfigError
from parcae.spark.home import SparkHome, find_jdk_tool, java_version

_HASH_DIGITS = 12
_MAX_LINES = 6


def plugin_folder() -> Path:
    """The plugin's sources: in the repository, or where an installed package has them.

    Raises:
        ConfigError: they are nowhere.
    """
    places = [Path(__file__).parents[3] / "spark-plugin", Path(sysconfig.get_path("data")) / "share/parcae/spark-plugin"]
    for place in places:
        if (place / "src").is_dir():
            return place
    raise ConfigError(f"the plugin's Java sources are in none of {', '.join(map(str, places))}; install parcae again")


def java_sources(folder: Path) -> list[Path]:
    """All Java files below a folder, sorted."""
    return sorted(folder.rglob("*.java"))


def _resources(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "resources").rglob("*") if path.is_file())


def cache_folder() -> Path:
    """Where jars are kept: $XDG_CACHE_HOME/parcae/spark, or ~/.cache/parcae/spark."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "parcae" / "spark"


def plugin_hash(folder: Path) -> str:
    """Changes with any source, resource, or the compiler."""
    digest = hashlib.sha256(java_version().encode())
    for path in [*java_sources(folder / "src"), *_resources(folder)]:
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:_HASH_DIGITS]


def compile_java(sources: list[Path], target: Path, class_path: str) -> None:
    """Run javac.

    Raises:
        ConfigError: no JDK, or the sources do not fit this Spark; the message has the compiler's first lines.
    """
    command = [str(find_jdk_tool("javac")), "-nowarn", "-encoding", "UTF-8", "-d", str(target), "-cp", class_path]
    done = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError("javac failed:\n" + "\n".join((done.stderr or done.stdout).splitlines()[:_MAX_LINES]))


def build_plugin(spark: SparkHome, *, is_fresh: bool = False) -> Path:
    """The plugin's jar for this Spark, compiled unless it is there already.

    Args:
        spark: what to compile against.
        is_fresh: compile in any case.

    Raises:
        ConfigError: no JDK, or a Spark whose scheduler is another.
    """
    folder = plugin_folder()
    jar = cache_folder() / f"parcae-spark-{spark.version}-{plugin_hash(folder)}.jar"
    if jar.exists() and not is_fresh:
        return jar
    jar.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jar.parent) as work:
        classes = Path(work) / "classes"
        shutil.copytree(folder / "resources", classes)
        try:
            compile_java(java_sources(folder / "src"), classes, f"{spark.jars}/*")
        except ConfigError as error:
            raise ConfigError(
                f"the plugin cannot be compiled against Spark {spark.version} (4.3 and 3.5 are tested): {error}"
            ) from error
        made = Path(work) / jar.name
        subprocess.run([find_jdk_tool("jar"), "cf", made, "-C", classes, "."], check=True, capture_output=True)
        made.replace(jar)
    return jar
