"""The tables of simulated runs, as the kernels that play and record runs take them."""

from __future__ import annotations

from typing import Any, NamedTuple

from parcae.kernels import inlined, row_of


class Simulation(NamedTuple):
    """One simulated run; `state` and `future` are modified in place."""

    state: Any  # ClusterState
    future: Any  # Future
    tables: Any  # WorkloadTables, read only


class Simulations(NamedTuple):
    """Many simulated runs of one workload; a leading axis of `states` and `futures` is the run."""

    states: Any  # ClusterState
    futures: Any  # Future
    tables: Any  # WorkloadTables, shared by all and read only
    status: Any  # int64[num_simulators]; receives the Status in which each run stopped


@inlined
def simulation_of(simulations, row):  # type: ignore[no-untyped-def]
    """Return one run of many. Arguments: the Simulations, and the run's row."""
    return Simulation(
        row_of(simulations.states, row), row_of(simulations.futures, row), simulations.tables
    )
