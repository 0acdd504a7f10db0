"""Decima's world with literal numbers: which executor runs what, when it moves and when it waits.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import pytest

from parcae.base.errors import InvariantError
from parcae.cluster.kernels.decisions import hold_ended
from parcae.cluster.kernels.executors import offer_all, offer_next
from parcae.cluster.kernels.tables import (
    first_for_class,
    may_idle,
    pop_idle,
    push_idle,
    relative,
    slot_ms,
)
from parcae.cluster.state import NO_JOB, NO_STAGE, NOT_YET, UNLIMITED, ExecutorClass
from tests.cluster.executors import Executors
from tests.cluster.invariants import check_invariants


def test_a_stage_can_be_chosen_once_a_round_and_gets_no_more_than_it_can_use() -> None:
    cluster = Executors(4)
    cluster.submit([(2, 10.0, ()), (5, 10.0, ())])
    assert cluster.decide(0, limit=9) == 2  # two tasks
    assert cluster.decide(0, limit=1) == -1  # its demand is used up
    assert cluster.decide(1, limit=1) == 1
    assert cluster.state.stages.selected_round[:2].tolist() == [1, 1]
    assert cluster.state.now.round_id[0] == 1
    assert cluster.idle() == 1
    assert cluster.state.now.round_id[0] == 2
    assert cluster.state.now.num_decisions[0] == 4


@pytest.mark.parametrize(("stage", "limit", "executor_class"), [(0, 0, -1), (0, 1, 3), (0, -2, 0)])
def test_decisions_that_cannot_be_carried_out(stage: int, limit: int, executor_class: int) -> None:
    cluster = Executors(2)
    cluster.submit([(2, 10.0, ())])
    assert cluster.decide(stage, limit, executor_class) == -1
    assert cluster.offered() == (NO_JOB, 2)
    assert cluster.commands() == []


def test_the_pools_are_offered_one_after_another_the_global_one_last() -> None:
    cluster = Executors(3)
    state = cluster.state
    cluster.submit([(1, 10.0, ()), (5, 10.0, (0,))])
    cluster.decide(0)
    cluster.decide(1, limit=1)
    cluster.idle()
    cluster.arrive(1)  # waits in the job's pool; executor 2 is in the global pool
    offer_all(state)
    assert cluster.offered() == (0, 1)
    assert cluster.idle() == 1
    assert cluster.offered() == (NO_JOB, 1)
    assert cluster.idle() == 1
    assert cluster.offered()[1] == 0
    assert state.now.next_offer[0] == -1
    offer_next(state)
    assert cluster.offered()[1] == 0


def test_an_idle_slot_lets_executors_wait_and_offers_them_at_its_end() -> None:
    cluster = Executors(2)
    state = cluster.state
    cluster.submit([(2, 10.0, ())])
    assert cluster.decide(0, limit=1, hold_ms=400) == 1
    assert cluster.offered() == (NO_JOB, 1)  # the other executor is still offered
    cluster.idle()
    assert state.now.num_idle[0] == 2
    assert (state.now.num_holds[0], state.holds.end_ms[0]) == (1, 400)
    cluster.at(400)
    hold_ended(state, 0)
    assert cluster.offered() == (NO_JOB, 2)
    assert (state.now.num_holds[0], state.stages.hold_until_ms[0]) == (0, 400)
    assert cluster.decide(0, limit=1, hold_ms=10) == -1  # a stage has one slot
    assert cluster.decide(0, limit=2) == 2


def test_of_two_idle_slots_the_other_one_stays() -> None:
    cluster = Executors(2)
    state = cluster.state
    cluster.submit([(1, 10.0, ()), (1, 10.0, ())])
    cluster.decide(0, limit=1, hold_ms=400)
    cluster.decide(1, limit=1, hold_ms=900)
    cluster.at(400)
    hold_ended(state, 0)
    assert state.now.num_holds[0] == 1
    assert (state.holds.stage[0], state.holds.end_ms[0]) == (1, 900)


def test_running_a_stage_ends_its_idle_slot() -> None:
    cluster = Executors(1)
    state = cluster.state
    cluster.submit([(2, 10.0, ())])
    cluster.decide(0, hold_ms=400)
    cluster.at(100)
    cluster.submit([(1, 10.0, ())])  # while a slot runs, an arrival offers every pool
    assert cluster.offered() == (NO_JOB, 1)
    assert cluster.decide(0, limit=1) == 1
    assert cluster.commands() == [("move", 0, 0)]
    assert (state.now.num_holds[0], state.stages.hold_until_ms[0]) == (0, 100)


def test_the_time_that_jobs_spend_in_the_system_is_summed_up_at_every_change() -> None:
    cluster = Executors(1)
    state = cluster.state
    cluster.submit([(1, 10.0, ())])
    cluster.decide(0)
    cluster.at(100)
    cluster.submit([(1, 10.0, ())])  # until now one job for 100 ms
    cluster.at(150)
    cluster.arrive(0)
    cluster.at(160)
    cluster.end(0)  # two jobs for 60 ms
    assert (state.now.job_ms[0], state.now.accounted_ms[0]) == (100 + 2 * 60, 160)
    assert state.active[: state.now.num_active[0]].tolist() == [1]
    assert state.jobs.completion_ms[:2].tolist() == [160, NOT_YET]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("jobs", "num_supplied"),
        ("jobs", "num_done"),
        ("jobs", "num_unstarted"),
        ("jobs", "num_commitments"),
        ("jobs", "num_attached"),
        ("stages", "num_parents_unfinished"),
        ("stages", "num_moving"),
        ("stages", "num_bound"),
    ],
)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_wrong_count_is_detected(table: str, column: str, change: int) -> None:
    cluster = Executors(3)
    cluster.submit([(4, 1_000.0, ()), (2, 500.0, (0,))])
    cluster.decide(0, limit=2)
    cluster.idle()
    cluster.arrive(0)
    check_invariants(cluster.state)
    getattr(cluster.state, table)[column][0] += change
    with pytest.raises(InvariantError):
        check_invariants(cluster.state)


def test_a_pool_is_a_queue() -> None:
    state = Executors(3).state
    assert [pop_idle(state, 0) for _ in range(3)] == [0, 1, 2]
    for executor in (2, 0, 1):
        push_idle(state, 0, executor)
    assert [pop_idle(state, 0) for _ in range(3)] == [2, 0, 1]


@pytest.mark.parametrize(
    ("limit", "length", "clock_ms", "expected_ms"),
    [
        (1, 4, 0, 600),  # six tasks of 100 ms, one after another
        (2, 4, 0, 300),
        (2, 1, 0, 75),  # a quarter of the stage
        (9, 4, 0, 100),  # all six side by side
        (2, 4, 120, 180),  # measured from the beginning of the slot
        (2, 4, 400, 0),  # the slot is over
    ],
)
def test_the_length_of_an_idle_slot(
    limit: int, length: int, clock_ms: int, expected_ms: int
) -> None:
    cluster = Executors(1)
    cluster.submit([(6, 100.0, ())])
    if clock_ms:
        cluster.decide(0, hold_ms=390)
    cluster.at(clock_ms)
    assert slot_ms(cluster.state, 0, limit, length, 4) == expected_ms


def test_idling_is_allowed_if_another_event_is_sure_to_offer_executors() -> None:
    cluster = Executors(2)
    state = cluster.state
    cluster.submit([(9, 10.0, ())])
    assert not may_idle(state)  # nobody works: the cluster would stall
    cluster.decide(0)
    assert may_idle(state)
    cluster.idle()
    cluster.arrive(0)
    cluster.submit([(9, 10.0, ())])
    assert may_idle(state)  # executor 0 works


@pytest.mark.parametrize(
    ("amount", "top", "expected"),
    [(1, 4, 0.25), (4, 4, 1.0), (9, 4, 1.0), (UNLIMITED,) * 2 + (1.0,)],
)
def test_an_amount_relative_to_a_top(amount: int, top: int, expected: float) -> None:
    assert relative(amount, top) == expected


def test_a_decision_may_name_the_class() -> None:
    large, small = ExecutorClass(2, 1.0, 1.0), ExecutorClass(1, 1.0, 0.5)
    cluster = Executors(large, small)
    cluster.submit([(2, 10.0, ())], memory=[0.5])
    assert cluster.decide(0, limit=2, executor_class=0) == 2
    assert cluster.state.source_count.tolist() == [0, 1]
    cluster = Executors(large, small)
    cluster.submit([(2, 10.0, ())], memory=[1.0])
    assert cluster.decide(0, limit=1, executor_class=1) == -1  # the class is too small


def test_the_first_stage_for_a_class_is_runnable_or_schedulable() -> None:
    cluster = Executors(ExecutorClass(2, 1.0, 1.0), ExecutorClass(1, 1.0, 0.5))
    stages = [(1, 10.0, (1,)), (1, 10.0, ()), (9, 10.0, ())]
    cluster.submit(stages, memory=[0.4, 0.4, 1.0])
    state = cluster.state
    assert first_for_class(state, 0, 1, True) == 1
    assert first_for_class(state, 0, 0, False) == 1
    cluster.decide(1)
    assert first_for_class(state, 0, 1, True) == NO_STAGE  # the other runnable stage is too large
    assert first_for_class(state, 0, 0, True) == 2
    assert first_for_class(state, 0, 1, False) == 0  # schedulable: its parent is saturated
