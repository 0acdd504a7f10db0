"""Schedules of the world of cores solved by hand.

A change here is a change of results: note it in the changelog.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, first_come
from parcae.cluster.state import POOL
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import arrived, jct_ms
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.workload import JobSequence, Workload
from tests.oracle.cores_runs import config_of, job_spec, starts


def _arriving(*jobs: tuple[int, list[list[int]], list[tuple[int, int]]]) -> JobSequence:
    """Jobs of (arrival, durations of every stage's tasks, edges)."""
    specs = tuple(
        job_spec(f"job-{row}", task_ms, edges) for row, (_, task_ms, edges) in enumerate(jobs)
    )
    arrivals = np.array([arrival for arrival, _, _ in jobs], np.int64)
    return JobSequence(Workload("by hand", specs), np.arange(len(jobs)), arrivals)


def _policy(kind: OrderKind) -> OrderPolicy:
    return OrderPolicy(kind.name, kind, plan_tables())


def test_two_jobs_share_two_cores_as_tasks_end() -> None:
    # The first takes both cores. At 3, 1 core against 0: job 1.
    # At 4, again 0 (only job 1 runs) against 1: job 0.
    sequence = _arriving((0, [[3, 4, 5]], []), (0, [[6, 2]], []))
    trace = simulate(sequence, _policy(OrderKind.FAIR), config_of(2), 1, record=True)
    assert starts(trace) == [(0, 0, 0), (0, 0, 0), (3, 1, 0), (4, 0, 0), (9, 1, 0)]
    assert trace.completion_ms.tolist() == [9, 11]
    assert trace.clock_ms == 11


def test_a_job_with_less_left_overtakes_at_the_next_task() -> None:
    # At 2 job 1 (6 ms of work) arrives; job 0 has 3 x 10 left. Its running task goes on, then job 1
    # has both cores.
    sequence = _arriving((0, [[10, 10, 10, 10, 10]], []), (2, [[3, 3]], []))
    overtaken = simulate(sequence, _policy(OrderKind.SRPT), config_of(2), 1, record=True)
    assert starts(overtaken) == [
        (0, 0, 0),
        (0, 0, 0),
        (10, 1, 0),
        (10, 1, 0),
        (13, 0, 0),
        (13, 0, 0),
        (23, 0, 0),
    ]
    assert overtaken.completion_ms.tolist() == [33, 13]
    # First come: job 0's fifth task and job 1's first start at 20, job 1's second at 23.
    first_come_first = simulate(sequence, _policy(OrderKind.FIFO), config_of(2), 1)
    assert first_come_first.completion_ms.tolist() == [30, 26]


def test_a_job_with_more_left_does_not_overtake() -> None:
    sequence = _arriving((0, [[10, 10, 10]], []), (2, [[11, 11]], []))
    trace = simulate(sequence, _policy(OrderKind.SRPT), config_of(1), 1)
    assert trace.completion_ms.tolist() == [30, 52]  # 20 left against 22, and then 10


def test_the_core_of_a_parent_s_last_task_is_offered_before_the_children_are_runnable() -> None:
    # One core. Job 0 would go first, but when its parent ends only job 1 has something to run.
    sequence = _arriving((0, [[5], [5]], [(0, 1)]), (0, [[7, 7]], []))
    trace = simulate(sequence, _policy(OrderKind.FIFO), config_of(1), 1, record=True)
    assert starts(trace) == [(0, 0, 0), (5, 1, 0), (12, 0, 1), (17, 1, 0)]
    assert trace.completion_ms.tolist() == [17, 24]


def test_parentless_stages_are_revealed_one_by_one_depth_first_from_the_final_stage() -> None:
    # Final stage 1 has parents 0 and 4; stage 4 has parents 2 and 3. Stages 0, 2, 3 are revealed in
    # this order, each followed by an offer round. Stage 0 has one task, so stage 2 gets the other
    # two cores, and stage 3 waits although it has the better rank.
    class Ranked:
        name = "ranked"

        def plan(self, observation: Observation) -> Orders:
            orders = first_come(observation)
            orders.stages.rank[3] = -1.0
            return orders

    edges = [(0, 1), (4, 1), (2, 4), (3, 4)]
    sequence = _arriving((0, [[9], [1], [4, 4, 4], [2, 2], [3]], edges))
    trace = simulate(sequence, Ranked(), config_of(3), 1, record=True)
    assert starts(trace) == [
        (0, 0, 0),
        (0, 0, 2),
        (0, 0, 2),
        (4, 0, 3),
        (4, 0, 3),
        (6, 0, 2),
        (10, 0, 4),
        (13, 0, 1),
    ]


@pytest.mark.parametrize(("min_share", "completion_ms"), [(0, [6, 18, 16]), (2, [6, 18, 14])])
def test_a_minimum_share_goes_before_weights(min_share: int, completion_ms: list[int]) -> None:
    # Three cores, pools a (weight 3: jobs 0 and 1) and b (weight 1: job 2). Job 0 is revealed first
    # and takes all cores. At 6 its tasks end one by one. By weight: b (2/3 against 0), a (1/3
    # against 1), a. At 10 b (2/3 against 0), at 12 a, b. With a minimum share of 2 in b: b, b, a at
    # 6; b below its share at 10, then a, which is all that is left.
    sequence = _arriving((0, [[6, 6, 6]], []), (0, [[6, 6, 6]], []), (0, [[4, 4, 4]], []))
    pools = np.zeros(2, POOL).view(np.recarray)
    pools.weight[:] = [3.0, 1.0]
    pools.min_share[:] = [0, min_share]
    pools.name_rank[:] = [0, 1]
    tables = plan_tables(pool_of=np.array([0, 0, 1, 0]), pools=pools)
    trace = simulate(
        sequence, OrderPolicy("pools", OrderKind.POOLS, tables), config_of(3), 1, record=True
    )
    assert trace.completion_ms.tolist() == completion_ms


def test_the_next_job_of_a_session_comes_a_pause_after_the_last_one_has_ended() -> None:
    # One core, first come, two sessions: jobs 0, 2 and 3, and jobs 1 and 4, which arrive at 0 and
    # 1. Job 0 ends at 4, so job 2 comes at 6; job 1 has run from 4 to 9 and then job 2 to 10. Job 4
    # comes at once, at 9, and runs from 10 to 13. Job 3 comes at 13, when job 4 ends: arrivals are
    # first, and the core is free a moment later.
    specs = [[[4]], [[5]], [[1]], [[2]], [[3]]]
    sequence = replace(
        _arriving(*((row, tasks, []) for row, tasks in enumerate(specs))),
        arrival_ms=np.array([0, 1, 1, 1, 1]),
        follows=np.array([-1, -1, 0, 2, 1]),
        pause_ms=np.array([0, 0, 2, 3, 0]),
    )
    trace = simulate(sequence, _policy(OrderKind.FIFO), config_of(1), 1, record=True)
    assert starts(trace) == [(0, 0, 0), (4, 1, 0), (9, 2, 0), (10, 4, 0), (13, 3, 0)]
    assert trace.arrival_ms.tolist() == [0, 1, 6, 13, 9]
    assert trace.completion_ms.tolist() == [4, 9, 10, 15, 13]
    cut = simulate(sequence, _policy(OrderKind.FIFO), _ending(config_of(1), 8), 1)
    assert arrived(cut).tolist() == [True, True, True, False, False]
    assert jct_ms(cut).tolist() == [4, 7, 2, 0, 0]


def _ending(config: SimulationConfig, end_ms: int) -> SimulationConfig:
    return config.model_copy(update={"end_ms": end_ms})


@dataclass
class _Capped:
    """Job 0 gets two cores at most, and from 8 ms on none until 20 ms."""

    name: str = "capped"

    def plan(self, observation: Observation) -> Orders:
        clock_ms = int(observation.now.clock_ms[0])
        orders = first_come(observation)
        orders.jobs.limit[0] = 0 if 8 <= clock_ms < 20 else 2
        orders.wake_ms[0] = 8 if clock_ms < 8 else 20
        return orders


def test_a_limit_holds_cores_back_until_the_wake_up() -> None:
    sequence = _arriving((0, [[5, 5, 5, 5, 5]], []), (1, [[2]], []))
    config = SimulationConfig(world=WorldName.CORES, num_executors=3, durations=DurationMode.LISTED)
    trace = simulate(sequence, _Capped(), config, 1, record=True)
    assert starts(trace) == [(0, 0, 0), (0, 0, 0), (1, 1, 0), (5, 0, 0), (5, 0, 0), (20, 0, 0)]
    assert trace.completion_ms.tolist() == [25, 3]
