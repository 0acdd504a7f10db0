"""Decima's world with literal numbers: which executor runs what, when it moves and when it waits.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import pytest

from parcae.base.errors import InvariantError
from parcae.cluster.kernels.decisions import hold_ended
from parcae.cluster.kernels.executors import offer_all, offer_next
from parcae.cluster.state import NO_EXECUTOR, NO_JOB, NO_STAGE, NOT_YET
from tests.cluster.executors import Executors
from tests.cluster.invariants import check_invariants


def test_an_empty_cluster_offers_its_executors_to_the_first_job() -> None:
    cluster = Executors(3)
    assert cluster.pool(NO_JOB) == [0, 1, 2]
    assert cluster.submit([(4, 1_000.0, ()), (2, 500.0, (0,))]) == 0
    assert cluster.offered() == (NO_JOB, 3)
    state = cluster.state
    assert state.stages.frontier_rank[:2].tolist() == [0, -1]  # only the first stage can run
    assert (state.jobs.work_ms[0], state.jobs.remaining_ms[0]) == (5_000.0, 5_000.0)


def test_two_stages_on_three_executors_from_the_arrival_to_the_end() -> None:
    """Moves take 2,000 ms, tasks of the stages 1,000 and 500 ms.

    executor 0: move until 2,000 | task 0 | task 3 until 4,000 | no task left: global pool
    executor 1: move until 2,000 | task 1 until 3,000 | waits for the second stage | task 0
    executor 2: move until 2,000 | task 2 until 3,000 | waits for the second stage | task 1
    """
    cluster = Executors(3)
    state = cluster.state
    cluster.submit([(4, 1_000.0, ()), (2, 500.0, (0,))])
    assert cluster.decide(0, limit=3) == 3
    assert cluster.commands() == [("move", 0, 0), ("move", 1, 0), ("move", 2, 0)]
    assert (state.jobs.num_supplied[0], state.jobs.num_attached[0]) == (3, 0)

    cluster.at(2_000)
    for executor in range(3):
        cluster.arrive(executor)
    assert cluster.commands() == [
        ("start", 0, 0, 0, "fresh"),
        ("start", 1, 0, 1, "fresh"),
        ("start", 2, 0, 2, "fresh"),
    ]
    assert (state.jobs.num_attached[0], state.jobs.num_moves[0]) == (3, 3)

    cluster.at(3_000)
    assert cluster.end(0)  # goes on with the stage's last task, without a decision
    assert (state.stages.num_started[0], state.stages.num_finished[0]) == (4, 1)
    assert state.jobs.num_schedulable[0] == 1  # the second stage may be chosen in advance
    assert not cluster.end(1)
    assert cluster.offered() == (0, 3)  # with the executors that still run the stage
    assert cluster.decide(1, limit=2) == 2
    assert cluster.idle() == 1
    assert cluster.pool(0) == [1]  # it waits until the first stage is complete
    assert not cluster.end(2)  # the second of the two promised executors: no decision
    assert cluster.offered()[1] == 0
    assert cluster.pool(0) == [1, 2]
    assert cluster.commands() == []

    cluster.at(4_000)
    assert not cluster.end(0)
    assert state.stages.frontier_rank[1] == 1
    assert cluster.offered() == (0, 3)
    assert cluster.pool(0) == [1, 2, 0]
    assert cluster.decide(1, limit=2) == 2
    assert cluster.idle() == 1
    assert cluster.commands() == [("start", 1, 1, 0, "fresh"), ("start", 2, 1, 1, "fresh")]
    assert cluster.pool(NO_JOB) == [0]  # the job has no task left to start

    cluster.at(4_500)
    assert not cluster.end(1)
    assert cluster.offered() == (0, 2)
    assert cluster.idle() == 2
    assert not cluster.end(2)
    assert state.jobs.completion_ms[0] == 4_500
    assert cluster.pool(NO_JOB) == [0, 1, 2]
    assert (state.now.num_active[0], state.now.job_ms[0]) == (0, 4_500)
    assert state.stages.executed_ms[:2].tolist() == [4_000, 1_000]


def test_an_executor_that_changes_its_stage_within_the_job_starts_a_first_wave() -> None:
    cluster = Executors(1)
    cluster.submit([(2, 10.0, ()), (2, 10.0, ())])
    cluster.decide(0)
    cluster.arrive(0)
    cluster.end(0)
    cluster.end(0)
    assert cluster.offered() == (0, 1)
    cluster.decide(1)
    starts = [command for command in cluster.commands() if command[0] == "start"]
    # `end` starts the stage's second task in the third wave, without a command.
    assert starts == [("start", 0, 0, 0, "fresh"), ("start", 0, 1, 0, "first")]


def test_an_executor_moves_to_another_job_and_counts_for_it_at_once() -> None:
    cluster = Executors(2)
    state = cluster.state
    first = cluster.submit([(2, 10.0, ())])
    cluster.decide(0, limit=2)
    cluster.arrive(0)
    cluster.arrive(1)
    second = cluster.submit([(1, 10.0, ())])
    assert cluster.offered()[1] == 0  # no executor is idle
    cluster.end(0)
    assert cluster.offered() == (first, 2)
    assert cluster.decide(1) == 1
    assert cluster.idle() == 1  # executor 1, as soon as its task ends
    assert cluster.commands()[-1] == ("move", 0, 1)
    assert (state.jobs.num_attached[first], state.jobs.num_supplied[first]) == (1, 1)
    assert (state.jobs.num_attached[second], state.jobs.num_supplied[second]) == (0, 1)
    assert (state.jobs.num_granted[second], state.jobs.num_moves[second]) == (1, 0)
    cluster.arrive(0)
    assert (state.jobs.num_attached[second], state.jobs.num_moves[second]) == (1, 1)


def test_a_promised_executor_counts_for_the_other_job_before_it_is_free() -> None:
    cluster = Executors(2)
    state = cluster.state
    first = cluster.submit([(2, 10.0, ())])
    cluster.decide(0, limit=2)
    cluster.arrive(0)
    cluster.arrive(1)
    second = cluster.submit([(2, 10.0, ())])
    cluster.end(0)
    assert cluster.decide(1, limit=2) == 2  # executor 1 still runs the first job's task
    assert cluster.commands()[-1] == ("move", 0, 1)
    assert (state.stages.num_moving[1], state.stages.num_committed[1]) == (1, 1)
    assert (state.jobs.num_supplied[first], state.jobs.num_supplied[second]) == (1, 2)
    assert state.stages.is_saturated[1] == 1
    assert cluster.end(1) is False
    assert cluster.commands() == [("move", 1, 1)]
    assert state.jobs.completion_ms[first] == 0
    assert (state.stages.num_moving[1], state.stages.num_committed[1]) == (2, 0)


def test_executors_that_arrive_after_the_end_of_their_job_go_on_without_a_decision() -> None:
    cluster = Executors(3)
    state = cluster.state
    first = cluster.submit([(3, 10.0, ())])
    cluster.decide(0, limit=3)
    cluster.arrive(0)
    assert cluster.end(0)
    assert cluster.end(0)
    cluster.submit([(1, 10.0, ())])
    cluster.end(0)  # all three tasks are done while executors 1 and 2 are on their way
    assert state.jobs.completion_ms[first] == 0
    assert cluster.offered() == (first, 1)
    cluster.idle()
    cluster.commands()
    cluster.arrive(1)
    assert cluster.commands() == [("move", 1, 1)]  # to the first job that can use it
    cluster.arrive(2)
    assert cluster.commands() == []
    assert cluster.pool(NO_JOB) == [0, 2]  # nothing can use it
    assert state.stages.num_moving[:2].tolist() == [0, 1]


def test_an_executor_whose_stage_has_no_task_left_takes_another_stage_of_the_job() -> None:
    cluster = Executors(2)
    cluster.submit([(2, 10.0, ()), (1, 10.0, ())])
    cluster.decide(0, limit=2)
    cluster.arrive(0)
    cluster.end(0)  # starts the second and last task of stage 0
    cluster.commands()
    cluster.arrive(1)
    assert cluster.commands() == [("start", 1, 1, 0, "fresh")]


def test_an_executor_that_arrives_before_its_stage_can_run_waits_in_the_job_s_pool() -> None:
    cluster = Executors(2)
    job = cluster.submit([(1, 10.0, ()), (1, 10.0, (0,))])
    cluster.decide(0)
    assert cluster.decide(1) == 1  # its parent is saturated: it may be chosen
    cluster.arrive(1)
    assert cluster.pool(job) == [1]
    cluster.arrive(0)
    cluster.commands()
    cluster.end(0)
    assert cluster.offered() == (job, 2)  # the end of the parent offers both
    assert cluster.pool(job) == [1, 0]


def test_the_longest_idle_executor_is_sent_first() -> None:
    cluster = Executors(3)
    cluster.submit([(3, 10.0, ())])
    cluster.decide(0, limit=3)
    for executor in (2, 0, 1):
        cluster.arrive(executor)
    cluster.end(2)
    assert cluster.idle() == 3
    cluster.end(0)
    cluster.end(1)
    assert cluster.pool(NO_JOB) == [2, 0, 1]
    cluster.submit([(2, 10.0, ())])
    cluster.commands()
    cluster.decide(1, limit=2)
    assert cluster.commands() == []  # one executor is not assigned yet
    cluster.idle()
    assert cluster.commands() == [("move", 2, 1), ("move", 0, 1)]


def test_commitments_are_carried_out_in_the_order_of_the_decisions() -> None:
    cluster = Executors(3)
    cluster.submit([(1, 10.0, ())])
    cluster.decide(0)
    cluster.idle()
    cluster.submit([(5, 10.0, ())])
    cluster.commands()
    assert cluster.pool(NO_JOB) == [1, 2]
    cluster.decide(1, limit=1)
    cluster.idle()
    assert cluster.commands() == [("move", 1, 1)]
    assert cluster.pool(NO_JOB) == [2]


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
    assert cluster.pool(NO_JOB) == [0, 1]
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


def test_the_acting_executor_of_a_completed_job_belongs_to_no_job_any_more() -> None:
    cluster = Executors(1)
    state = cluster.state
    cluster.submit([(1, 10.0, ())])
    cluster.decide(0)
    cluster.arrive(0)
    cluster.submit([(1, 10.0, ())])
    cluster.end(0)
    assert cluster.offered() == (0, 1)  # the round is that of the job which just ended
    assert (state.executors.job[0], state.executors.stage[0]) == (NO_JOB, NO_STAGE)
    assert (state.now.source[0], state.now.acting_executor[0]) == (0, 0)
    cluster.commands()
    assert cluster.decide(1) == 1
    assert cluster.commands() == [("move", 0, 1)]
    assert state.now.acting_executor[0] != NO_EXECUTOR


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
