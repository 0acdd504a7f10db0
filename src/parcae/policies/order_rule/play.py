"""Compiled whole runs under the rule of the cores world."""

from __future__ import annotations

from parcae.cluster.orders import Orders
from parcae.cluster.state import VirtualRun
from parcae.kernels import kernel
from parcae.policies.order_rule.kernels import plan, reset_virtual_run
from parcae.policies.order_rule.layout import OrderRule
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.order_rollouts import begin_order_rollout
from parcae.simulation.kernels.rollouts import end_rollout
from parcae.simulation.kernels.simulations import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(simulation, rule):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the rule.

    Args:
        simulation: the run (Simulation); modified in place.
        rule: OrderRule; its virtual run is restarted.

    Returns:
        The Status in which the run stopped.
    """
    reset_virtual_run(rule)
    state, future, tables = simulation
    return _go_on(simulation, start_cores(state, future, tables), rule)


@kernel
def _go_on(simulation, status, rule):  # type: ignore[no-untyped-def]
    """Play a run from a Status to its end. Returns the Status in which it stopped."""
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        plan(
            state,
            Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms),
            rule,
        )
        status = follow_orders(state, future, tables)
    return status


@kernel
def roll_out(simulation, rollouts, rule, first, last):  # type: ignore[no-untyped-def]
    """Play rollouts under the policy, one after another, each after what it tries.

    Args:
        simulation: the run (Simulation) in which they are played; overwritten.
        rollouts: Rollouts; their trials are written.
        rule: OrderRule; its virtual run is overwritten.
        first: first trial.
        last: one past the last trial.
    """
    virtual = VirtualRun(rule.virtual_now, rule.virtual_jobs, rule.virtual_stages)
    for row in range(first, last):
        status = begin_order_rollout(simulation, rollouts, row, virtual)
        end_rollout(simulation, rollouts.trials, row, _go_on(simulation, status, rule))


@kernel
def play_many(simulations, thetas, rule, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, each with its own parameters.

    Args:
        simulations: the runs (Simulations); modified in place.
        thetas: float64[num_simulators, NUM_ORDER_PARAMETERS].
        rule: OrderRule; its virtual run is used for one run after another.
        first: first simulator to run.
        last: one past the last simulator to run.
    """
    for row in range(first, last):
        run_rule = OrderRule(
            thetas[row], rule.mean_work_ms, rule.virtual_now, rule.virtual_jobs, rule.virtual_stages
        )
        simulations.status[row] = play(simulation_of(simulations, row), run_rule)
