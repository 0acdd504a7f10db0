"""Transitions of the world of executors: one kernel per event.

The simulator calls these kernels when an event is due, the service when a message from Spark
arrives. A transition may open a round (`now.num_source > 0`: executors wait for decisions). It
writes commands (start a task, move an executor) into `state.commands`; the caller carries them out.

Source: Decima, sections 5.2 and 6.2; the public simulator for executor commitments, pools and
backup moves.
"""

from __future__ import annotations

from parcae.cluster.kernels.cores import init_job_orders, reset_cores
from parcae.cluster.kernels.tables import (
    account_time,
    count_schedulable_stage,
    drop_commitments_to,
    first_for_class,
    has_unstarted,
    is_runnable,
    pool_row,
    pop_idle,
    push_idle,
    refresh_saturation,
    remove_active,
    stage_row,
    take_commitment,
)
from parcae.cluster.state import (
    NO_EXECUTOR,
    NO_JOB,
    NO_PROFILE,
    NO_RECORD,
    NO_STAGE,
    NOT_YET,
    CommandKind,
    World,
)
from parcae.kernels import inlined, kernel

_START = int(CommandKind.START_TASK)
_MOVE = int(CommandKind.MOVE_EXECUTOR)
# The wave of a started task: a freshly arrived executor, the first task of an executor that came
# from another stage of the job, or a further task of the same stage.
_FRESH = 0
_FIRST = 1
_REST = 2
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
        init_job_orders(state, job)
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
    stages.num_tasks[stage] = spec.num_tasks[row]
    stages.task_ms[stage] = spec.task_ms[row] * knowledge
    stages.downstream_ms[stage] = spec.downstream_ms[row] * knowledge
    stages.cpu[stage] = spec.cpu[row]
    stages.memory[stage] = spec.memory[row]
    stages.job[stage] = job
    stages.num_bound[stage] = 0
    stages.is_saturated[stage] = 0
    stages.num_started[stage] = stages.num_finished[stage] = stages.num_committed[
        stage
    ] = stages.num_moving[stage] = 0
    stages.executed_ms[stage] = 0
    stages.selected_round[stage] = 0
    stages.hold_from_ms[stage] = NOT_YET
    stages.hold_until_ms[stage] = NOT_YET
    stages.fits[stage] = _fitting_classes(state, stage)
    stages.num_parents_unsaturated[stage] = stages.num_parents_unfinished[stage] = spec.num_parents[
        row
    ]
    stages.child_start[stage] = now.num_edges[0]
    stages.num_children[stage] = spec.num_children[row]
    for edge in range(spec.num_children[row]):
        state.children[now.num_edges[0]] = start + spec_children[spec.child_start[row] + edge]
        now.num_edges[0] += 1
    stages.frontier_rank[stage] = -1
    # In the world of cores, `reveal_stage` makes a stage runnable; the count of at least 1 keeps it
    # from being schedulable before.
    if now.world[0] == _CORES:
        stages.num_parents_unsaturated[stage] = max(1, spec.num_parents[row])
    elif spec.num_parents[row] == 0:
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


@kernel
def offer_pool(state, job):  # type: ignore[no-untyped-def]
    """Open a round for all idle executors of a job's pool (NO_JOB: the global pool).

    If the pool is empty, no round is open afterwards.
    """
    now = state.now
    first = pool_row(state, job)
    now.source_job[0] = job
    now.source[0] = first
    now.acting_executor[0] = NO_EXECUTOR
    now.num_source[0] = 0
    for executor_class in range(state.classes.shape[0]):
        state.source_count[executor_class] = state.sources.num_idle[first + executor_class]
        now.num_source[0] += state.source_count[executor_class]
    if job == NO_JOB:
        now.is_reoffer_due[0] = 0


@kernel
def offer_all(state):  # type: ignore[no-untyped-def]
    """Offer every pool with idle executors, one after another, the global pool last.

    Opens the first of these rounds; `offer_next` opens the others.
    """
    state.now.next_offer[0] = 0
    state.now.num_source[0] = 0
    offer_next(state)


