"""Tests of Spark's features with the plugin: they work, results are right, the order holds."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import wait_until
from tests.spark.machine import Machine
from tests.spark.proofs import Guided, guided, processes_that, two_workers

_CLUSTER = "local-cluster[2,2,1024]"
_FACTS = "select id, id % 97 as item, id % 1009 as customer from range(0, 200000, 1, 8)"
_SLEEP = "java_method('java.lang.Thread', 'sleep', 60000L)"
_ITEMS = "select id as item, id % 5 as shelf from range(97)"
_FEW = f"select shelf from ({_ITEMS})"
_MEAN = f"select avg(item) from ({_ITEMS})"
_QUERIES = {
    "broadcast": f"select shelf, sum(id) from ({_FACTS}) natural join ({_ITEMS}) group by 1",
    "subquery": f"select count(*) from ({_FACTS}) where item < ({_MEAN}) and item in ({_FEW})",
    "shuffle": f"select customer, sum(id) from ({_FACTS}) group by 1 order by 2 desc limit 20",
}


def _answers(context: Any, *, at_once: bool) -> dict[str, list[Any]]:
    """The results of the queries, run one after the other or each in its own thread."""
    from pyspark.sql import SparkSession

    session = SparkSession(context)
    found: dict[str, list[Any]] = {}

    def ask(name: str) -> None:
        found[name] = sorted(session.sql(_QUERIES[name]).collect())

    threads = [threading.Thread(target=ask, args=(name,)) for name in _QUERIES]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join(60)
    for thread in threads:
        thread.join(60)
    return found


def test_adaptive_queries_with_broadcasts_and_subqueries(machine: Machine, tmp_path: Path) -> None:
    with machine.context(0, spark_master="local[2]") as stock:
        expected = _answers(stock.context, at_once=False)
    assert [len(expected[name]) for name in _QUERIES] == [5, 1, 20]
    with guided(machine, tmp_path) as queries:
        assert _answers(queries.context, at_once=True) == expected
        queries.trace.await_settled()
        first = [job for job in queries.trace.jobs().values() if job["name"].startswith("plan-")]
        assert len(first) == len(_QUERIES)  # broadcasts and subqueries are part of their query
        assert {job["known"] for job in first} == {"unknown"}
        assert _answers(queries.context, at_once=True) == expected
        again = [job for job in queries.trace.jobs().values() if job["known"] == "learned"]
        assert sorted(job["name"] for job in again) == sorted(job["name"] for job in first)


def _in_thread(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def _executor_processes(machine: Machine) -> list[int]:
    """Settings of executors for this machine's driver, which has their class path."""
    mine = str(machine.own_classes)
    backend = "CoarseGrainedExecutorBackend"
    return processes_that(lambda command: backend in command and mine in command)


def _is_running(queries: Guided) -> bool:
    return queries.num_started() > 0


def _count_active(queries: Guided) -> int:
    """The number of tasks that run now."""
    tracker = queries.context.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    return sum(info.numActiveTasks for info in infos if info)


def _assert_group_is_cancelled(queries: Guided) -> None:
    assert queries.machine.workouts.cancelled(queries.java, 1_500)


def _assert_query_is_cancelled(queries: Guided) -> None:
    """All jobs of an SQL execution, found by a tag."""
    from pyspark.sql import SparkSession

    session = SparkSession(queries.context)
    errors: list[BaseException] = []

    def ask() -> None:
        queries.context.addJobTag("doomed")
        try:
            rows = f"select {_SLEEP} as x from range(0, 8, 1, 8)"
            session.sql(f"select count(x) from ({rows})").collect()
        except Exception as error:
            errors.append(error)

    asking = _in_thread(ask)
    wait_until(lambda: _count_active(queries) > 0)
    queries.context.cancelJobsWithTag("doomed")
    asking.join(30)
    assert len(errors) == 1
    assert "cancel" in str(errors[0]).lower()


@pytest.mark.slow
def test_failures_and_cancellations(machine: Machine, tmp_path: Path) -> None:
    """Tasks fail, shuffled data are lost, an executor is killed, jobs are cancelled."""
    with guided(machine, tmp_path, _CLUSTER) as queries:
        queries.await_executors(2)
        assert machine.workouts.jobs(queries.java, 4, 8, 50) == 4
        queries.trace.await_settled()
        assert machine.workouts.flaky(queries.java, 8)
        queries.assert_order()
        before = len(machine.said())
        assert machine.workouts.forgetful(queries.java, 8)
        assert "FetchFailed" in machine.said()[before:]
        queries.assert_order()
        _assert_group_is_cancelled(queries)
        queries.assert_order()
        _assert_query_is_cancelled(queries)
        queries.assert_order()
        right: list[int] = []
        working = _in_thread(lambda: right.append(machine.workouts.jobs(queries.java, 4, 12, 400)))
        wait_until(lambda: _is_running(queries))
        old = set(queries.executors())
        os.kill(max(_executor_processes(machine)), signal.SIGKILL)
        wait_until(lambda: len(set(queries.executors()) - old) == 1, 60)
        queries.await_executors(2)
        working.join(120)
        assert right == [4]
        queries.trace.await_settled()
        with pytest.raises(Exception, match="a stage that fails"):
            _failing_job(queries.context)


