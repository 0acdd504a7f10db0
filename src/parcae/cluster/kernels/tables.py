"""Small verbs on the tables: queries, saturation, pools and commitments."""

from __future__ import annotations

from parcae.cluster.state import NO_EXECUTOR, NO_RECORD, NO_STAGE, NOT_YET, ClusterState, World
from parcae.kernels import inlined, kernel

_CORES = int(World.CORES)


@inlined
def select_cluster(many, cluster):  # type: ignore[no-untyped-def]
    """The tables of one cluster out of many."""
    return ClusterState(
        many.now[cluster],
        many.jobs[cluster],
        many.stages[cluster],
        many.executors[cluster],
        many.sources[cluster],
        many.commitments[cluster],
        many.commands[cluster],
        many.holds[cluster],
        many.classes[cluster],
        many.source_count[cluster],
        many.active[cluster],
        many.children[cluster],
        many.job_orders[cluster],
        many.stage_orders[cluster],
        many.pools[cluster],
        many.contenders[cluster],
        many.contest[cluster],
        many.virtual_now[cluster],
        many.virtual_jobs[cluster],
        many.virtual_stages[cluster],
    )


@inlined
def pool_row(state, job):  # type: ignore[no-untyped-def]
    """Source row (class 0) of a job's pool; of the global pool for NO_JOB."""
    return (job + 1) * state.classes.shape[0]


@inlined
def stage_row(state, stage):  # type: ignore[no-untyped-def]
    """Source row (class 0) of the executors bound to a stage."""
    return (state.jobs.shape[0] + 1 + stage) * state.classes.shape[0]


@inlined
def demand(state, stage):  # type: ignore[no-untyped-def]
    """Executors that the stage can still take: unstarted tasks - committed - moving.

    World of cores: all cores are planned for as if none were given away, so that those which run its tasks count as well.
    """
    stages = state.stages
    now = state.now
    waiting = stages.num_tasks[stage] - stages.num_started[stage]
    if now.world[0] == _CORES and waiting > 0:
        waiting += stages.num_bound[stage]
    return waiting - stages.num_committed[stage] - stages.num_moving[stage]


@inlined
def num_held(state, job):  # type: ignore[no-untyped-def]
    """Executors that work for the job or are on their way to it: not those idle in its pool or asked about now."""
    held = state.jobs.num_supplied[job]
    first = pool_row(state, job)
    for executor_class in range(state.classes.shape[0]):
        held -= state.sources.num_idle[first + executor_class]
    if job == state.now.source_job[0] and state.now.source[0] != first:
        held -= state.now.num_source[0]
    return held


@inlined
def relative(amount, top):  # type: ignore[no-untyped-def]
    """The amount in units of the largest there is, at most 1; what there is no end of is 1 of itself."""
    return 1.0 if amount >= top else amount / top


@inlined
def slot_ms(state, stage, limit, length, num_lengths):  # type: ignore[no-untyped-def]
    """From now to the end of an idle slot of length / num_lengths of the stage's; 0 where there can be none.

    A stage's one slot is counted from its start, so that deciding again never makes it longer than the stage.

    # Deviation: Duan & Wu, section III measure a stage's length on a single executor; with more of them it is what is left of
    the stage shared out among them.
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
    """Whether all that are asked about may idle: some other executor works that will be asked about when it is done.

    Or an idle slot runs, whose end asks about everybody.
    """
    now = state.now
    first = state.now.source[0]
    if now.num_holds[0] > 0:
        return True  # the end of an idle slot asks about all of them again
    busy = now.num_executors[0] - now.num_idle[0] - now.num_idle_to_be[0]
    if now.acting_executor[0] != NO_EXECUTOR:
        return busy > now.num_source[0]
    for executor_class in range(state.classes.shape[0]):
        busy += state.sources.num_committed[first + executor_class]
    return busy > 0


@inlined
def has_unstarted(state, stage):  # type: ignore[no-untyped-def]
    """Whether the stage has tasks to start."""
    return state.stages.num_started[stage] < state.stages.num_tasks[stage]


@inlined
def is_runnable(state, stage):  # type: ignore[no-untyped-def]
    """Whether the stage's parents are complete and it has tasks to start."""
    return state.stages.frontier_rank[stage] >= 0


@kernel
def wait_ms(state, stage):  # type: ignore[no-untyped-def]
    """How long executors may have to wait for the stage: the longest task of its parents that are not complete; 0 if runnable."""
    stages = state.stages
    job = state.stages.job[stage]
    longest_ms = 0.0
    if stages.num_parents_unfinished[stage] == 0:
        return longest_ms
    for parent in range(
        state.jobs.stage_start[job], state.jobs.stage_start[job] + state.jobs.num_stages[job]
    ):
        if (
            stages.num_finished[parent] == stages.num_tasks[parent]
            or stages.task_ms[parent] <= longest_ms
        ):
            continue
        for edge in range(
            stages.child_start[parent], stages.child_start[parent] + stages.num_children[parent]
        ):
            if state.children[edge] == stage:
                longest_ms = stages.task_ms[parent]
    return longest_ms


@inlined
def is_offered(state, stage):  # type: ignore[no-untyped-def]
    """Whether some executor that is asked about is large enough for the stage."""
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
    """Whether a decision may choose the stage: unsaturated, parents saturated, not yet chosen in this round."""
    stages = state.stages
    return (
        stages.is_saturated[stage] == 0
        and stages.num_parents_unsaturated[stage] == 0
        and stages.selected_round[stage] != state.now.round_id[0]
        and is_offered(state, stage)
    )


