"""Basic operations on the cluster's tables: queries, saturation, pools and commitments.

The transitions (`transitions`, `decisions`, `cores`) and the compiled policies are built from these
kernels. `state` is always a `ClusterState`; jobs, stages and executors are given as row numbers.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel, written_out
from parcae.cluster.state import NO_EXECUTOR, NO_RECORD, NO_STAGE, NOT_YET, UNLIMITED, World

_CORES = int(World.CORES)


@written_out
def active_jobs(state):  # type: ignore[no-untyped-def]
    """Return the rows of the jobs in the system, in order of arrival."""
    return state.active[: state.now.num_active[0]]


@inlined
def stages_of(state, job):  # type: ignore[no-untyped-def]
    """Return the rows of a job's stages."""
    first = state.jobs.stage_start[job]
    return range(first, first + state.jobs.num_stages[job])


@inlined
def edges_of(state, stage):  # type: ignore[no-untyped-def]
    """Return the positions of a stage's children in `state.children`."""
    first = state.stages.child_start[stage]
    return range(first, first + state.stages.num_children[stage])


@inlined
def init_stage(state, job, stage, num_tasks, task_ms, num_parents):  # type: ignore[no-untyped-def]
    """Fill the row of a stage of a job, none of whose tasks has started."""
    stages = state.stages
    stages.num_tasks[stage] = num_tasks
    stages.task_ms[stage] = task_ms
    stages.job[stage] = job
    stages.num_started[stage] = stages.num_finished[stage] = stages.num_bound[stage] = 0
    stages.num_committed[stage] = stages.num_moving[stage] = stages.is_saturated[stage] = 0
    stages.executed_ms[stage] = stages.selected_round[stage] = stages.num_children[stage] = 0
    stages.downstream_ms[stage] = stages.cpu[stage] = stages.memory[stage] = 0.0
    stages.hold_from_ms[stage] = stages.hold_until_ms[stage] = NOT_YET
    stages.fits[stage] = 1
    stages.num_parents_unfinished[stage] = num_parents
    # In the world of cores, `reveal_stage` makes a stage runnable; the count of at least 1 keeps it
    # from being schedulable before.
    least = 1 if state.now.world[0] == _CORES else 0
    stages.num_parents_unsaturated[stage] = max(least, num_parents)
    stages.child_start[stage] = state.now.num_edges[0]
    stages.frontier_rank[stage] = stages.first_rank[stage] = -1
    stages.serial[stage] = stage


@inlined
def reset_orders(state, job, tier):  # type: ignore[no-untyped-def]
    """Let a job be served first come, and give its stages this tier and neither rank nor limit."""
    orders = state.job_orders
    orders.tier[job] = 0.0
    orders.weight[job] = 0.0
    orders.limit[job] = UNLIMITED
    for stage in stages_of(state, job):
        reset_stage_order(state, stage, tier)


@inlined
def waiting_tasks(state, job):  # type: ignore[no-untyped-def]
    """How many tasks of a job could start, given cores."""
    stages = state.stages
    waiting = 0
    for stage in stages_of(state, job):
        if stages.frontier_rank[stage] >= 0:
            waiting += stages.num_tasks[stage] - stages.num_started[stage]
    return waiting


@inlined
def reset_stage_order(state, stage, tier):  # type: ignore[no-untyped-def]
    """Give the stage a tier of its job and neither rank nor limit."""
    state.stage_orders.tier[stage] = tier
    state.stage_orders.rank[stage] = 0.0
    state.stage_orders.limit[stage] = UNLIMITED


@inlined
def pool_row(state, job):  # type: ignore[no-untyped-def]
    """Return the source row (class 0) of a job's pool, or of the global pool for NO_JOB."""
    return (job + 1) * state.classes.shape[0]


@inlined
def stage_row(state, stage):  # type: ignore[no-untyped-def]
    """Return the source row (class 0) of the executors bound to a stage."""
    return (state.jobs.shape[0] + 1 + stage) * state.classes.shape[0]


@inlined
def demand(state, stage):  # type: ignore[no-untyped-def]
    """Return how many more executors the stage can take: unstarted tasks - committed - moving.

    In the world of cores a policy plans for all cores as if none were busy. Cores that run the
    stage's tasks therefore count as demand as well.
    """
    stages = state.stages
    now = state.now
    waiting = stages.num_tasks[stage] - stages.num_started[stage]
    if now.world[0] == _CORES and waiting > 0:
        waiting += stages.num_bound[stage]
    return waiting - stages.num_committed[stage] - stages.num_moving[stage]


