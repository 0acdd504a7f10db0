"""Compiled whole runs under the network."""

from __future__ import annotations

from parcae.kernels import kernel
from parcae.policies.decima.kernels.decisions import clear_cache, decide
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.kernels.rollouts import begin_rollout, end_rollout

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(simulation, net, work):  # type: ignore[no-untyped-def]
    """Run a whole simulation, taking the most probable decision each time.

    Args:
        simulation: the run (Simulation); modified in place.
        net: the Network.
        work: the Workspace.

    Returns:
        A Status.
    """
    state, future, tables = simulation
    return _go_on(simulation, start(state, future, tables), net, work)


@kernel
def _go_on(simulation, status, net, work):  # type: ignore[no-untyped-def]
    """Play a run from a Status to its end. Returns the Status in which it stopped."""
    state, future, tables = simulation
    clear_cache(work)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, idle_ms = decide(state, net, work)
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    return status


@kernel
def roll_out(simulation, rollouts, net, work, first, last):  # type: ignore[no-untyped-def]
    """Play rollouts under the policy, one after another, each after what it tries.

    Args:
        simulation: the run (Simulation) in which they are played; overwritten.
        rollouts: Rollouts; their trials are written.
        net: the Network.
        work: the Workspace; written.
        first: first trial.
        last: one past the last trial.
    """
    for row in range(first, last):
        status = begin_rollout(simulation, rollouts, row)
        end_rollout(simulation, rollouts.trials, row, _go_on(simulation, status, net, work))
