"""The dispatcher of the world of cores: free cores start tasks by the order in force.

An offer round sorts the runnable stages once and serves them in that order. Each stage starts as
many tasks as there are free cores and as its limits allow. With a single pool the sorted order is
kept in a winner tree over jobs, so that a round costs the logarithm of the number of jobs instead
of the number of jobs.

Source: Spark's TaskSchedulerImpl.resourceOffers, Pool and SchedulingAlgorithm.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import NOTHING, deferred, inlined, kernel
from parcae.cluster.kernels.tables import (
    active_jobs,
    pop_idle,
    push_idle,
    refresh_saturation,
    stages_of,
)
from parcae.cluster.state import NO_JOB, NO_STAGE, CommandKind

_START = int(CommandKind.START_TASK)
_REST = 2
#: `next_served` of a job that the current offer round has not served yet.
NOT_SERVED = -2


@inlined
def _goes_before(state, first, second):  # type: ignore[no-untyped-def]
    """Whether job `first` is served before job `second`; NO_JOB comes last."""
    if first == NO_JOB or second == NO_JOB:
        return second == NO_JOB and first != NO_JOB
    contenders = state.contenders
    if contenders.tier[first] != contenders.tier[second]:
        return contenders.tier[first] < contenders.tier[second]
    if contenders.share[first] != contenders.share[second]:
        return contenders.share[first] < contenders.share[second]
    return first < second


@inlined
def _replay_matches(state, job):  # type: ignore[no-untyped-def]
    """Update the winner tree after a change of the job's key: replay its matches up to the root."""
    contest = state.contest
    # The leaves are the second half of the array; the children of node n are 2n and 2n + 1.
    node = contest.shape[0] // 2 + job
    winner = job if state.contenders.front[job] != NO_STAGE else NO_JOB
    contest[node] = winner
    while node > 1:
        other = contest[node ^ 1]
        if _goes_before(state, other, winner):
            winner = other
        node >>= 1
        if contest[node] == winner and winner != job:
            return  # the job wins neither here nor above, so nothing above changes
        contest[node] = winner


@inlined
def _share(state, job):  # type: ignore[no-untyped-def]
    """Return the job's running tasks / weight; 0 for a job without a weight (first come)."""
    weight = state.job_orders.weight[job]
    return state.jobs.num_attached[job] / weight if weight > 0.0 else 0.0


@kernel
def _find_front(state, job):  # type: ignore[no-untyped-def]
    """Return the stage of the job that is served next, or NO_STAGE.

    Candidates have tasks to start and are below their limits; the smallest (tier, rank, row) wins.
    """
    orders = state.stage_orders
    stages = state.stages
    jobs = state.jobs
    best = NO_STAGE
    if jobs.num_schedulable[job] == 0 or jobs.num_attached[job] >= state.job_orders.limit[job]:
        return best
    for stage in stages_of(state, job):
        if stages.frontier_rank[stage] < 0 or stages.num_bound[stage] >= orders.limit[stage]:
            continue
        if (
            best == NO_STAGE
            or orders.tier[stage] < orders.tier[best]
            or (orders.tier[stage] == orders.tier[best] and orders.rank[stage] < orders.rank[best])
        ):
            best = stage
    return best


@inlined
def _set_front(state, job):  # type: ignore[no-untyped-def]
    """Find the job's next stage and write it, with its tier, into the job's row of `contenders`."""
    front = _find_front(state, job)
    state.contenders.front[job] = front
    if front != NO_STAGE:
        state.contenders.tier[job] = state.job_orders.tier[job] + state.stage_orders.tier[front]


@kernel
def refresh_contender(state, job):  # type: ignore[no-untyped-def]
    """Recompute the job's key after a change of its stages, its running tasks or its order.

    Writes the job's row of `contenders` and, if the key changed, the winner tree.
    """
    contenders = state.contenders
    front = contenders.front[job]
    tier = contenders.tier[job]
    share = contenders.share[job]
    _set_front(state, job)
    contenders.share[job] = _share(state, job)
    # Replaying the matches is the expensive part; skip it if the key is the same.
    is_same = contenders.front[job] == front and contenders.tier[job] == tier
    if not is_same or contenders.share[job] != share:
        _replay_matches(state, job)


