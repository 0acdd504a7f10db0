"""What an executor does next in the world of executors: work, move, wait or become idle.

A kernel here changes the tables for one executor and writes its command into `state.commands`.
Source: the public simulator for executor commitments, pools and backup moves.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.tables import (
    active_jobs,
    first_for_class,
    has_unstarted,
    is_runnable,
    pool_row,
    pop_idle,
    push_idle,
    refresh_saturation,
    stage_row,
    stages_of,
    take_commitment,
)
from parcae.cluster.state import NO_EXECUTOR, NO_JOB, NO_STAGE, CommandKind


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
def offer_stage(state, executor, stage):  # type: ignore[no-untyped-def]
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


_START = int(CommandKind.START_TASK)
_MOVE = int(CommandKind.MOVE_EXECUTOR)
# The wave of a started task: a freshly arrived executor, the first task of an executor that came
# from another stage of the job, or a further task of the same stage.
_FRESH = 0
_FIRST = 1
_REST = 2


@inlined
def count_start(state, stage):  # type: ignore[no-untyped-def]
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
def class_of(state, executor):  # type: ignore[no-untyped-def]
    """Return the executor's class."""
    return state.executors.executor_class[executor]


@inlined
def detach(state, executor):  # type: ignore[no-untyped-def]
    """Detach the executor from its job, if it has one."""
    job = state.executors.job[executor]
    if job != NO_JOB:
        state.jobs.num_attached[job] -= 1
        state.jobs.num_supplied[job] -= 1
        state.executors.job[executor] = NO_JOB


@inlined
def unbind(state, executor):  # type: ignore[no-untyped-def]
    """Unbind the executor from its stage, if it has one."""
    stage = state.executors.stage[executor]
    if stage != NO_STAGE:
        state.stages.num_bound[stage] -= 1
        state.executors.stage[executor] = NO_STAGE


@kernel
def park(state, executor, job):  # type: ignore[no-untyped-def]
    """Make the executor idle in the pool of its job, or in the global pool for NO_JOB."""
    unbind(state, executor)
    if job == NO_JOB:
        detach(state, executor)
        state.now.is_reoffer_due[0] = 1
    push_idle(state, pool_row(state, job) + class_of(state, executor), executor)


@inlined
def _start(state, executor, stage):  # type: ignore[no-untyped-def]
    """Start the stage's next task on an executor that is attached to the stage's job."""
    previous = state.executors.stage[executor]
    wave = _FRESH if previous == NO_STAGE else (_REST if previous == stage else _FIRST)
    if previous != stage:
        unbind(state, executor)
        state.executors.stage[executor] = stage
        state.stages.num_bound[stage] += 1
    task = state.stages.num_started[stage]
    state.executors.started_ms[executor] = state.now.clock_ms[0]
    count_start(state, stage)
    _command(state, _START, executor, stage, task, wave)


@inlined
def _move(state, executor, stage):  # type: ignore[no-untyped-def]
    """Send the executor to a stage of another job; it arrives after the moving delay."""
    unbind(state, executor)
    detach(state, executor)
    state.executors.destination[executor] = stage
    state.executors.started_ms[executor] = state.now.clock_ms[0]
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
def work_on(state, executor, stage):  # type: ignore[no-untyped-def]
    """Let an executor that is attached to the stage's job work on the stage.

    It waits in the job's pool if the stage is not runnable yet.
    """
    if not has_unstarted(state, stage):
        backup(state, executor)
    elif is_runnable(state, stage):
        _start(state, executor, stage)
    else:
        park(state, executor, state.stages.job[stage])


@inlined
def backup(state, executor):  # type: ignore[no-untyped-def]
    """Assign an executor whose stage no longer needs it, without a decision.

    It takes a runnable stage of its job, else a schedulable stage of the first other job that has
    one, else it becomes idle (the public simulator's backup schedule).
    """
    job = state.executors.job[executor]
    executor_class = class_of(state, executor)
    if job != NO_JOB:
        stage = first_for_class(state, job, executor_class, True)
        if stage != NO_STAGE:
            _start(state, executor, stage)
            return
    if state.now.num_schedulable[0] > 0:
        for other in active_jobs(state):
            if state.jobs.num_schedulable[other] > 0:
                stage = first_for_class(state, other, executor_class, False)
                if stage != NO_STAGE:
                    _move(state, executor, stage)
                    return
    park(state, executor, job if _may_serve(state, job, executor_class) else NO_JOB)


@inlined
def _may_serve(state, job, executor_class):  # type: ignore[no-untyped-def]
    """Whether the job still has tasks to start in a stage that fits the executor's class.

    With a single class the answer is always yes, also after the job's last task started.
    """
    if state.classes.shape[0] == 1 or job == NO_JOB:
        return True
    for stage in stages_of(state, job):
        if has_unstarted(state, stage) and (state.stages.fits[stage] >> executor_class) & 1:
            return True
    return False


@inlined
def carry_out(state, executor, stage):  # type: ignore[no-untyped-def]
    """Carry out one commitment: the executor goes to the stage, or becomes idle."""
    job = state.executors.job[executor]
    if stage == NO_STAGE:
        stays = (
            job != NO_JOB
            and state.jobs.num_unstarted[job] > 0
            and _may_serve(state, job, class_of(state, executor))
        )
        park(state, executor, job if stays else NO_JOB)
    elif job == state.stages.job[stage]:
        work_on(state, executor, stage)
    elif has_unstarted(state, stage):
        _move(state, executor, stage)
    else:
        backup(state, executor)


@inlined
def fulfil_one(state, executor, source):  # type: ignore[no-untyped-def]
    """Carry out the source's oldest commitment with an executor that is in no pool."""
    carry_out(state, executor, take_commitment(state, source + class_of(state, executor)))


@inlined
def fulfil_pool(state, source):  # type: ignore[no-untyped-def]
    """Carry out the commitments of a pool with its executors, the longest idle first."""
    for row in range(source, source + state.classes.shape[0]):
        available = state.sources.num_idle[row]
        while available > 0 and state.sources.num_committed[row] > 0:
            stage = take_commitment(state, row)
            carry_out(state, pop_idle(state, row), stage)
            available -= 1
