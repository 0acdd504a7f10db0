"""Tests on every master: an application started by spark-submit, executors without the jar."""

from __future__ import annotations

import contextlib
import subprocess
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar, sources_folder
from tests.conftest import wait_until
from tests.spark.fake_kubernetes import fake_kubernetes
from tests.spark.java import compile_java, java_sources, jdk_tool
from tests.spark.proofs import (
    PLUGIN,
    Process,
    Trace,
    process,
    processes_that,
    submit_command,
    write_two_queries,
)
from tests.spark.standalone import standalone_cluster
from tests.test_deploy import allowed

_ANSWER = "40 2, short first"
#: Options that Spark 3 needs on Java 17; spark-submit sets them, but a worker does not.
_OPEN = " ".join(
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("sun.nio.ch", "java.nio", "java.lang", "java.lang.invoke", "java.util")
)


@dataclass(frozen=True)
class Application:
    """`TwoQueries` in a jar, the plugin's jar, a policy file, and a folder for results."""

    spark: SparkHome
    jar: Path
    plugin: Path
    folder: Path

    @property
    def trace(self) -> Trace:
        """The trace of its orders."""
        return Trace(self.folder / "trace.jsonl")

    @property
    def answer(self) -> str:
        """The answer of the application; empty before its end."""
        path = self.folder / "answer"
        return path.read_text() if path.exists() else ""

    def command(
        self,
        master: str,
        *options: str,
        task_ms: int = 100,
        **settings: object,
    ) -> list[str]:
        """The command that submits it."""
        conf = {
            "spark.plugins": PLUGIN,
            "spark.driver.extraClassPath": self.plugin,
            "spark.parcae.policy": self.folder / "policy.json",
            "spark.parcae.trace": self.trace.path,
            "spark.executor.memory": "512m",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        name = "--class=parcae.spark.TwoQueries"
        own = (name, self.jar, self.folder / "answer", task_ms)
        return submit_command(self.spark, master, conf, *options, *own)

    def assert_right(self, said: str) -> None:
        """Check that results are right, the short query overtook, and the plugin stayed on."""
        assert self.answer == _ANSWER, said[-3000:]
        assert "parcae: off" not in said
        assert "ClassNotFoundException: parcae" not in said
        assert self.trace.has_ordered("short", "long")
        assert self.trace.is_settled()

    def assert_run(self, running: Process) -> None:
        """The same checks, and the driver ends by itself."""
        assert running.wait() == 0, running.said()[-3000:]
        assert "parcae: on, srpt by" in running.said()
        self.assert_right(running.said())


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> tuple[SparkHome, Path, Path]:
    """The Spark, the application and the plugin's jar."""
    folder = tmp_path_factory.mktemp("application")
    try:
        tool = jdk_tool("jar")
        spark = find_spark()
    except ConfigError as error:
        pytest.skip(str(error))
    sources = java_sources(sources_folder() / "src" / "test")
    own = [path for path in sources if path.name == "TwoQueries.java"]
    compile_java(own, folder / "classes", f"{spark.jars}/*")
    jar = folder / "two-queries.jar"
    command = [tool, "cf", jar, "-C", folder / "classes", "."]
    subprocess.run(command, check=True, capture_output=True)
    return spark, jar, find_jar(spark)


@pytest.fixture
def application(jars: tuple[SparkHome, Path, Path], tmp_path: Path) -> Application:
    write_two_queries(tmp_path / "policy.json")
    spark, jar, plugin = jars
    return Application(spark, jar, plugin, tmp_path)


def _start(
    application: Application,
    *words: str,
    task_ms: int = 100,
    **settings: object,
) -> AbstractContextManager[Process]:
    command = application.command(*words, task_ms=task_ms, **settings)
    return process(command, application.folder / "driver.log", application.spark)


@pytest.mark.slow  # five JVMs; that executors are not to look for the jar is held in test_guest.py
def test_standalone(application: Application, tmp_path: Path) -> None:
    with (
        standalone_cluster(application.spark, 2, tmp_path / "cluster") as cluster,
        _start(application, cluster.master) as driver,
    ):
        application.assert_run(driver)


@pytest.mark.slow
def test_standalone_with_the_driver_on_the_cluster(
    application: Application,
    tmp_path: Path,
) -> None:
    with standalone_cluster(application.spark, 3, tmp_path / "cluster") as cluster:
        with _start(
            application,
            cluster.master,
            "--deploy-mode=cluster",
            "--driver-memory=512m",
            spark_cores_max=2,
            spark_driver_extraJavaOptions=_OPEN,
        ) as submitting:
            submitting.await_line("State of driver")
        wait_until(lambda: application.answer, 90)
        (log,) = (tmp_path / "cluster" / "work").glob("driver-*/stderr")
        wait_until(application.trace.is_settled)
        application.assert_right(log.read_text())


@pytest.mark.slow
def test_kubernetes(application: Application, tmp_path: Path) -> None:
    settings = {
        "spark_executor_instances": 2,
        "spark_kubernetes_container_image": "any",
        "spark_kubernetes_allocation_batch_delay": "1s",
    }
    with (
        fake_kubernetes(application.spark, tmp_path / "pods") as (master, pods),
        _start(application, master, **settings) as driver,
    ):
        application.assert_run(driver)
        assert pods.num_made == 2
        assert pods.requests <= allowed("spark-driver")


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_nothing(application: Application, tmp_path: Path) -> None:
    with standalone_cluster(application.spark, 2, tmp_path / "cluster") as cluster:
        with _start(application, cluster.master, task_ms=60_000) as driver:
            wait_until(lambda: "long" in application.trace.names(), 90)
            assert _executors(tmp_path)
            driver.kill()
        wait_until(lambda: not _executors(tmp_path), 60)
        (tmp_path / "answer").unlink(missing_ok=True)
        application.trace.path.unlink()
        with _start(application, cluster.master) as driver:  # the cluster is as before
            application.assert_run(driver)


def _executors(folder: Path) -> list[int]:
    """The executors of the cluster whose worker has its files in that folder."""
    found = []
    for pid in processes_that(lambda command: "CoarseGrainedExecutorBackend" in command):
        # One that has ended since has no folder any more.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if str(folder) in str(Path(f"/proc/{pid}/cwd").resolve()):
                found.append(pid)
    return found
