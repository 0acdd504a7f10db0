"""Planning by formula, compiled: `plan` writes an order, `play` runs a whole simulation under it."""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.estimates import correction, remaining_ms, total_ms, unstarted_ms
from parcae.cluster.kernels.tables import select_cluster
from parcae.cluster.kernels.virtual import carry_on, foretell_ends
from parcae.cluster.orders import Orders
from parcae.cluster.state import NO_JOB, NOT_YET, VirtualRun
from parcae.kernels import inlined, kernel
from parcae.policies.orders.layout import GITTINS_AGES_PER_UNIT, GITTINS_SIGMAS_PER_UNIT, OrderKind
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.firing import select_future

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_FIFO = int(OrderKind.FIFO)
_FIFO_SPARK_JOBS = int(OrderKind.FIFO_SPARK_JOBS)
_FAIR = int(OrderKind.FAIR)
_POOLS = int(OrderKind.POOLS)
_SJF = int(OrderKind.SJF)
_SRPT = int(OrderKind.SRPT)
_FSP = int(OrderKind.FSP)
_PSBS = int(OrderKind.PSBS)
_LAS = int(OrderKind.LAS)
_GITTINS = int(OrderKind.GITTINS)
_GIVEN = int(OrderKind.GIVEN)


@kernel
def _use_pools(seen, orders, tables):  # type: ignore[no-untyped-def]
    """The pools of an allocation file; jobs of a pool first come, first served unless the pool is fair."""
    for pool in range(tables.pools.shape[0]):
        orders.pools[pool] = tables.pools[pool]
    num_profiles = tables.pool_of.shape[0] - 1
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        profile = seen.jobs.profile[job]
        orders.jobs.pool[job] = tables.pool_of[
            profile if 0 <= profile < num_profiles else num_profiles
        ]


@kernel
def _give(seen, orders, tables):  # type: ignore[no-untyped-def]
    """Tiers of jobs and limits of stages that are given by order of arrival."""
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        orders.jobs.tier[job] = tables.tiers[job]
        first = seen.jobs.stage_start[job]
        for stage in range(first, first + seen.jobs.num_stages[job]):
            orders.stages.limit[stage] = tables.limits[stage]


@kernel
def _by_submission(seen, orders):  # type: ignore[no-untyped-def]
    """Every stage is a Spark job of its own, numbered when it became runnable."""
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        first = seen.jobs.stage_start[job]
        for stage in range(first, first + seen.jobs.num_stages[job]):
            if seen.stages.frontier_rank[stage] >= 0:
                orders.stages.tier[stage] = seen.stages.frontier_rank[stage]


@inlined
def _virtual_of(tables):  # type: ignore[no-untyped-def]
    return VirtualRun(tables.virtual_now, tables.virtual_jobs, tables.virtual_stages)


@kernel
def _by_virtual_end(seen, orders, virtual, lets_late_share):  # type: ignore[no-untyped-def]
    """By the end in a virtual run of fair sharing; a job that ended there but not in reality is late.

    Late jobs outlived their estimates. With `lets_late_share` they share the cores with the first job that is not late, so that
    none of them blocks the others; else they come first.

    Source: Friedman and Henderson (2003), FSP; Dell'Amico, Carra and Michiardi, "PSBS" (2016), late jobs.
    """
    carry_on(seen, virtual)
    foretell_ends(seen, virtual)
    first = NO_JOB
    first_ms = math.inf
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        end_ms = virtual.jobs.end_ms[job]
        orders.jobs.tier[job] = end_ms
        orders.jobs.weight[job] = 0.0
        if lets_late_share and virtual.jobs.has_ended[job]:
            orders.jobs.tier[job] = -1.0
            orders.jobs.weight[job] = 1.0
        elif end_ms < first_ms:
            first = job
            first_ms = end_ms
    if lets_late_share and first != NO_JOB:
        orders.jobs.tier[first] = -1.0
        orders.jobs.weight[first] = 1.0


@kernel
def _attained_ms(seen, job):  # type: ignore[no-untyped-def]
    """Core time that the job was given: its finished tasks, and its running ones as if half done."""
    stages = seen.stages
    first = seen.jobs.stage_start[job]
    attained_ms = 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        attained_ms += stages.executed_ms[stage]
        if stages.num_bound[stage] > 0:
            finished = stages.num_finished[stage]
            task_ms = stages.executed_ms[stage] / finished if finished > 0 else seen.now.guess_ms[0]
            attained_ms += 0.5 * stages.num_bound[stage] * task_ms
    return attained_ms