@inlined
def num_held(state, job):  # type: ignore[no-untyped-def]
    """Return how many executors work for the job or move to it.

    Executors that are idle in the job's pool or offered in the current round do not count.
    """
    held = state.jobs.num_supplied[job]
    first = pool_row(state, job)
    for executor_class in range(state.classes.shape[0]):
        held -= state.sources.num_idle[first + executor_class]
    if job == state.now.source_job[0] and state.now.source[0] != first:
        held -= state.now.num_source[0]
    return held


@inlined
def relative(amount, top):  # type: ignore[no-untyped-def]
    """Return `amount / top`, at most 1. An unlimited amount relative to an unlimited top is 1."""
    return 1.0 if amount >= top else amount / top


@inlined
def slot_ms(state, stage, limit, length, num_lengths):  # type: ignore[no-untyped-def]
    """Return the time from now to the end of an idle slot, in ms; 0 if the stage can have none.

    A stage has at most one idle slot. Its length is measured from the time it began, so that
    deciding again never makes the slot longer than the stage.

    # Deviation: Duan & Wu, section III measure a stage's length on a single executor. Here it is
    the stage's remaining work divided by the number of executors.
    """
    stages = state.stages
    clock_ms = state.now.clock_ms[0]
    start_ms = clock_ms
    if stages.hold_from_ms[stage] != NOT_YET:
        start_ms = stages.hold_from_ms[stage]
        if stages.hold_until_ms[stage] <= clock_ms:
            return 0
    left = stages.num_tasks[stage] - stages.num_started[stage]
    stage_ms = stages.task_ms[stage] * left / max(1, min(limit, left))
    return max(0, start_ms + int(stage_ms * length / num_lengths) - clock_ms)


@inlined
def may_idle(state):  # type: ignore[no-untyped-def]
    """Whether a decision may let all offered executors idle.

    It may if a later event is sure to offer executors again: the end of a running idle slot, or
    another executor that becomes free. Otherwise the cluster could stall.
    """
    now = state.now
    first = state.now.source[0]
    if now.num_holds[0] > 0:
        return True  # the end of an idle slot offers all idle executors again
    # Executors that are committed to idle are not offered when they finish, so they do not count.
    busy = now.num_executors[0] - now.num_idle[0] - now.num_idle_to_be[0]
    if now.acting_executor[0] != NO_EXECUTOR:
        return busy > now.num_source[0]
    for executor_class in range(state.classes.shape[0]):
        busy += state.sources.num_committed[first + executor_class]
    return busy > 0


@inlined
def has_unstarted(state, stage):  # type: ignore[no-untyped-def]
    """Whether the stage has tasks left to start."""
    return state.stages.num_started[stage] < state.stages.num_tasks[stage]


@inlined
def is_runnable(state, stage):  # type: ignore[no-untyped-def]
    """Whether the stage's parents are complete and it has tasks left to start."""
    return state.stages.frontier_rank[stage] >= 0


@kernel
def wait_ms(state, stage):  # type: ignore[no-untyped-def]
    """Return how long executors may have to wait for the stage, in ms; 0 if it is runnable.

    This is the estimated duration of the longest task of its parents that are not complete.
    """
    stages = state.stages
    job = state.stages.job[stage]
    longest_ms = 0.0
    if stages.num_parents_unfinished[stage] == 0:
        return longest_ms
    for parent in stages_of(state, job):
        if (
            stages.num_finished[parent] == stages.num_tasks[parent]
            or stages.task_ms[parent] <= longest_ms
        ):
            continue
        for edge in edges_of(state, parent):
            if state.children[edge] == stage:
                longest_ms = stages.task_ms[parent]
    return longest_ms


@inlined
def is_offered(state, stage):  # type: ignore[no-untyped-def]
    """Whether at least one offered executor is large enough for the stage."""
    # With a single class, every offered executor fits every stage.
    if state.source_count.shape[0] == 1:
        return True
    for executor_class in range(state.source_count.shape[0]):
        if (
            state.source_count[executor_class] > 0
            and (state.stages.fits[stage] >> executor_class) & 1
        ):
            return True
    return False


@inlined
def is_schedulable(state, stage):  # type: ignore[no-untyped-def]
    """Whether a decision may choose the stage.

    Its demand is positive, its parents are saturated, it was not chosen yet in this round, and an
    offered executor fits it.
    """
    stages = state.stages
    return (
        stages.is_saturated[stage] == 0
        and stages.num_parents_unsaturated[stage] == 0
        and stages.selected_round[stage] != state.now.round_id[0]
        and is_offered(state, stage)
    )


