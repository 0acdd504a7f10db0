"""Real Spark in this process: one JVM, contexts one after the other, under services of this process."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parcae.errors import ConfigError
from parcae.policies.catalog import make_policy
from parcae.service.jobs import DurationBook
from parcae.service.protocol import ClientMessage, JobArrived, StagesAdded
from parcae.service.server import Server, ServerConfig, serve_in_thread
from parcae.service.session import Service, Session, Watcher
from parcae.spark.build import build_plugin, compile_java, java_sources, plugin_folder
from parcae.spark.home import SparkHome, find_jdk_tool, find_spark

_LOGGING = """
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
logger.parcae.name = parcae
logger.parcae.level = info
"""
#: A line of a stack trace in the plugin (not in the jobs of the tests), or an error that it tells.
_OURS = re.compile(r"^\s+at parcae\.spark\.(?!Workouts|Replay)|^ERROR parcae|^(ERROR|FATAL) .*Parcae", re.MULTILINE)


@contextmanager
def serving(policy: str = "fair", **settings: Any) -> Iterator[tuple[Service, Server, Listening]]:
    """A service in a thread, and what is heard there."""
    heard = Listening()
    service = Service(lambda slots: make_policy(policy, slots), policy, DurationBook(None), watchers=[heard])
    server, stop = serve_in_thread(lambda: Server(service, ServerConfig(**settings)))
    try:
        yield service, server, heard
    finally:
        stop()


class Listening(Watcher):
    """Counts what clients say: jobs that arrived, stages added to them, how often all was told anew."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.num_added = self.num_syncs = self.num_sessions = 0

    def opened(self, session: Session) -> None:
        self.num_sessions += 1

    def heard(self, session: Session, message: ClientMessage) -> None:
        self.num_syncs += message.type == "sync"
        for event in getattr(message, "events", ()):
            if isinstance(event, JobArrived):
                self.jobs.append(event.job.name)
            self.num_added += isinstance(event, StagesAdded)


def wait_until(holds: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait, and fail where it never holds."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


class Machine:
    """A JVM with Spark, the plugin and the workouts."""

    def __init__(self, spark: SparkHome, folder: Path) -> None:
        from pyspark import SparkConf, SparkContext

        self.spark, self.folder, self.log = spark, folder, folder / "spark.log"
        classes = folder / "classes"
        classes.mkdir()
        self.jar = build_plugin(spark)
        sources = [path for path in java_sources(plugin_folder() / "tests") if path.name == "Workouts.java"]
        compile_java(sources, classes, f"{self.jar}:{spark.jars}/*")
        logging = folder / "log4j2.properties"
        logging.write_text(_LOGGING.format(path=self.log))
        options = f"-Dlog4j2.configurationFile={logging} -XX:TieredStopAtLevel=1"
        self.class_path = f"{self.jar}{os.pathsep}{classes}"
        conf = SparkConf().set("spark.driver.extraClassPath", self.class_path).set("spark.driver.extraJavaOptions", options)
        conf.set("spark.driver.memory", "1g")
        self._context = SparkContext
        SparkContext._ensure_initialized(conf=conf)
        self.jvm: Any = SparkContext._jvm
        self.workouts = self.jvm.parcae.spark.Workouts
        self.num_contexts = self._forgiven = 0

    @contextmanager
    def context(self, port: int, cores: int = 4, failures: int = 4, **settings: object) -> Iterator[Application]:
        """A Spark context under the service at that port; `spark_task_cpus=2` sets spark.task.cpus."""
        from pyspark import SparkConf

        self.num_contexts += 1
        report = self.folder / f"report-{self.num_contexts}.json"
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.locality.wait": "0s",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.parcae.service": f"127.0.0.1:{port}",
            "spark.parcae.report": str(report),
            "spark.parcae.timeoutMs": "1000",
            "spark.parcae.retryMs": "300",
            "spark.app.name": f"test {self.num_contexts}",
            **{name.replace("_", "."): str(value) for name, value in settings.items()},
        }
        made = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        master = conf.pop("spark.master", f"local-parcae[{cores},{failures}]")
        application = Application(self, self._context(master=master, conf=made), report)
        try:
            yield application
        finally:
            application.stop()

    def said(self) -> str:
        """Spark's log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def complaints(self) -> list[str]:
        """Lines of the log that tell of a fault of the plugin."""
        text = self.said()[self._forgiven :]
        return [text[max(0, found.start() - 300) : found.end() + 300] for found in _OURS.finditer(text)]

    def forgive(self) -> None:
        """What was complained about until now was meant to be."""
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

    def __init__(self, machine: Machine, context: Any, report: Path) -> None:
        self.machine, self.context, self._report = machine, context, report
        self.workouts, self.java = machine.workouts, context._jsc

    def run(self, num_jobs: int = 4, num_tasks: int = 6, sleep_ms: int = 20) -> None:
        """Jobs at once; all must come to the right result."""
        assert self.workouts.jobs(self.java, num_jobs, num_tasks, sleep_ms) == num_jobs

    def stop(self) -> None:
        """End the application."""
        self.context.stop()

    def report(self) -> dict[str, Any]:
        """The plugin's own numbers, once it is stopped."""
        self.stop()
        found: dict[str, Any] = json.loads(self._report.read_text())
        return found


def start_machine(folder: Path) -> Machine:
    """The JVM; the test is skipped without JDK or PySpark."""
    pytest.importorskip("pyspark")
    try:
        find_jdk_tool("javac")
        return Machine(find_spark(), folder)
    except ConfigError as error:
        pytest.skip(str(error))
