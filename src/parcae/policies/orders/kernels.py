"""Compiled planning by a formula.

Jobs and stages with a smaller tier are served first (see `parcae.cluster.orders`).
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import NOTHING, deferred, inlined, kernel
from parcae.cluster.kernels.policies import begin_run, plan
from parcae.cluster.kernels.tables import (
    active_jobs,
    correction,
    remaining_ms,
    stages_of,
    total_ms,
    unstarted_ms,
)
from parcae.cluster.kernels.virtual import advance_virtual_run, empty_virtual_run, predict_ends
from parcae.cluster.state import NOT_YET, VirtualRun

#: Resolution of the table of Gittins indices: steps per unit of spread (sigma of the log of sizes),
#: and steps per unit of age (service so far / median size).
GITTINS_SIGMAS_PER_UNIT = 20
GITTINS_AGES_PER_UNIT = 20


class PlanTables(NamedTuple):
    """What a policy needs besides the observation. Tables that a formula does not use have one row.

    In tables by recurring job, the last row is for jobs that the workload's profile does not know.
    """

    pool_of: Any  # int64[num_profiles + 1], row in `pools` of every recurring job
    pools: Any  # POOL[num_pools]
    sigma: Any  # float64[num_profiles + 1], spread of the log of a recurring job's size
    # float64[num_sigmas, num_ages]: Gittins index of a size of median 1, by spread and age
    index: Any
    # float64[num_profiles + 1], deadline of a recurring job after its arrival; inf: it has none
    deadline_ms: Any


class Formula(NamedTuple):
    """A policy that plans by a formula."""

    kind: Any  # int64, OrderKind
    tables: PlanTables
    virtual: VirtualRun  # of fair sharing, which the kernels keep between plans


#: Tier of the first job without a deadline. It is above the time to any deadline.
_LAST_TIER = 1e11
_LARGEST_TIER = 9e11


class OrderKind(IntEnum):
    """Which formula makes the orders."""

    FIFO = 0  # by job, then stage: Spark's FIFO
    # By the order in which stages became runnable: Spark's FIFO under adaptive execution.
    FIFO_SPARK_JOBS = 1
    FAIR = 2  # one pool per job: Spark's FAIR
    POOLS = 3  # the pools of an allocation file
    SJF = 4  # least total work first
    SRPT = 5  # least remaining work first
    FSP = 6  # by completion time in the virtual run of fair sharing
    PSBS = 7  # as FSP, but late jobs (complete in the virtual run only) share the cores
    LAS = 8  # least attained service first
    GITTINS = 9  # largest Gittins index first
    EDF = 10  # earliest deadline first; jobs without a deadline last, as SRPT
    EDF_LATE_LAST = 11  # as EDF, but a job that cannot meet its deadline counts as without one
    POOLS_SPARK_JOBS = 12  # as POOLS; FIFO inside a pool is that of FIFO_SPARK_JOBS


@deferred(NOTHING)
def _use_pools(view, orders, tables):  # type: ignore[no-untyped-def]
    """Copy the pools of the allocation file into the orders, and assign every job to its pool."""
    for pool in range(tables.pools.shape[0]):
        orders.pools[pool] = tables.pools[pool]
    num_profiles = tables.pool_of.shape[0] - 1
    for job in active_jobs(view):
        profile = view.jobs.profile[job]
        # The last row is for jobs that the profile does not know.
        orders.jobs.pool[job] = tables.pool_of[
            profile if 0 <= profile < num_profiles else num_profiles
        ]


@kernel
def _order_by_submission(view, orders):  # type: ignore[no-untyped-def]
    """Order stages as Spark jobs that are numbered when they become runnable."""
    for job in active_jobs(view):
        for stage in stages_of(view, job):
            if view.stages.frontier_rank[stage] >= 0:
                orders.stages.tier[stage] = view.stages.frontier_rank[stage]


@deferred(NOTHING)
def _order_by_virtual_end(view, orders, virtual, late_jobs_share):  # type: ignore[no-untyped-def]
    """Order jobs by their completion in the virtual run of fair sharing.

    A job is late if it is complete in the virtual run but not in the real one: it took longer than
    estimated. Late jobs come before all others. With `late_jobs_share` they share the cores, so
    that none blocks the other late ones; otherwise who became late first comes first.

    Source: Friedman and Henderson (2003), FSP; Dell'Amico, Carra and Michiardi, "PSBS" (2016), for
    late jobs.
    """
    advance_virtual_run(view, virtual)
    predict_ends(view, virtual)
    for job in active_jobs(view):
        orders.jobs.tier[job] = virtual.jobs.end_ms[job]
        orders.jobs.weight[job] = 0.0
        if late_jobs_share and virtual.jobs.has_ended[job]:
            # Virtual end times are >= 0, so tier -1 comes before all other jobs.
            orders.jobs.tier[job] = -1.0
            orders.jobs.weight[job] = 1.0


@kernel
def service_ms(view, job):  # type: ignore[no-untyped-def]
    """Core time that the job has got: its finished tasks, and half of each running task."""
    stages = view.stages
    attained_ms = 0.0
    for stage in stages_of(view, job):
        attained_ms += stages.executed_ms[stage]
        if stages.num_bound[stage] > 0:
            finished = stages.num_finished[stage]
            task_ms = stages.executed_ms[stage] / finished if finished > 0 else view.now.guess_ms[0]
            attained_ms += 0.5 * stages.num_bound[stage] * task_ms
    return attained_ms


@deferred(NOTHING)
def _order_by_attained(view, orders):  # type: ignore[no-untyped-def]
    """Order jobs by least attained service, in tiers whose bounds grow by factors of two.

    Jobs of the same tier share the cores. The orders ask for the next plan at the time at which the
    first running job should reach the next tier.

    Source: Nuyens and Wierman, "The foreground-background queue" (2008); tiers as in Chowdhury and
    Stoica, "Efficient coflow scheduling without prior knowledge" (SIGCOMM 2015).
    """
    soonest_ms = math.inf
    for job in active_jobs(view):
        attained_ms = max(service_ms(view, job), view.now.guess_ms[0])
        # Where tasks take equally long, jobs are exactly at a bound, and rounding must not decide.
        tier = math.floor(math.log2(attained_ms / view.now.guess_ms[0]) + 1e-9)
        orders.jobs.tier[job] = tier
        orders.jobs.weight[job] = 1.0
        running = view.jobs.num_attached[job]
        if running > 0:
            left_ms = view.now.guess_ms[0] * 2.0 ** (tier + 1) - attained_ms
            soonest_ms = min(soonest_ms, max(1.0, left_ms / running))
    if soonest_ms < math.inf:
        orders.wake_ms[0] = view.now.clock_ms[0] + np.int64(soonest_ms) + 1


@inlined
def time_to_deadline(view, tables, job):  # type: ignore[no-untyped-def]
    """Time in ms until the job's deadline, negative after it; infinite if it has none."""
    num_profiles = tables.deadline_ms.shape[0] - 1
    profile = view.jobs.profile[job]
    allowed_ms = tables.deadline_ms[profile if 0 <= profile < num_profiles else num_profiles]
    return view.jobs.arrival_ms[job] + allowed_ms - view.now.clock_ms[0]


