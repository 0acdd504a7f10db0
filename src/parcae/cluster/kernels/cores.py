"""The world of cores: how its state changes, and how orders come into force.

One Spark application: a core is free after every task and goes to any job. The policy is asked for a plan when a job arrives
or ends, when a stage becomes runnable, has no task left to start or is complete, when limits have kept all cores idle since the
last task ended, and at the time that it asked for; between plans the dispatcher (`parcae.cluster.kernels.dispatch`) starts tasks
by the order in force.

Source: Spark's DAGScheduler and TaskSchedulerImpl.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.dispatch import NOT_SERVED, free_core, refresh_contender, uses_pools
from parcae.cluster.kernels.guard import guard_orders
from parcae.cluster.kernels.tables import (
    account_time,
    count_schedulable_stage,
    demand,
    refresh_saturation,
    remove_active,
)
from parcae.cluster.state import NO_EXECUTOR, NO_JOB, NO_STAGE, NOT_YET, UNLIMITED
from parcae.kernels import inlined, kernel

#: Tier of the stages that the decisions of a planning round did not name: after all that they named.
_UNNAMED = 1e15


@kernel
def reset_cores(state):  # type: ignore[no-untyped-def]
    """No order is in force, and nobody has asked to plan."""
    now = state.now
    now.is_plan_due[0] = 0
    now.wake_ms[0] = NOT_YET
    now.num_revealed[0] = 0
    now.num_pools[0] = 1
    state.pools.is_fair[0] = 0
    now.has_limits[0] = 0
    now.num_planned[0] = 0
    state.virtual_now.num_jobs[0] = 0
    state.virtual_now.num_members[0] = 0
    state.virtual_now.clock_ms[0] = 0.0
    state.contest[:] = NO_JOB


@kernel
def greet_job(state, job):  # type: ignore[no-untyped-def]
    """A job arrived: until the next plan it is served first come, first served, behind nobody of its tier."""
    orders = state.job_orders
    first = state.jobs.stage_start[job]
    orders.tier[job] = 0.0
    orders.weight[job] = 0.0
    orders.limit[job] = UNLIMITED
    orders.pool[job] = 0
    state.contenders.front[job] = NO_STAGE
    state.contenders.tier[job] = 0.0
    state.contenders.share[job] = 0.0
    state.contenders.next_served[job] = NOT_SERVED
    for stage in range(first, first + state.jobs.num_stages[job]):
        state.stage_orders.tier[stage] = 0.0
        state.stage_orders.rank[stage] = 0.0
        state.stage_orders.limit[stage] = UNLIMITED
    state.now.is_plan_due[0] = 1


@kernel
def reveal_stage(state, stage):  # type: ignore[no-untyped-def]
    """The stage is runnable: Spark's scheduler has its task set."""
    stages = state.stages
    now = state.now
    job = stages.job[stage]
    stages.num_parents_unsaturated[stage] = 0
    stages.frontier_rank[stage] = now.num_revealed[0]
    now.num_revealed[0] += 1
    state.jobs.num_joined[job] += 1
    count_schedulable_stage(state, stage, 1)
    now.is_plan_due[0] = 1
    refresh_contender(state, job)


@kernel
def complete_stage(state, stage):  # type: ignore[no-untyped-def]
    """All tasks of the stage have ended: its children may become runnable, or its job is complete.

    A plan is due even where neither is so: an order that holds cores back while tasks run is thought over when they end.
    """
    stages = state.stages
    jobs = state.jobs
    state.now.is_plan_due[0] = 1
    job = stages.job[stage]
    jobs.num_done[job] += 1
    for edge in range(
        stages.child_start[stage], stages.child_start[stage] + stages.num_children[stage]
    ):
        child = state.children[edge]
        stages.num_parents_unfinished[child] -= 1
        if stages.num_parents_unfinished[child] == 0:
            reveal_stage(state, child)
    if jobs.num_done[job] == jobs.num_stages[job]:
        account_time(state, state.now.clock_ms[0])
        jobs.completion_ms[job] = state.now.clock_ms[0]
        remove_active(state, job)


@kernel
def end_task(state, executor):  # type: ignore[no-untyped-def]
    """A task ended. Returns its stage where that was its last one (`complete_stage` is then due), else NO_STAGE."""
    stage = state.executors.stage[executor]
    return stage if free_core(state, executor) else NO_STAGE


@inlined
def can_plan(state):  # type: ignore[no-untyped-def]
    """Whether a plan is due and could start something."""
    now = state.now
    return now.is_plan_due[0] and now.num_idle[0] > 0 and now.num_schedulable[0] > 0


