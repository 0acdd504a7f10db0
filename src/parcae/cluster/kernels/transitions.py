"""Transitions of the world of executors: one kernel per event.

The simulator calls these kernels when an event is due, the service when a message from Spark
arrives. A transition may open a round (`now.num_source > 0`: executors wait for decisions). It
writes commands (start a task, move an executor) into `state.commands`; the caller carries them out.

Source: Decima, sections 5.2 and 6.2; the public simulator for executor commitments, pools and
backup moves.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.cores import init_job_orders, reset_cores
from parcae.cluster.kernels.executors import (
    backup,
    carry_out,
    class_of,
    count_start,
    detach,
    fulfil_one,
    offer_larger,
    offer_next,
    offer_pool,
    offer_stage,
    park,
    unbind,
    work_on,
)
from parcae.cluster.kernels.tables import (
    account_time,
    core_time_ms,
    count_schedulable_stage,
    drop_commitments_to,
    edges_of,
    has_unstarted,
    init_stage,
    pool_row,
    pop_idle,
    push_idle,
    refresh_saturation,
    remove_active,
    stage_row,
)
from parcae.cluster.state import (
    NO_EXECUTOR,
    NO_JOB,
    NO_PROFILE,
    NO_RECORD,
    NO_STAGE,
    NOT_YET,
    World,
)

_CORES = int(World.CORES)


@kernel
def reset(state):  # type: ignore[no-untyped-def]
    """Empty the cluster: no jobs, every executor idle in the global pool, clock 0."""
    now = state.now
    now.num_executors[0] = state.executors.shape[0]
    for source in range(state.sources.shape[0]):
        state.sources.num_idle[source] = 0
        state.sources.num_committed[source] = 0
    now.clock_ms[0] = now.num_jobs[0] = now.num_stages[0] = now.num_edges[0] = 0
    now.num_active[0] = now.num_open[0] = now.num_schedulable[0] = now.num_source[0] = 0
    now.num_idle[0] = now.num_idle_to_be[0] = 0
    now.num_decisions[0] = now.num_commands[0] = now.num_commitment_rows[0] = now.num_holds[0] = 0
    now.job_ms[0] = now.accounted_ms[0] = now.is_reoffer_due[0] = 0
    now.next_offer[0] = -1
    for executor_class in range(state.classes.shape[0]):
        state.classes.num_schedulable[executor_class] = 0
    now.round_id[0] = 1
    now.free_commitment[0] = NO_RECORD
    now.source_job[0] = NO_JOB
    now.acting_executor[0] = NO_EXECUTOR
    state.source_count[:] = 0
    _fill_global_pool(state)
    if now.world[0] == _CORES:
        reset_cores(state)


@kernel
def _fill_global_pool(state):  # type: ignore[no-untyped-def]
    """Put every executor, class by class, into the global pool."""
    executor = 0
    executors = state.executors
    for executor_class in range(state.classes.shape[0]):
        for _ in range(state.classes.num_executors[executor_class]):
            executors.job[executor] = NO_JOB
            executors.stage[executor] = NO_STAGE
            executors.destination[executor] = NO_STAGE
            executors.executor_class[executor] = executor_class
            push_idle(state, executor_class, executor)
            executor += 1


@kernel
def job_arrived(  # type: ignore[no-untyped-def]
    state, spec, spec_children, first_spec, num_stages, profile, arrival_ms, knowledge
):
    """Add a job to the system and return its row.

    The caller then opens a round with `offer_to_newcomers` or, in the world of cores, reveals the
    stages without parents.

    Args:
        state: the cluster's tables; a row of `jobs`, rows of `stages` and `children` are written.
        spec: STAGE_SPEC[...], the stages of all jobs of the sequence (read only).
        spec_children: int64[...], their children as stage indexes within the job (read only).
        first_spec: the job's stages are `spec[first_spec : first_spec + num_stages]`.
        num_stages: number of the job's stages.
        profile: the recurring job that this is, or NO_PROFILE.
        arrival_ms: time of arrival.
        knowledge: factor on the durations that the scheduler knows: 1 gives it the profile's, 0
            none. With 0 it does not know the recurring job either.
    """
    now = state.now
    jobs = state.jobs
    account_time(state, now.clock_ms[0])
    job = now.num_jobs[0]
    start = now.num_stages[0]
    jobs.stage_start[job] = start
    jobs.num_stages[job] = num_stages
    jobs.arrival_ms[job] = arrival_ms
    jobs.completion_ms[job] = NOT_YET
    jobs.profile[job] = profile if knowledge > 0.0 else NO_PROFILE
    jobs.num_attached[job] = jobs.num_supplied[job] = jobs.num_granted[job] = jobs.num_commitments[
        job
    ] = 0
    jobs.num_done[job] = jobs.num_moves[job] = jobs.num_joined[job] = jobs.num_schedulable[job] = 0
    jobs.num_unsaturated[job] = jobs.num_unstarted[job] = num_stages
    jobs.work_ms[job] = jobs.remaining_ms[job] = 0.0
    for index in range(num_stages):
        _add_stage(state, spec, spec_children, first_spec + index, job, start + index, knowledge)
    now.num_stages[0] = start + num_stages
    now.num_open[0] += 1
    state.active[now.num_active[0]] = job
    now.num_active[0] += 1
    now.num_jobs[0] = job + 1
    if now.world[0] == _CORES:
        jobs.has_tail[job] = 0
        init_job_orders(state, job)
        jobs.core_ms[job] = core_time_ms(state)
    return job


@kernel
def _add_stage(  # type: ignore[no-untyped-def]
    state, spec, spec_children, row, job, stage, knowledge
):
    """Fill the row of one stage of an arriving job from its specification."""
    jobs = state.jobs
    stages = state.stages
    now = state.now
    start = state.jobs.stage_start[job]
    task_ms = spec.task_ms[row] * knowledge
    init_stage(state, job, stage, spec.num_tasks[row], task_ms, spec.num_parents[row])
    stages.downstream_ms[stage] = spec.downstream_ms[row] * knowledge
    stages.cpu[stage] = spec.cpu[row]
    stages.memory[stage] = spec.memory[row]
    stages.fits[stage] = _fitting_classes(state, stage)
    stages.num_children[stage] = spec.num_children[row]
    for edge in range(spec.num_children[row]):
        state.children[now.num_edges[0]] = start + spec_children[spec.child_start[row] + edge]
        now.num_edges[0] += 1
    if now.world[0] != _CORES and spec.num_parents[row] == 0:
        count_schedulable_stage(state, stage, 1)
        _join_frontier(state, stage)
    jobs.work_ms[job] += spec.num_tasks[row] * stages.task_ms[stage]
    jobs.remaining_ms[job] = jobs.work_ms[job]


@inlined
def _fitting_classes(state, stage):  # type: ignore[no-untyped-def]
    """Return a bit mask: bit c is set if executor class c is large enough for the stage."""
    fits = 0
    classes = state.classes
    for executor_class in range(classes.shape[0]):
        if (
            classes.cpu[executor_class] >= state.stages.cpu[stage]
            and classes.memory[executor_class] >= state.stages.memory[stage]
        ):
            fits |= 1 << executor_class
    return fits


@inlined
def _join_frontier(state, stage):  # type: ignore[no-untyped-def]
    """Record that the stage became runnable, as the latest one of its job."""
    job = state.stages.job[stage]
    state.stages.frontier_rank[stage] = state.jobs.num_joined[job]
    state.jobs.num_joined[job] += 1


@inlined
def continue_stage(state, executor, stage):  # type: ignore[no-untyped-def]
    """Count a finished task, and start the stage's next task on the same executor. Returns false if
    the stage has no task left to start; `stage_exhausted` handles that case.
    """
    stages = state.stages
    executors = state.executors
    clock_ms = state.now.clock_ms[0]
    started = stages.num_started[stage]
    stages.num_finished[stage] += 1
    stages.executed_ms[stage] += clock_ms - executors.started_ms[executor]
    executors.started_ms[executor] = clock_ms
    if started == stages.num_tasks[stage]:
        return False
    count_start(state, stage)
    return True


@inlined
def stage_exhausted(state, executor):  # type: ignore[no-untyped-def]
    """Reassign an executor whose task finished and whose stage has no task left to start.

    The task is already counted. The executor follows an existing commitment; without one, a round
    offers it.

    Source: the public simulator's task-finish event; Decima, section 5.2, scheduling events (i) and
    (ii).
    """
    stage = state.executors.stage[executor]
    job = state.stages.job[stage]
    is_done = state.stages.num_finished[stage] == state.stages.num_tasks[stage]
    if is_done:
        state.jobs.num_done[job] += 1
    has_commitments = (
        state.sources.num_committed[stage_row(state, stage) + class_of(state, executor)] > 0
    )
    # Stages became runnable: the executor joins the job's idle ones and all of them are offered.
    if is_done and _complete_children(state, stage):
        if has_commitments:
            fulfil_one(state, executor, stage_row(state, stage))
        else:
            park(state, executor, job)
        offer_pool(state, job)
    elif has_commitments:
        fulfil_one(state, executor, stage_row(state, stage))
    elif (
        state.classes.shape[0] > 1 and state.classes.num_schedulable[class_of(state, executor)] == 0
    ):
        carry_out(state, executor, NO_STAGE)  # no schedulable stage fits this executor
    else:
        offer_stage(state, executor, stage)
    if state.jobs.num_done[job] == state.jobs.num_stages[job]:
        _complete_job(state, job, executor)
        if state.classes.shape[0] > 1:
            state.now.next_offer[0] = 0  # as in offer_all, but keep a round that is already open
            offer_next(state)
    offer_larger(state)


@kernel
def _complete_children(state, stage):  # type: ignore[no-untyped-def]
    """Count the stage as complete for its children. Returns whether one of them became runnable."""
    changed = False
    for edge in edges_of(state, stage):
        child = state.children[edge]
        state.stages.num_parents_unfinished[child] -= 1
        if state.stages.num_parents_unfinished[child] == 0 and has_unstarted(state, child):
            _join_frontier(state, child)
            changed = True
    return changed


@kernel
def _complete_job(state, job, executor):  # type: ignore[no-untyped-def]
    """Complete the job: remove it, drop commitments to it, and free its executors."""
    now = state.now
    account_time(state, now.clock_ms[0])
    state.jobs.completion_ms[job] = now.clock_ms[0]
    now.is_reoffer_due[0] = 1
    remove_active(state, job)
    drop_commitments_to(state, job)
    if state.executors.job[executor] == job and state.executors.stage[executor] != NO_STAGE:
        detach(state, executor)
        unbind(state, executor)
        if now.num_source[0] > 0 and now.acting_executor[0] == executor:
            now.source[0] = pool_row(state, NO_JOB)
    for executor_class in range(state.classes.shape[0]):
        row = pool_row(state, job) + executor_class
        while state.sources.num_idle[row] > 0:
            idle = pop_idle(state, row)
            detach(state, idle)
            push_idle(state, executor_class, idle)


@inlined
def executor_arrived(state, executor):  # type: ignore[no-untyped-def]
    """Handle the arrival of a moving executor: it starts a task, waits, or gets other work."""
    stage = state.executors.destination[executor]
    state.executors.destination[executor] = NO_STAGE
    job = state.stages.job[stage]
    state.stages.num_moving[stage] -= 1
    # The job completed while the executor was on its way.
    if state.jobs.completion_ms[job] != NOT_YET:
        backup(state, executor)
        return
    state.executors.job[executor] = job
    state.jobs.num_attached[job] += 1
    state.jobs.num_moves[job] += 1
    refresh_saturation(state, stage)
    work_on(state, executor, stage)