@kernel
def first_runnable(state, job):  # type: ignore[no-untyped-def]
    """The job's schedulable stage that became runnable first, or NO_STAGE."""
    best = NO_STAGE
    best_rank = 0
    start = state.jobs.stage_start[job]
    for stage in range(start, start + state.jobs.num_stages[job]):
        rank = state.stages.frontier_rank[stage]
        if rank >= 0 and (best == NO_STAGE or rank < best_rank) and is_schedulable(state, stage):
            best = stage
            best_rank = rank
    return best


@kernel
def first_schedulable(state, job):  # type: ignore[no-untyped-def]
    """The job's schedulable stage of the smallest index, or NO_STAGE."""
    start = state.jobs.stage_start[job]
    for stage in range(start, start + state.jobs.num_stages[job]):
        if is_schedulable(state, stage):
            return stage
    return NO_STAGE


@kernel
def first_for_class(state, job, executor_class, runnable_only):  # type: ignore[no-untyped-def]
    """The job's first unsaturated stage that fits the class: by frontier order if `runnable_only`, else schedulable by index."""
    best = NO_STAGE
    best_rank = 0
    stages = state.stages
    start = state.jobs.stage_start[job]
    for stage in range(start, start + state.jobs.num_stages[job]):
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
    """Book a stage as schedulable (step 1) or no more (step -1)."""
    now = state.now
    job = state.stages.job[stage]
    classes = state.classes
    state.jobs.num_schedulable[job] += step
    if state.jobs.completion_ms[job] != NOT_YET:
        return
    now.num_schedulable[0] += step
    if classes.shape[0] > 1:
        now.has_news[0] |= step > 0
        for executor_class in range(classes.shape[0]):
            classes.num_schedulable[executor_class] += step * (
                (state.stages.fits[stage] >> executor_class) & 1
            )


@kernel
def _saturate(state, stage, step):  # type: ignore[no-untyped-def]
    """Book the stage as saturated (step -1) or unsaturated again (step +1)."""
    jobs = state.jobs
    stages = state.stages
    now = state.now
    job = stages.job[stage]
    stages.is_saturated[stage] = 1 if step < 0 else 0
    if stages.num_parents_unsaturated[stage] == 0:
        count_schedulable_stage(state, stage, step)
    if now.world[0] != _CORES:  # there a stage can be chosen only once its parents are complete
        for edge in range(
            stages.child_start[stage], stages.child_start[stage] + stages.num_children[stage]
        ):
            child = state.children[edge]
            stages.num_parents_unsaturated[child] += step
            edge_count = 0 if step < 0 else 1
            if (
                stages.num_parents_unsaturated[child] == edge_count
                and stages.is_saturated[child] == 0
            ):
                count_schedulable_stage(state, child, -step)
    was_open = jobs.num_unsaturated[job] > 0
    jobs.num_unsaturated[job] += step
    if jobs.completion_ms[job] == NOT_YET:
        now.num_open[0] += (1 if jobs.num_unsaturated[job] > 0 else 0) - (1 if was_open else 0)


@inlined
def refresh_saturation(state, stage):  # type: ignore[no-untyped-def]
    """Keep the saturation books true after a change of the stage's demand."""
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
    """Take the executor that has waited longest out of the pool at a source row."""
    sources = state.sources
    executor = sources.idle_head[row]
    sources.idle_head[row] = state.executors.next_idle[executor]
    sources.num_idle[row] -= 1
    state.now.num_idle[0] -= 1
    return executor


@kernel
def new_commitment(state):  # type: ignore[no-untyped-def]
    """A free row of the commitment table."""
    now = state.now
    row = state.now.free_commitment[0]
    if row != NO_RECORD:
        now.free_commitment[0] = state.commitments.next[row]
        return row
    row = now.num_commitment_rows[0]
    now.num_commitment_rows[0] = row + 1
    return row


@inlined
def free_commitment(state, record):  # type: ignore[no-untyped-def]
    """Give a row of the commitment table back."""
    state.commitments.count[record] = 0
    state.commitments.next[record] = state.now.free_commitment[0]
    state.now.free_commitment[0] = record


@inlined
def count_commitment(state, source_job, stage, count):  # type: ignore[no-untyped-def]
    """Book `count` more (or fewer) executors committed to a stage by a source of `source_job`."""
    if stage == NO_STAGE:
        state.now.num_idle_to_be[0] += count
        return
    job = state.stages.job[stage]
    state.stages.num_committed[stage] += count
    if source_job != job:
        state.jobs.num_supplied[job] += count
    state.jobs.num_commitments[job] += count
    refresh_saturation(state, stage)


@kernel
def commit(state, source, source_job, stage, count):  # type: ignore[no-untyped-def]
    """Commit `count` executors of a source row to a stage (NO_STAGE: to idle), behind its earlier commitments."""
    sources = state.sources
    commitments = state.commitments
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


@kernel
def take_commitment(state, source):  # type: ignore[no-untyped-def]
    """The destination of the source's oldest commitment, one executor of which is thereby used up."""
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
    """Forget every commitment that points into the job."""
    for record in range(state.now.num_commitment_rows[0]):
        if state.jobs.num_commitments[job] == 0:
            return
        commitments = state.commitments
        stage = commitments.stage[record]
        if commitments.count[record] > 0 and stage != NO_STAGE and state.stages.job[stage] == job:
            _unlink(state, record)


@kernel
def _unlink(state, record):  # type: ignore[no-untyped-def]
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
    """Take a job out of the (ascending) list of jobs in the system."""
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
    """Advance the integral over time of the number of jobs in the system."""
    now = state.now
    now.job_ms[0] += now.num_active[0] * (clock_ms - now.accounted_ms[0])
    now.accounted_ms[0] = clock_ms
