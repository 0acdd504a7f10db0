"""Compiled whole runs under the rule of Decima's world."""

from __future__ import annotations

from parcae.kernels import kernel, row_of
from parcae.policies.rule.kernels import Rule, decide
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(state, future, tables, rule):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the rule.

    Args:
        state: the cluster (ClusterState); modified in place.
        future: the simulator's events (Future); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        rule: Rule.

    Returns:
        The Status in which the run stopped.
    """
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, rule)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
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
        thetas: float64[num_simulators, NUM_PARAMETERS].
        rule: Rule; its solo curves are used for all runs, its parameters are not used.
        first: first simulator to run.
        last: one past the last simulator to run.
        status: int64[num_simulators]; receives the Status of every run.
    """
    for row in range(first, last):
        run_rule = Rule(thetas[row], rule.levels, rule.stretch, rule.mean_work_ms)
        status[row] = play(row_of(states, row), row_of(futures, row), tables, run_rule)
