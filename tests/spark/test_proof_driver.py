"""Tests of the plugin in one driver: notebooks, streams, YARN's task schedulers, faults."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.spark.machine import Machine
from tests.spark.proofs import Guided, guided, write_two_queries
from tests.spark.test_guest import application

pytestmark = pytest.mark.slow


class Cell(threading.Thread):
    """A cell of a notebook: a Python job of tasks of 100 ms under a job group of its own."""

    def __init__(self, context: Any, group: str, tasks: int) -> None:
        super().__init__()
        self._context = context
        self._group = group
        self._tasks = tasks
        self.found: int | BaseException | None = None
        self.end_s = 0.0
        self.start()

    def run(self) -> None:
        def nap(number: int) -> int:
            time.sleep(0.1)
            return number

        try:
            self._context.setJobGroup(self._group, f"cell {self._group}")
            self.found = self._context.parallelize(range(self._tasks), self._tasks).map(nap).sum()
        except Exception as error:
            self.found = error
        self.end_s = time.monotonic()


def test_cells_of_notebooks_with_job_groups(machine: Machine, tmp_path: Path) -> None:
    with guided(machine, tmp_path) as queries:
        Cell(queries.context, "warm", 2).join(60)
        long = Cell(queries.context, "long", 40)
        wait_until(lambda: queries.num_started() > 0)
        short = Cell(queries.context, "short", 2)
        short.join(60)
        long.join(60)
        assert (long.found, short.found) == (sum(range(40)), 1)
        assert short.end_s < long.end_s
        assert queries.trace.has_ordered("short", "long")
        known = {job["name"]: job["known"] for job in queries.trace.jobs().values()}
        assert known == {"warm": "unknown", "long": "policy", "short": "policy"}
        doomed = Cell(queries.context, "long", 40)
        wait_until(lambda: queries.num_started() > 0)
        queries.context.cancelJobGroup("long")
        doomed.join(60)
        assert "cancelled" in str(doomed.found)
        queries.trace.await_settled()


def test_a_stream_beside_queries(machine: Machine, tmp_path: Path) -> None:
    """A stream's batches recur by shape, since plans name the state's version. All queries end."""
    own = {"spark_sql_streaming_checkpointLocation": tmp_path / "checkpoints"}
    with guided(machine, tmp_path, **own) as queries:
        stream = _stream(queries)
        wait_until(lambda: stream.lastProgress and stream.lastProgress["batchId"] >= 2, 60)
        before = stream.lastProgress["batchId"]
        for _ in range(2):
            assert queries.run_both() > 0
        during = stream.lastProgress["batchId"]
        wait_until(lambda: stream.lastProgress["batchId"] > during)
        stream.stop()
        assert stream.exception() is None
        queries.trace.await_settled()
        assert during >= before + 2
        jobs = [*queries.trace.jobs().values()]
        batches = [job for job in jobs if job["name"].startswith(("plan-", "shape-"))]
        learned = [job["name"] for job in batches if job["known"] == "learned"]
        assert len(learned) >= during - 2
        assert len(set(learned)) <= 2  # with data, and to close windows when there are none


def _stream(queries: Guided) -> Any:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    session = SparkSession(queries.context)
    source = session.readStream.format("rate").option("rowsPerSecond", 50).load()
    rows = source.withColumn("shelf", F.col("value") % 5).withWatermark("timestamp", "1 second")
    counts = rows.groupBy(F.window("timestamp", "1 second"), "shelf").count()
    return (
        counts.writeStream.format("memory")
        .queryName("counts")
        .outputMode("update")
        .trigger(processingTime="300 milliseconds")
        .start()
    )


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_task_schedulers_of_yarn(machine: Machine, tmp_path: Path, mode: str) -> None:
    """YARN's schedulers of the driver over cores of this JVM, without a ResourceManager."""
    services = machine.own_classes / "META-INF" / "services"
    services.mkdir(parents=True, exist_ok=True)
    service = services / "org.apache.spark.scheduler.ExternalClusterManager"
    service.write_text("parcae.spark.YarnLocal\n")
    with guided(machine, tmp_path, f"local-yarn-{mode}") as queries:
        name = queries.scala.taskScheduler().getClass().getName()
        assert "Yarn" in name
        assert machine.workouts.jobs(queries.java, 4, 6, 20) == 4


def test_a_full_disk_ends_the_trace_and_nothing_else(machine: Machine, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full, a file of a disk that is full")
    before = len(machine.said())
    policy = write_two_queries(tmp_path / "policy.json")
    with application(machine, policy, spark_parcae_trace="/dev/full") as queries:
        assert queries.run_both() > 0.5
    said = machine.said()[before:]
    assert said.count("parcae: the trace ends, orders go on: /dev/full cannot be written") == 1
    assert "parcae: off" not in said
    assert machine.complaints() == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("policy.json", "has version 99"),
        ("nowhere.json", r"nowhere\.json cannot be read.*write one with `parcae export`"),
    ],
)
def test_a_policy_file_of_another_version_leaves_stock_spark(
    machine: Machine, tmp_path: Path, name: str, said: str
) -> None:
    path = write_two_queries(tmp_path / "policy.json")
    written = path.read_text()
    path.write_text(written.replace('"version": 2', '"version": 99'))
    assert path.read_text() != written
    before = len(machine.said())
    with application(machine, tmp_path / name) as queries:
        queries.run("alone", 4, 1)
        assert queries.context._jsc.sc().taskScheduler().rootPool().schedulableQueue().isEmpty()
    (line,) = [line for line in machine.said()[before:].splitlines() if "parcae: off" in line]
    assert re.search(said, line)
    machine.forgive()


def test_events_that_spark_drops_leave_no_query_open(machine: Machine, tmp_path: Path) -> None:
    """With a far too short event queue, ends of jobs and queries are lost, and found later."""
    before = len(machine.said())
    own = {"spark_scheduler_listenerbus_eventqueue_parcae_capacity": 2}
    with guided(machine, tmp_path, **own) as queries:
        for _ in range(20):
            assert machine.workouts.jobs(queries.java, 8, 100, 0) == 8
            time.sleep(1)  # the events that are left have been read
            if not queries.trace.is_settled():
                break
        numbers = machine.jvm.parcae.spark.Numbers
        assert numbers.of("eventsDropped") > 0
        assert not queries.trace.is_settled()
        deadline = time.monotonic() + 60
        while not queries.trace.is_settled() and time.monotonic() < deadline:
            time.sleep(1)
            queries.run("warm", 2, 1)
            time.sleep(0.2)
        queries.trace.await_settled()
        assert numbers.of("eventsRepaired") > 0
        assert numbers.of("openQueries") == 0
    assert machine.said()[before:].count("parcae: Spark drops events") == 1
