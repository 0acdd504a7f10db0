"""Transitions of the world of cores, and how orders come into force.

The world models one Spark application: a core is free after every task and can go to any job. The
policy is asked for a plan
- when a job arrives or ends,
- when a stage becomes runnable, has no task left to start or is complete,
- when limits have kept all cores idle since the last task ended,
- and at the wake-up time that it asked for.

Between plans the dispatcher (`parcae.cluster.kernels.dispatch`) starts tasks by the order in force.

Source: Spark's DAGScheduler and TaskSchedulerImpl.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.accounts import charge_orders
from parcae.cluster.kernels.dispatch import (
    NOT_SERVED,
    count_running,
    free_core,
    refresh_contender,
    uses_pools,
)
from parcae.cluster.kernels.tables import (
    account_time,
    active_jobs,
    count_schedulable_stage,
    demand,
    edges_of,
    refresh_saturation,
    remove_active,
    reset_orders,
    stages_of,
)
from parcae.cluster.state import COMPLETE_RANK, NO_EXECUTOR, NO_JOB, NO_STAGE, NOT_YET, UNLIMITED

#: Tier of the stages that no decision of a planning round named: they come after all named stages.
_UNNAMED = 1e11


@kernel
def reset_cores(state):  # type: ignore[no-untyped-def]
    """Reset the tables of the world of cores: no order is in force and no wake-up is set."""
    now = state.now
    now.is_plan_due[0] = 0
    now.wake_ms[0] = NOT_YET
    now.num_revealed[0] = 0
    now.num_pools[0] = 1
    state.pools.is_fair[0] = 0
    now.has_limits[0] = 0
    now.num_planned[0] = 0
    now.num_accounts[0] = 0
    now.is_elastic[0] = 0
    state.contest[:] = NO_JOB


@inlined
def init_contender(state, job):  # type: ignore[no-untyped-def]
    """Take the job out of the contest; `refresh_contender` puts it in."""
    state.contenders.front[job] = NO_STAGE
    state.contenders.tier[job] = 0.0
    state.contenders.share[job] = 0.0
    state.contenders.next_served[job] = NOT_SERVED


@kernel
def init_job_orders(state, job):  # type: ignore[no-untyped-def]
    """Initialize the orders of a job that arrived: until the next plan it is served first come."""
    reset_orders(state, job, 0.0)
    state.job_orders.pool[job] = 0
    state.jobs.priority[job] = 0
    init_contender(state, job)
    state.now.is_plan_due[0] = 1


@inlined
def _make_runnable(state, stage):  # type: ignore[no-untyped-def]
    """Put the stage where it first was in the order in which stages became runnable."""
    stages = state.stages
    now = state.now
    if stages.first_rank[stage] < 0:
        stages.first_rank[stage] = now.num_revealed[0]
        now.num_revealed[0] += 1
    stages.frontier_rank[stage] = stages.first_rank[stage]


@inlined
def _reveal(state, stage):  # type: ignore[no-untyped-def]
    """Make the stage runnable; the job's key must be refreshed afterwards."""
    job = state.stages.job[stage]
    state.stages.num_parents_unsaturated[stage] = 0
    _make_runnable(state, stage)
    state.jobs.num_joined[job] += 1
    count_schedulable_stage(state, stage, 1)
    state.now.is_plan_due[0] = 1


@kernel
def reveal_stage(state, stage):  # type: ignore[no-untyped-def]
    """Make the stage runnable: this is when Spark's scheduler gets its task set."""
    _reveal(state, stage)
    refresh_contender(state, state.stages.job[stage])


@kernel
def reveal_stages(state, job, rows):  # type: ignore[no-untyped-def]
    """Make those of some stages of a job runnable that are not yet.

    The job's key is found once for all of them: to find it, all stages of the job are looked at.
    """
    for stage in rows:
        if state.stages.num_parents_unsaturated[stage] > 0:
            _reveal(state, stage)
    refresh_contender(state, job)


@kernel
def complete_stage(state, stage):  # type: ignore[no-untyped-def]
    """Handle the end of a stage's last task: children may become runnable, the job may be complete.

    A plan is due even if neither is the case: an order that holds cores back while tasks run has to
    be reconsidered when they end.
    """
    stages = state.stages
    jobs = state.jobs
    state.now.is_plan_due[0] = 1
    job = stages.job[stage]
    jobs.num_done[job] += 1
    stages.frontier_rank[stage] = COMPLETE_RANK
    has_revealed = False
    for edge in edges_of(state, stage):
        child = state.children[edge]
        stages.num_parents_unfinished[child] -= 1
        if stages.num_parents_unfinished[child] == 0:
            _reveal(state, child)
            has_revealed = True
    if has_revealed:
        refresh_contender(state, job)
    if jobs.num_done[job] == jobs.num_stages[job] and not jobs.has_tail[job]:
        complete_job(state, job)


