"""Where Spark and a JDK are on this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError

_CORE = re.compile(r"spark-core_(\d+\.\d+)-(.+)\.jar")
_INSTALL_SPARK = "install one with `pip install pyspark` or set SPARK_HOME to a distribution"
_INSTALL_JDK = "install one (Debian: `apt-get install openjdk-17-jdk-headless`) or set JAVA_HOME to a JDK"


@dataclass(frozen=True)
class SparkHome:
    """A Spark distribution or the PySpark package: both hold `bin` and `jars`.

    Args:
        path: its folder.
        version: e.g. "4.3.0".
        scala: the Scala line that its jars are made for, e.g. "2.13".
    """

    path: Path
    version: str
    scala: str

    @property
    def jars(self) -> Path:
        """Its jars' folder."""
        return self.path / "jars"

    def command(self, name: str) -> Path:
        """One of its commands.

        Raises:
            ConfigError: it is not there.

        Example: `find_spark().command("spark-submit")`.
        """
        found = self.path / "bin" / name
        if not found.exists():
            raise ConfigError(f"{found} does not exist: {_INSTALL_SPARK}")
        return found


def find_spark(home: Path | None = None) -> SparkHome:
    """The given Spark, else that of SPARK_HOME, else the PySpark of this Python.

    Raises:
        ConfigError: there is none.
    """
    path = home or (Path(os.environ["SPARK_HOME"]) if os.environ.get("SPARK_HOME") else _pyspark())
    if path is None:
        raise ConfigError(f"no Spark was found: {_INSTALL_SPARK}")
    for jar in sorted(path.glob("jars/spark-core_*.jar")):
        if name := _CORE.fullmatch(jar.name):
            return SparkHome(path.resolve(), name[2], name[1])
    raise ConfigError(f"{path} is no Spark (no jars/spark-core_*.jar in it): {_INSTALL_SPARK}")


def _pyspark() -> Path | None:
    spec = importlib.util.find_spec("pyspark")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def find_jdk_tool(name: str) -> Path:
    """A tool of the JDK: of JAVA_HOME, else of the PATH.

    Raises:
        ConfigError: there is none (a JRE has `java` but no `javac`).
    """
    home = os.environ.get("JAVA_HOME")
    if home and (tool := Path(home) / "bin" / name).exists():
        return tool
    found = shutil.which(name)
    if found is None:
        where = f" in JAVA_HOME ({home}) nor on the PATH" if home else ""
        raise ConfigError(f"no JDK was found: no `{name}`{where}; {_INSTALL_JDK}")
    return Path(found)


def java_version() -> str:
    """The JDK's own words, e.g. "javac 17.0.15".

    Raises:
        ConfigError: there is no JDK.
    """
    done = subprocess.run([find_jdk_tool("javac"), "-version"], capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip()