@kernel
def refresh_contenders(state):  # type: ignore[no-untyped-def]
    """Recompute the keys of all jobs in the system."""
    for job in active_jobs(state):
        refresh_contender(state, job)


@inlined
def _running_changed(state, job):  # type: ignore[no-untyped-def]
    """Update the job's key after a change of its running tasks only.

    Running tasks matter for limits and for jobs with a weight; the key of any other job stays.
    """
    contenders = state.contenders
    front = state.contenders.front[job]
    if state.now.has_limits[0] or (front != NO_STAGE and state.stages.frontier_rank[front] < 0):
        refresh_contender(state, job)
    elif state.job_orders.weight[job] > 0.0:
        contenders.share[job] = _share(state, job)
        if front != NO_STAGE:
            _replay_matches(state, job)


@inlined
def uses_pools(state):  # type: ignore[no-untyped-def]
    """Whether the order in force has several pools, or one pool in mode FAIR."""
    return state.now.num_pools[0] > 1 or state.pools.is_fair[0] != 0


@inlined
def count_running(state, job, step):  # type: ignore[no-untyped-def]
    """Add `step` (1 or -1) to the job's running tasks and, if pools are used, to those of its
    pool.
    """
    state.jobs.num_attached[job] += step
    if uses_pools(state):
        state.pools.num_running[state.job_orders.pool[job]] += step


@inlined
def begin_task(state, executor, stage):  # type: ignore[no-untyped-def]
    """Start the stage's next task on a free core that is in no pool. Returns the task's index."""
    stages = state.stages
    executors = state.executors
    job = stages.job[stage]
    task = stages.num_started[stage]
    executors.job[executor] = job
    executors.stage[executor] = stage
    executors.started_ms[executor] = state.now.clock_ms[0]
    count_running(state, job, 1)
    stages.num_bound[stage] += 1
    stages.num_started[stage] = task + 1
    state.jobs.remaining_ms[job] -= stages.task_ms[stage]
    if task + 1 == stages.num_tasks[stage]:
        exhaust_stage(state, stage)
    return task


@kernel
def exhaust_stage(state, stage):  # type: ignore[no-untyped-def]
    """Record that the stage has no task left to start: it is not runnable, and a plan is due."""
    state.stages.frontier_rank[stage] = -1
    state.jobs.num_unstarted[state.stages.job[stage]] -= 1
    state.now.is_plan_due[0] = 1
    refresh_saturation(state, stage)


@inlined
def _start_task(state, stage):  # type: ignore[no-untyped-def]
    """Start the stage's next task on the core that has been idle longest, and write the command."""
    commands = state.commands
    now = state.now
    executor = pop_idle(state, 0)
    row = now.num_commands[0]
    commands.kind[row] = _START
    commands.executor[row] = executor
    commands.stage[row] = stage
    commands.task[row] = begin_task(state, executor, stage)
    commands.wave[row] = _REST
    commands.parallelism[row] = now.num_executors[0]
    now.num_commands[0] = row + 1


@inlined
def _serve(state, job):  # type: ignore[no-untyped-def]
    """Start tasks of the job's next stage, as many as the idle cores and the limits allow."""
    stage = state.contenders.front[job]
    room = state.stages.num_tasks[stage] - state.stages.num_started[stage]
    room = min(room, state.stage_orders.limit[stage] - state.stages.num_bound[stage])
    room = min(room, state.job_orders.limit[job] - state.jobs.num_attached[job])
    for _ in range(min(room, state.now.num_idle[0])):
        _start_task(state, stage)


@kernel
def dispatch(state):  # type: ignore[no-untyped-def]
    """Run one offer round: idle cores start tasks by the order in force.

    The order is sorted once per round: shares stay as they were when the round began, as in Spark.
    Writes one command per started task into `commands`.
    """
    now = state.now
    contenders = state.contenders
    if now.num_idle[0] == 0 or now.num_schedulable[0] == 0:
        return
    if uses_pools(state):
        _dispatch_pools(state)
        return
    served = NO_JOB
    while now.num_idle[0] > 0 and state.contest[1] != NO_JOB:
        job = state.contest[1]
        _serve(state, job)
        if contenders.next_served[job] == NOT_SERVED:
            contenders.next_served[job] = served
            served = job
        # Cores are left, so this stage can start no more tasks: go on with the job's next stage.
        # The job keeps its share until the end of the round.
        if now.num_idle[0] > 0:
            _set_front(state, job)
            _replay_matches(state, job)
    # Now update the shares of all jobs that this round served.
    while served != NO_JOB:
        job = served
        served = contenders.next_served[job]
        contenders.next_served[job] = NOT_SERVED
        _running_changed(state, job)