@kernel
def complete_job(state, job):  # type: ignore[no-untyped-def]
    """Take a job out of the system whose stages are complete and whose driver has the result."""
    account_time(state, state.now.clock_ms[0])
    state.jobs.completion_ms[job] = state.now.clock_ms[0]
    state.now.is_plan_due[0] = 1
    remove_active(state, job)


@kernel
def set_counts(state, stage, num_tasks, num_started, num_finished):  # type: ignore[no-untyped-def]
    """Correct the stage's numbers of tasks; the number of running tasks must not change."""
    stages = state.stages
    now = state.now
    job = state.stages.job[stage]
    had_more = stages.num_started[stage] < stages.num_tasks[stage]
    has_more = num_started < num_tasks
    stages.num_tasks[stage] = num_tasks
    stages.num_started[stage] = num_started
    stages.num_finished[stage] = num_finished
    state.jobs.num_unstarted[job] += (1 if has_more else 0) - (1 if had_more else 0)
    if not has_more:
        stages.frontier_rank[stage] = -1
    elif stages.num_parents_unsaturated[stage] == 0 and stages.frontier_rank[stage] < 0:
        _make_runnable(state, stage)
    refresh_saturation(state, stage)
    now.is_plan_due[0] = 1
    refresh_contender(state, job)


@kernel
def end_task(state, executor):  # type: ignore[no-untyped-def]
    """Handle the end of a task. Returns the task's stage if the task was its last one
    (`complete_stage` is due then), else NO_STAGE.
    """
    stage = state.executors.stage[executor]
    return stage if free_core(state, executor) else NO_STAGE


@inlined
def is_stalled(state):  # type: ignore[no-untyped-def]
    """Whether the orders in force hold every task back: no task runs, and none may start."""
    now = state.now
    could_run = now.num_idle[0] == now.num_executors[0] and now.num_schedulable[0] > 0
    return could_run and state.contest[1] == NO_JOB


@inlined
def note_stall(state, has_moved_on):  # type: ignore[no-untyped-def]
    """Make a plan due if the cluster is stalled and no end of a task could change that."""
    if has_moved_on and is_stalled(state):
        state.now.is_plan_due[0] = 1


@inlined
def can_plan(state, least_idle, least_schedulable):  # type: ignore[no-untyped-def]
    """Whether a plan is due and now is the time to make it."""
    now = state.now
    has_work = now.num_schedulable[0] >= least_schedulable and now.num_active[0] > 0
    return now.is_plan_due[0] != 0 and now.num_idle[0] >= least_idle and has_work


@kernel
def ask_for_plan(state):  # type: ignore[no-untyped-def]
    """Open a planning round.

    All cores count as offered, as if none were busy: a policy that decides is asked until all of
    them are given away.
    """
    now = state.now
    now.num_source[0] = now.num_executors[0]
    state.source_count[0] = now.num_executors[0]
    now.source_job[0] = NO_JOB
    now.source[0] = 0
    now.acting_executor[0] = NO_EXECUTOR
    now.num_planned[0] = 0
    now.wake_ms[0] = NOT_YET


@inlined
def _is_number(value):  # type: ignore[no-untyped-def]
    return not math.isnan(value)


@kernel
def _check_job(state, job):  # type: ignore[no-untyped-def]
    """Return (whether the job's orders are valid, whether they limit anything)."""
    orders = state.job_orders
    stage_orders = state.stage_orders
    weight = orders.weight[job]
    pool = orders.pool[job]
    is_valid = _is_number(orders.tier[job]) and 0.0 <= weight < math.inf and orders.limit[job] >= 0
    is_valid = is_valid and 0 <= pool < state.now.num_pools[0]
    is_limited = orders.limit[job] != UNLIMITED
    for stage in stages_of(state, job):
        is_valid = is_valid and _is_number(orders.tier[job] + stage_orders.tier[stage])
        is_valid = is_valid and _is_number(stage_orders.rank[stage])
        is_valid = is_valid and stage_orders.limit[stage] >= 0
        is_limited = is_limited or stage_orders.limit[stage] != UNLIMITED
    return is_valid, is_limited


