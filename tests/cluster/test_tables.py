"""The basic operations on the tables with literal numbers: pools, commitments, counts, slots.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import pytest

from parcae.cluster.kernels.tables import (
    account_time,
    commit,
    demand,
    drop_commitments_to,
    first_runnable,
    first_schedulable,
    may_idle,
    num_held,
    pool_row,
    pop_idle,
    push_idle,
    relative,
    remove_active,
    slot_ms,
    stage_row,
    take_commitment,
    wait_ms,
)
from parcae.cluster.state import NO_JOB, NO_STAGE, UNLIMITED, ExecutorClass
from tests.cluster.executors import Executors

_GLOBAL = 0  # the source row of the global pool


def test_sources_are_the_global_pool_then_the_pools_of_jobs_then_stages() -> None:
    one_class = Executors(2).state  # tables for 4 jobs
    assert [pool_row(one_class, job) for job in (NO_JOB, 0, 3)] == [0, 1, 4]
    assert [stage_row(one_class, stage) for stage in (0, 1)] == [5, 6]
    two_classes = Executors(ExecutorClass(1), ExecutorClass(1)).state
    assert [pool_row(two_classes, job) for job in (NO_JOB, 0, 3)] == [0, 2, 8]
    assert [stage_row(two_classes, stage) for stage in (0, 1)] == [10, 12]


def test_a_pool_is_a_queue() -> None:
    cluster = Executors(3)
    state = cluster.state
    assert [pop_idle(state, _GLOBAL) for _ in range(3)] == [0, 1, 2]
    assert state.now.num_idle[0] == 0
    push_idle(state, _GLOBAL, 2)
    push_idle(state, _GLOBAL, 0)
    assert cluster.pool(NO_JOB) == [2, 0]
    assert pop_idle(state, _GLOBAL) == 2
    push_idle(state, _GLOBAL, 2)
    assert cluster.pool(NO_JOB) == [0, 2]
    assert state.now.num_idle[0] == 2


def test_commitments_of_a_source_are_used_up_in_their_order_one_record_a_stage() -> None:
    cluster = Executors(9)
    state = cluster.state
    job = cluster.submit([(9, 10.0, ()), (9, 10.0, ())])
    commit(state, _GLOBAL, NO_JOB, 1, 1)
    commit(state, _GLOBAL, NO_JOB, 0, 1)
    commit(state, _GLOBAL, NO_JOB, 1, 1)  # joins the first record
    commit(state, _GLOBAL, NO_JOB, NO_STAGE, 2)
    assert (state.sources.num_committed[_GLOBAL], state.now.num_commitment_rows[0]) == (5, 3)
    assert state.stages.num_committed[:2].tolist() == [1, 2]
    assert (state.jobs.num_commitments[job], state.jobs.num_supplied[job]) == (3, 3)
    assert state.now.num_idle_to_be[0] == 2
    taken = [take_commitment(state, _GLOBAL) for _ in range(5)]
    assert taken == [1, 1, 0, NO_STAGE, NO_STAGE]
    assert (state.jobs.num_supplied[job], state.now.num_idle_to_be[0]) == (0, 0)
    commit(state, _GLOBAL, NO_JOB, 0, 1)
    assert state.now.num_commitment_rows[0] == 3  # a released row is used again


def test_commitments_to_a_job_are_dropped_from_the_middle_of_a_source_s_list() -> None:
    cluster = Executors(9)
    state = cluster.state
    cluster.submit([(9, 10.0, ()), (9, 10.0, ())])
    cluster.submit([(9, 10.0, ())])
    for stage in (2, 0, 2, 1):
        commit(state, _GLOBAL, NO_JOB, stage, 1)
    drop_commitments_to(state, 0)
    assert state.sources.num_committed[_GLOBAL] == 2
    assert state.jobs.num_commitments[:2].tolist() == [0, 2]
    assert [take_commitment(state, _GLOBAL) for _ in range(2)] == [2, 2]


def test_executors_of_a_job_that_are_promised_to_it_do_not_count_twice() -> None:
    cluster = Executors(9)
    state = cluster.state
    job = cluster.submit([(9, 10.0, ()), (9, 10.0, ())])
    commit(state, stage_row(state, 0), job, 1, 2)
    assert (state.jobs.num_commitments[job], state.jobs.num_supplied[job]) == (2, 0)


def test_the_demand_is_tasks_to_start_less_promised_and_moving_executors() -> None:
    cluster = Executors(6)
    state = cluster.state
    cluster.submit([(5, 10.0, ())])
    assert demand(state, 0) == 5
    cluster.decide(0, limit=2)
    assert demand(state, 0) == 3  # two are promised
    cluster.idle()
    assert demand(state, 0) == 3  # two move
    cluster.arrive(0)
    assert demand(state, 0) == 3  # one task started, one executor moves
    assert num_held(state, 0) == 2
    assert state.stages.is_saturated[0] == 0
    cluster.submit([(1, 10.0, ())])
    cluster.decide(0, limit=9)
    assert (demand(state, 0), state.stages.is_saturated[0]) == (0, 1)


def test_a_saturated_stage_makes_its_children_schedulable_and_no_longer_itself() -> None:
    cluster = Executors(9)
    state = cluster.state
    job = cluster.submit([(2, 10.0, ()), (1, 10.0, ()), (3, 10.0, (0, 1))])
    assert (first_schedulable(state, job), first_runnable(state, job)) == (0, 0)
    cluster.decide(0, limit=2)
    assert (first_schedulable(state, job), state.jobs.num_schedulable[job]) == (1, 1)
    cluster.decide(1)
    assert (first_schedulable(state, job), first_runnable(state, job)) == (2, NO_STAGE)
    assert state.jobs.num_unsaturated[job] == 1
    cluster.decide(2, limit=9)
    assert (first_schedulable(state, job), state.now.num_open[0]) == (NO_STAGE, 0)


def test_the_wait_for_a_stage_is_the_longest_task_of_its_open_parents() -> None:
    cluster = Executors(9)
    state = cluster.state
    cluster.submit([(1, 70.0, ()), (1, 30.0, ()), (1, 90.0, ()), (1, 5.0, (0, 1))])
    assert wait_ms(state, 3) == 70.0
    assert wait_ms(state, 2) == 0.0
    cluster.decide(0)
    cluster.idle()
    cluster.arrive(0)
    cluster.end(0)
    assert wait_ms(state, 3) == 30.0


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


def test_jobs_leave_the_list_of_those_in_the_system_in_any_order() -> None:
    cluster = Executors(1)
    state = cluster.state
    for _ in range(4):
        cluster.submit([(1, 10.0, ())])
    remove_active(state, 1)
    assert state.active[: state.now.num_active[0]].tolist() == [0, 2, 3]
    remove_active(state, 3)
    remove_active(state, 0)
    assert state.active[: state.now.num_active[0]].tolist() == [2]


def test_the_integral_of_jobs_over_time() -> None:
    cluster = Executors(1)
    state = cluster.state
    cluster.submit([(1, 10.0, ())])
    cluster.submit([(1, 10.0, ())])
    account_time(state, 30)
    remove_active(state, 0)
    account_time(state, 100)
    assert state.now.job_ms[0] == 2 * 30 + 1 * 70


@pytest.mark.parametrize(
    ("amount", "top", "expected"),
    [(1, 4, 0.25), (4, 4, 1.0), (9, 4, 1.0), (UNLIMITED,) * 2 + (1.0,)],
)
def test_an_amount_relative_to_a_top(amount: int, top: int, expected: float) -> None:
    assert relative(amount, top) == expected