@kernel
def first_runnable(state, job):  # type: ignore[no-untyped-def]
    """Return the job's schedulable stage that became runnable first, or NO_STAGE."""
    best = NO_STAGE
    best_rank = 0
    for stage in stages_of(state, job):
        rank = state.stages.frontier_rank[stage]
        if rank >= 0 and (best == NO_STAGE or rank < best_rank) and is_schedulable(state, stage):
            best = stage
            best_rank = rank
    return best


@kernel
def first_schedulable(state, job):  # type: ignore[no-untyped-def]
    """Return the job's schedulable stage with the smallest index, or NO_STAGE."""
    for stage in stages_of(state, job):
        if is_schedulable(state, stage):
            return stage
    return NO_STAGE


@kernel
def first_for_class(state, job, executor_class, runnable_only):  # type: ignore[no-untyped-def]
    """Return the job's first unsaturated stage that fits the executor class, or NO_STAGE."""
    best = NO_STAGE
    best_rank = 0
    stages = state.stages
    for stage in stages_of(state, job):
        if stages.is_saturated[stage] or not (stages.fits[stage] >> executor_class) & 1:
            continue
        rank = stages.frontier_rank[stage]
        if runnable_only:
            if rank >= 0 and (best == NO_STAGE or rank < best_rank):
                best = stage
                best_rank = rank
        elif (
            stages.num_parents_unsaturated[stage] == 0
            and stages.selected_round[stage] != state.now.round_id[0]
        ):
            return stage
    return best


@inlined
def count_schedulable_stage(state, stage, step):  # type: ignore[no-untyped-def]
    """Update the counts of schedulable stages: of the job, the cluster and every executor class."""
    now = state.now
    job = state.stages.job[stage]
    classes = state.classes
    state.jobs.num_schedulable[job] += step
    # A completed job is no longer part of the cluster-wide counts.
    if state.jobs.completion_ms[job] != NOT_YET:
        return
    now.num_schedulable[0] += step
    if classes.shape[0] > 1:
        now.is_reoffer_due[0] |= step > 0
        for executor_class in range(classes.shape[0]):
            classes.num_schedulable[executor_class] += step * (
                (state.stages.fits[stage] >> executor_class) & 1
            )


@kernel
def _saturate(state, stage, step):  # type: ignore[no-untyped-def]
    """Mark the stage as saturated (step -1) or unsaturated (step +1), and update the counts."""
    jobs = state.jobs
    stages = state.stages
    now = state.now
    job = stages.job[stage]
    stages.is_saturated[stage] = 1 if step < 0 else 0
    if stages.num_parents_unsaturated[stage] == 0:
        count_schedulable_stage(state, stage, step)
    # In the world of cores a stage can be chosen only once its parents are complete, so that
    # saturation of the parents plays no role there.
    if now.world[0] != _CORES:
        for edge in edges_of(state, stage):
            child = state.children[edge]
            stages.num_parents_unsaturated[child] += step
            # The child's status changes only when its last parent becomes saturated (count 0) or
            # its first one becomes unsaturated again (count 1).
            changed_at = 0 if step < 0 else 1
            if (
                stages.num_parents_unsaturated[child] == changed_at
                and stages.is_saturated[child] == 0
            ):
                count_schedulable_stage(state, child, -step)
    was_open = jobs.num_unsaturated[job] > 0
    jobs.num_unsaturated[job] += step
    if jobs.completion_ms[job] == NOT_YET:
        now.num_open[0] += (1 if jobs.num_unsaturated[job] > 0 else 0) - (1 if was_open else 0)


@inlined
def refresh_saturation(state, stage):  # type: ignore[no-untyped-def]
    """Update the stage's saturation and the dependent counts after a change of its demand."""
    saturated = 1 if demand(state, stage) <= 0 else 0
    if saturated != state.stages.is_saturated[stage]:
        _saturate(state, stage, -1 if saturated else 1)


@inlined
def push_idle(state, row, executor):  # type: ignore[no-untyped-def]
    """Append an executor to the pool at a source row."""
    sources = state.sources
    state.executors.next_idle[executor] = NO_EXECUTOR
    if sources.num_idle[row] == 0:
        sources.idle_head[row] = executor
    else:
        state.executors.next_idle[sources.idle_tail[row]] = executor
    sources.idle_tail[row] = executor
    sources.num_idle[row] += 1
    state.now.num_idle[0] += 1


@inlined
def pop_idle(state, row):  # type: ignore[no-untyped-def]
    """Remove the executor that has been idle longest from the pool at a source row. Returns it."""
    sources = state.sources
    executor = sources.idle_head[row]
    sources.idle_head[row] = state.executors.next_idle[executor]
    sources.num_idle[row] -= 1
    state.now.num_idle[0] -= 1
    return executor