@kernel
def accept_orders(state):  # type: ignore[no-untyped-def]
    """Apply the accounts, put the orders in the tables into force, and end the planning round.
    Returns false if the orders are invalid; `parcae.cluster.orders.objection_to_orders` says why.
    """
    now = state.now
    pools = state.pools
    if now.account_factor[0] > 0.0:
        charge_orders(state)
    now.num_source[0] = 0
    state.source_count[0] = 0
    now.is_plan_due[0] = 0
    now.has_limits[0] = 0
    for pool in range(now.num_pools[0] if uses_pools(state) else 0):
        if not 0.0 < pools.weight[pool] < math.inf or pools.min_share[pool] < 0:
            return False
        pools.num_running[pool] = 0
    for job in active_jobs(state):
        is_valid, is_limited = _check_job(state, job)
        if not is_valid:
            return False
        if is_limited:
            now.has_limits[0] = 1
        if uses_pools(state):
            pools.num_running[state.job_orders.pool[job]] += state.jobs.num_attached[job]
        refresh_contender(state, job)
    return True


@kernel
def _clear_orders(state):  # type: ignore[no-untyped-def]
    """Clear the orders at the first decision of a planning round.

    Stages that no decision names keep the tier `_UNNAMED` and so come after the named ones.
    """
    for job in active_jobs(state):
        reset_orders(state, job, _UNNAMED)


@kernel
def settle_round(state, is_idle):  # type: ignore[no-untyped-def]
    """End a planning round of decisions: clear the commitments that the decisions made.

    If `is_idle`, a decision chose to leave the remaining cores idle: stages that no decision named
    may not start tasks.
    """
    jobs = state.jobs
    stages = state.stages
    now = state.now
    for job in active_jobs(state):
        for stage in stages_of(state, job):
            if is_idle and state.stage_orders.tier[stage] == _UNNAMED:
                state.stage_orders.limit[stage] = 0
            if stages.num_committed[stage] > 0:
                stages.num_committed[stage] = 0
                refresh_saturation(state, stage)
        jobs.num_supplied[job] = 0
        jobs.num_commitments[job] = 0
    now.num_source[0] = 0
    now.round_id[0] += 1


@kernel
def plan_stage(state, stage, limit):  # type: ignore[no-untyped-def]
    """Apply one decision of a planning round: `stage` gets the next tier and up to `limit` cores.
    Returns the number of cores that are left to decide about: 0 ends the planning round. -1 if the
    decision cannot be carried out.

    This is how a policy that decides also plans: it is asked until all cores are given away, and
    the sequence of its decisions becomes the order.
    """
    now = state.now
    now.num_decisions[0] += 1
    if now.num_planned[0] == 0:
        _clear_orders(state)
    if stage == NO_STAGE:
        # Stages that no decision named are held back only if another event will bring the next
        # plan; otherwise the cluster would stall.
        settle_round(state, now.num_idle[0] < now.num_executors[0] or now.num_planned[0] > 0)
        return now.num_source[0]
    count = min(demand(state, stage), limit, now.num_source[0])
    if count < 1:
        return -1
    job = state.stages.job[stage]
    state.stage_orders.tier[stage] = now.num_planned[0]
    state.stage_orders.limit[stage] = count
    now.num_planned[0] += 1
    # Count the cores as committed, so that the next decision sees what is left.
    state.stages.selected_round[stage] = now.round_id[0]
    state.stages.num_committed[stage] += count
    state.jobs.num_supplied[job] += count
    state.jobs.num_commitments[job] += count
    state.jobs.num_granted[job] += count
    refresh_saturation(state, stage)
    now.num_source[0] -= count
    state.source_count[0] = now.num_source[0]
    if now.num_source[0] == 0 or now.num_schedulable[0] == 0:
        settle_round(state, False)  # nothing is left to decide about
    return now.num_source[0]


@kernel
def drop_task(state, executor):  # type: ignore[no-untyped-def]
    """End the core's task without a result. The core is in no pool then."""
    stage = state.executors.stage[executor]
    job = state.stages.job[stage]
    state.stages.num_bound[stage] -= 1
    count_running(state, job, -1)
    state.executors.job[executor] = NO_JOB
    state.executors.stage[executor] = NO_STAGE
    refresh_contender(state, job)


@kernel
def change_pending(state, stage, step):  # type: ignore[no-untyped-def]
    """Change the number of the stage's tasks that are to start. A plan is due."""
    stages = state.stages
    state.jobs.remaining_ms[stages.job[stage]] += step * stages.task_ms[stage]
    set_counts(
        state,
        stage,
        stages.num_tasks[stage],
        stages.num_started[stage] - step,
        stages.num_finished[stage],
    )
