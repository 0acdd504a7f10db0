"""The policy srpt-cap, which waits where the theory of idle slots says so."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.policies.heuristics.policy import HeuristicPolicy
from parcae.policies.idle.kernels import decide, play, play_many
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


@dataclass(frozen=True)
class IdleTheoryPolicy(HeuristicPolicy):
    """The policy srpt-cap with the idle slots of Theorem 2 before the stages that it chooses.

    Args:
        is_alone: take the last free executor for the only machine there is, as the theorem does.

    Source: Duan & Wu, section IV-A.
    """

    is_alone: bool = False

    @property
    def cap(self) -> int:
        """Most executors of a job, leftovers aside."""
        return int(self.params[0])

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event."""
        return Decision(*map(int, decide(observation, self.cap, self.is_alone)))

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        return int(play(state, future, tables, self.cap, self.is_alone))

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
        play_many(states, futures, tables, self.cap, self.is_alone, first, last, status)
