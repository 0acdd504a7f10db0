"""Compiled whole runs under the network of the cores world."""

from __future__ import annotations

from parcae.cluster.orders import Orders
from parcae.kernels import kernel
from parcae.policies.order_network.kernels import plan
from parcae.policies.order_network.layout import OrderNetwork
from parcae.policies.order_rule.kernels import reset_virtual_run
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.simulations import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(simulation, network):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the network.

    Args:
        simulation: the run (Simulation); modified in place.
        network: OrderNetwork; the rule's virtual run is restarted.

    Returns:
        The Status in which the run stopped.
    """
    reset_virtual_run(network.rule)
    state, future, tables = simulation
    status = start_cores(state, future, tables)
    while status == _NEEDS_DECISION:
        orders = Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)
        plan(state, orders, network)
        status = follow_orders(state, future, tables)
    return status


@kernel
def play_many(simulations, weights, network, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, each with its own weights.

    Args:
        simulations: the runs (Simulations); modified in place.
        weights: float64[num_simulators, NUM_ORDER_WEIGHTS].
        network: OrderNetwork; its workspace and virtual run are used for one run after another.
        first: first simulator to run.
        last: one past the last simulator to run.
    """
    for row in range(first, last):
        run_network = OrderNetwork(weights[row], network.rule, network.work)
        simulations.status[row] = play(simulation_of(simulations, row), run_network)
