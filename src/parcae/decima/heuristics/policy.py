"""`HeuristicPolicy`: the hand-made policies as policy objects.

The same kernels decide live, in a single simulated step, and in a run that is simulated in one
compiled call.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.decima.heuristics.decisions import Heuristic, HeuristicKind, allocate_memo
from parcae.policies.compiled import CompiledDecider

#: Kinds that keep intermediate results about jobs and stages in a memo.
_KINDS_WITH_MEMO = (HeuristicKind.WEIGHTED_FAIR, HeuristicKind.GRAPHENE)


@dataclass(frozen=True)
class HeuristicPolicy(CompiledDecider):
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

    def __post_init__(self) -> None:
        # The kernels would take an unknown kind for the last one that they know.
        if self.kind not in set(HeuristicKind):
            raise PolicyError(f"policy {self.name!r}: there is no heuristic of kind {self.kind!r}")
        object.__setattr__(self, "_array", np.array(self.params, np.float64))

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Heuristic:
        """The policy, with a new memo if it uses one."""
        if self.kind is HeuristicKind.ORDER and len(self._array) < num_jobs:
            raise PolicyError(
                f"policy {self.name!r} orders {len(self._array)} jobs, but the run has {num_jobs}: "
                "name them all"
            )
        room = (num_jobs, num_stages) if self.kind in _KINDS_WITH_MEMO else (0, 0)
        return Heuristic(int(self.kind), self._array, allocate_memo(*room))
