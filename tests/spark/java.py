"""Compiles the plugin and runs its Java tests: they need a JDK and Spark's jars, but no Spark."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.build import build_plugin, compile_java, java_sources, plugin_folder
from parcae.spark.home import find_jdk_tool, find_spark

_TIMEOUT_S = 120.0


def plugin_and_tests() -> tuple[Path, Path]:
    """The plugin's jar, and the folder of its tests' classes; both are compiled once for all runs.

    The test is skipped without a JDK or a Spark.
    """
    try:
        find_jdk_tool("javac")
        spark = find_spark()
        jar = build_plugin(spark)
    except ConfigError as error:
        pytest.skip(str(error))
    sources = java_sources(plugin_folder() / "src" / "test")
    digest = hashlib.sha256(f"{jar.name} {spark.version}".encode())
    for path in sources:
        digest.update(path.read_bytes())
    kept = Path(sys.prefix) / "java-tests"
    folder = kept / digest.hexdigest()[:12]
    kept.mkdir(exist_ok=True)
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=kept) as made:
                compile_java(sources, Path(made) / "classes", f"{jar}:{spark.jars}/*")
                (Path(made) / "classes").rename(folder)
    return jar, folder


def run_java(class_path: str, main: str, *arguments: object) -> str:
    """What a class of `parcae.spark` prints; a failed check is the test's failure."""
    command = [
        find_jdk_tool("java"),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        class_path,
        f"parcae.spark.{main}",
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        pytest.fail(f"{main}: {done.stderr[-4000:]}\n{done.stdout[-2000:]}", pytrace=False)
    return done.stdout
