"""A real Spark for tests: one JVM for this process, with one context after the other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchmarks.spark.queries import LOGGING

from parcae.base.errors import ConfigError
from parcae.spark.home import SparkHome, find_spark
from tests.spark.java import plugin_and_tests

#: A line of a stack trace in the plugin (not in the jobs of the tests), or an error that it logs.
_OURS = re.compile(
    r"^\s+at parcae\.spark\.(?!Workouts|Replay)|^ERROR parcae|^(ERROR|FATAL) .*Parcae", re.MULTILINE
)


class Machine:
    """A JVM with Spark, the plugin and the workouts."""

    def __init__(self, spark: SparkHome, folder: Path) -> None:
        from pyspark import SparkConf, SparkContext

        self.spark = spark
        self.folder = folder
        self.log = folder / "spark.log"
        self.jar, classes = plugin_and_tests()
        #: What a test adds to the class path, and by which this machine's executors are told apart.
        self.own_classes = folder / "classes"
        self.own_classes.mkdir()
        self.test_classes = f"{classes}{os.pathsep}{self.own_classes}"
        logging = folder / "log4j2.properties"
        logging.write_text(LOGGING.format(path=self.log).replace("%d ", ""))
        options = f"-Dlog4j2.configurationFile={logging} -XX:TieredStopAtLevel=1"
        self.class_path = f"{self.jar}{os.pathsep}{self.test_classes}"
        conf = (
            SparkConf()
            .set("spark.driver.extraClassPath", self.class_path)
            .set("spark.driver.extraJavaOptions", options)
        )
        conf.set("spark.driver.memory", "1g")
        self._context = SparkContext
        SparkContext._ensure_initialized(conf=conf)
        self.jvm: Any = SparkContext._jvm
        self.workouts = self.jvm.parcae.spark.Workouts
        self.num_contexts = self._forgiven = 0

    @contextmanager
    def context(
        self, port: int = 0, cores: int = 4, failures: int = 4, **settings: object
    ) -> Iterator[Application]:
        """Start a Spark context; `spark_task_cpus=2` sets spark.task.cpus.

        Args:
            port: of the service for the plugin; 0 for a stock Spark.
            cores: of the local master; not used if spark_master is given.
            failures: how often a task may fail with the local master.
            settings: more settings of Spark.
        """
        from pyspark import SparkConf

        self.num_contexts += 1
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.locality.wait": "0s",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            **(plugin_settings(port) if port else {}),
            "spark.app.name": f"test {self.num_contexts}",
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
        spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        master = conf.pop("spark.master", f"local[{cores},{failures}]")
        application = Application(self, self._context(master=master, conf=spark_conf))
        try:
            yield application
        finally:
            application.stop()

    def said(self) -> str:
        """Spark's log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def complaints(self) -> list[str]:
        """Excerpts of the log around every fault of the plugin."""
        text = self.said()[self._forgiven :]
        return [
            text[max(0, found.start() - 300) : found.end() + 300] for found in _OURS.finditer(text)
        ]

    def forgive(self) -> None:
        """Ignore the faults so far, since the test caused them on purpose."""
        self._forgiven = len(self.said())

    def close(self) -> None:
        """End the JVM."""
        gateway: Any = self._context._gateway
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        self._context._gateway = self._context._jvm = None


class Application:
    """A running Spark context."""

    def __init__(self, machine: Machine, context: Any) -> None:
        self.machine = machine
        self.context = context
        self.workouts = machine.workouts
        self.java = context._jsc

    def run(self, num_jobs: int = 4, num_tasks: int = 6, sleep_ms: int = 20) -> None:
        """Run jobs at once; all must give the right result."""
        assert self.workouts.jobs(self.java, num_jobs, num_tasks, sleep_ms) == num_jobs

    def stop(self) -> None:
        """End the application."""
        self.context.stop()


def plugin_settings(port: int) -> dict[str, str]:
    """Settings for an application with a service on this machine; it reconnects quickly."""
    return {
        "spark.plugins": "parcae.spark.ParcaePlugin",
        "spark.parcae.service": f"127.0.0.1:{port}",
        "spark.parcae.retryMs": "300",
    }


def start_machine(folder: Path) -> Machine:
    """Start the JVM; the test is skipped without a JDK or PySpark."""
    pytest.importorskip("pyspark")
    try:
        return Machine(find_spark(), folder)
    except ConfigError as error:
        pytest.skip(str(error))