@kernel
def new_commitment(state):  # type: ignore[no-untyped-def]
    """Return a free row of the commitment table."""
    now = state.now
    # Reuse a released row if there is one; otherwise take the first row that was never used.
    row = state.now.free_commitment[0]
    if row != NO_RECORD:
        now.free_commitment[0] = state.commitments.next[row]
        return row
    row = now.num_commitment_rows[0]
    now.num_commitment_rows[0] = row + 1
    return row


@inlined
def free_commitment(state, record):  # type: ignore[no-untyped-def]
    """Release a row of the commitment table, for `new_commitment` to reuse."""
    state.commitments.count[record] = 0
    state.commitments.next[record] = state.now.free_commitment[0]
    state.now.free_commitment[0] = record


@inlined
def count_commitment(state, source_job, stage, count):  # type: ignore[no-untyped-def]
    """Update the counts for `count` more (if negative: fewer) executors committed to a stage."""
    if stage == NO_STAGE:
        state.now.num_idle_to_be[0] += count
        return
    job = state.stages.job[stage]
    state.stages.num_committed[stage] += count
    # Executors that are already attached to the job are part of its supply.
    if source_job != job:
        state.jobs.num_supplied[job] += count
    state.jobs.num_commitments[job] += count
    refresh_saturation(state, stage)


@kernel
def commit(state, source, source_job, stage, count):  # type: ignore[no-untyped-def]
    """Commit executors of one source to a stage, behind the source's earlier commitments."""
    sources = state.sources
    commitments = state.commitments
    # A source's commitments form a linked list with at most one record per destination.
    record = sources.commitment_head[source] if sources.num_committed[source] > 0 else NO_RECORD
    while record != NO_RECORD and commitments.stage[record] != stage:
        record = commitments.next[record]
    if record == NO_RECORD:
        record = new_commitment(state)
        commitments.source[record] = source
        commitments.source_job[record] = source_job
        commitments.stage[record] = stage
        commitments.count[record] = 0
        commitments.next[record] = NO_RECORD
        if sources.num_committed[source] == 0:
            sources.commitment_head[source] = record
        else:
            commitments.next[sources.commitment_tail[source]] = record
        sources.commitment_tail[source] = record
    commitments.count[record] += count
    sources.num_committed[source] += count
    count_commitment(state, source_job, stage, count)


@inlined
def take_commitment(state, source):  # type: ignore[no-untyped-def]
    """Use up one executor of the source's oldest commitment, and return the commitment's stage."""
    sources = state.sources
    commitments = state.commitments
    record = sources.commitment_head[source]
    stage = commitments.stage[record]
    source_job = commitments.source_job[record]
    commitments.count[record] -= 1
    sources.num_committed[source] -= 1
    if commitments.count[record] == 0:
        sources.commitment_head[source] = commitments.next[record]
        free_commitment(state, record)
    count_commitment(state, source_job, stage, -1)
    return stage


@kernel
def drop_commitments_to(state, job):  # type: ignore[no-untyped-def]
    """Delete every commitment to a stage of the job."""
    for record in range(state.now.num_commitment_rows[0]):
        if state.jobs.num_commitments[job] == 0:
            return
        commitments = state.commitments
        stage = commitments.stage[record]
        if commitments.count[record] > 0 and stage != NO_STAGE and state.stages.job[stage] == job:
            _unlink(state, record)


@kernel
def _unlink(state, record):  # type: ignore[no-untyped-def]
    """Remove one record from its source's list of commitments and release it."""
    sources = state.sources
    commitments = state.commitments
    source = commitments.source[record]
    count = commitments.count[record]
    before = NO_RECORD
    if sources.commitment_head[source] == record:
        sources.commitment_head[source] = commitments.next[record]
    else:
        before = sources.commitment_head[source]
        while commitments.next[before] != record:
            before = commitments.next[before]
        commitments.next[before] = commitments.next[record]
    if sources.commitment_tail[source] == record:
        sources.commitment_tail[source] = before
    sources.num_committed[source] -= count
    count_commitment(state, commitments.source_job[record], commitments.stage[record], -count)
    free_commitment(state, record)


@kernel
def remove_active(state, job):  # type: ignore[no-untyped-def]
    """Remove a job from the list of jobs in the system, which is in ascending order."""
    low = 0
    high = state.now.num_active[0]
    while low < high:
        middle = (low + high) // 2
        if state.active[middle] < job:
            low = middle + 1
        else:
            high = middle
    state.now.num_active[0] -= 1
    for position in range(low, state.now.num_active[0]):
        state.active[position] = state.active[position + 1]


