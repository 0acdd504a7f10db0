"""The guard around a policy: it bounds every job's time in the system relative to fair sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ClusterState
from parcae.errors import PolicyError
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


@dataclass
class Guarded:
    """A policy of the world of cores with the guard (`parcae.cluster.kernels.guard`).

    Args:
        name: name in tables and reports.
        policy: the policy whose orders are guarded; it must have the compiled methods `play` and
            `play_many`.
        factor: upper bound of (a job's time in the system / its time under fair sharing), > 1.

    Raises:
        PolicyError: the factor is not a finite number above 1, or the policy is not compiled.

    Example: `Guarded("srpt+guard:1.1", srpt, 1.1)`.
    """

    name: str
    policy: Any
    factor: float

    def __post_init__(self) -> None:
        if not 1.0 < self.factor < float("inf"):
            raise PolicyError(
                f"policy {self.name!r}: the guard's factor must be a finite number above 1, "
                "e.g. +guard:1.1"
            )
        if not hasattr(self.policy, "play"):
            raise PolicyError(f"policy {self.name!r}: only a compiled policy can be guarded")

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Simulate a whole run in one compiled call.

        Args:
            state: the cluster; modified in place.
            future: the simulator's events; modified in place.
            tables: the workload's duration tables.

        Returns:
            The `Status` in which the run stopped.
        """
        # The kernels apply the guard to the policy's orders if this factor is set.
        state.now.guard[:] = self.factor
        return int(self.policy.play(state, future, tables))

    def play_many(
        self,
        states: ClusterState,
        futures: Future,
        tables: WorkloadTables,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Simulate the runs `first` to `last - 1` of many, one after another.

        Args:
            states: the clusters of all simulators (one more leading axis); modified in place.
            futures: their events; modified in place.
            tables: the workload's duration tables.
            first: first simulator to run.
            last: one past the last simulator to run.
            status: int64[num_simulators]; receives the `Status` of every run.
        """
        states.now.guard[first:last] = self.factor
        self.policy.play_many(states, futures, tables, first, last, status)