def _failing_job(context: Any) -> None:
    from pyspark.sql import SparkSession

    rows = "select raise_error('a stage that fails') as x from range(0, 4, 1, 4)"
    SparkSession(context).sql(f"select count(x) from ({rows})").collect()


@pytest.mark.slow
def test_speculation_barriers_locality_and_decommissioning(
    machine: Machine,
    tmp_path: Path,
) -> None:
    """A standalone cluster of two hosts, since speculation runs its copies on other hosts only."""
    settings = {
        "spark_speculation": "true",
        "spark_speculation_interval": "100ms",
        "spark_speculation_quantile": "0.5",
        "spark_locality_wait": "500ms",
        "spark_decommission_enabled": "true",
        "spark_storage_decommission_enabled": "true",
        "spark_executor_decommission_forceKillTimeout": "20s",
    }
    with (
        two_workers(machine.spark, tmp_path / "cluster", cores=2) as master,
        guided(machine, tmp_path, master, **settings) as queries,
    ):
        queries.await_executors(2)
        took_ms = machine.workouts.straggling(queries.java, 8, 40_000)
        assert 0 < took_ms < 30_000, "no copy overtook the task that hangs"
        queries.assert_order()
        _assert_barrier(queries)
        queries.assert_order()
        _assert_cached(queries)
        _assert_decommission(queries)


def _assert_decommission(queries: Guided) -> None:
    """An executor is decommissioned while it has shuffled data and tasks; results are right."""
    right: list[int] = []
    workouts = queries.machine.workouts
    working = _in_thread(lambda: right.append(workouts.jobs(queries.java, 4, 12, 300)))
    wait_until(lambda: _is_running(queries))
    leaving = queries.executors()[0]
    info = queries.machine.jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo
    none = getattr(getattr(queries.machine.jvm.scala, "None$"), "MODULE$")
    backend = queries.scala.schedulerBackend()
    backend.decommissionExecutor(leaving, info("the test says so", none), True, False)
    wait_until(lambda: leaving not in queries.executors(), 60)
    working.join(120)
    assert right == [4]
    queries.trace.await_settled()


@pytest.mark.slow
def test_executors_that_come_and_go_with_resource_profiles(
    machine: Machine,
    tmp_path: Path,
) -> None:
    """Executors come and go with the work; a stage requests executors of another kind."""
    dynamic = {
        "enabled": "true",
        "shuffleTracking_enabled": "true",
        "shuffleTracking_timeout": "2s",
        "executorIdleTimeout": "2s",
        "minExecutors": "0",
        "initialExecutors": "0",
        "schedulerBacklogTimeout": "1s",
    }
    settings = {f"spark_dynamicAllocation_{name}": value for name, value in dynamic.items()}
    settings["spark_executor_cores"] = "1"
    with (
        two_workers(machine.spark, tmp_path / "cluster", cores=2) as master,
        guided(machine, tmp_path, master, **settings) as queries,
    ):
        assert queries.executors() == []
        assert machine.workouts.jobs(queries.java, 4, 8, 300) == 4
        assert queries.executors()
        wait_until(lambda: not queries.executors(), 60)
        _assert_profile(queries)
        wait_until(lambda: not queries.executors(), 60)


def _assert_profile(queries: Guided) -> None:
    """A stage on executors of two cores, beside a query on those of one."""
    from pyspark.resource import (
        ExecutorResourceRequests,
        ResourceProfileBuilder,
        TaskResourceRequests,
    )

    wanted = ResourceProfileBuilder().require(ExecutorResourceRequests().cores(2).memory("512m"))
    profile = wanted.require(TaskResourceRequests().cpus(2)).build

    def cpus(_: int) -> int:  # likewise
        from pyspark import TaskContext

        return TaskContext.get().cpus()

    other = _in_thread(lambda: queries.run("long", 40, 100))
    found = queries.context.parallelize(range(8), 4).withResources(profile).map(cpus).collect()
    other.join(90)
    assert found == [2] * 8
    assert "long" in queries.end_s


def _assert_barrier(queries: Guided) -> None:
    """All four tasks of the stage run at once, beside a query that wants all cores."""

    def meet(
        rows: Any,
    ) -> Any:  # defined here, so that it travels to the workers, which do not have this module
        from pyspark import BarrierTaskContext

        here = BarrierTaskContext.get()
        yield sorted(int(each) for each in here.allGather(str(here.partitionId())))

    other = _in_thread(lambda: queries.run("long", 40, 100))
    wait_until(lambda: _is_running(queries))
    found = queries.context.parallelize(range(4), 4).barrier().mapPartitions(meet).collect()
    other.join(60)
    assert found == [[0, 1, 2, 3]] * 4
    assert "long" in queries.end_s


def _assert_cached(queries: Guided) -> None:
    """Tasks over cached blocks run where the blocks are."""
    from pyspark.sql import SparkSession

    session = SparkSession(queries.context)
    table = session.range(0, 100_000, 1, 6).cache()
    assert table.count() == 100_000
    assert table.selectExpr("sum(id)").first()[0] == sum(range(100_000))
    table.unpersist(True)
