"""Compiled whole runs under the rule of Decima's world."""

from __future__ import annotations

from parcae.kernels import kernel
from parcae.policies.rule.kernels.decisions import decide
from parcae.policies.rule.kernels.scores import Rule
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.kernels.rollouts import begin_rollout, end_rollout
from parcae.simulation.kernels.simulations import simulation_of

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(simulation, rule):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the rule.

    Args:
        simulation: the run (Simulation); modified in place.
        rule: Rule.

    Returns:
        The Status in which the run stopped.
    """
    state, future, tables = simulation
    return _go_on(simulation, start(state, future, tables), rule)


@kernel
def _go_on(simulation, status, rule):  # type: ignore[no-untyped-def]
    """Play a run from a Status to its end. Returns the Status in which it stopped."""
    state, future, tables = simulation
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, rule)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def roll_out(simulation, rollouts, rule, first, last):  # type: ignore[no-untyped-def]
    """Play rollouts under the policy, one after another, each after what it tries.

    Args:
        simulation: the run (Simulation) in which they are played; overwritten.
        rollouts: Rollouts; their trials are written.
        rule: Rule.
        first: first trial.
        last: one past the last trial.
    """
    for row in range(first, last):
        status = begin_rollout(simulation, rollouts, row)
        end_rollout(simulation, rollouts.trials, row, _go_on(simulation, status, rule))


@kernel
def play_many(simulations, thetas, rule, first, last):  # type: ignore[no-untyped-def]
    """Simulate the runs `first` to `last - 1` of many, each with its own parameters.

    Args:
        simulations: the runs (Simulations); modified in place.
        thetas: float64[num_simulators, NUM_PARAMETERS].
        rule: Rule; its solo curves are used for all runs, its parameters are not used.
        first: first simulator to run.
        last: one past the last simulator to run.
    """
    for row in range(first, last):
        run_rule = Rule(thetas[row], rule.levels, rule.stretch, rule.mean_work_ms)
        simulations.status[row] = play(simulation_of(simulations, row), run_rule)