@kernel
def _by_attained(seen, orders):  # type: ignore[no-untyped-def]
    """Least attained service first: in tiers by factors of two, which jobs share.

    Source: Nuyens and Wierman, "The foreground-background queue" (2008); tiers as in Chowdhury and Stoica, "Efficient coflow
    scheduling without prior knowledge" (SIGCOMM 2015).
    """
    soonest_ms = math.inf
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        attained_ms = max(_attained_ms(seen, job), seen.now.guess_ms[0])
        tier = math.floor(math.log2(attained_ms / seen.now.guess_ms[0]))
        orders.jobs.tier[job] = tier
        orders.jobs.weight[job] = 1.0
        running = seen.jobs.num_attached[job]
        if running > 0:
            left_ms = seen.now.guess_ms[0] * 2.0 ** (tier + 1) - attained_ms
            soonest_ms = min(soonest_ms, max(1.0, left_ms / running))
    if soonest_ms < math.inf:
        orders.wake_ms[0] = seen.now.clock_ms[0] + np.int64(soonest_ms) + 1


@kernel
def _gittins_index(seen, tables, job):  # type: ignore[no-untyped-def]
    """Gittins' index of the job's size, given what it was given; sizes are log-normal around the foretold one.

    The corrected estimate is the median; finished tasks say more than the spread of the job's runs, so the spread shrinks with
    the share of the job that is done.

    Source: Gittins, Glazebrook and Weber, "Multi-armed bandit allocation indices" (2011), chapter 3.
    """
    num_profiles = tables.sigma.shape[0] - 1
    profile = seen.jobs.profile[job]
    sigma = tables.sigma[profile if 0 <= profile < num_profiles else num_profiles]
    median_ms = max(1.0, total_ms(seen, job) * correction(seen, job))
    age = (median_ms - unstarted_ms(seen, job) * correction(seen, job)) / median_ms
    if sigma <= 0.0:
        return 1.0 / max(1e-9, median_ms * (1.0 - age))
    row = min(tables.index.shape[0] - 1, np.int64(sigma * GITTINS_SIGMAS_PER_UNIT + 0.5))
    column = min(tables.index.shape[1] - 1, np.int64(age * GITTINS_AGES_PER_UNIT))
    return tables.index[row, column] / median_ms


@kernel
def plan(seen, orders, kind, tables):  # type: ignore[no-untyped-def]
    """Write the order into `orders`; reads the observation and `tables`, keeps the virtual run in `tables`."""
    orders.wake_ms[0] = NOT_YET
    if kind == _POOLS:
        _use_pools(seen, orders, tables)
    elif kind == _GIVEN:
        _give(seen, orders, tables)
    elif kind == _FIFO_SPARK_JOBS:
        _by_submission(seen, orders)
    elif kind in (_FSP, _PSBS):
        _by_virtual_end(seen, orders, _virtual_of(tables), kind == _PSBS)
    elif kind == _LAS:
        _by_attained(seen, orders)
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if kind == _FAIR:
            orders.jobs.weight[job] = 1.0
        elif kind == _SJF:
            orders.jobs.tier[job] = total_ms(seen, job)
        elif kind == _SRPT:
            orders.jobs.tier[job] = remaining_ms(seen, job)
        elif kind == _GITTINS:
            orders.jobs.tier[job] = -_gittins_index(seen, tables, job)


@inlined
def _orders_of(state):  # type: ignore[no-untyped-def]
    return Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)


@kernel
def play(state, future, tables, kind, plan_tables):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the policy. Returns a Status."""
    plan_tables.virtual_now.num_jobs[0] = 0
    plan_tables.virtual_now.num_members[0] = 0
    plan_tables.virtual_now.clock_ms[0] = 0.0
    status = start_cores(state, future, tables)
    while status == _NEEDS_DECISION:
        plan(state, _orders_of(state), kind, plan_tables)
        if kind == _POOLS:
            state.now.num_pools[0] = plan_tables.pools.shape[0]
        status = follow_orders(state, future, tables)
    return status


@kernel
def play_many(states, futures, tables, kind, plan_tables, first, last, status):  # type: ignore[no-untyped-def]
    """Run simulators first..last-1 of many, one after another; fills `status`."""
    for row in range(first, last):
        status[row] = play(
            select_cluster(states, row), select_future(futures, row), tables, kind, plan_tables
        )