@kernel
def offer_next(state):  # type: ignore[no-untyped-def]
    """Open the next round of the sequence that `offer_all` began.

    The sequence ends when all pools were offered or no stage is schedulable.
    """
    now = state.now
    while now.next_offer[0] >= 0 and now.num_source[0] == 0:
        position = now.next_offer[0]
        now.next_offer[0] = position + 1
        if position > now.num_active[0] or now.num_schedulable[0] == 0:
            now.next_offer[0] = -1
        else:
            offer_pool(state, state.active[position] if position < now.num_active[0] else NO_JOB)


@kernel
def offer_to_newcomers(state):  # type: ignore[no-untyped-def]
    """Offer idle executors after jobs arrived.

    Normally the global pool is offered. All pools are offered while idle slots run (Duan & Wu,
    section IV-B) and if there are several executor classes.

    # Deviation: Decima, section 7.3 does not say which executors are offered if there are several
    classes. Here all idle executors are, also at the end of a job. Otherwise two jobs could each
    keep idle the executors that the other needs, and the cluster would work with a few executors
    only.
    """
    if state.now.num_holds[0] > 0 or state.classes.shape[0] > 1:
        offer_all(state)
    else:
        offer_pool(state, NO_JOB)


@inlined
def _offer_stage(state, executor, stage):  # type: ignore[no-untyped-def]
    """Open a round for an executor that finished a task, together with all bound to its stage."""
    now = state.now
    job = state.stages.job[stage]
    executor_class = state.executors.executor_class[executor]
    now.source_job[0] = job
    now.source[0] = stage_row(state, stage)
    now.acting_executor[0] = executor
    now.num_source[0] = state.stages.num_bound[stage]
    state.source_count[:] = 0
    if state.classes.shape[0] == 1:
        state.source_count[0] = now.num_source[0]
    else:  # the bound executors may be of different classes: offer only the one that is free now
        now.num_source[0] = state.source_count[executor_class] = 1


@inlined
def continue_stage(state, executor, stage):  # type: ignore[no-untyped-def]
    """Count a finished task, and start the stage's next task on the same executor.

    Args:
        state: the cluster's tables; `stages`, `executors` and `jobs` are written.
        executor: row of the executor.
        stage: row of the stage of the finished task.

    Returns:
        False if the stage has no task left to start; `stage_exhausted` handles that case.
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
    _count_start(state, stage)
    return True


@inlined
def _count_start(state, stage):  # type: ignore[no-untyped-def]
    """Update the counts of the stage and its job for one more started task."""
    stages = state.stages
    stages.num_started[stage] += 1
    state.jobs.remaining_ms[stages.job[stage]] -= stages.task_ms[stage]
    if stages.num_started[stage] == stages.num_tasks[stage]:
        stages.frontier_rank[stage] = -1
        state.jobs.num_unstarted[stages.job[stage]] -= 1
    if stages.is_saturated[stage] == 0:
        refresh_saturation(state, stage)


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
        state.sources.num_committed[stage_row(state, stage) + _class_of(state, executor)] > 0
    )
    # Stages became runnable: the executor joins the job's idle ones and all of them are offered.
    if is_done and _complete_children(state, stage):
        if has_commitments:
            fulfil_one(state, executor, stage_row(state, stage))
        else:
            _park(state, executor, job)
        offer_pool(state, job)
    elif has_commitments:
        fulfil_one(state, executor, stage_row(state, stage))
    elif (
        state.classes.shape[0] > 1
        and state.classes.num_schedulable[_class_of(state, executor)] == 0
    ):
        _carry_out(state, executor, NO_STAGE)  # no schedulable stage fits this executor
    else:
        _offer_stage(state, executor, stage)
    if state.jobs.num_done[job] == state.jobs.num_stages[job]:
        _complete_job(state, job, executor)
        if state.classes.shape[0] > 1:
            state.now.next_offer[0] = 0  # as in offer_all, but keep a round that is already open
            offer_next(state)
    offer_larger(state)


@inlined
def offer_larger(state):  # type: ignore[no-untyped-def]
    """With several classes, offer the global pool again if it can get work now.

    The acting executor may be too small for the remaining stages. The pool is offered only if
    something changed since its last offer (a stage became schedulable, another executor became
    idle, a job ended) and one of its executors is large enough for a schedulable stage.

    # Deviation: Decima, section 7.3 does not say when idle executors of other classes are offered.
    Without this rule a stage that fits only them could wait for ever.
    """
    now = state.now
    classes = state.classes
    if classes.shape[0] > 1 and now.num_source[0] == 0 and now.is_reoffer_due[0]:
        for executor_class in range(classes.shape[0]):
            if (
                state.sources.num_idle[executor_class] > 0
                and classes.num_schedulable[executor_class] > 0
            ):
                offer_pool(state, NO_JOB)
                return


@inlined
def _class_of(state, executor):  # type: ignore[no-untyped-def]
    """Return the executor's class."""
    return state.executors.executor_class[executor]


