"""Planning by formula, compiled: `plan` writes an order, `play` runs a whole simulation under it."""

from __future__ import annotations

from parcae.cluster.kernels.estimates import correction, total_ms, unstarted_ms
from parcae.cluster.kernels.tables import select_cluster
from parcae.cluster.orders import Orders
from parcae.cluster.state import NOT_YET
from parcae.kernels import inlined, kernel
from parcae.policies.orders.layout import OrderKind
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders
from parcae.simulation.kernels.event_loop import select_future, start

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_FIFO, _FIFO_SPARK_JOBS = int(OrderKind.FIFO), int(OrderKind.FIFO_SPARK_JOBS)
_FAIR, _POOLS = int(OrderKind.FAIR), int(OrderKind.POOLS)
_SJF, _SRPT = int(OrderKind.SJF), int(OrderKind.SRPT)
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
        orders.jobs.pool[job] = tables.pool_of[profile if 0 <= profile < num_profiles else num_profiles]


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
    for position in range(seen.now.num_active[0]):
        job = seen.active[position]
        if kind == _FAIR:
            orders.jobs.weight[job] = 1.0
        elif kind == _SJF:
            orders.jobs.tier[job] = total_ms(seen, job)
        elif kind == _SRPT:
            orders.jobs.tier[job] = unstarted_ms(seen, job) * correction(seen, job)


@inlined
def _orders_of(state):  # type: ignore[no-untyped-def]
    return Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)


@kernel
def play(state, future, tables, kind, plan_tables):  # type: ignore[no-untyped-def]
    """Run a whole simulation under the policy. Returns a Status."""
    status = start(state, future, tables)
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
        status[row] = play(select_cluster(states, row), select_future(futures, row), tables, kind, plan_tables)
