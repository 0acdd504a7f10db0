"""Compiled whole runs under the packing heuristics."""

from __future__ import annotations

from parcae.kernels import kernel, row_of
from parcae.packing.kernels.transitions import begin, cluster_of, take
from parcae.packing.kernels.views import show
from parcae.policies.packing.kernels.decisions import choose


@kernel
def play(state, sequence, view, plan, kind, params):  # type: ignore[no-untyped-def]
    """Run one cluster from start to end.

    Args:
        state: the cluster's state, changed.
        sequence: the cluster's job sequence.
        view: the View, written.
        plan: the Plan, a buffer.
        kind: a PackingKind.
        params: float64 array, the heuristic's parameters.
    """
    begin(state, sequence)
    while state.clock.is_over[0] == 0:
        show(state, sequence, view)
        take(state, sequence, choose(view, plan, kind, params))


@kernel
def play_many(clusters, views, plan, kind, params, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 from start to end, one after another.

    Args:
        clusters: the Clusters, changed.
        views: the views of all clusters, written.
        plan: one Plan, a buffer for all of these clusters.
        kind: a PackingKind.
        params: float64 array, the heuristic's parameters.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        play(state, sequence, row_of(views, row), plan, kind, params)
