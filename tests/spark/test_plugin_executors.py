"""Several Spark applications that share a standalone cluster: the service grants each its executors and takes them away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parcae.errors import ParcaeError
from parcae.spark.applications import ReplayRequest, replay, running_service
from parcae.spark.build import build_plugin, compile_java, java_sources, plugin_folder
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.launch import PluginSettings, environment
from parcae.spark.mixes import ReplayedMix, write_mixes
from tests.spark.needs import needs_spark
from tests.spark.standalone import StandaloneCluster, standalone_cluster

pytestmark = needs_spark
EXECUTORS = 4
_TIMEOUT_S = 300.0


def test_a_shared_clusters_books_by_themselves(tmp_path: Path) -> None:
    spark, tests = find_spark(), plugin_folder() / "tests"
    class_path = os.pathsep.join([str(tmp_path), str(build_plugin(spark)), f"{spark.jars}/*"])
    sources = [source for source in java_sources(tests) if source.name == "ExecutorShareTest.java"]
    compile_java(sources, tmp_path, class_path)
    done = subprocess.run(
        ["java", "-cp", class_path, "parcae.spark.ExecutorShareTest"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "ok\n", done.stderr


def test_an_application_of_a_shared_cluster_is_told_so() -> None:
    conf = PluginSettings(Path("a.jar"), executors=20, fallback_executors=3).conf()
    told = {name: value for name, value in conf.items() if name.startswith(("spark.parcae", "spark.executor"))}
    assert told == {
        "spark.parcae.service": "127.0.0.1:7177",
        "spark.parcae.scope": "cluster",
        "spark.parcae.executors": "20",
        "spark.parcae.fallbackExecutors": "3",
        "spark.executor.cores": "1",
    }


def _job(name: str, arrival_s: float, *stages: tuple[int, float, tuple[int, ...]]) -> dict[str, Any]:
    """A job from (number of tasks, seconds, parents) for each stage."""
    told = [{"parents": list(parents), "sleep_ms": [int(1000 * s)] * tasks} for tasks, s, parents in stages]
    return {"name": name, "arrival_ms": int(1000 * arrival_s), "stages": told}


#: At first both want the whole cluster, then only the other does, then only the one.
ONE = [_job("one a", 0, (16, 1.0, ()), (4, 0.5, (0,))), _job("one b", 70, (8, 1.0, ()), (4, 0.5, (0,)))]
OTHER = [_job("other a", 8, (12, 1.0, ()), (4, 0.5, (0,))), _job("other b", 9, (8, 0.5, ())), _job("other c", 40, (24, 1.0, ()))]


@dataclass
class _Ran:
    """What became of an application."""

    results: list[ReplayedMix]
    report: dict[str, Any]
    executors: list[tuple[int, int]]  # when each came and went, ms
    tasks: list[tuple[str, int, int]]  # executor, start and end

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)


class _Applications:
    """Applications that replay a mix each, side by side."""

    def __init__(self, cluster: StandaloneCluster, spark: SparkHome, service: str, work: Path) -> None:
        self.cluster, self.spark, self.service, self.work = cluster, spark, service, work
        self._threads: dict[str, threading.Thread] = {}
        self._results: dict[str, list[ReplayedMix] | ParcaeError] = {}

    def start(self, name: str, jobs: list[dict[str, Any]]) -> None:
        """Begin to run a mix."""
        self._threads[name] = threading.Thread(target=self._run, args=(name, jobs))
        self._threads[name].start()

    def _run(self, name: str, jobs: list[dict[str, Any]]) -> None:
        try:
            self._results[name] = replay(self.request(name), [{"jobs": jobs}], timeout_s=_TIMEOUT_S)
        except ParcaeError as error:
            self._results[name] = error

    def request(self, name: str) -> ReplayRequest:
        """What is run."""
        jar = build_plugin(self.spark)
        report = self.work / f"{name}-report.json"
        plugin = PluginSettings(jar, self.service, report=report, executors=self.cluster.executors)
        conf = {**self.cluster.conf(), "spark.parcae.replay.warmUp": "false", "spark.eventLog.compress": "false"}
        return ReplayRequest(self.spark, jar, self.cluster.executors, "FAIR", plugin, self.work, name, conf, self.cluster.master)

    def await_line(self, name: str, words: str, count: int = 1) -> str:
        """Wait until the application's log says something so often; its last such line."""
        deadline = time.monotonic() + _TIMEOUT_S / 2
        while time.monotonic() < deadline:
            log = self.request(name).log_file
            lines = [line for line in log.read_text(errors="replace").splitlines() if words in line] if log.exists() else []
            if len(lines) >= count:
                return lines[-1]
            time.sleep(0.05)
        raise AssertionError(f"{name} did not say {words!r} {count} times")

    def end(self, name: str) -> _Ran:
        """Wait for the application's end; what became of it."""
        self._threads[name].join()
        found = self._results[name]
        if isinstance(found, ParcaeError):
            raise found
        report = json.loads((self.work / f"{name}-report.json").read_text())
        return _Ran(found, report, *_read_log(self.request(name).event_logs))