@kernel
def ask_for_plan(state):  # type: ignore[no-untyped-def]
    """Open a planning round. A policy that decides is asked about all cores, as if none of them were given away."""
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
    """(whether the order makes sense for the job, whether it limits anything)."""
    orders = state.job_orders
    stage_orders = state.stage_orders
    weight = orders.weight[job]
    pool = orders.pool[job]
    is_sound = _is_number(orders.tier[job]) and 0.0 <= weight < math.inf and orders.limit[job] >= 0
    is_sound = is_sound and 0 <= pool < state.now.num_pools[0]
    is_limited = orders.limit[job] != UNLIMITED
    first = state.jobs.stage_start[job]
    for stage in range(first, first + state.jobs.num_stages[job]):
        is_sound = is_sound and _is_number(orders.tier[job] + stage_orders.tier[stage])
        is_sound = is_sound and _is_number(stage_orders.rank[stage])
        is_sound = is_sound and stage_orders.limit[stage] >= 0
        is_limited = is_limited or stage_orders.limit[stage] != UNLIMITED
    return is_sound, is_limited


@kernel
def accept_orders(state):  # type: ignore[no-untyped-def]
    """Put the orders in the tables, guarded, into force and end the planning round. Returns False where they make no sense."""
    now = state.now
    pools = state.pools
    if now.guard[0] > 0.0:
        guard_orders(state)
    now.num_source[0] = 0
    state.source_count[0] = 0
    now.is_plan_due[0] = 0
    now.has_limits[0] = 0
    for pool in range(now.num_pools[0] if uses_pools(state) else 0):
        if not 0.0 < pools.weight[pool] < math.inf or pools.min_share[pool] < 0:
            return False
        pools.num_running[pool] = 0
    for position in range(now.num_active[0]):
        job = state.active[position]
        is_sound, is_limited = _check_job(state, job)
        if not is_sound:
            return False
        if is_limited:
            now.has_limits[0] = 1
        if uses_pools(state):
            pools.num_running[state.job_orders.pool[job]] += state.jobs.num_attached[job]
        refresh_contender(state, job)
    return True


@kernel
def _forget_orders(state):  # type: ignore[no-untyped-def]
    """The first decision of a planning round: what it and the next ones do not name comes after them."""
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        state.job_orders.tier[job] = 0.0
        state.job_orders.weight[job] = 0.0
        state.job_orders.limit[job] = UNLIMITED
        first = state.jobs.stage_start[job]
        for stage in range(first, first + state.jobs.num_stages[job]):
            state.stage_orders.tier[stage] = _UNNAMED
            state.stage_orders.rank[stage] = 0.0
            state.stage_orders.limit[stage] = UNLIMITED


@kernel
def _settle(state, is_idle):  # type: ignore[no-untyped-def]
    """All cores are spoken for: what decisions committed is forgotten; with `is_idle`, stages not named are held back."""
    jobs = state.jobs
    stages = state.stages
    now = state.now
    for position in range(now.num_active[0]):
        job = state.active[position]
        first = jobs.stage_start[job]
        for stage in range(first, first + jobs.num_stages[job]):
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
    """A decision in a planning round: the next tier is `stage`, with up to `limit` cores; NO_STAGE lets the rest idle.

    So a policy that decides plans: it is asked again until all cores are given away, and the sequence of its decisions is the
    order. Returns how many cores the decision took, or -1 if it cannot be carried out.
    """
    now = state.now
    now.num_decisions[0] += 1
    if now.num_planned[0] == 0:
        _forget_orders(state)
    if stage == NO_STAGE:
        count = now.num_source[0]
        # Stages that no decision named are held back only while something else will bring the next plan.
        _settle(state, now.num_idle[0] < now.num_executors[0] or now.num_planned[0] > 0)
        return count
    count = min(demand(state, stage), limit, now.num_source[0])
    if count < 1:
        return -1
    job = state.stages.job[stage]
    state.stage_orders.tier[stage] = now.num_planned[0]
    state.stage_orders.limit[stage] = count
    now.num_planned[0] += 1
    state.stages.selected_round[stage] = now.round_id[0]
    state.stages.num_committed[stage] += count
    state.jobs.num_supplied[job] += count
    state.jobs.num_commitments[job] += count
    state.jobs.num_granted[job] += count
    refresh_saturation(state, stage)
    now.num_source[0] -= count
    state.source_count[0] = now.num_source[0]
    if now.num_source[0] == 0:
        _settle(state, False)
    elif now.num_schedulable[0] == 0:
        _settle(state, False)  # nothing is left to decide about
    return count
