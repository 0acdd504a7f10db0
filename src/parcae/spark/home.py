"""Finds Spark and a Java on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from parcae.base.errors import ConfigError

#: The oldest Spark that the plugin supports, and the Scala lines that there are jars for.
OLDEST_SPARK = (3, 3)
SCALA_LINES = ("2.12", "2.13")

_CORE = re.compile(r"spark-core_(\d+\.\d+)-(.+)\.jar")
#: "1.8.0" is Java 8; from Java 9 on the first number counts.
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALL_SPARK = "install one with `pip install pyspark` or set SPARK_HOME to a distribution"
_INSTALL_JAVA = (
    "install one (Debian: `apt-get install openjdk-17-jre-headless`) or set JAVA_HOME to one"
)


@dataclass(frozen=True)
class SparkHome:
    """A Spark distribution or the PySpark package; both have folders `bin` and `jars`."""

    path: Path
    version: str
    scala: str

    @property
    def jars(self) -> Path:
        """The folder of its jars."""
        return self.path / "jars"

    @property
    def release(self) -> tuple[int, int]:
        """The first two numbers of its version, e.g. (4, 3); (0, 0) if there are none."""
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)

    def command(self, name: str) -> Path:
        """The path of one of its commands.

        Example: `find_spark().command("spark-submit")`.
        """
        path = self.path / "bin" / name
        if not path.exists():
            raise ConfigError(f"{path} does not exist: {_INSTALL_SPARK}")
        return path

    def check_supported(self) -> None:
        """Refuse a Spark that the plugin does not support."""
        this = f"Spark {self.version} in {self.path}"
        if self.release < OLDEST_SPARK:
            oldest = ".".join(map(str, OLDEST_SPARK))
            raise ConfigError(f"{this} is too old: the plugin needs {oldest} or newer")
        if self.scala not in SCALA_LINES:
            lines = " and ".join(SCALA_LINES)
            raise ConfigError(
                f"{this} is made for Scala {self.scala}, "
                f"but the plugin supports only Scala {lines}: "
                "use a Spark for one of these"
            )


def find_spark(home: Path | None = None) -> SparkHome:
    """Find a Spark: the given one, else that of SPARK_HOME, this Python's PySpark, or the PATH."""
    path = home or _spark_folder()
    if path is None:
        raise ConfigError(f"no Spark was found: {_INSTALL_SPARK}")
    for jar in sorted(path.glob("jars/spark-core_*.jar")):
        if name := _CORE.fullmatch(jar.name):
            return SparkHome(path.resolve(), name[2], name[1])
    raise ConfigError(f"{path} is no Spark (no jars/spark-core_*.jar in it): {_INSTALL_SPARK}")


def _spark_folder() -> Path | None:
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    # The package is only located: importing it takes long and is not needed.
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return _spark_on_path()


def _spark_on_path() -> Path | None:
    """The folder of the `spark-submit` on the PATH; for a PySpark of pip, its package."""
    submit = shutil.which("spark-submit")
    if submit is None:
        return None
    folder = Path(submit).resolve().parents[1]
    packages = sorted(folder.glob("lib/python*/site-packages/pyspark"))
    return folder if (folder / "jars").is_dir() or not packages else packages[0]


def find_java() -> Path:
    """The Java that Spark's commands start: from JAVA_HOME, else from the PATH."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home) / "bin" / "java"
        if not java.exists():  # with JAVA_HOME set, Spark's commands look nowhere else
            raise ConfigError(f"JAVA_HOME is {home}, but {java} does not exist; {_INSTALL_JAVA}")
        return java
    on_path = shutil.which("java")
    if on_path is None:
        raise ConfigError(f"no Java was found: no `java` on the PATH; {_INSTALL_JAVA}")
    return Path(on_path)


def java_release(java: Path) -> int:
    """The release number of a Java, e.g. 17, or 8 for "1.8.0"."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = _JAVA_VERSION.search(done.stderr + done.stdout)
    if version is None:
        raise ConfigError(f"`{java} -version` prints no version; {_INSTALL_JAVA}")
    return int(version[1])