@inlined
def _pool_goes_before(state, first, second):  # type: ignore[no-untyped-def]
    """Whether pool `first` is served before pool `second` (Spark's FairSchedulingAlgorithm).

    Pools below their minimum share come first, by running tasks / minimum share. The others follow
    by running tasks / weight. Ties go by name.
    """
    pools = state.pools
    running_1 = pools.num_running[first]
    running_2 = pools.num_running[second]
    min_1 = pools.min_share[first]
    min_2 = pools.min_share[second]
    is_needy_1 = running_1 < min_1
    is_needy_2 = running_2 < min_2
    if is_needy_1 != is_needy_2:
        return is_needy_1
    ratio_1 = running_1 / max(min_1, 1) if is_needy_1 else running_1 / pools.weight[first]
    ratio_2 = running_2 / max(min_2, 1) if is_needy_2 else running_2 / pools.weight[second]
    if ratio_1 != ratio_2:
        return ratio_1 < ratio_2
    return pools.name_rank[first] < pools.name_rank[second]


@kernel
def name_goes_before(first, second):  # type: ignore[no-untyped-def]
    """Whether number `first` sorts before `second` when both are written as decimal text.

    Spark compares task sets by name ("TaskSet_10.0" sorts before "TaskSet_2.0").
    """
    # A scale is the power of ten of the digit that is compared next; it reaches 0 when the text
    # ends.
    scale_1 = 1
    scale_2 = 1
    while first >= 10 * scale_1:
        scale_1 *= 10
    while second >= 10 * scale_2:
        scale_2 *= 10
    while scale_1 > 0 and scale_2 > 0:
        digit_1 = first // scale_1 % 10
        digit_2 = second // scale_2 % 10
        if digit_1 != digit_2:
            return digit_1 < digit_2
        scale_1 //= 10
        scale_2 //= 10
    return scale_1 == 0 and scale_2 > 0


@kernel
def _best_pool(state):  # type: ignore[no-untyped-def]
    """Return the next pool that this round has not served and that can start a task, or -1."""
    best = -1
    for job in active_jobs(state):
        pool = state.job_orders.pool[job]
        if state.contenders.front[job] == NO_STAGE or state.pools.is_served[pool] or pool == best:
            continue
        if best < 0 or _pool_goes_before(state, pool, best):
            best = pool
    return best


@inlined
def _goes_before_in_pool(state, first, second):  # type: ignore[no-untyped-def]
    """Whether job `first` is served before job `second` of its pool; NO_JOB comes last.

    The higher priority comes first; jobs of one priority go by the order in force.
    """
    if second != NO_JOB and state.jobs.priority[first] != state.jobs.priority[second]:
        return state.jobs.priority[first] > state.jobs.priority[second]
    return _goes_before(state, first, second)


@kernel
def _best_job_of(state, pool):  # type: ignore[no-untyped-def]
    """Return the job of a pool that is served next, or NO_JOB if none can start a task."""
    best = NO_JOB
    for job in active_jobs(state):
        is_candidate = (
            state.job_orders.pool[job] == pool and state.contenders.front[job] != NO_STAGE
        )
        if is_candidate and _goes_before_in_pool(state, job, best):
            best = job
    return best