def _read_log(folder: Path) -> tuple[list[tuple[int, int]], list[tuple[str, int, int]]]:
    (log,) = folder.iterdir()
    came, end = dict[str, int](), 0
    executors, tasks = [], []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        kind = event["Event"]
        if kind == "SparkListenerExecutorAdded":
            came[event["Executor ID"]] = event["Timestamp"]
        elif kind == "SparkListenerExecutorRemoved":
            executors.append((came.pop(event["Executor ID"]), event["Timestamp"]))
        elif kind == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
            info, metrics = event["Task Info"], event["Task Metrics"]
            worked_ms = metrics["Executor Deserialize Time"] + metrics["Executor Run Time"]
            tasks.append((info["Executor ID"], info["Launch Time"], info["Launch Time"] + worked_ms))
        end = event.get("Timestamp", end)
    return executors + [(start, end) for start in came.values()], tasks


def _most_at_once(spans: list[tuple[int, int]]) -> int:
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.fixture(scope="module")
def spark() -> SparkHome:
    return find_spark()


@pytest.fixture
def cluster(spark: SparkHome, tmp_path: Path) -> Iterator[StandaloneCluster]:
    with standalone_cluster(spark, EXECUTORS, tmp_path / "cluster") as running:
        yield running


_SERVE = ("--scope", "cluster", "--moving-delay-ms", "3000")


