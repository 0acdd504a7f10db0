"""Compiled whole runs under the heuristics."""

from __future__ import annotations

from parcae.kernels import kernel, row_of
from parcae.policies.heuristics.kernels.decisions import decide
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step

_NEEDS_DECISION = int(Status.NEEDS_DECISION)


@kernel
def play(state, future, tables, kind, params, memo):  # type: ignore[no-untyped-def]
    """Simulate a whole run under the policy.

    Args:
        state: the cluster (ClusterState); modified in place.
        future: the simulator's events (Future); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        kind: HeuristicKind as an integer.
        params: float64[...], the policy's parameters.
        memo: HeuristicMemo; written.

    Returns:
        The Status in which the run stopped.
    """
    status = start(state, future, tables)
    while status == _NEEDS_DECISION:
        stage, limit, executor_class, hold_ms = decide(state, kind, params, memo)
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
    return status


@kernel
def play_many(  # type: ignore[no-untyped-def]
    states, futures, tables, kind, params, memo, first, last, status
):
    """Simulate the runs `first` to `last - 1` of many, one after another.

    Args:
        states: the clusters (ClusterState with one more leading axis); modified in place.
        futures: their events (Future with one more leading axis); modified in place.
        tables: the workload's duration tables (WorkloadTables).
        kind: HeuristicKind as an integer.
        params: float64[...], the policy's parameters.
        memo: HeuristicMemo; all runs share it, since a row is computed again where it does not fit.
        first: first simulator to run.
        last: one past the last simulator to run.
        status: int64[num_simulators]; receives the Status of every run.
    """
    for row in range(first, last):
        status[row] = play(row_of(states, row), row_of(futures, row), tables, kind, params, memo)
