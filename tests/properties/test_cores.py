"""What holds for every run in the world of cores, whatever the jobs and the orders."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parcae.cluster.observation import Decision, Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import NOT_YET, POOL, UNLIMITED
from parcae.cluster.trace import Trace
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, RandomStreams, draw_sequence
from tests.cluster.invariants import check_every_task_ran_once, check_invariants

_SEEDS = st.integers(0, 10_000)
_CORES = st.integers(1, 12)
_OPEN = ["batch", "poisson:5s", "poisson:1s"]
_ARRIVALS = st.sampled_from([*_OPEN, "sessions:2"])


def _sequence(seed: int, arrivals: str, num_cores: int) -> JobSequence:
    shape = RandomDags(num_jobs=6, mean_tasks=5.0, max_depth=4, max_width=3)
    workload = random_dags(shape, np.random.default_rng(seed))
    return draw_sequence(workload, arrivals, 6, num_cores, RandomStreams(seed))


def _simulator(sequence: JobSequence, num_cores: int, seed: int, **more: Any) -> Simulator:
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores, **more)
    return Simulator(sequence, config, seed, record=True)


@dataclass
class _Dice:
    """Random orders that all let every job end."""

    rng: np.random.Generator
    has_limits: bool = False
    has_pools: bool = False
    name: str = "dice"

    def plan(self, observation: Observation) -> Orders:
        rng = self.rng
        orders = blank_orders(len(observation.jobs), len(observation.stages))
        num_pools = int(rng.integers(1, 5)) if self.has_pools else 1
        orders = orders._replace(pools=np.zeros(num_pools, POOL).view(np.recarray))
        orders.pools.weight[:] = rng.choice([0.5, 1.0, 3.0], num_pools)
        orders.pools.min_share[:] = rng.choice([0, 1, 20], num_pools)
        orders.pools.is_fair[:] = rng.integers(0, 2, num_pools) * self.has_pools
        orders.pools.name_rank[:] = rng.permutation(num_pools)
        orders.jobs.pool[:] = rng.integers(0, num_pools, len(orders.jobs))
        orders.jobs.tier[:] = rng.choice([-np.inf, -1.0, 0.0, 0.0, 2.5], len(orders.jobs))
        orders.jobs.weight[:] = rng.choice([0.0, 0.5, 1.0, 2.0], len(orders.jobs))
        orders.stages.tier[:] = rng.choice([-1.0, 0.0, 0.0, 1.0], len(orders.stages))
        orders.stages.rank[:] = rng.choice([-1.0, 0.0, 1.0], len(orders.stages))
        if self.has_limits:
            orders.jobs.limit[:] = rng.choice([1, 2, 6, UNLIMITED], len(orders.jobs))
            orders.stages.limit[:] = rng.choice([1, 2, 6, UNLIMITED], len(orders.stages))
        if rng.random() < 0.5:
            orders.wake_ms[0] = observation.now.clock_ms[0] + rng.integers(-5, 3_000)
        return orders


def _run_checked(simulator: Simulator, planner: Any) -> Trace:
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        assert simulator.state.now.num_idle[0] > 0
        simulator.follow(planner.plan(simulator.observe()))
    check_invariants(simulator.state)
    return simulator.trace(planner.name)


def _assert_bounds(trace: Trace, sequence: JobSequence) -> None:
    """No job is faster than the longest tasks on its critical path."""
    assert trace.tasks is not None
    longest: dict[tuple[int, int], int] = defaultdict(int)
    for row in trace.tasks:
        key = (int(row["job"]), int(row["stage"]))
        longest[key] = max(longest[key], int(row["finish_ms"] - row["start_ms"]))
    for j, job in enumerate(sequence.jobs):
        critical = max(job.downstream_ms([longest[j, s] for s in range(len(job.stages))]))
        assert trace.completion_ms[j] - trace.arrival_ms[j] >= critical


def _assert_no_core_idles(trace: Trace, sequence: JobSequence, num_cores: int) -> None:
    """Work conservation: whenever time passes, all cores run or no runnable task is left.

    No runnable task is left when every stage whose parents have ended has started all its tasks.
    """
    tasks = trace.tasks
    assert tasks is not None
    moments = np.unique(np.concatenate([tasks["start_ms"], tasks["finish_ms"], trace.arrival_ms]))
    for now in moments.tolist():
        running = int(((tasks["start_ms"] <= now) & (tasks["finish_ms"] > now)).sum())
        assert running <= num_cores
        if running == num_cores:
            continue
        for j, job in enumerate(sequence.jobs):
            if trace.arrival_ms[j] > now:
                continue
            own = tasks[tasks["job"] == j]
            for s, stage in enumerate(job.stages):
                is_ready = all(
                    (own["finish_ms"][own["stage"] == parent] <= now).all()
                    for parent in stage.parents
                )
                assert not is_ready or (own["start_ms"][own["stage"] == s] <= now).all(), (
                    now,
                    j,
                    s,
                )


def _assert_integral(simulator: Simulator, trace: Trace) -> None:
    assert simulator.state.now.job_ms[0] == (trace.completion_ms - trace.arrival_ms).sum()


@pytest.mark.parametrize("has_limits", [False, True])
@given(seed=_SEEDS, cores=_CORES, arrivals=_ARRIVALS, has_pools=st.booleans())
def test_every_task_runs_once_and_without_limits_no_core_idles_while_a_task_waits(
    has_limits: bool, seed: int, cores: int, arrivals: str, has_pools: bool
) -> None:
    sequence = _sequence(seed, arrivals, cores)
    simulator = _simulator(sequence, cores, seed)
    planner = _Dice(np.random.default_rng(seed), has_limits, has_pools)
    trace = _run_checked(simulator, planner)
    check_every_task_ran_once(trace, sequence, cores)
    _assert_bounds(trace, sequence)
    _assert_integral(simulator, trace)
    if not has_limits:
        _assert_no_core_idles(trace, sequence, cores)


# With sessions, the rows of a trace are not those of the orders.
@given(seed=_SEEDS, cores=_CORES, arrivals=st.sampled_from(_OPEN))
def test_limits_that_stand_are_kept(seed: int, cores: int, arrivals: str) -> None:
    sequence = _sequence(seed, arrivals, cores)
    simulator = _simulator(sequence, cores, seed)
    orders = _Dice(np.random.default_rng(seed), has_limits=True).plan(simulator.observe())
    orders.wake_ms[0] = NOT_YET  # a time that has passed would ask for a plan every millisecond
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        simulator.follow(orders)
    trace = simulator.trace("limits")
    check_every_task_ran_once(trace, sequence, cores)
    assert trace.tasks is not None
    firsts = np.cumsum([0, *(len(job.stages) for job in sequence.jobs)])
    rows = firsts[trace.tasks["job"]] + trace.tasks["stage"]
    for which, limits in ((trace.tasks["job"], orders.jobs.limit), (rows, orders.stages.limit)):
        for one in np.unique(which).tolist():
            own = trace.tasks[which == one]
            for now in own["start_ms"].tolist():
                assert ((own["start_ms"] <= now) & (own["finish_ms"] > now)).sum() <= limits[one]


@given(seed=_SEEDS, cores=_CORES, arrivals=_ARRIVALS)
def test_decisions_at_random_make_orders_that_run_every_task_once(
    seed: int, cores: int, arrivals: str
) -> None:
    sequence = _sequence(seed, arrivals, cores)
    simulator = _simulator(sequence, cores, seed)
    rng = np.random.default_rng(seed)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        observation = simulator.observe()
        stages = observation.schedulable_stages()
        assert all(observation.stages.frontier_rank[stage] >= 0 for stage in stages)
        names_more = bool(stages) and (rng.random() < 0.8 or observation.now.num_planned[0] == 0)
        decision = (
            Decision(int(rng.choice(stages)), int(rng.integers(1, cores + 2)))
            if names_more
            else Decision()
        )
        simulator.step(decision)
    check_invariants(simulator.state)
    trace = simulator.trace("dice")
    check_every_task_ran_once(trace, sequence, cores)
    _assert_bounds(trace, sequence)
    _assert_integral(simulator, trace)


@pytest.mark.parametrize("first", [True, False])
def test_orders_may_use_pools_now_and_none_next(first: bool) -> None:
    for seed in range(10):
        sequence = _sequence(seed, "poisson:2s", 4)
        simulator = _simulator(sequence, 4, seed)
        planners = [
            _Dice(np.random.default_rng(seed), has_pools=has_pools)
            for has_pools in (first, not first)
        ]
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION:
            check_invariants(simulator.state)
            simulator.follow(planners[0].plan(simulator.observe()))
            planners.reverse()
        check_every_task_ran_once(simulator.trace("both"), sequence, 4)
