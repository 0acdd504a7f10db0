"""Rollouts in the world of cores: each tries orders in which one stage comes before all others.

See `rollouts`.
"""

from __future__ import annotations

from parcae.cluster.kernels.cores import init_contender
from parcae.cluster.kernels.faults import change_pending
from parcae.cluster.state import COMPLETE_RANK, NO_JOB, NO_PROFILE, NO_STAGE, NOT_YET
from parcae.kernels import inlined, kernel
from parcae.simulation.future import Followup
from parcae.simulation.kernels.cores_loop import follow_orders
from parcae.simulation.kernels.event_queue import follow_up
from parcae.simulation.kernels.rollouts import begin_trial, copy_job, num_stages_of

_REVEAL = int(Followup.REVEAL_STAGE)
_COMPLETE = int(Followup.COMPLETE_STAGE)


@kernel
def _copy_past(view, state):  # type: ignore[no-untyped-def]
    """Copy the jobs that have left the system: policies look at their durations."""
    for job in range(view.now.num_jobs[0]):
        if view.jobs.completion_ms[job] != NOT_YET:
            copy_job(view, state, job)


@kernel
def _follow_up_roots(state, future, tables, job):  # type: ignore[no-untyped-def]
    """Queue the job's stages without parents that have not appeared, in Spark's order."""
    profile = state.jobs.profile[job]
    start = state.jobs.stage_start[job]
    num_stages = state.jobs.num_stages[job]
    if profile == NO_PROFILE or num_stages_of(tables, profile) != num_stages:
        for stage in range(start, start + num_stages):
            _reveal_later(state, future, stage)
        return
    for row in range(tables.job_first_root[profile], tables.job_first_root[profile + 1]):
        _reveal_later(state, future, start + tables.roots[row])


@inlined
def _reveal_later(state, future, stage):  # type: ignore[no-untyped-def]
    """Queue a stage that may appear but has not."""
    is_ready = state.stages.num_parents_unfinished[stage] == 0
    if is_ready and state.stages.num_parents_unsaturated[stage] > 0:
        follow_up(future, _REVEAL, stage)


@kernel
def _follow_up_pending(state, future, tables):  # type: ignore[no-untyped-def]
    """Queue what is about to happen at the present time: stages that appear or are complete.

    Tasks whose attempt has just failed, which the scheduler is about to learn, are to start again.
    """
    future.events.first_followup[0] = 0
    future.events.num_followups[0] = 0
    stages = state.stages
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        _follow_up_roots(state, future, tables, job)
        start = state.jobs.stage_start[job]
        for stage in range(start, start + state.jobs.num_stages[job]):
            known = stages.num_bound[stage] + stages.num_finished[stage]
            if stages.num_started[stage] > known:
                change_pending(state, stage, stages.num_started[stage] - known)
            if (
                stages.num_finished[stage] == stages.num_tasks[stage]
                and stages.frontier_rank[stage] != COMPLETE_RANK
            ):
                follow_up(future, _COMPLETE, stage)


@kernel
def _bring_forward(state, stage, limit):  # type: ignore[no-untyped-def]
    """Change the orders in the tables: the stage comes before all others.

    Args:
        state: its orders are changed.
        stage: row of the stage.
        limit: most of its tasks that may run.
    """
    least = 0.0
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        start = state.jobs.stage_start[job]
        for other in range(start, start + state.jobs.num_stages[job]):
            least = min(least, state.job_orders.tier[job] + state.stage_orders.tier[other])
    job = state.stages.job[stage]
    # Twice the smallest tier is smaller than it, however large the numbers are.
    state.stage_orders.tier[stage] = 2.0 * least - 1.0 - state.job_orders.tier[job]
    state.stage_orders.limit[stage] = limit


@kernel
def _copy_orders(orders, state):  # type: ignore[no-untyped-def]
    """Copy orders into the tables, with no job in the contest yet."""
    state.contest[:] = NO_JOB
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        init_contender(state, job)
        state.job_orders[job] = orders.jobs[job]
        start = state.jobs.stage_start[job]
        for stage in range(start, start + state.jobs.num_stages[job]):
            state.stage_orders[stage] = orders.stages[stage]
    for pool in range(orders.pools.shape[0]):
        state.pools[pool] = orders.pools[pool]
    state.now.num_pools[0] = orders.pools.shape[0]
    state.now.wake_ms[0] = orders.wake_ms[0]


@kernel
def _copy_virtual_run(view, source, target):  # type: ignore[no-untyped-def]
    """Copy a virtual run of the observed jobs; the target may have more room."""
    target.now[0] = source.now[0]
    for job in range(min(view.now.num_jobs[0], source.jobs.shape[0])):
        target.jobs[job] = source.jobs[job]
    for stage in range(min(view.now.num_stages[0], source.stages.shape[0])):
        target.stages[stage] = source.stages[stage]


@kernel
def begin_order_rollout(simulation, rollouts, row, virtual):  # type: ignore[no-untyped-def]
    """Begin a rollout in the world of cores with its orders.

    Args:
        simulation: the run (Simulation); overwritten.
        rollouts: Rollouts; read only.
        row: the trial.
        virtual: the virtual run (VirtualRun) with which the policy goes on; overwritten.

    Returns:
        The Status after the orders.
    """
    state, future, tables = simulation
    trials = rollouts.trials
    begin_trial(simulation, rollouts, row)
    _copy_past(rollouts.observation, state)
    _copy_virtual_run(rollouts.observation, rollouts.memory, virtual)
    # The rollout's cluster keeps its present size, and has no guard: an observation does not show
    # the guard's virtual run.
    state.now.is_elastic[0] = 0
    state.now.guard[0] = 0.0
    _copy_orders(rollouts.orders, state)
    if trials.stage[row] != NO_STAGE:
        _bring_forward(state, trials.stage[row], trials.limit[row])
    _follow_up_pending(state, future, tables)
    status = follow_orders(state, future, tables)
    # The orders in question hold until the next plan, which need not write all of the table.
    if trials.stage[row] != NO_STAGE:
        state.stage_orders[trials.stage[row]] = rollouts.orders.stages[trials.stage[row]]
    return status