@kernel
def _complete_children(state, stage):  # type: ignore[no-untyped-def]
    """Count the stage as complete for its children. Returns whether one of them became runnable."""
    changed = False
    for edge in range(
        state.stages.child_start[stage],
        state.stages.child_start[stage] + state.stages.num_children[stage],
    ):
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
        _detach(state, executor)
        _unbind(state, executor)
        if now.num_source[0] > 0 and now.acting_executor[0] == executor:
            now.source[0] = pool_row(state, NO_JOB)
    for executor_class in range(state.classes.shape[0]):
        row = pool_row(state, job) + executor_class
        while state.sources.num_idle[row] > 0:
            idle = pop_idle(state, row)
            _detach(state, idle)
            push_idle(state, executor_class, idle)


@inlined
def _detach(state, executor):  # type: ignore[no-untyped-def]
    """Detach the executor from its job, if it has one."""
    job = state.executors.job[executor]
    if job != NO_JOB:
        state.jobs.num_attached[job] -= 1
        state.jobs.num_supplied[job] -= 1
        state.executors.job[executor] = NO_JOB


@inlined
def _unbind(state, executor):  # type: ignore[no-untyped-def]
    """Unbind the executor from its stage, if it has one."""
    stage = state.executors.stage[executor]
    if stage != NO_STAGE:
        state.stages.num_bound[stage] -= 1
        state.executors.stage[executor] = NO_STAGE


@kernel
def _park(state, executor, job):  # type: ignore[no-untyped-def]
    """Make the executor idle in the pool of its job, or in the global pool for NO_JOB."""
    _unbind(state, executor)
    if job == NO_JOB:
        _detach(state, executor)
        state.now.is_reoffer_due[0] = 1
    push_idle(state, pool_row(state, job) + _class_of(state, executor), executor)


@inlined
def _start(state, executor, stage):  # type: ignore[no-untyped-def]
    """Start the stage's next task on an executor that is attached to the stage's job."""
    previous = state.executors.stage[executor]
    wave = _FRESH if previous == NO_STAGE else (_REST if previous == stage else _FIRST)
    if previous != stage:
        _unbind(state, executor)
        state.executors.stage[executor] = stage
        state.stages.num_bound[stage] += 1
    task = state.stages.num_started[stage]
    state.executors.started_ms[executor] = state.now.clock_ms[0]
    _count_start(state, stage)
    _command(state, _START, executor, stage, task, wave)


@inlined
def _move(state, executor, stage):  # type: ignore[no-untyped-def]
    """Send the executor to a stage of another job; it arrives after the moving delay."""
    _unbind(state, executor)
    _detach(state, executor)
    state.executors.destination[executor] = stage
    state.stages.num_moving[stage] += 1
    state.jobs.num_supplied[state.stages.job[stage]] += 1
    refresh_saturation(state, stage)
    _command(state, _MOVE, executor, stage, 0, _FRESH)


@inlined
def _command(state, kind, executor, stage, task, wave):  # type: ignore[no-untyped-def]
    """Append a command for the caller of the transition."""
    commands = state.commands
    row = state.now.num_commands[0]
    commands.kind[row] = kind
    commands.executor[row] = executor
    commands.stage[row] = stage
    commands.task[row] = task
    commands.wave[row] = wave
    commands.parallelism[row] = state.jobs.num_attached[state.stages.job[stage]]
    state.now.num_commands[0] = row + 1


