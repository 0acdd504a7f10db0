"""The TPC-H tables, the texts of the queries, and a description of the machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.spark.work import Work, tell

from parcae.base.errors import ConfigError

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
NUM_QUERIES = 22
#: The packages that benchmarks/spark/requirements.txt lists.
PACKAGES = ("pyspark", "duckdb", "tpchgen-cli")


def missing_tools() -> list[str]:
    """The packages that are not installed."""
    modules = [name for name in PACKAGES[:2] if importlib.util.find_spec(name) is None]
    return modules + ([] if _generator() else [PACKAGES[2]])


def check_tools() -> None:
    """Refuse to begin without the packages and a JVM."""
    if missing := missing_tools():
        raise ConfigError(
            f"TPC-H needs {', '.join(missing)}: pip install -r benchmarks/spark/requirements.txt"
        )
    _java_version()


def _generator() -> str | None:
    # A virtual environment that is not activated is not in PATH: look beside Python first.
    beside = Path(sys.executable).parent / "tpchgen-cli"
    return str(beside) if beside.exists() else shutil.which("tpchgen-cli")


def _java_version() -> str:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        result = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        raise ConfigError("Spark needs Java 17 or newer: install it, or set JAVA_HOME") from None
    # Java prints `openjdk version "17.0.1" ...` to stderr, after lines about JAVA_TOOL_OPTIONS.
    version = re.search(r'^\w+ version "([^"]+)"', result.stderr, re.MULTILINE)
    return version[1] if version else "unknown"


def describe_machine() -> dict[str, str]:
    """Processor model, number of CPUs, and the versions of Java and of the packages."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    cpu = platform.processor() or platform.machine()
    if (listed := Path("/proc/cpuinfo")).exists():
        found = re.search(r"^model name\s*:\s*(.+)$", listed.read_text(), re.MULTILINE)
        cpu = found[1] if found else cpu
    return {"cpu": cpu, "cpus": str(os.cpu_count()), "java": _java_version(), **versions}


def make_tables(work: Work, scale_factor: float) -> Path:
    """The folder of the eight tables as Parquet; they are generated if they do not exist yet."""
    target = work.folder / f"data-sf{scale_factor:g}"
    if target.exists():
        return target
    tell(f"generating the tables of scale factor {scale_factor:g}")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [str(_generator()), "parquet", "-s", f"{scale_factor:g}"]
    command += ["--output-dir", str(partial)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ConfigError(f"tpchgen-cli failed: {result.stderr.strip()[-300:]}")
    partial.rename(target)
    return target


def query_texts(work: Work) -> dict[int, str]:
    """The 22 query texts by number, from the TPC-H extension that is built into duckdb."""

    def read() -> dict[str, str]:
        import duckdb  # heavy, and needed once

        rows = duckdb.connect().execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
        return {str(number): text.strip().rstrip(";") for number, text in rows}

    return {int(number): text for number, text in work.kept("queries", read).items()}
