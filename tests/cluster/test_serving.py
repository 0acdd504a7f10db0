"""What a live cluster reports, with literal numbers: more tasks than cores, failures, new stages.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import numpy as np

from parcae.cluster.kernels.cores import complete_stage
from parcae.cluster.kernels.serving import (
    add_stage,
    durations_changed,
    forget_orders,
    job_ended,
    rerun_tasks,
    stages_added,
    tasks_ended,
    tasks_started,
    work_at_hand,
)
from parcae.cluster.kernels.virtual import advance_virtual_run, predict_ends
from parcae.cluster.state import (
    COMPLETE_RANK,
    NO_STAGE,
    NOT_YET,
    UNLIMITED,
    ClusterState,
    VirtualRun,
)
from tests.cluster.cores import Cores
from tests.cluster.invariants import check_invariants


def test_downstream_work_is_that_of_the_heaviest_path_to_a_leaf() -> None:
    cores = Cores(1)
    job = cores.arrive([(2, 10.0, (3,)), (1, 50.0, (0,)), (1, 20.0, (0,)), (1, 7.0, ())])
    durations_changed(cores.state, job)
    assert cores.state.stages.downstream_ms[:4].tolist() == [70.0, 50.0, 20.0, 77.0]


def test_lost_output_takes_a_stage_s_children_back() -> None:
    cores = Cores(2)
    state = cores.state
    job = cores.arrive([(2, 10.0, ()), (1, 10.0, (0,))])
    cores.reveal(job, 0)
    tasks_started(state, 0, 2)
    tasks_ended(state, 0, 2, 0, 20)
    complete_stage(state, 0)
    assert (state.jobs.num_done[job], state.stages.frontier_rank[1]) == (1, 1)
    rerun_tasks(state, 0, 1)
    assert (state.jobs.num_done[job], state.stages.num_parents_unfinished[1]) == (0, 1)
    assert (state.stages.num_started[0], state.stages.num_finished[0]) == (1, 1)
    assert state.stages.executed_ms[0] == 10  # half of the time of both tasks
    assert state.stages.frontier_rank[:2].tolist() == [0, -1]
    assert state.jobs.num_schedulable[job] == 1
    check_invariants(state)
    tasks_started(state, 0, 1)
    tasks_ended(state, 0, 1, 0, 10)
    complete_stage(state, 0)
    assert state.stages.frontier_rank[:2].tolist() == [COMPLETE_RANK, 1]
    check_invariants(state)


def test_a_job_that_ends_early_frees_its_cores_and_keeps_what_it_needed() -> None:
    cores = Cores(2)
    state = cores.state
    job = cores.arrive([(5, 10.0, ()), (2, 30.0, (0,))])
    other = cores.arrive([(1, 10.0, ())])
    cores.reveal(job, 0)
    cores.reveal(other, 0)
    tasks_started(state, 0, 2)
    tasks_ended(state, 0, 1, 0, 10)
    state.now.clock_ms[0] = 80
    job_ended(state, job)
    assert (state.jobs.completion_ms[job], state.jobs.completion_ms[other]) == (80, NOT_YET)
    assert state.executors.stage.tolist() == [NO_STAGE, NO_STAGE]
    assert state.now.num_idle[0] == 2
    assert state.active[: state.now.num_active[0]].tolist() == [other]
    assert state.stages.num_tasks[:2].tolist() == [1, 1]
    assert state.stages.task_ms[:2].tolist() == [10.0, 0.0]
    assert state.now.job_ms[0] == 2 * 80
    check_invariants(state)


def test_without_an_order_jobs_are_served_first_come() -> None:
    cores = Cores(1)
    for _ in range(2):
        cores.reveal(cores.arrive([(1, 10.0, ())]), 0)
    cores.follow(tier=[5.0, 1.0], limit=[0, 3], weight=[1.0, 2.0], stage_tier=[4.0])
    forget_orders(cores.state)
    state = cores.state
    assert state.job_orders.tier[:2].tolist() == [0.0, 0.0]
    assert state.job_orders.weight[:2].tolist() == [0.0, 0.0]
    assert state.job_orders.limit[:2].tolist() == [UNLIMITED, UNLIMITED]
    assert state.stage_orders.tier[:2].tolist() == [0.0, 0.0]


def test_work_at_hand_is_what_runs_and_what_could_start() -> None:
    cores = Cores(4)
    for num_tasks in (2, 9):
        cores.reveal(cores.arrive([(num_tasks, 10.0, ()), (5, 10.0, (0,))]), 0)
    cores.follow()
    cores.offer()  # two tasks of each
    tasks = np.zeros(4, np.int64)
    work_ms = np.zeros(4)
    work_at_hand(cores.state, tasks, work_ms)
    assert tasks.tolist() == [2, 9, 0, 0]  # the stages behind them cannot start
    assert work_ms.tolist() == [60.0, 130.0, 0.0, 0.0]  # running tasks are half done


def _update_virtual_run(state: ClusterState, virtual: VirtualRun) -> None:
    """Advance a virtual run to the present, and predict when its jobs will end."""
    advance_virtual_run(state, virtual)
    predict_ends(state, virtual)


def test_new_stages_join_the_virtual_run_with_their_parents() -> None:
    cores = Cores(1)
    state = cores.state
    virtual = cores.virtual
    job = cores.arrive([(1, 100.0, ())])
    _update_virtual_run(state, virtual)
    assert (virtual.now.num_jobs[0], virtual.jobs.end_ms[job]) == (1, 100.0)
    stage = int(add_stage(state, job, 1, 40.0, 1))
    state.children[state.now.num_edges[0]] = stage
    state.stages.child_start[0] = state.now.num_edges[0]
    state.stages.num_children[0] = 1
    state.now.num_edges[0] += 1
    durations_changed(state, job)
    stages_added(state, virtual, job, stage, NO_STAGE)
    assert virtual.stages.num_waiting[:2].tolist() == [0, 1]
    assert virtual.jobs.num_left[job] == 2
    assert virtual.stages.path_ms[:2].tolist() == [140.0, 40.0]
    _update_virtual_run(state, virtual)
    assert virtual.jobs.end_ms[job] == 140.0


def test_what_a_virtual_run_did_of_expected_work_counts_for_the_stages_that_it_stood_for() -> None:
    cores = Cores(1)
    state = cores.state
    virtual = cores.virtual
    job = cores.arrive([(1, 100.0, ())])  # stands for stages to come
    state.now.clock_ms[0] = 60
    _update_virtual_run(state, virtual)
    assert virtual.stages.attained_ms[0] == 60.0
    first = int(add_stage(state, job, 1, 40.0, 0))
    add_stage(state, job, 1, 30.0, 0)
    state.stages.task_ms[0] = 30.0
    durations_changed(state, job)
    stages_added(state, virtual, job, first, 0)
    assert virtual.stages.attained_ms[:3].tolist() == [0.0, 40.0, 20.0]
    _update_virtual_run(state, virtual)
    # As long as if the stages had been known from the beginning.
    assert virtual.jobs.end_ms[job] == 100.0