@inlined
def executor_arrived(state, executor):  # type: ignore[no-untyped-def]
    """Handle the arrival of a moving executor: it starts a task, waits, or gets other work."""
    stage = state.executors.destination[executor]
    state.executors.destination[executor] = NO_STAGE
    job = state.stages.job[stage]
    state.stages.num_moving[stage] -= 1
    # The job completed while the executor was on its way.
    if state.jobs.completion_ms[job] != NOT_YET:
        _backup(state, executor)
        return
    state.executors.job[executor] = job
    state.jobs.num_attached[job] += 1
    state.jobs.num_moves[job] += 1
    refresh_saturation(state, stage)
    _work_on(state, executor, stage)


@inlined
def _work_on(state, executor, stage):  # type: ignore[no-untyped-def]
    """Let an executor that is attached to the stage's job work on the stage.

    It waits in the job's pool if the stage is not runnable yet.
    """
    if not has_unstarted(state, stage):
        _backup(state, executor)
    elif is_runnable(state, stage):
        _start(state, executor, stage)
    else:
        _park(state, executor, state.stages.job[stage])


@inlined
def _backup(state, executor):  # type: ignore[no-untyped-def]
    """Assign an executor whose stage no longer needs it, without a decision.

    It takes a runnable stage of its job, else a schedulable stage of the first other job that has
    one, else it becomes idle (the public simulator's backup schedule).
    """
    job = state.executors.job[executor]
    executor_class = _class_of(state, executor)
    if job != NO_JOB:
        stage = first_for_class(state, job, executor_class, True)
        if stage != NO_STAGE:
            _start(state, executor, stage)
            return
    if state.now.num_schedulable[0] > 0:
        for position in range(state.now.num_active[0]):
            other = state.active[position]
            if state.jobs.num_schedulable[other] > 0:
                stage = first_for_class(state, other, executor_class, False)
                if stage != NO_STAGE:
                    _move(state, executor, stage)
                    return
    _park(state, executor, job if _may_serve(state, job, executor_class) else NO_JOB)


@inlined
def _may_serve(state, job, executor_class):  # type: ignore[no-untyped-def]
    """Whether the job still has tasks to start in a stage that fits the executor's class.

    With a single class the answer is always yes, also after the job's last task started.
    """
    if state.classes.shape[0] == 1 or job == NO_JOB:
        return True
    for stage in range(
        state.jobs.stage_start[job], state.jobs.stage_start[job] + state.jobs.num_stages[job]
    ):
        if has_unstarted(state, stage) and (state.stages.fits[stage] >> executor_class) & 1:
            return True
    return False


@inlined
def _carry_out(state, executor, stage):  # type: ignore[no-untyped-def]
    """Carry out one commitment: `executor` (in no pool) goes to `stage`, or idles for NO_STAGE."""
    job = state.executors.job[executor]
    if stage == NO_STAGE:
        stays = (
            job != NO_JOB
            and state.jobs.num_unstarted[job] > 0
            and _may_serve(state, job, _class_of(state, executor))
        )
        _park(state, executor, job if stays else NO_JOB)
    elif job == state.stages.job[stage]:
        _work_on(state, executor, stage)
    elif has_unstarted(state, stage):
        _move(state, executor, stage)
    else:
        _backup(state, executor)


@inlined
def fulfil_one(state, executor, source):  # type: ignore[no-untyped-def]
    """Carry out the source's oldest commitment with an executor that is in no pool.

    Args:
        state: the cluster's tables; commitments, pools, `executors` and `commands` are written.
        executor: row of the executor.
        source: row of the source, for class 0.
    """
    _carry_out(state, executor, take_commitment(state, source + _class_of(state, executor)))


@inlined
def fulfil_pool(state, source):  # type: ignore[no-untyped-def]
    """Carry out the commitments of a pool with its executors, the longest idle first."""
    for row in range(source, source + state.classes.shape[0]):
        available = state.sources.num_idle[row]
        while available > 0 and state.sources.num_committed[row] > 0:
            stage = take_commitment(state, row)
            _carry_out(state, pop_idle(state, row), stage)
            available -= 1
