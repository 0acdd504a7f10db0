"""Pools under an order on a real Spark: of a policy file, and of a service."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.spark.replaying import running_service

from parcae.evaluation.policies import resolve_policies
from parcae.policies.policy_file import export_policy, write_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import write_workload
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import wait_until
from tests.spark.machine import Machine
from tests.spark.test_guest import Queries

_SLEEP_MS = 100
#: Sleep for so long that the costs of a task and of a query matter little.
_LONG_SLEEP_MS = 500
#: (pool, tasks) of every query. The order by least remaining work is short, cheap, long, large.
_QUERIES = {"long": ("gold", 150), "short": ("gold", 6), "cheap": ("bronze", 60)}
_LARGE = ("floor", 300)
_ALL = {**_QUERIES, "large": _LARGE}
_WORKLOAD = Workload(
    "w", tuple(chain(1, tasks, _SLEEP_MS, name) for name, (_, tasks) in _ALL.items())
)
_ALLOCATION = """<allocations>
  <pool name="gold"><weight>3</weight></pool>
  <pool name="bronze"><weight>1</weight></pool>
  <pool name="floor"><minShare>2</minShare></pool>
</allocations>"""


class _Tenants:
    """Queries of several pools, each in a thread; their tasks sleep for `sleep_ms`."""

    def __init__(self, queries: Queries, sleep_ms: int = _SLEEP_MS) -> None:
        self.queries = queries
        self._sleep_ms = sleep_ms
        self._threads = list[threading.Thread]()

    def start(self, name: str) -> None:
        """Start a query in its pool and wait until Spark has its tasks."""
        pool, tasks = _ALL[name]
        before = self._num_active()
        thread = threading.Thread(target=self._run, args=(name, pool, tasks))
        thread.start()
        self._threads.append(thread)
        wait_until(lambda: self._num_active() > before)

    def _run(self, name: str, pool: str, tasks: int) -> None:
        self.queries.context.setLocalProperty("spark.scheduler.pool", pool)
        self.queries.run(name, tasks, self._sleep_ms)

    def _num_active(self) -> int:
        return len(self.queries.context.statusTracker().getActiveStageIds())

    def mean_running(self, seconds: float) -> dict[str, float]:
        """The mean number of running tasks of every pool, over so many seconds."""
        scala = self.queries.context._jsc.sc()
        sums = Counter[str]()
        count = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for pool in ("gold", "bronze", "floor"):
                sums[pool] += scala.getPoolForName(pool).get().runningTasks()
            count += 1
            time.sleep(0.01)
        return {pool: sums[pool] / count for pool in ("gold", "bronze", "floor")}

    def join(self) -> None:
        """Wait until all queries have ended."""
        for thread in self._threads:
            thread.join(60)

    def cancel(self) -> None:
        """End what still runs."""
        self.queries.context.cancelAllJobs()
        for thread in self._threads:
            thread.join(60)


@contextmanager
def _planned_by(machine: Machine, folder: Path, planner: str, **own: object) -> Iterator[Queries]:
    """A Spark of four cores with pools, whose orders come from a policy file or a service."""
    pools = folder / "pools.xml"
    pools.write_text(_ALLOCATION)
    settings = {
        "spark_scheduler_mode": "FAIR",
        "spark_scheduler_allocation_file": pools,
        "spark_plugins": "parcae.spark.ParcaePlugin",
        **own,
    }
    if planner == "file":
        write_policy(export_policy("srpt", _WORKLOAD), folder / "policy.json")
        settings["spark_parcae_policy"] = folder / "policy.json"
        with machine.context(0, 4, **settings) as application:
            yield Queries(application.context)
        return
    write_workload(_WORKLOAD, folder / "profile.parcae")
    before = len(machine.said())
    log = folder / "serve.log"
    with (
        running_service("srpt", str(folder / "profile.parcae"), log=log) as service,
        machine.context(service.port, 4, **settings) as application,
    ):
        wait_until(lambda: "parcae: orders come from" in machine.said()[before:])
        yield Queries(application.context)


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["file", "service"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_shares_between_pools_hold_and_the_order_is_ours_inside(
    machine: Machine, tmp_path: Path, planner: str
) -> None:
    before = len(machine.said())
    with _planned_by(machine, tmp_path, planner) as queries:
        queries.context.setLocalProperty("spark.scheduler.pool", "made-by-use")
        queries.run("warm", 4, 1)
        assert queries.context._jsc.sc().getPoolForName("made-by-use").isDefined()
        tenants = _Tenants(queries)
        for name in _QUERIES:
            tenants.start(name)
        # `cheap` has less work left than `long`: without kept pools it would take all cores.
        shares = tenants.mean_running(2.0)
        assert shares["gold"] == pytest.approx(3, abs=0.4)
        assert shares["bronze"] == pytest.approx(1, abs=0.3)
        # Inside `gold` the query that came later and is shorter is served first.
        assert set(queries.end_s) == {"warm", "short"}
        tenants.start("large")  # the largest, of a pool with a minimum share of 2
        shares = tenants.mean_running(1.5)
        assert shares["floor"] == pytest.approx(2, abs=0.4)
        assert shares["bronze"] < 1.2
        assert set(queries.end_s) == {"warm", "short"}
        tenants.cancel()
    said = machine.said()[before:]
    assert "pools keep their weights and minimum shares; the scheduler mode FAIR" in said
    assert machine.complaints() == []


def _simulated_s(folder: Path, sleep_ms: int) -> dict[str, float]:
    """When the queries end if all of them arrive at once, by the simulator."""
    order = list(_QUERIES)
    jobs = [
        replace(chain(1, tasks, sleep_ms, name), pool=pool)
        for name, (pool, tasks) in _QUERIES.items()
    ]
    workload = Workload("w", tuple(jobs))
    path = folder / "simulated.json"
    path.write_text('{"pools": {"gold": {"weight": 3}, "bronze": {}}}')
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    text = f"srpt+pools:{path}"
    policy = resolve_policies(workload, [text], config, "batch", 3).policies[text]
    sequence = JobSequence(workload, np.arange(3), np.zeros(3, np.int64))
    ends_ms = simulate(sequence, policy, config, 1).completion_ms
    return {name: float(ms) / 1_000 for name, ms in zip(order, ends_ms, strict=True)}


@pytest.mark.slow
def test_queries_end_when_the_simulator_says(machine: Machine, tmp_path: Path) -> None:
    with _planned_by(machine, tmp_path, "file") as queries:
        queries.run("warm", 4, 1)
        tenants = _Tenants(queries, _LONG_SLEEP_MS)
        start_s = time.monotonic()
        for name in _QUERIES:
            tenants.start(name)
        tenants.join()
    found = {name: queries.end_s[name] - start_s for name in _QUERIES}
    expected = _simulated_s(tmp_path, _LONG_SLEEP_MS)
    # A task takes some milliseconds more than it sleeps, and queries up to a second to start: up to
    # 8% in all on a slow machine.
    for name in ("long", "cheap"):
        assert found[name] == pytest.approx(expected[name], rel=0.1), (found, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_pools_are_replaced_where_the_setting_says_so(machine: Machine, tmp_path: Path) -> None:
    own = {"spark_parcae_pools": "replace"}
    with _planned_by(machine, tmp_path, "file", **own) as queries:
        queries.run("warm", 4, 1)
        tenants = _Tenants(queries)
        for name in _QUERIES:
            tenants.start(name)
        wait_until(lambda: "short" in queries.end_s)
        shares = tenants.mean_running(0.7)
        assert shares["bronze"] > 3.5
        tenants.cancel()
    assert machine.complaints() == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_job_of_high_priority_goes_first(machine: Machine, tmp_path: Path) -> None:
    before = len(machine.said())
    own = {"spark_parcae_pools": "replace", "spark_parcae_priority_max": 10}
    with _planned_by(machine, tmp_path, "file", **own) as queries:
        queries.run("warm", 4, 1)
        tenants = _Tenants(queries)
        tenants.start("cheap")
        # A thread of Python inherits no local properties, so the query sets its own.
        run = queries.run

        def run_first(name: str, tasks: int, sleep_ms: int) -> None:
            queries.context.setLocalProperty("spark.parcae.priority", "10")
            run(name, tasks, sleep_ms)

        queries.run = run_first  # type: ignore[method-assign,assignment]
        tenants.start("large")
        time.sleep(0.3)
        shares = tenants.mean_running(1.0)
        assert shares["floor"] > 3.5
        tenants.cancel()
    assert "not a whole number" not in machine.said()[before:]
    assert machine.complaints() == []
