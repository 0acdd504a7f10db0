"""Transitions that only a live cluster knows: a snapshot is restored, a job ends early, durations become known.

Source: none; the paper's cluster is simulated, and its jobs neither fail nor were they running before the scheduler was.
"""

from __future__ import annotations

from parcae.cluster.kernels.tables import (
    account_time,
    count_schedulable_stage,
    drop_commitments_to,
    has_unstarted,
    pool_row,
    pop_idle,
    push_idle,
    refresh_saturation,
    remove_active,
    stage_row,
    take_commitment,
)
from parcae.cluster.state import NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel


@kernel
def drain_global_pool(state):  # type: ignore[no-untyped-def]
    """Take every idle executor out of the global pool; each must then be placed."""
    for row in range(state.classes.shape[0]):
        while state.sources.num_idle[row] > 0:
            pop_idle(state, row)


@kernel
def restore_stage(state, stage, num_finished, num_running, executed_ms):  # type: ignore[no-untyped-def]
    """A stage of a job that just arrived had already run so many tasks. Parents must be restored before their children."""
    stages, jobs, job = state.stages, state.jobs, state.stages.job[stage]
    started = num_finished + num_running
    stages.num_started[stage], stages.num_finished[stage], stages.executed_ms[stage] = started, num_finished, executed_ms
    jobs.remaining_ms[job] -= started * stages.task_ms[stage]
    if started == stages.num_tasks[stage]:
        stages.frontier_rank[stage] = -1
        jobs.num_unstarted[job] -= 1
    refresh_saturation(state, stage)
    if num_finished < stages.num_tasks[stage]:
        return
    jobs.num_done[job] += 1
    for edge in range(stages.child_start[stage], stages.child_start[stage] + stages.num_children[stage]):
        child = state.children[edge]
        stages.num_parents_unfinished[child] -= 1
        if stages.num_parents_unfinished[child] == 0 and has_unstarted(state, child):
            stages.frontier_rank[child] = jobs.num_joined[job]
            jobs.num_joined[job] += 1


@inlined
def _supply(state, job):  # type: ignore[no-untyped-def]
    state.jobs.num_supplied[job] += 1
    state.jobs.num_granted[job] += 1


@kernel
def place_running(state, executor, stage, started_ms):  # type: ignore[no-untyped-def]
    """The executor runs a task of the stage (counted by `restore_stage`)."""
    job = state.stages.job[stage]
    state.executors.job[executor], state.executors.stage[executor] = job, stage
    state.executors.destination[executor], state.executors.started_ms[executor] = NO_STAGE, started_ms
    state.stages.num_bound[stage] += 1
    state.jobs.num_attached[job] += 1
    _supply(state, job)


@kernel
def place_moving(state, executor, stage):  # type: ignore[no-untyped-def]
    """The executor is on its way to the stage."""
    state.executors.job[executor], state.executors.stage[executor] = NO_JOB, NO_STAGE
    state.executors.destination[executor] = stage
    state.stages.num_moving[stage] += 1
    _supply(state, state.stages.job[stage])
    refresh_saturation(state, stage)


@kernel
def place_idle(state, executor, job):  # type: ignore[no-untyped-def]
    """The executor idles in the pool of a job that has tasks to start, else in the global pool."""
    if job != NO_JOB and state.jobs.num_unstarted[job] == 0:
        job = NO_JOB
    state.executors.job[executor], state.executors.stage[executor] = job, NO_STAGE
    state.executors.destination[executor] = NO_STAGE
    if job != NO_JOB:
        state.jobs.num_attached[job] += 1
        _supply(state, job)
    push_idle(state, pool_row(state, job) + state.executors.executor_class[executor], executor)


@kernel
def job_ended(state, job):  # type: ignore[no-untyped-def]
    """A job ends before all of its tasks are done: it leaves the system, its executors idle in the global pool.

    Executors that move to it arrive, and find other work. The caller then opens a round with `offer_pool`.
    """
    now, jobs, stages = state.now, state.jobs, state.stages
    account_time(state, now.clock_ms[0])
    for stage in range(jobs.stage_start[job], jobs.stage_start[job] + jobs.num_stages[job]):
        if stages.is_saturated[stage] == 0 and stages.num_parents_unsaturated[stage] == 0:
            count_schedulable_stage(state, stage, -1)
    now.num_open[0] -= 1 if jobs.num_unsaturated[job] > 0 else 0
    jobs.completion_ms[job] = now.clock_ms[0]
    remove_active(state, job)
    drop_commitments_to(state, job)
    _forget_sources(state, job)
    for stage in range(jobs.stage_start[job], jobs.stage_start[job] + jobs.num_stages[job]):
        stages.num_tasks[stage], stages.frontier_rank[stage] = stages.num_started[stage], -1
    jobs.num_unstarted[job], jobs.remaining_ms[job] = 0, 0.0
    for executor in range(state.executors.shape[0]):
        if state.executors.job[executor] == job:
            _set_free(state, executor, job)


@kernel
def _forget_sources(state, job):  # type: ignore[no-untyped-def]
    """Drop the commitments that the job's executors had, and empty its pool."""
    num_classes, first = state.classes.shape[0], state.jobs.stage_start[job]
    for executor_class in range(num_classes):
        pool = pool_row(state, job) + executor_class
        while state.sources.num_committed[pool] > 0:
            take_commitment(state, pool)
        while state.sources.num_idle[pool] > 0:
            pop_idle(state, pool)
        for stage in range(first, first + state.jobs.num_stages[job]):
            row = stage_row(state, stage) + executor_class
            while state.sources.num_committed[row] > 0:
                take_commitment(state, row)


@kernel
def _set_free(state, executor, job):  # type: ignore[no-untyped-def]
    stage = state.executors.stage[executor]
    if stage != NO_STAGE:
        state.stages.num_bound[stage] -= 1
        state.executors.stage[executor] = NO_STAGE
    state.executors.job[executor] = NO_JOB
    state.jobs.num_attached[job] -= 1
    state.jobs.num_supplied[job] -= 1
    push_idle(state, state.executors.executor_class[executor], executor)


@kernel
def durations_changed(state, job):  # type: ignore[no-untyped-def]
    """Derive the job's work and its downstream work afresh from its stages' `task_ms`."""
    jobs, stages = state.jobs, state.stages
    first, last = jobs.stage_start[job], jobs.stage_start[job] + jobs.num_stages[job]
    jobs.work_ms[job] = jobs.remaining_ms[job] = 0.0
    for stage in range(first, last):
        jobs.work_ms[job] += stages.num_tasks[stage] * stages.task_ms[stage]
        jobs.remaining_ms[job] += (stages.num_tasks[stage] - stages.num_started[stage]) * stages.task_ms[stage]
        stages.downstream_ms[stage] = 0.0
    has_changed = True
    while has_changed:  # at most as often as the longest path has stages
        has_changed = False
        for stage in range(last - 1, first - 1, -1):
            longest = 0.0
            for edge in range(stages.child_start[stage], stages.child_start[stage] + stages.num_children[stage]):
                longest = max(longest, stages.downstream_ms[state.children[edge]])
            down = stages.num_tasks[stage] * stages.task_ms[stage] + longest
            if down != stages.downstream_ms[stage]:
                stages.downstream_ms[stage], has_changed = down, True