@kernel
def _best_task_set_of(state, pool):  # type: ignore[no-untyped-def]
    """Return the stage that a pool in mode FAIR serves next, or NO_STAGE.

    The stage with the fewest running tasks wins; ties go by the task set's name.
    """
    best = NO_STAGE
    stages = state.stages
    orders = state.stage_orders
    for job in active_jobs(state):
        if state.job_orders.pool[job] != pool or state.contenders.front[job] == NO_STAGE:
            continue
        for stage in stages_of(state, job):
            if stages.frontier_rank[stage] < 0 or stages.num_bound[stage] >= orders.limit[stage]:
                continue
            is_first = best == NO_STAGE or stages.num_bound[stage] < stages.num_bound[best]
            is_tie = best != NO_STAGE and stages.num_bound[stage] == stages.num_bound[best]
            if is_first or (is_tie and name_goes_before(stages.serial[stage], stages.serial[best])):
                best = stage
    return best


@deferred(NOTHING)
def _dispatch_pools(state):  # type: ignore[no-untyped-def]
    """Run one offer round under an order that uses pools: one pool after another."""
    now = state.now
    pools = state.pools
    contenders = state.contenders
    pools.is_served[: now.num_pools[0]] = 0
    while now.num_idle[0] > 0:
        pool = _best_pool(state)
        if pool < 0:
            break
        pools.is_served[pool] = 1
        while now.num_idle[0] > 0:
            job = _best_job_of(state, pool)
            if job == NO_JOB:
                break
            if pools.is_fair[pool]:
                stage = _best_task_set_of(state, pool)
                job = state.stages.job[stage]
                contenders.front[job] = stage
            _serve(state, job)
            _set_front(state, job)
            _replay_matches(state, job)  # keep the tree valid: the next order may use no pools
    for job in active_jobs(state):
        refresh_contender(state, job)


@inlined
def finish_task(state, executor):  # type: ignore[no-untyped-def]
    """Count the task that ended on the core. Returns its stage."""
    stages = state.stages
    stage = state.executors.stage[executor]
    stages.num_finished[stage] += 1
    stages.executed_ms[stage] += state.now.clock_ms[0] - state.executors.started_ms[executor]
    stages.num_bound[stage] -= 1
    count_running(state, stages.job[stage], -1)
    return stage


@inlined
def release_core(state, executor):  # type: ignore[no-untyped-def]
    """Mark the core as idle and put it into the pool of idle cores."""
    state.executors.job[executor] = NO_JOB
    state.executors.stage[executor] = NO_STAGE
    push_idle(state, 0, executor)


@kernel
def free_core(state, executor):  # type: ignore[no-untyped-def]
    """Count the task that ended on the core and release the core. Returns whether the task was the
    last of its stage.
    """
    stage = finish_task(state, executor)
    release_core(state, executor)
    _running_changed(state, state.stages.job[stage])
    return state.stages.num_finished[stage] == state.stages.num_tasks[stage]


@inlined
def is_plain(state):  # type: ignore[no-untyped-def]
    """Whether the fast path applies to the next task that ends.

    It applies if no core is idle, no plan is due, and the order in force has neither limits nor
    pools. The core of the next task that ends is then the only free one.
    """
    now = state.now
    is_simple = now.has_limits[0] == 0 and not uses_pools(state)
    return now.num_idle[0] == 0 and now.is_plan_due[0] == 0 and is_simple


@inlined
def next_stage(state, job):  # type: ignore[no-untyped-def]
    """Return the stage that takes the single free core, or NO_STAGE (fast path, see `is_plain`)."""
    contenders = state.contenders
    winner = state.contest[1]
    # The job runs one task less, so its share fell. If it now beats the winner, it takes the core
    # back and its share rises again: the tree does not have to change. This is the most common
    # case.
    if state.job_orders.weight[job] > 0.0:
        contenders.share[job] = _share(state, job)
        if contenders.front[job] != NO_STAGE and winner != job:
            if _goes_before(state, job, winner):
                winner = job
            else:
                _replay_matches(state, job)
    return contenders.front[winner] if winner != NO_JOB else NO_STAGE


@inlined
def task_begun(state, stage, previous_job):  # type: ignore[no-untyped-def]
    """Update the dispatcher after a start on the fast path (see `is_plain`)."""
    job = state.stages.job[stage]
    if state.stages.frontier_rank[stage] < 0:
        refresh_contender(state, job)
    elif state.job_orders.weight[job] > 0.0:
        state.contenders.share[job] = _share(state, job)
        if job != previous_job:
            _replay_matches(state, job)