@pytest.mark.slow
def test_one_executor_is_passed_on(spark: SparkHome, tmp_path: Path) -> None:
    with (
        running_service("fair", "toy", num_slots=1, extra=_SERVE, log=tmp_path / "serve.log") as service,
        standalone_cluster(spark, 1, tmp_path / "cluster") as cluster,
    ):
        running = _Applications(cluster, spark, service.address, tmp_path)
        running.start("one", [_job("first", 0, (2, 0.2, ())), _job("last", 25, (1, 0.2, ()))])
        running.start("other", [_job("between", 1, (2, 0.2, ()), (1, 0.1, (0,)))])
        one, other = running.end("one"), running.end("other")
    assert (one.num_tasks, other.num_tasks) == (3, 3)
    assert one.report["executors_came"] + other.report["executors_came"] >= 2
    assert one.report["executors_given_back"] >= 1
    assert one.report["tasks_unguided"] == other.report["tasks_unguided"] == 0
    assert _most_at_once([task[1:] for ran in (one, other) for task in ran.tasks]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fair", "tuned"])
def test_executors_go_from_one_application_to_the_other(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path, policy: str
) -> None:
    with running_service(policy, "tpch", num_slots=EXECUTORS, extra=_SERVE, log=tmp_path / "serve.log") as service:
        running = _Applications(cluster, spark, service.address, tmp_path)
        running.start("one", ONE)
        running.start("other", OTHER)
        one, other = running.end("one"), running.end("other")
    print(policy, *((ran.report, ran.results[0].jct_ms) for ran in (one, other)), sep="\n")
    assert (one.num_tasks, other.num_tasks) == (32, 48)
    for ran in (one, other):
        assert ran.report["tasks_unguided"] == 0
        assert ran.report["troubles"] == ran.report["executors_lost"] == 0
        assert ran.report["moving_p0_ms"] > 0
        for executor in {task[0] for task in ran.tasks}:
            assert _most_at_once([task[1:] for task in ran.tasks if task[0] == executor]) == 1
    assert one.report["executors_given_back"] > 0  # the other wanted them
    assert one.report["executors_came"] + other.report["executors_came"] > EXECUTORS
    spans = [task[1:] for ran in (one, other) for task in ran.tasks]
    assert _most_at_once(spans) <= EXECUTORS


@pytest.mark.slow
def test_without_the_service_all_jobs_end_and_it_is_obeyed_when_it_is_back(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path
) -> None:
    jobs = [_job("long", 0, (60, 1.0, ()), (4, 0.5, (0,))), _job("late", 12, (8, 1.0, ()))]
    with running_service("fair", "tpch", num_slots=EXECUTORS, extra=_SERVE, log=tmp_path / "serve.log") as service:
        running = _Applications(cluster, spark, service.address, tmp_path)
        running.start("one", jobs)
        running.start("other", [dict(jobs[1], arrival_ms=0), *OTHER[:2]])
        running.await_line("one", "Finished task", 6)
        service.process.kill()
    running.await_line("one", "until the service")
    running.await_line("one", "Finished task", 18)
    again = running_service("fair", "tpch", num_slots=EXECUTORS, port=service.port, extra=_SERVE, log=tmp_path / "serve.log")
    with again:
        running.await_line("one", "connected to", 2)
        one, other = running.end("one"), running.end("other")
    print(*((ran.report, ran.results[0].jct_ms) for ran in (one, other)), sep="\n")
    assert (one.num_tasks, other.num_tasks) == (72, 32)
    for ran in (one, other):
        assert ran.report["connections"] >= 2
        assert ran.report["tasks_guided"] > 0
    assert one.report["tasks_unguided"] > 0
    spans = [task[1:] for ran in (one, other) for task in ran.tasks]
    assert _most_at_once(spans) <= EXECUTORS


@pytest.mark.slow
def test_who_dies_leaves_its_executors_to_the_others(cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path) -> None:
    with running_service("fair", "tpch", num_slots=EXECUTORS, extra=_SERVE, log=tmp_path / "serve.log") as service:
        running = _Applications(cluster, spark, service.address, tmp_path)
        with _driver(running.request("dies"), [_job("endless", 0, (500, 1.0, ()))]) as driver:
            running.await_line("dies", "Finished task", 4)
            running.start("lives", [_job("long", 0, (40, 1.0, ()), (4, 0.5, (0,)))])
            running.await_line("lives", "connected to")
            driver.kill()
            running.await_line("lives", "Finished task", 4)
            os.kill(_executor(cluster, running.await_line("lives", "app ID").split()[-1]), signal.SIGKILL)
            lives = running.end("lives")
    print(lives.report, lives.results[0].jct_ms)
    assert lives.num_tasks == 44
    assert lives.report["executors_lost"] == 1
    assert lives.report["syncs"] >= 2
    assert lives.report["executors_came"] > EXECUTORS


@contextlib.contextmanager
def _driver(request: ReplayRequest, jobs: list[dict[str, Any]]) -> Iterator[subprocess.Popen[bytes]]:
    """An application of which nobody waits for the end."""
    mixes, results = (request.work / f"{request.name}-{what}.json" for what in ("mixes", "results"))
    write_mixes(mixes, [{"jobs": jobs}])
    request.event_logs.mkdir()
    with request.log_file.open("wb") as log:
        command, own = request.command(mixes, results), environment(request.spark.path)
        process = subprocess.Popen(command, stdout=log, stderr=log, env=own, start_new_session=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _executor(cluster: StandaloneCluster, application: str) -> int:
    """Process id of one of the application's executors, which are the worker's children."""
    parents = [cluster.worker.pid]
    while parents:
        pid = parents.pop()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            parents += [int(child) for child in (thread / "children").read_text().split()]
        line = Path(f"/proc/{pid}/cmdline").read_text()
        if "CoarseGrainedExecutorBackend" in line and application in line:
            return pid
    raise AssertionError(f"{application} has no executors")