@kernel
def _alone_ms(view, virtual, job):  # type: ignore[no-untyped-def]
    """Estimate how long the job still takes if it gets all cores, in ms.

    A running task counts as half done. On its longest path a stage of many tasks counts as up to
    one and a half of them, because the slowest of many takes longer than their mean. So it may be
    an overestimate.
    """
    stages = view.stages
    factor = correction(view, job)
    work_ms = 0.0
    path_ms = 0.0
    for stage in stages_of(view, job):
        running = stages.num_bound[stage]
        unstarted = stages.num_tasks[stage] - stages.num_started[stage]
        if running + unstarted > 0:
            task_ms = stages.task_ms[stage] * factor
            done_ms = 0.5 * task_ms if unstarted == 0 else 0.0
            work_ms += (unstarted + 0.5 * running) * task_ms
            path_ms = max(path_ms, virtual.stages.path_ms[stage] * factor - done_ms)
    return max(work_ms / view.now.num_executors[0], path_ms)


@deferred(NOTHING)
def _order_by_deadline(view, orders, tables, virtual, late_last):  # type: ignore[no-untyped-def]
    """Order jobs by deadline; those without one come last, least remaining work first.

    With `late_last`, a job that would miss its deadline even with all cores, by `_alone_ms`, counts
    as without one.

    Source: Liu and Layland, "Scheduling algorithms for multiprogramming in a hard-real-time
    environment" (1973), for the earliest deadline first.
    """
    if late_last:
        # It keeps the critical paths of the jobs.
        advance_virtual_run(view, virtual)
    for job in active_jobs(view):
        left_ms = time_to_deadline(view, tables, job)
        is_late = late_last and left_ms < math.inf and _alone_ms(view, virtual, job) > left_ms
        if left_ms == math.inf or is_late:
            left_ms = min(_LARGEST_TIER, _LAST_TIER + remaining_ms(view, job))
        orders.jobs.tier[job] = left_ms


