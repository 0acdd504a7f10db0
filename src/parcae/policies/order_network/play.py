"""Compiled whole runs under the network of the cores world."""

from __future__ import annotations

from parcae.cluster.orders import Orders
from parcae.kernels import kernel, row_of
from parcae.policies.order_network.kernels import plan
from parcae.policies.order_network.layout import OrderNetwork
from parcae.policies.order_rule.kernels import reset_virtual_run
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(state, future, tables, network):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the network.

    Args:
        state: the cluster (ClusterState); modified in place.
        future: the simulator's events (Future); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        network: OrderNetwork; the rule's virtual run is restarted.

    Returns:
        The Status in which the run stopped.
    """
    reset_virtual_run(network.rule)
    status = start_cores(state, future, tables)
    while status == _NEEDS_DECISION:
        orders = Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)
        plan(state, orders, network)
        status = follow_orders(state, future, tables)
    return status


@kernel
def play_many(  # type: ignore[no-untyped-def]
    states, futures, tables, weights, network, first, last, status
):
    """Simulate the runs `first` to `last - 1` of many, each with its own weights.

    Args:
        states: the clusters (ClusterState with one more leading axis); modified in place.
        futures: their events (Future with one more leading axis); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        weights: float64[num_simulators, NUM_ORDER_WEIGHTS].
        network: OrderNetwork; its workspace and virtual run are used for one run after another.
        first: first simulator to run.
        last: one past the last simulator to run.
        status: int64[num_simulators]; receives the Status of every run.
    """
    for row in range(first, last):
        run_network = OrderNetwork(weights[row], network.rule, network.work)
        status[row] = play(row_of(states, row), row_of(futures, row), tables, run_network)
