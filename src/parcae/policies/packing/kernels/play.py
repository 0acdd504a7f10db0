"""Compiled decisions of the packing heuristics, and whole runs."""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, kernel, unit
from parcae.packing.kernels.transitions import begin, take
from parcae.packing.kernels.views import cluster, sequence_of, show, view_of
from parcae.packing.layout import VOID
from parcae.policies.packing.kernels.backfilling import conservative, easy, first_come
from parcae.policies.packing.kernels.scores import best_score, withholding
from parcae.policies.packing.layout import PackingKind

_RANDOM = int(PackingKind.RANDOM)
_FCFS = int(PackingKind.FCFS)
_EASY = int(PackingKind.EASY)
_CONSERVATIVE = int(PackingKind.CONSERVATIVE)
_WITHHOLD = int(PackingKind.WITHHOLD)


@inlined
def _random(view, is_greedy):  # type: ignore[no-untyped-def]
    """Return a random slot or VOID, with equal probability.

    If `is_greedy`, return a random job that can start now.
    """
    uniform_draw = unit(view.head.random_bits[0])
    if not is_greedy:
        slot = np.int64(uniform_draw * (view.jobs.shape[0] + 1))
        return VOID if slot == view.jobs.shape[0] else slot
    count = 0
    for row in range(view.head.num_jobs[0]):
        count += view.jobs.can_start[row]
    remaining = np.int64(uniform_draw * count)
    for row in range(view.head.num_jobs[0]):
        if view.jobs.can_start[row] == 1:
            if remaining == 0:
                return int(view.jobs.slot[row])
            remaining -= 1
    return VOID


@inlined
def choose(view, plan, kind, params):  # type: ignore[no-untyped-def]
    """Return the slot whose job to place, or VOID.

    Args:
        view: the View of one cluster.
        plan: the Plan, a buffer; used by conservative backfilling only.
        kind: a PackingKind.
        params: float64 array, the heuristic's parameters.
    """
    if kind == _RANDOM:
        return _random(view, params[0] > 0)
    if kind == _FCFS:
        return first_come(view)
    if kind == _EASY:
        return easy(view, params[0] > 0)
    if kind == _CONSERVATIVE:
        return conservative(view, plan, np.int64(params[0]))
    if kind == _WITHHOLD:
        return withholding(view, params)
    return best_score(view, kind, params)


@kernel
def decide(view, plan, kind, params):  # type: ignore[no-untyped-def]
    """Return the slot whose job to place, or VOID; callable from Python.

    Args:
        view: the View of one cluster.
        plan: the Plan, a buffer.
        kind: a PackingKind.
        params: float64 array, the heuristic's parameters.
    """
    return choose(view, plan, kind, params)


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
def play_many(  # type: ignore[no-untyped-def]
    states, sequences, sequence_rows, views, plan, kind, params, first, last
):
    """Run clusters first..last-1 from start to end, one after another.

    Args:
        states: the states of all clusters, changed.
        sequences: the job sequences.
        sequence_rows: int64[num_clusters], each cluster's sequence.
        views: the views of all clusters, written.
        plan: one Plan, a buffer for all of these clusters.
        kind: a PackingKind.
        params: float64 array, the heuristic's parameters.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        play(
            cluster(states, row),
            sequence_of(sequences, sequence_rows[row]),
            view_of(views, row),
            plan,
            kind,
            params,
        )