@inlined
def account_time(state, clock_ms):  # type: ignore[no-untyped-def]
    """Advance the integral over time of the number of jobs in the system to `clock_ms`."""
    now = state.now
    now.job_ms[0] += now.num_active[0] * (clock_ms - now.accounted_ms[0])
    now.accounted_ms[0] = clock_ms


@kernel
def begin_changes(state):  # type: ignore[no-untyped-def]
    """Begin to count the core time of an elastic cluster."""
    state.now.is_elastic[0] = 1
    state.now.core_ms[0] = 0
    state.now.core_until_ms[0] = state.now.clock_ms[0]


@inlined
def core_time_ms(state):  # type: ignore[no-untyped-def]
    """Return the integral over time of an elastic cluster's number of cores, to the present."""
    now = state.now
    return now.core_ms[0] + now.num_executors[0] * (now.clock_ms[0] - now.core_until_ms[0])


@kernel
def _change_cores(state, change):  # type: ignore[no-untyped-def]
    """Add `change` to the number of cores. A plan is due."""
    now = state.now
    now.core_ms[0] = core_time_ms(state)
    now.core_until_ms[0] = now.clock_ms[0]
    now.num_executors[0] += change
    now.is_plan_due[0] = 1


@kernel
def add_cores(state, first, count):  # type: ignore[no-untyped-def]
    """Add cores to the cluster, behind the other idle cores."""
    _change_cores(state, count)
    for core in range(first, first + count):
        push_idle(state, 0, core)


@kernel
def remove_cores(state, first, count):  # type: ignore[no-untyped-def]
    """Remove cores that run no task from the cluster; the idle cores that stay keep their order."""
    _change_cores(state, -count)
    for _ in range(state.now.num_idle[0]):
        core = pop_idle(state, 0)
        if not first <= core < first + count:
            push_idle(state, 0, core)


#: Value of `now.least_share` on a real cluster, where a job can be longer than its profile: its
#: remaining work is estimated as at least this share of the work done. In simulations with known
#: tasks `now.least_share` is 0.
LEAST_SHARE = 0.05
#: The prior counts as this many finished tasks whose durations equalled their estimates.
PRIOR_TASKS = 3.0


@kernel
def correction(state, job):  # type: ignore[no-untyped-def]
    """Return the factor on the job's estimated durations, from its finished tasks; 1 before any."""
    if not state.now.is_corrected[0]:
        return 1.0
    num_finished, executed_ms, expected_ms = finished_tasks(state, job)
    if num_finished == 0 or expected_ms <= 0.0:
        return 1.0
    return (num_finished * executed_ms / expected_ms + PRIOR_TASKS) / (num_finished + PRIOR_TASKS)


@kernel
def finished_tasks(state, job):  # type: ignore[no-untyped-def]
    """The job's finished tasks: their number, how long they took, and how long by the estimates.
    Returns an int64, and two float64 in ms.
    """
    stages = state.stages
    num_finished = 0
    executed_ms = 0.0
    expected_ms = 0.0
    for stage in stages_of(state, job):
        finished = stages.num_finished[stage]
        if finished > 0:
            num_finished += finished
            executed_ms += stages.executed_ms[stage]
            expected_ms += finished * stages.task_ms[stage]
    return num_finished, executed_ms, expected_ms


@kernel
def unstarted_ms(state, job):  # type: ignore[no-untyped-def]
    """Return the estimated work of the job's tasks that have not started, without correction."""
    stages = state.stages
    work_ms = 0.0
    for stage in stages_of(state, job):
        work_ms += (stages.num_tasks[stage] - stages.num_started[stage]) * stages.task_ms[stage]
    return work_ms


@kernel
def remaining_ms(state, job):  # type: ignore[no-untyped-def]
    """Return the estimated work of the job's tasks that have not started, corrected.

    It is at least `now.least_share` of the work that the job has done.
    """
    stages = state.stages
    executed_ms = 0.0
    for stage in stages_of(state, job):
        executed_ms += stages.executed_ms[stage]
    left_ms = unstarted_ms(state, job) * correction(state, job)
    return max(left_ms, state.now.least_share[0] * executed_ms)


@kernel
def total_ms(state, job):  # type: ignore[no-untyped-def]
    """Return the estimated work of all of the job's tasks, without correction."""
    stages = state.stages
    work_ms = 0.0
    for stage in stages_of(state, job):
        work_ms += stages.num_tasks[stage] * stages.task_ms[stage]
    return work_ms
