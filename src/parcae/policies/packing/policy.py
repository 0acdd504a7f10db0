"""What every packing policy can do, and the hand-made ones."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from parcae.packing.layout import Asked, Packing, View
from parcae.policies.packing.kernels.play import decide, play_many
from parcae.policies.packing.layout import PackingKind, Plan, allocate_plan

IntArray = npt.NDArray[np.int64]


class PackingPolicy(Protocol):
    """Decides which waiting job to place next, or to let time pass."""

    @property
    def name(self) -> str:
        """How reports call the policy."""

    @property
    def wants_profile(self) -> bool:
        """Whether it must be shown what becomes free when."""

    def play_many(
        self, states: Packing, asked: Asked, sequence: IntArray, views: View, first: int, last: int
    ) -> None:
        """Run clusters first..last-1 from start to end (see `parcae.packing.world.PackingBatch.run`)."""


class HandMadePolicy:
    """A hand-made packing policy.

    Args:
        name: how reports call it. kind: which. params: its parameters, see `PackingKind`.

    Example: `HandMadePolicy("sjf", PackingKind.SJF)`
    """

    def __init__(self, name: str, kind: PackingKind, params: npt.ArrayLike = (0.0,)) -> None:
        self.name = name
        self.kind = kind
        self.params = np.array(params, np.float64)
        self.wants_profile = kind in (PackingKind.EASY, PackingKind.CONSERVATIVE)

    def play_many(
        self, states: Packing, asked: Asked, sequence: IntArray, views: View, first: int, last: int
    ) -> None:
        """Run clusters first..last-1 from start to end."""
        play_many(
            states,
            asked,
            sequence,
            views,
            self._plan(views),
            int(self.kind),
            self.params,
            first,
            last,
        )

    def decide(self, view: View) -> int:
        """The slot whose job to place now, or VOID; `view` is of one cluster."""
        return int(
            decide(
                view,
                self._plan(View(*(table[None] for table in view))),
                int(self.kind),
                self.params,
            )
        )

    def _plan(self, views: View) -> Plan:
        """Room for one plan, for clusters that are run one after another."""
        depth = int(self.params[0]) if self.kind is PackingKind.CONSERVATIVE else 0
        points = views.points.shape[1] + depth
        return Plan(*(table[0] for table in allocate_plan(1, points, views.free.shape[1])))
