"""Tools of a TPC-H measurement: data generator, Java, and a description of the machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from parcae.base.errors import ConfigError

#: The packages that `pip install 'parcae[measure]'` installs.
PACKAGES = ("pyspark", "duckdb", "tpchgen-cli")


def check_tools() -> None:
    """Check that all tools for a measurement are installed."""
    missing = missing_tools(PACKAGES)
    if missing:
        raise ConfigError(f"measuring needs {', '.join(missing)}: pip install 'parcae[measure]'")
    try:
        _java_version()
    except (OSError, subprocess.SubprocessError):
        raise ConfigError(
            "measuring runs Spark, which needs Java 17 or newer: install it, or set JAVA_HOME"
        ) from None


def missing_tools(names: Iterable[str]) -> list[str]:
    """The names (of those in `PACKAGES`) that are not installed."""
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    if name == "tpchgen-cli":
        return _generator() is not None
    return importlib.util.find_spec(name) is not None


def _generator() -> str | None:
    # A virtual environment that is not activated is not in PATH: look beside Python first.
    beside = Path(sys.executable).parent / "tpchgen-cli"
    return str(beside) if beside.exists() else shutil.which("tpchgen-cli")


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    # Java prints `openjdk version "17.0.1" ...` to stderr, after lines about JAVA_TOOL_OPTIONS.
    result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    version = re.search(r'^\w+ version "([^"]+)"', result.stderr, re.MULTILINE)
    return version[1] if version else "unknown"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def describe_machine() -> dict[str, str]:
    """Processor model, number of CPUs, and the versions of Java and of the packages used."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"cpu": _cpu_model(), "cpus": str(os.cpu_count()), "java": _java_version(), **versions}


def generate_tables(target: Path, scale_factor: float) -> None:
    """Write the eight TPC-H tables as parquet files into the new folder `target`, atomically."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        str(_generator()),
        "parquet",
        "-s",
        f"{scale_factor:g}",
        "--output-dir",
        str(partial),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ConfigError(
            f"tpchgen-cli failed at scale factor {scale_factor:g}: {result.stderr.strip()[-300:]}"
        )
    partial.rename(target)
