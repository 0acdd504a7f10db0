"""The interface of all packing policies, and the heuristics as policy objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.tables import empty_tables
from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.kernels.policies import decide
from parcae.rigid.kernels.stepping import play_many
from parcae.rigid.layout import Clusters, Packing, View
from parcae.rigid.policies.scores import (
    HandMade,
    PackingKind,
    ReservationPlan,
    WithholdParameter,
)
from parcae.rigid.world import image_columns
from parcae.workloads.import_report import counted


class PackingPolicy(ABC):
    """Decides which waiting job to place next, or to let time pass."""

    #: Name of the policy in reports.
    name: str
    #: Whether the policy needs to see when resources become free.
    wants_profile: bool
    #: How it was trained or tuned, if it was: the card of its checkpoint.
    card: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def play_many(self, clusters: Clusters, views: View, first: int, last: int) -> None:
        """Run clusters first..last-1 from start to end; see `PackingBatch.run`."""

    def check_view(self, views: View) -> None:
        """Check that views, of one cluster or of many, have their profile if the policy needs
        it.
        """
        # The kernels would read profiles that were never written, and write beyond their buffers.
        if self.wants_profile and not views.head["wants_profile"].all():
            raise ConfigError(
                f"policy {self.name!r} needs to see when resources become free: use clusters whose "
                "views have a profile (wants_profile=True)"
            )


def require_cluster(name: str, states: Packing, **trained_for: Any) -> None:
    """Check that clusters have the sizes that a network was trained for."""
    horizon, slots, backlog = (
        table.shape[axis]
        for table, axis in ((states.free, -2), (states.slots, -1), (states.backlog, -1))
    )
    sizes = {"horizon": horizon, "slots": slots, "backlog": backlog}
    capacity = states.capacity.reshape(-1, states.capacity.shape[-1])
    for units in map(tuple, np.unique(capacity, axis=0).tolist()):
        found = sizes | {"units": units, "columns": image_columns(units, **sizes)}
        for what, wanted in trained_for.items():
            if found[what] != wanted:
                raise ConfigError(
                    f"{name} was trained for clusters with {what} {wanted}, not {found[what]}: run "
                    "it in a cluster like the one that it was trained for, in steps of time"
                )


class CompiledPackingPolicy(PackingPolicy):
    """A policy whose kernel is that of its tables' type (`parcae.cluster.kernels.policies`)."""

    @abstractmethod
    def tables(self, views: View) -> Any:
        """Return the policy's named tuple, with buffers for clusters that are played in turn.

        The views are of one cluster or of many.
        """

    def check_states(self, states: Packing) -> None:
        """Check that the policy fits the clusters; most do."""

    def decide(self, view: View) -> int:
        """Return the slot whose job to place now, or VOID; `view` is of one cluster."""
        self.check_view(view)
        return int(decide(view, self.tables(view)))

    def play_many(self, clusters: Clusters, views: View, first: int, last: int) -> None:
        """Run clusters first..last-1 from start to end, one after another."""
        self.check_states(clusters.states)
        self.check_view(views)
        play_many(clusters, views, self.tables(views), first, last)


class HandMadePolicy(CompiledPackingPolicy):
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
        needed = {PackingKind.WITHHOLD: len(WithholdParameter), PackingKind.EASY: 2}.get(kind, 1)
        # The kernels would read beyond fewer parameters.
        if self.params.shape != (needed,):
            raise PolicyError(
                f"policy {name!r}: the parameters must be a list of {counted(needed, 'number')}, "
                f"not of shape {self.params.shape}"
            )
        self.wants_profile = kind in (PackingKind.EASY, PackingKind.CONSERVATIVE)

    def tables(self, views: View) -> HandMade:
        """The heuristic, with buffers for one plan."""
        # Each reservation may add a point to the profile.
        most = views.jobs.shape[-1]
        depth = min(int(self.params[0]), most) if self.kind is PackingKind.CONSERVATIVE else 0
        points = views.points.shape[-1] + depth
        sizes = {"points": points, "resources": views.free.shape[-1]}
        plan = ReservationPlan(**empty_tables(ReservationPlan, **sizes))
        return HandMade(plan, int(self.kind), self.params)
