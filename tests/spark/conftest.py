"""What the tests of the plugin share: short-lived JVMs, one with Spark, and compiled classes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parcae.spark.home import find_spark
from tests.spark.java import build_plugin, plugin_and_tests
from tests.spark.machine import Machine, start_machine
from tests.spark.needs import HAS_SPARK

#: Most JVMs of the tests live for seconds: the optimizing compiler costs more than it saves.
_SHORT_LIVED = "-XX:TieredStopAtLevel=1"


@pytest.fixture(scope="package", autouse=True)
def _short_lived_jvms() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", _SHORT_LIVED)
        yield


@pytest.fixture(scope="package", autouse=True)
def _plugin() -> None:
    """The jar of the sources as they are."""
    if HAS_SPARK:
        build_plugin(find_spark())


@pytest.fixture(scope="session")
def class_path() -> str:
    """The compiled plugin with its tests, and Spark's jars."""
    return ":".join(map(str, [*plugin_and_tests(), find_spark().jars / "*"]))


@pytest.fixture(scope="session")
def _started_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = start_machine(tmp_path_factory.mktemp("spark"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def machine(_started_machine: Machine) -> Machine:
    """The JVM with Spark; faults that the tests of other modules caused are forgiven."""
    _started_machine.forgive()
    return _started_machine
