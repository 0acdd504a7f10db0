"""`HeuristicPolicy`: the hand-made policies as policy objects.

The same kernels decide live, in a single simulated step, and in a run that is simulated in one
compiled call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.errors import PolicyError
from parcae.policies.heuristics.kernels.decisions import decide
from parcae.policies.heuristics.kernels.play import play, play_many
from parcae.policies.heuristics.layout import HeuristicKind, HeuristicMemo, allocate_memo
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables

#: Kinds that keep intermediate results about jobs and stages in a memo.
_KINDS_WITH_MEMO = (HeuristicKind.WEIGHTED_FAIR, HeuristicKind.GRAPHENE)


@dataclass(frozen=True)
class HeuristicPolicy:
    """A hand-made policy with its parameters.

    Args:
        name: name in tables and reports.
        kind: which policy.
        params: its parameters; `HeuristicKind` lists them.

    Example: `HeuristicPolicy("static:5", HeuristicKind.STATIC, (5.0,))`.
    """

    name: str
    kind: HeuristicKind
    params: tuple[float, ...] = (0.0,)
    _array: npt.NDArray[np.float64] = field(init=False, repr=False, compare=False)
    _memo: HeuristicMemo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The kernels would take an unknown kind for the last one that they know.
        if self.kind not in set(HeuristicKind):
            raise PolicyError(f"policy {self.name!r}: there is no heuristic of kind {self.kind!r}")
        object.__setattr__(self, "_array", np.array(self.params, np.float64))
        object.__setattr__(self, "_memo", allocate_memo(0, 0))

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        num_jobs = len(observation.jobs)
        num_stages = len(observation.stages)
        # A live cluster's tables grow, so the memo may have become too small.
        is_short = num_jobs > len(self._memo.jobs) or num_stages > len(self._memo.stages)
        if is_short and self.kind in _KINDS_WITH_MEMO:
            object.__setattr__(self, "_memo", allocate_memo(num_jobs, num_stages))
        return Decision(*map(int, decide(observation, int(self.kind), self._array, self._memo)))

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Simulate a whole run in one compiled call.

        Args:
            state: the cluster; modified in place.
            future: the simulator's events; modified in place.
            tables: the workload's duration tables.

        Returns:
            The `Status` in which the run stopped.
        """
        memo = self._memo_for(len(state.jobs), len(state.stages))
        return int(play(state, future, tables, int(self.kind), self._array, memo))

    def _memo_for(self, num_jobs: int, num_stages: int) -> HeuristicMemo:
        """A new memo if the policy uses one; otherwise the empty memo."""
        return allocate_memo(num_jobs, num_stages) if self.kind in _KINDS_WITH_MEMO else self._memo

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
        memo = self._memo_for(states.jobs.shape[1], states.stages.shape[1])
        play_many(states, futures, tables, int(self.kind), self._array, memo, first, last, status)
