"""Compiled whole runs under the rule of the cores world."""

from __future__ import annotations

from parcae.cluster.orders import Orders
from parcae.kernels import kernel, row_of
from parcae.policies.order_rule.kernels import plan, reset_virtual_run
from parcae.policies.order_rule.layout import OrderRule
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(state, future, tables, rule):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the rule.

    Args:
        state: the cluster (ClusterState); modified in place.
        future: the simulator's events (Future); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        rule: OrderRule; its virtual run is restarted.

    Returns:
        The Status in which the run stopped.
    """
    reset_virtual_run(rule)
    status = start_cores(state, future, tables)
    while status == _NEEDS_DECISION:
        plan(
            state,
            Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms),
            rule,
        )
        status = follow_orders(state, future, tables)
    return status


@kernel
def play_many(  # type: ignore[no-untyped-def]
    states, futures, tables, thetas, rule, first, last, status
):
    """Simulate the runs `first` to `last - 1` of many, each with its own parameters.

    Args:
        states: the clusters (ClusterState with one more leading axis); modified in place.
        futures: their events (Future with one more leading axis); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        thetas: float64[num_simulators, NUM_ORDER_PARAMETERS].
        rule: OrderRule; its virtual run is used for one run after another.
        first: first simulator to run.
        last: one past the last simulator to run.
        status: int64[num_simulators]; receives the Status of every run.
    """
    for row in range(first, last):
        run_rule = OrderRule(
            thetas[row], rule.mean_work_ms, rule.virtual_now, rule.virtual_jobs, rule.virtual_stages
        )
        status[row] = play(row_of(states, row), row_of(futures, row), tables, run_rule)
