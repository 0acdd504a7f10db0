"""The plugin on a standalone cluster, and under a service in a process of its own: what is killed there comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parcae.spark.applications import ReplayRequest, RunningService, running_service
from parcae.spark.launch import PluginSettings, environment
from parcae.spark.mixes import write_mixes
from tests.spark.machine import Application, Machine, serving, start_machine, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = start_machine(tmp_path_factory.mktemp("spark"))
    yield started
    started.close()


@pytest.fixture(autouse=True)
def _no_complaints(machine: Machine) -> Iterator[None]:
    yield
    assert machine.complaints() == []


class Cluster:
    """A master and two workers, of four declared cores and of two."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder, self._processes = machine, folder, list[subprocess.Popen[bytes]]()
        self.port = _free_port()
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        wait_until(lambda: _listens(self.port))
        self.workers = [self._worker("127.0.0.1", 4), self._worker("127.0.0.2", 2)]  # copies run on other hosts only

    def _worker(self, host: str, cores: int) -> subprocess.Popen[bytes]:
        work = ["--work-dir", str(self._folder / host), f"spark://127.0.0.1:{self.port}"]
        return self._start("worker.Worker", "--host", host, "--cores", str(cores), "--memory", "2g", "--webui-port", "0", *work)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(self._machine.spark.command("spark-class")), f"org.apache.spark.deploy.{name}", *arguments]
        with (self._folder / f"{name}.log").open("ab") as log:
            env = environment(self._machine.spark.path, {"SPARK_DAEMON_MEMORY": "256m"})
            process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        self._processes.append(process)
        return process

    def executors(self) -> list[int]:
        """Process ids of the executors that run now."""
        found, open_ = [], [worker.pid for worker in self.workers]
        while open_:
            pid = open_.pop()
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    open_ += map(int, (task / "children").read_text().split())
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def settings(self, **more: object) -> dict[str, object]:
        """Of a context on this cluster: executors of two cores."""
        return {
            "spark_master": f"spark-parcae://127.0.0.1:{self.port}",
            "spark_executor_cores": 2,
            "spark_executor_memory": "512m",
            "spark_executor_extraClassPath": self._machine.class_path,
            "spark_executor_extraJavaOptions": "-XX:TieredStopAtLevel=1",
            **more,
        }

    def close(self) -> None:
        """End it."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@pytest.fixture(scope="module")
def cluster(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(machine, tmp_path_factory.mktemp("cluster"))
    yield started
    started.close()


def _in_background(application: Application, num_jobs: int, num_tasks: int, sleep_ms: int) -> threading.Thread:
    thread = threading.Thread(
        target=lambda: outcome.append(application.workouts.jobs(application.java, num_jobs, num_tasks, sleep_ms))
    )
    outcome = thread.outcome = list[int]()  # type: ignore[attr-defined]
    thread.start()
    return thread


def _outcome(thread: threading.Thread) -> list[int]:
    thread.join(180)
    assert not thread.is_alive(), "the jobs did not end"
    found: list[int] = thread.outcome  # type: ignore[attr-defined]
    return found


def test_executors_that_are_killed(machine: Machine, cluster: Cluster) -> None:
    with serving() as (service, server, heard), machine.context(server.port, **cluster.settings()) as application:
        wait_until(lambda: len(cluster.executors()) == 3, 60)
        application.run()
        thread = _in_background(application, 6, 12, 800)
        for _ in range(2):
            time.sleep(5)
            failed = service.counts.failed_tasks
            os.kill(max(cluster.executors()), signal.SIGKILL)
            wait_until(lambda: service.counts.failed_tasks > failed or heard.num_syncs > 6)  # noqa: B023
            wait_until(lambda: len(cluster.executors()) == 3)
        assert _outcome(thread) == [6]
        syncs = heard.num_syncs
        application.run()
        wait_until(lambda: not any(mirror.jobs for mirror in service.mirrors.values()))
        assert heard.num_syncs <= syncs + 1  # all is as the books say
        assert service.counts.fallbacks == 0
        report = application.report()
    assert report["broken"] is None
    assert report["troubles"] == 0
    assert report["tasks_unguided"] < 60


def test_a_copy_overtakes_a_straggler(machine: Machine, cluster: Cluster) -> None:
    settings = cluster.settings(spark_speculation="true", spark_speculation_interval="100ms")
    with serving() as (service, server, heard), machine.context(server.port, **settings) as application:
        wait_until(lambda: len(cluster.executors()) == 3, 60)
        application.run()
        took_ms = application.workouts.straggling(application.java, 8, 60_000)
        assert 0 < took_ms < 30_000
        application.run()
        wait_until(lambda: not any(mirror.jobs for mirror in service.mirrors.values()))
        assert heard.num_syncs < 10


def test_executors_that_come_and_go_by_themselves(machine: Machine, cluster: Cluster) -> None:
    dynamic = {
        "enabled": "true",
        "shuffleTracking_enabled": "true",
        "shuffleTracking_timeout": "2s",
        "executorIdleTimeout": "2s",
        "minExecutors": "0",
        "initialExecutors": "0",
        "schedulerBacklogTimeout": "1s",
    }
    settings = cluster.settings(**{f"spark_dynamicAllocation_{name}": value for name, value in dynamic.items()})
    before = machine.said().count("Spark schedules by itself")
    with serving() as (service, server, _), machine.context(server.port, **settings) as application:
        for _ in range(2):
            application.run(4, 12, 200)
            wait_until(lambda: not cluster.executors(), 60)
        assert service.counts.finished_tasks > 0
        report = application.report()
    assert report["troubles"] == 0
    assert machine.said().count("Spark schedules by itself") == before


def _restarted(port: int, folder: Path) -> contextlib.AbstractContextManager[RunningService]:
    return running_service("fair", "tpch", num_slots=4, port=port, log=folder / "serve.log")


def _reaches(text: str, machine: Machine, start: int) -> bool:
    return text in machine.said()[start:]


def test_a_service_that_is_killed_stalled_and_restarted(machine: Machine, tmp_path: Path) -> None:
    port = _free_port()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_restarted(port, tmp_path))
        application = stack.enter_context(machine.context(port))
        wait_until(lambda: _reaches("connected to", machine, 0))
        application.run()
        thread = _in_background(application, 8, 16, 100)
        time.sleep(0.5)
        start = len(machine.said())
        first.process.kill()
        wait_until(lambda: _reaches("Spark schedules by itself", machine, start))
        second = stack.enter_context(_restarted(port, tmp_path))
        wait_until(lambda: _reaches("connected to", machine, start))
        assert _outcome(thread) == [8]
        thread = _in_background(application, 8, 16, 100)
        time.sleep(0.5)
        start = len(machine.said())
        second.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: _reaches("Spark schedules by itself", machine, start))
        assert _outcome(thread) == [8]
        second.process.send_signal(signal.SIGCONT)
        wait_until(lambda: _reaches("connected to", machine, start))
        application.run()
        report = application.report()
    assert report["connections"] >= 3
    assert report["timeouts"] >= 1
    assert report["away_ms"] > 1000
    assert report["tasks_guided"] > 0
    assert report["tasks_unguided"] > 0


def test_a_driver_that_is_killed_is_forgotten(machine: Machine, tmp_path: Path) -> None:
    stage = {"parents": [], "sleep_ms": [60_000] * 4}
    write_mixes(tmp_path / "mixes.json", [{"jobs": [{"name": "long", "arrival_ms": 0, "stages": [stage]}]}])
    with serving() as (service, server, heard):
        plugin = PluginSettings(machine.jar, f"127.0.0.1:{server.port}")
        (tmp_path / "long-events").mkdir()
        request = ReplayRequest(machine.spark, machine.jar, 4, "FIFO", plugin, tmp_path, "long", {})
        with request.log_file.open("wb") as log:
            driver = subprocess.Popen(
                request.command(tmp_path / "mixes.json", tmp_path / "results.json"),
                stdout=log,
                stderr=log,
                env=environment(machine.spark.path),
                start_new_session=True,
            )
        try:
            wait_until(lambda: "long" in heard.jobs, 90)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        wait_until(lambda: not service.sessions)
        assert not any(mirror.jobs for mirror in service.mirrors.values())
        with machine.context(server.port) as application:
            application.run()
            assert application.report()["troubles"] == 0
