"""Compiles the plugin and runs its Java tests: they need a JDK and Spark's jars, but no Spark."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.build import compile_java, java_sources, plugin_folder
from parcae.spark.home import find_jdk_tool, find_spark

_TIMEOUT_S = 120.0


def compiled(folder: Path) -> str:
    """Compile the plugin and its tests into a folder; returns their class path.

    The test is skipped without a JDK or a Spark.
    """
    try:
        find_jdk_tool("javac")
        spark = find_spark()
    except ConfigError as error:
        pytest.skip(str(error))
    sources = [*java_sources(plugin_folder() / "src"), *java_sources(plugin_folder() / "tests")]
    compile_java(sources, folder, f"{spark.jars}/*")
    return f"{folder}:{spark.jars}/*"


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
