"""Arrivals, ends and plans of the world of cores with literal numbers.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parcae.base.errors import InvariantError
from parcae.cluster.kernels.cores import (
    ask_for_plan,
    can_plan,
    note_stall,
    plan_stage,
)
from parcae.cluster.kernels.dispatch import name_goes_before
from parcae.cluster.kernels.tables import correction, remaining_ms, total_ms, unstarted_ms
from parcae.cluster.state import NO_STAGE, UNLIMITED
from tests.cluster.cores import Cores
from tests.cluster.invariants import check_invariants


def test_a_plan_is_due_when_a_stage_has_no_task_left_to_start_and_when_it_ends() -> None:
    cores = Cores(2)
    now = cores.state.now
    job = cores.arrive([(3, 100.0, ()), (1, 50.0, (0,))])
    cores.reveal(job, 0)
    cores.follow()
    cores.offer()
    assert not now.is_plan_due[0]
    assert cores.end(0) == NO_STAGE
    cores.offer()
    assert now.is_plan_due[0]
    cores.follow()
    assert cores.end(0) == NO_STAGE
    assert not now.is_plan_due[0]
    cores.end_stage(1)
    assert now.is_plan_due[0]


def test_decisions_are_an_order_over_all_cores() -> None:
    cores = Cores(4)
    state = cores.state
    first = cores.arrive([(9, 10.0, ())])
    cores.reveal(first, 0)
    cores.follow()
    cores.offer()
    cores.end(3)
    second = cores.arrive([(2, 10.0, ()), (7, 1.0, ())])
    cores.reveal(second, 0)
    cores.reveal(second, 1)
    ask_for_plan(state)
    assert state.now.num_source[0] == 4  # including the three cores that run tasks
    assert plan_stage(state, cores.row(second, 1), 1) == 3
    assert plan_stage(state, cores.row(first, 0), 9) == 0
    assert state.now.num_source[0] == 0
    assert state.stage_orders.tier[:3].tolist() == [1.0, 1e11, 0.0]
    assert state.stage_orders.limit[:3].tolist() == [3, UNLIMITED, 1]
    assert (state.jobs.num_supplied[:2].tolist(), state.stages.num_committed[:3].tolist()) == (
        [0, 0],
        [0, 0, 0],
    )


def test_a_stage_may_keep_the_cores_that_run_it() -> None:
    cores = Cores(4)
    state = cores.state
    job = cores.arrive([(5, 10.0, ())])
    cores.reveal(job, 0)
    cores.follow()
    cores.offer()
    cores.end(0)
    ask_for_plan(state)
    assert plan_stage(state, 0, 4) == 0  # three run, one waits: the limit must let it start
    assert state.stage_orders.limit[0] == 4


def test_the_decision_to_idle_holds_back_stages_that_were_not_named() -> None:
    cores = Cores(4)
    state = cores.state
    job = cores.arrive([(9, 10.0, ()), (9, 10.0, ())])
    cores.reveal(job, 0)
    cores.reveal(job, 1)
    ask_for_plan(state)
    assert plan_stage(state, 1, 2) == 2
    assert plan_stage(state, NO_STAGE, 0) == 0
    assert state.stage_orders.limit[:2].tolist() == [0, 2]
    assert state.now.num_source[0] == 0


def test_a_decision_that_cannot_be_carried_out_says_so() -> None:
    cores = Cores(2)
    job = cores.arrive([(1, 10.0, ())])
    cores.reveal(job, 0)
    ask_for_plan(cores.state)
    assert plan_stage(cores.state, 0, 0) == -1
    assert plan_stage(cores.state, 0, 1) == 0  # nothing is left to decide about
    assert plan_stage(cores.state, 0, 1) == -1  # the stage's demand is used up


def test_tasks_that_are_held_back_stall_nothing_while_another_runs() -> None:
    cores = Cores(2)
    cores.reveal(cores.arrive([(3, 100.0, ())]), 0)
    cores.follow(limit=[1])
    assert len(cores.offer()) == 1
    note_stall(cores.state, True)
    assert not can_plan(cores.state, 1, 1)
    cores.follow(limit=[0])
    cores.end(0)
    note_stall(cores.state, True)
    assert can_plan(cores.state, 1, 1)


def test_the_remaining_work_follows_the_durations_of_finished_tasks() -> None:
    cores = Cores(2)
    state = cores.state
    state.now.is_corrected[0] = 1
    job = cores.arrive([(4, 100.0, ()), (3, 0.0, ())])
    cores.reveal(job, 0)
    cores.follow()
    assert (total_ms(state, job), unstarted_ms(state, job), correction(state, job)) == (
        400.0,
        400.0,
        1.0,
    )
    cores.offer()
    state.now.clock_ms[0] = 300
    cores.end(0)
    assert unstarted_ms(state, job) == 200.0
    # One task took 300 ms instead of 100; the prior counts as three tasks of 100 ms.
    assert correction(state, job) == pytest.approx((1 * 3.0 + 3) / (1 + 3))
    assert remaining_ms(state, job) == pytest.approx(200.0 * 1.5)
    state.now.is_corrected[0] = 0
    assert correction(state, job) == 1.0


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("jobs", "num_attached"),
        ("jobs", "num_schedulable"),
        ("jobs", "num_unstarted"),
        ("jobs", "num_done"),
        ("stages", "num_bound"),
        ("stages", "num_finished"),
        ("now", "num_idle"),
        ("now", "num_schedulable"),
        ("contenders", "front"),
        ("contenders", "share"),
    ],
)
def test_a_wrong_count_is_detected(table: str, column: str) -> None:
    cores = Cores(3)
    for _ in range(2):
        cores.reveal(cores.arrive([(2, 1.0, ())]), 0)
    cores.follow(weight=[1.0, 1.0])
    cores.offer()
    check_invariants(cores.state)
    row = getattr(cores.state, table)
    row[column][1 if table != "now" else 0] += 1
    with pytest.raises(InvariantError):
        check_invariants(cores.state)


def test_a_wrong_winner_is_detected() -> None:
    cores = Cores(1)
    for _ in range(2):
        cores.reveal(cores.arrive([(2, 1.0, ())]), 0)
    cores.follow()
    cores.state.contest[1] = 1
    with pytest.raises(InvariantError, match="winner tree"):
        check_invariants(cores.state)
    assert np.flatnonzero(cores.state.contest == 0).size > 0


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.permutations([0, 1, 2, 9, 10, 11, 19, 100, 101, 110, 2_000], 2)),
)
def test_task_sets_go_by_name_as_spark_writes_it(first: int, second: int) -> None:
    assert bool(name_goes_before(first, second)) is (f"TaskSet_{first}.0" < f"TaskSet_{second}.0")


def test_jobs_of_a_tier_share_by_running_tasks_over_weight() -> None:
    cores = Cores(4)
    for _ in range(2):
        cores.reveal(cores.arrive([(9, 100.0, ())]), 0)
    cores.follow(weight=[1.0, 3.0])
    # Sorted once a round: the first takes all cores.
    assert [job for _, job, _ in cores.offer()] == [0, 0, 0, 0]
    for core, job in ((0, 1), (1, 1), (2, 1)):
        cores.end(core)  # 3 / 1 against 0 / 3, 2 / 1 against 1 / 3, 1 / 1 against 2 / 3
        assert cores.offer() == [(core, job, 0)]
        check_invariants(cores.state)
    cores.end(0)
    assert cores.offer() == [(0, 1, 0)]  # 1 / 1 against 2 / 3
    cores.end(3)
    assert cores.offer() == [(3, 0, 0)]  # 0 / 1 against 3 / 3
