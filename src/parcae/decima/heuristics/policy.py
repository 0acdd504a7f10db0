"""`HeuristicPolicy`: the hand-made policies as policy objects.

The same kernels decide live, in a single simulated step, and in a run that is simulated in one
compiled call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.cluster.decision import Decision
from parcae.cluster.observation import Observation
from parcae.cluster.state import ClusterState
from parcae.decima.heuristics.kernels.decisions import (
    HeuristicKind,
    HeuristicMemo,
    allocate_memo,
    decide,
    play,
    play_many,
    roll_out,
)
from parcae.policies.compiled import PlaysRuns

#: Kinds that keep intermediate results about jobs and stages in a memo.
_KINDS_WITH_MEMO = (HeuristicKind.WEIGHTED_FAIR, HeuristicKind.GRAPHENE)


@dataclass(frozen=True)
class HeuristicPolicy(PlaysRuns):
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

    @property
    def kernels(self) -> tuple[Any, Any, Any]:
        """`decide`, `play` and `play_many` of the heuristics."""
        return decide, play, play_many

    @property
    def roll_out(self) -> Any:
        """The kernel that plays rollouts."""
        return roll_out

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        num_jobs = len(observation.jobs)
        num_stages = len(observation.stages)
        self._check_order(num_jobs)
        # A live cluster's tables grow, so the memo may have become too small.
        is_short = num_jobs > len(self._memo.jobs) or num_stages > len(self._memo.stages)
        if is_short and self.kind in _KINDS_WITH_MEMO:
            object.__setattr__(self, "_memo", allocate_memo(num_jobs, num_stages))
        return Decision(*map(int, decide(observation, int(self.kind), self._array, self._memo)))

    def _check_order(self, num_jobs: int) -> None:
        """Refuse a given order that does not name so many jobs."""
        if self.kind is HeuristicKind.ORDER and len(self._array) < num_jobs:
            raise PolicyError(
                f"policy {self.name!r} orders {len(self._array)} jobs, but the run has {num_jobs}: "
                "name them all"
            )

    def arguments_for(self, state: ClusterState) -> tuple[Any, ...]:
        """The kind, its parameters, and a new memo if the policy uses one."""
        memo = self._memo
        self._check_order(state.jobs.shape[-1])
        if self.kind in _KINDS_WITH_MEMO:
            memo = allocate_memo(state.jobs.shape[-1], state.stages.shape[-1])
        return int(self.kind), self._array, memo
