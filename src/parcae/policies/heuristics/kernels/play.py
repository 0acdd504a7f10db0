"""Compiled whole runs under the heuristics."""

from __future__ import annotations

from parcae.kernels import kernel
from parcae.policies.heuristics.kernels.decisions import decide
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.kernels.rollouts import begin_rollout, end_rollout
from parcae.simulation.kernels.simulations import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(simulation, kind, params, memo):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the policy.

    Args:
        simulation: the run (Simulation); modified in place.
        kind: HeuristicKind as an integer.
        params: float64[...], the policy's parameters.
        memo: HeuristicMemo; written.

    Returns:
        The Status in which the run stopped.
    """
    state, future, tables = simulation
    return _go_on(simulation, start(state, future, tables), kind, params, memo)


@kernel
def _go_on(simulation, status, kind, params, memo):  # type: ignore[no-untyped-def]
    """Play a run from a Status to its end. Returns the Status in which it stopped."""
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, kind, params, memo)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def roll_out(simulation, rollouts, kind, params, memo, first, last):  # type: ignore[no-untyped-def]
    """Play rollouts under the policy, one after another, each after what it tries.

    Args:
        simulation: the run (Simulation) in which they are played; overwritten.
        rollouts: Rollouts; their trials are written.
        kind: HeuristicKind as an integer.
        params: float64[...], the policy's parameters.
        memo: HeuristicMemo; written.
        first: first trial.
        last: one past the last trial.
    """
    for row in range(first, last):
        status = begin_rollout(simulation, rollouts, row)
        end_rollout(
            simulation, rollouts.trials, row, _go_on(simulation, status, kind, params, memo)
        )


@kernel
def play_many(simulations, kind, params, memo, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, one after another.

    Args:
        simulations: the runs (Simulations); modified in place.
        kind: HeuristicKind as an integer.
        params: float64[...], the policy's parameters.
        memo: HeuristicMemo; all runs share it, since a row is computed again where it does not fit.
        first: first simulator to run.
        last: one past the last simulator to run.
    """
    for row in range(first, last):
        simulations.status[row] = play(simulation_of(simulations, row), kind, params, memo)