@kernel
def _gittins_index(view, tables, job):  # type: ignore[no-untyped-def]
    """The Gittins index of the job, given its age. Sizes are log-normal around the estimate.

    The median is the estimate, corrected by the durations of finished tasks.

    Source: Gittins, Glazebrook and Weber, "Multi-armed bandit allocation indices" (2011),
    chapter 3.
    """
    num_profiles = tables.sigma.shape[0] - 1
    profile = view.jobs.profile[job]
    sigma = tables.sigma[profile if 0 <= profile < num_profiles else num_profiles]
    median_ms = max(1.0, total_ms(view, job) * correction(view, job))
    age = (median_ms - unstarted_ms(view, job) * correction(view, job)) / median_ms
    if sigma <= 0.0:
        return 1.0 / max(1e-9, median_ms * (1.0 - age))
    row = min(tables.index.shape[0] - 1, np.int64(sigma * GITTINS_SIGMAS_PER_UNIT + 0.5))
    column = min(tables.index.shape[1] - 1, np.int64(age * GITTINS_AGES_PER_UNIT))
    return tables.index[row, column] / median_ms


@plan.of(Formula)
@kernel
def plan_by_formula(view, orders, formula):  # type: ignore[no-untyped-def]
    """Write new orders."""
    kind, tables, virtual = formula
    orders.wake_ms[0] = NOT_YET
    # FIFO needs nothing else. In a whole run other orders may have been in the same tables.
    for job in active_jobs(view):
        orders.jobs.tier[job] = 0.0
    if kind in (OrderKind.POOLS, OrderKind.POOLS_SPARK_JOBS):
        _use_pools(view, orders, tables)
    if kind in (OrderKind.FIFO_SPARK_JOBS, OrderKind.POOLS_SPARK_JOBS):
        _order_by_submission(view, orders)
    elif kind in (OrderKind.FSP, OrderKind.PSBS):
        _order_by_virtual_end(view, orders, virtual, kind == OrderKind.PSBS)
    elif kind == OrderKind.LAS:
        _order_by_attained(view, orders)
    elif kind in (OrderKind.EDF, OrderKind.EDF_LATE_LAST):
        _order_by_deadline(view, orders, tables, virtual, kind == OrderKind.EDF_LATE_LAST)
    for job in active_jobs(view):
        if kind == OrderKind.FAIR:
            orders.jobs.weight[job] = 1.0
        elif kind == OrderKind.SJF:
            orders.jobs.tier[job] = total_ms(view, job)
        elif kind == OrderKind.SRPT:
            orders.jobs.tier[job] = remaining_ms(view, job)
        elif kind == OrderKind.GITTINS:
            orders.jobs.tier[job] = -_gittins_index(view, tables, job)


@begin_run.of(Formula)
@kernel
def _begin(state, formula):  # type: ignore[no-untyped-def]
    empty_virtual_run(formula.virtual)
    if formula.kind in (OrderKind.POOLS, OrderKind.POOLS_SPARK_JOBS):
        state.now.num_pools[0] = formula.tables.pools.shape[0]
