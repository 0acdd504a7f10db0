"""A hand-made policy as a policy object: the same rule decides live, in a step and in a compiled run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.policies.heuristics.kernels import HeuristicKind, decide, play, play_many
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


@dataclass(frozen=True)
class HeuristicPolicy:
    """A rule with its parameters; see HeuristicKind for their meaning."""

    name: str
    kind: HeuristicKind
    params: tuple[float, ...] = (0.0,)
    _array: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_array", np.array(self.params, np.float64))

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event."""
        stage, limit = decide(observation, int(self.kind), self._array)
        return Decision(int(stage), int(limit))

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        return int(play(state, future, tables, int(self.kind), self._with_room(len(state.jobs))))

    def _with_room(self, num_jobs: int) -> npt.NDArray[np.float64]:
        """The parameters, with room for what the rule remembers of each job in one run."""
        if self.kind is not HeuristicKind.WEIGHTED_FAIR:
            return self._array
        return np.concatenate([self._array, np.zeros(num_jobs)])

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
        params = np.tile(self._with_room(states.jobs.shape[1]), (len(status), 1))
        play_many(states, futures, tables, int(self.kind), params, first, last, status)
