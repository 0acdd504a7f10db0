"""Compiled whole runs under the network."""

from __future__ import annotations

from parcae.kernels import kernel
from parcae.policies.decima.kernels.decisions import clear_cache, decide, draw_decision
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step

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
    clear_cache(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, idle_ms = decide(state, net, work)
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    return status


@kernel
def play_drawn(simulation, net, work, draw_seed):  # type: ignore[no-untyped-def]
    """Run a whole simulation with drawn decisions, as the released code does in tests.

    Args:
        simulation: the run (Simulation); modified in place.
        net: the Network.
        work: the Workspace.
        draw_seed: uint64, seed of the drawn decisions.

    Returns:
        A Status.
    """
    state, future, tables = simulation
    clear_cache(work)
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, idle_ms, _, _ = draw_decision(state, net, work, draw_seed)
        status = step(state, future, tables, stage, limit, executor_class, idle_ms)
    return status
