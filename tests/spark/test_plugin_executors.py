"""Tests of Spark applications that share a standalone cluster.

Each application requests the executors that it is granted, and returns others.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.spark.replaying import ReplayedMix, ReplayRequest, replay, running_service

from parcae.base.errors import ParcaeError
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.spark.launch import PluginSettings
from tests.conftest import wait_until
from tests.spark.fake_service import FakeService, mute
from tests.spark.needs import needs_spark
from tests.spark.standalone import StandaloneCluster, standalone_cluster

pytestmark = [needs_spark, pytest.mark.slow]
EXECUTORS = 4
_TIMEOUT_S = 240.0


def _job(name: str, tasks: int, sleep_ms: int, arrival_ms: int = 0) -> dict[str, Any]:
    return {
        "name": name,
        "arrival_ms": arrival_ms,
        "stages": [{"parents": [], "sleep_ms": [sleep_ms] * tasks}],
    }


@pytest.fixture(scope="module")
def spark() -> SparkHome:
    return find_spark()


@pytest.fixture
def cluster(spark: SparkHome, tmp_path: Path) -> Iterator[StandaloneCluster]:
    with standalone_cluster(spark, EXECUTORS, tmp_path / "cluster") as running:
        yield running


class _Application:
    """An application that replays jobs under a separate fake service or a shared real one."""

    def __init__(
        self,
        name: str,
        cluster: StandaloneCluster,
        spark: SparkHome,
        work: Path,
        jobs: list[dict[str, Any]],
        address: str | None = None,
        **more_conf: str,
    ) -> None:
        self.service = FakeService(executors=0)
        jar = find_jar(spark)
        address = address or f"127.0.0.1:{self.service.port}"
        plugin = PluginSettings(jar, service=address, order_ttl_ms=2_000, fallback_executors=2)
        conf = {
            **cluster.conf(),
            "spark.executor.cores": "1",
            "spark.parcae.replay.warmUp": "0",
            "spark.eventLog.compress": "false",
            **more_conf,
        }
        self.request = ReplayRequest(
            spark, jar, EXECUTORS, "FIFO", plugin, work, name, conf, cluster.master
        )
        self._result: list[ReplayedMix] | ParcaeError | None = None
        self._thread = threading.Thread(target=self._run, args=(jobs,))
        self._thread.start()

    def _run(self, jobs: list[dict[str, Any]]) -> None:
        try:
            self._result = replay(self.request, [{"jobs": jobs}], timeout_s=_TIMEOUT_S)
        except ParcaeError as error:
            self._result = error

    def grant(self, executors: int) -> None:
        """Grant so many executors from the next order on; all applications resend their state."""
        self.service.more = {"executors": executors}
        self.service.drop()

    def wait_for(self, executors: int) -> None:
        """Wait until the application has so many executors; each runs one task."""
        wait_until(lambda: self.service.picture.cores == executors, 90)

    def end(self) -> list[tuple[str, int, int]]:
        """The executor, start and end of every task that succeeded."""
        self._thread.join()
        self.service.close()
        if isinstance(self._result, ParcaeError):
            raise self._result
        (log,) = self.request.event_logs.iterdir()
        tasks = []
        for event in map(json.loads, log.read_text().splitlines()):
            if (
                event["Event"] == "SparkListenerTaskEnd"
                and event["Task End Reason"]["Reason"] == "Success"
            ):
                info = event["Task Info"]
                metrics = event["Task Metrics"]
                worked_ms = metrics["Executor Deserialize Time"] + metrics["Executor Run Time"]
                tasks.append(
                    (info["Executor ID"], info["Launch Time"], info["Launch Time"] + worked_ms)
                )
        return tasks


def test_executors_go_from_one_application_to_the_other(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path
) -> None:
    one = _Application("one", cluster, spark, tmp_path, [_job("long", 120, 1_000)])
    wait_until(lambda: one.service.num_states, 90)
    one.grant(EXECUTORS)
    one.wait_for(EXECUTORS)
    other = _Application("other", cluster, spark, tmp_path, [_job("late", 40, 1_000)])
    wait_until(lambda: other.service.num_states, 90)
    assert other.service.picture.cores == 0
    one.grant(1)  # the others are busy, and go after a while without idle ones
    one.wait_for(1)
    other.grant(EXECUTORS - 1)
    other.wait_for(EXECUTORS - 1)
    late = other.end()
    one.grant(EXECUTORS)
    one.wait_for(EXECUTORS)
    long = one.end()
    assert len(long) == 120
    assert len(late) == 40
    assert len({executor for executor, _, _ in long}) > EXECUTORS
    assert one.service.picture.faults == other.service.picture.faults == []
    assert _most_at_once(long + late) <= EXECUTORS


def test_executors_that_spark_waits_for_before_it_starts_are_given_back_too(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path
) -> None:
    # As on YARN and Kubernetes: the driver starts when so many executors have registered.
    conf = {
        "spark.cores.max": str(EXECUTORS),
        "spark.executor.instances": str(EXECUTORS),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    }
    one = _Application("one", cluster, spark, tmp_path, [_job("few", 8, 200)], **conf)
    wait_until(lambda: one.service.num_states, 90)
    here = f"parcae: 0 executors wanted, {EXECUTORS} here"
    wait_until(lambda: here in one.request.log_file.read_text(errors="replace"), 30)
    one.wait_for(0)
    one.grant(EXECUTORS)
    assert len(one.end()) == 8


def _most_at_once(tasks: list[tuple[str, int, int]]) -> int:
    moments = sorted([(start, 1) for _, start, _ in tasks] + [(end, -1) for _, _, end in tasks])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def test_a_real_service_shares_the_cluster_out(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path
) -> None:
    scope = ("--scope", "cluster", "--cores", str(EXECUTORS), "--executor-cores", "1")
    with running_service("srpt", "tpch", extra=scope, log=tmp_path / "serve.log") as service:
        one = _Application(
            "one", cluster, spark, tmp_path, [_job("long", 100, 1_000)], service.address
        )
        other = _Application(
            "other", cluster, spark, tmp_path, [_job("late", 20, 1_000, 20_000)], service.address
        )
        late = other.end()
        long = one.end()
    assert (len(long), len(late)) == (100, 20)
    assert _most_at_once(long + late) <= EXECUTORS
    for application in (one, other):
        assert "executors wanted" in application.request.log_file.read_text(errors="replace")


def test_without_the_service_executors_are_kept_and_asked_for(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path
) -> None:
    one = _Application("one", cluster, spark, tmp_path, [_job("long", 40, 1_000)])
    wait_until(lambda: one.service.num_states, 90)
    one.grant(1)
    one.wait_for(1)
    one.service.change(mute)
    log = one.request.log_file
    wait_until(lambda: "Spark schedules by itself" in log.read_text(errors="replace"), 30)
    wait_until(lambda: "parcae: 2 executors wanted" in log.read_text(errors="replace"), 30)
    time.sleep(5)
    one.service.change(None)
    wait_until(lambda: log.read_text(errors="replace").count("parcae: orders come from") == 2, 30)
    one.grant(3)
    with pytest.raises(ParcaeError, match="not all of the run was under the plugin's order"):
        one.end()
    assert "parcae: 3 executors wanted" in log.read_text(errors="replace")


def test_dynamic_allocation_keeps_its_executors(
    cluster: StandaloneCluster, spark: SparkHome, tmp_path: Path
) -> None:
    service = FakeService(executors=1)
    jar = find_jar(spark)
    plugin = PluginSettings(jar, service=f"127.0.0.1:{service.port}")
    conf = {
        **cluster.conf(),
        "spark.executor.cores": "1",
        "spark.dynamicAllocation.enabled": "true",
    }
    request = ReplayRequest(
        spark, jar, EXECUTORS, "FIFO", plugin, tmp_path, "dynamic", conf, cluster.master
    )
    replay(request, [{"jobs": [_job("few", 8, 200)]}], timeout_s=_TIMEOUT_S)
    service.close()
    said = request.log_file.read_text(errors="replace")
    ignored = "parcae: the service shares out executors, which is ignored: "
    assert said.count(f"{ignored}spark.dynamicAllocation.enabled is set") == 1
    assert "executors wanted" not in said
