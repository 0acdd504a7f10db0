"""Compiled whole runs under the orders by formula."""

from __future__ import annotations

from parcae.cluster.orders import Orders
from parcae.cluster.state import VirtualRun
from parcae.kernels import inlined, kernel
from parcae.policies.orders.kernels import OrderKind, plan
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.order_rollouts import begin_order_rollout
from parcae.simulation.kernels.rollouts import end_rollout
from parcae.simulation.kernels.simulations import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@inlined
def _orders_of(state):  # type: ignore[no-untyped-def]
    """The tables of the order in force in the cluster's state, so that `plan` writes in place."""
    return Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)


@kernel
def play(simulation, kind, plan_tables):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the policy.

    Args:
        simulation: the run (Simulation); modified in place.
        kind: OrderKind as an integer.
        plan_tables: PlanTables; the virtual run in it is restarted.

    Returns:
        The Status in which the run stopped.
    """
    # Empty the virtual run: the tables may come from an earlier run.
    plan_tables.virtual_now.num_jobs[0] = 0
    plan_tables.virtual_now.num_members[0] = 0
    plan_tables.virtual_now.clock_ms[0] = 0.0
    state, future, tables = simulation
    return _go_on(simulation, start_cores(state, future, tables), kind, plan_tables)


@kernel
def _go_on(simulation, status, kind, plan_tables):  # type: ignore[no-untyped-def]
    """Play a run from a Status to its end. Returns the Status in which it stopped."""
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        plan(state, _orders_of(state), kind, plan_tables)
        if kind == OrderKind.POOLS:
            state.now.num_pools[0] = plan_tables.pools.shape[0]
        status = follow_orders(state, future, tables)
    return status


@kernel
def roll_out(simulation, rollouts, kind, plan_tables, first, last):  # type: ignore[no-untyped-def]
    """Play rollouts under the policy, one after another, each after what it tries.

    Args:
        simulation: the run (Simulation) in which they are played; overwritten.
        rollouts: Rollouts; their trials are written.
        kind: OrderKind as an integer.
        plan_tables: PlanTables; the virtual run in it is overwritten.
        first: first trial.
        last: one past the last trial.
    """
    virtual = VirtualRun(
        plan_tables.virtual_now, plan_tables.virtual_jobs, plan_tables.virtual_stages
    )
    for row in range(first, last):
        status = begin_order_rollout(simulation, rollouts, row, virtual)
        end_rollout(simulation, rollouts.trials, row, _go_on(simulation, status, kind, plan_tables))


@kernel
def play_many(simulations, kind, plan_tables, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, one after another.

    Args:
        simulations: the runs (Simulations); modified in place.
        kind: OrderKind as an integer.
        plan_tables: PlanTables; the virtual run in it is restarted for every run.
        first: first simulator to run.
        last: one past the last simulator to run.
    """
    for row in range(first, last):
        simulations.status[row] = play(simulation_of(simulations, row), kind, plan_tables)
