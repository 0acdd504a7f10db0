"""A hand-made policy as a policy object: the same rule decides live, in a step and in a compiled run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.policies.heuristics.kernels.decisions import decide, play, play_many
from parcae.policies.heuristics.layout import HeuristicKind, Known, allocate_known
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables

#: Kinds that remember what they worked out for jobs and stages.
_REMEMBERING = (HeuristicKind.WEIGHTED_FAIR, HeuristicKind.GRAPHENE)


@dataclass(frozen=True)
class HeuristicPolicy:
    """A rule with its parameters; see HeuristicKind for their meaning."""

    name: str
    kind: HeuristicKind
    params: tuple[float, ...] = (0.0,)
    _array: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _known: Known = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_array", np.array(self.params, np.float64))
        object.__setattr__(self, "_known", allocate_known(0, 0))

    def decide(self, observation: Observation) -> Decision:
        """Answer one scheduling event."""
        num_jobs = len(observation.jobs)
        num_stages = len(observation.stages)
        is_short = num_jobs > len(self._known.jobs) or num_stages > len(self._known.stages)
        if is_short and self.kind in _REMEMBERING:
            object.__setattr__(self, "_known", allocate_known(num_jobs, num_stages))
        return Decision(*map(int, decide(observation, int(self.kind), self._array, self._known)))

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        known = self._room(len(state.jobs), len(state.stages))
        return int(play(state, future, tables, int(self.kind), self._array, known))

    def _room(self, num_jobs: int, num_stages: int) -> Known:
        """Room for what the rule remembers, if it remembers anything."""
        return allocate_known(num_jobs, num_stages) if self.kind in _REMEMBERING else self._known

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
        known = self._room(states.jobs.shape[1], states.stages.shape[1])
        play_many(states, futures, tables, int(self.kind), self._array, known, first, last, status)
