"""The interface of all packing policies, and the heuristics as policy objects."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from parcae.errors import PolicyError
from parcae.packing.layout import Packing, SequenceTables, View
from parcae.policies.packing.kernels.play import decide, play_many
from parcae.policies.packing.layout import PackingKind, Plan, allocate_plan

IntArray = npt.NDArray[np.int64]


class PackingPolicy(Protocol):
    """Decides which waiting job to place next, or to let time pass."""

    @property
    def name(self) -> str:
        """Name of the policy in reports."""

    @property
    def wants_profile(self) -> bool:
        """Whether the policy needs to see when resources become free."""

    def play_many(
        self,
        states: Packing,
        sequences: SequenceTables,
        sequence_rows: IntArray,
        views: View,
        first: int,
        last: int,
    ) -> None:
        """Run clusters first..last-1 from start to end; see `PackingBatch.run`.

        Args:
            states: the states of all clusters, changed.
            sequences: the job sequences.
            sequence_rows: int64[num_clusters], each cluster's sequence.
            views: the views of all clusters, written.
            first: first cluster.
            last: one past the last cluster.
        """


class HandMadePolicy:
    """A packing heuristic.

    Args:
        name: name of the policy in reports.
        kind: which heuristic.
        params: its parameters, see `PackingKind`.

    Example: `HandMadePolicy("sjf", PackingKind.SJF)`
    """

    def __init__(self, name: str, kind: PackingKind, params: npt.ArrayLike = (0.0,)) -> None:
        # The kernels would take an unknown kind for a score.
        if kind not in set(PackingKind):
            raise PolicyError(f"policy {name!r}: there is no packing heuristic of kind {kind!r}")
        self.name = name
        self.kind = kind
        self.params = np.array(params, np.float64)
        self.wants_profile = kind in (PackingKind.EASY, PackingKind.CONSERVATIVE)

    def play_many(
        self,
        states: Packing,
        sequences: SequenceTables,
        sequence_rows: IntArray,
        views: View,
        first: int,
        last: int,
    ) -> None:
        """Run clusters first..last-1 from start to end.

        Args:
            states: the states of all clusters, changed.
            sequences: the job sequences.
            sequence_rows: int64[num_clusters], each cluster's sequence.
            views: the views of all clusters, written.
            first: first cluster.
            last: one past the last cluster.
        """
        play_many(
            states,
            sequences,
            sequence_rows,
            views,
            self._plan(views),
            int(self.kind),
            self.params,
            first,
            last,
        )

    def decide(self, view: View) -> int:
        """Return the slot whose job to place now, or VOID; `view` is of one cluster."""
        return int(
            decide(
                view,
                self._plan(View(*(table[None] for table in view))),
                int(self.kind),
                self.params,
            )
        )

    def _plan(self, views: View) -> Plan:
        """Return buffers for one plan, which clusters use one after another.

        Each reservation may add a point to the profile.
        """
        depth = int(self.params[0]) if self.kind is PackingKind.CONSERVATIVE else 0
        points = views.points.shape[1] + depth
        return Plan(*(table[0] for table in allocate_plan(1, points, views.free.shape[1])))
