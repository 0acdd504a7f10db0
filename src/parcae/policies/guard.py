"""The guard around a policy: no job is to end later than so many times its time under fair sharing."""

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
        name: as it was asked for.
        policy: the policy whose orders are guarded; it must play whole runs by itself.
        factor: a job may end this many times as late as under fair sharing, > 1.

    Raises:
        PolicyError: a factor that is not above 1, or a policy that cannot play.

    Example: `Guarded("srpt+guard:1.1", srpt, 1.1)`.
    """

    name: str
    policy: Any
    factor: float

    def __post_init__(self) -> None:
        if not 1.0 < self.factor < float("inf"):
            raise PolicyError(
                f"policy {self.name!r}: the guard's factor must be a number above 1, e.g. +guard:1.1"
            )
        if not hasattr(self.policy, "play"):
            raise PolicyError(f"policy {self.name!r}: only a compiled policy can be guarded")

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
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
        """Run simulators first..last-1 of many to their end; fills `status`."""
        states.now.guard[first:last] = self.factor
        self.policy.play_many(states, futures, tables, first, last, status)
