"""Whole runs of many clusters in one compiled call, and single steps for deciders in Python."""

from __future__ import annotations

from parcae.base.compiled.kernels import kernel, row_of
from parcae.cluster.kernels.policies import decide
from parcae.rigid.kernels.transitions import begin, cluster_of, first_fit, take
from parcae.rigid.kernels.views import show
from parcae.rigid.layout import NO_JOB, NOT_YET
from parcae.rigid.policies import explore


@kernel
def play_many(clusters, views, policy, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 from start to end, one after another.

    The type of the policy says what `decide(view, policy)` is: it returns a slot or VOID.
    """
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        view = row_of(views, row)
        begin(state, sequence)
        while state.clock[0].is_over == 0:
            show(state, sequence, view)
            take(state, sequence, decide(view, policy))


@kernel
def explore_many(clusters, views, policy, records, cost, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1 from start to end with drawn decisions, and record them.

    There is one empty record for each of these clusters.
    """
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        view = row_of(views, row)
        record = row_of(records, row - first)
        begin(state, sequence)
        while state.clock[0].is_over == 0:
            show(state, sequence, view)
            take(state, sequence, explore(view, state.costs[cost], record, policy))


@kernel
def begin_many(clusters, first, last):  # type: ignore[no-untyped-def]
    """Reset clusters first..last-1 to the start of their sequences."""
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        begin(state, sequence)


@kernel
def show_many(clusters, views, first, last):  # type: ignore[no-untyped-def]
    """Fill the views of clusters first..last-1."""
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        show(state, sequence, row_of(views, row))


@kernel
def step_many(clusters, slots, is_placed, first, last):  # type: ignore[no-untyped-def]
    """Take one decision in each of clusters first..last-1 that is not over."""
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        if state.clock[0].is_over == 0:
            is_placed[row] = int(take(state, sequence, slots[row]))


@kernel
def mask_many(clusters, masks, first, last):  # type: ignore[no-untyped-def]
    """Write which decisions do something in clusters first..last-1.

    These are the slots whose job fits somewhere in the horizon, and always VOID, the last column.
    """
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        for slot in range(state.slots.shape[0]):
            job = state.slots[slot]
            masks[row, slot] = int(job != NO_JOB and first_fit(state, sequence, job) != NOT_YET)
        masks[row, state.slots.shape[0]] = 1
