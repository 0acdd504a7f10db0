"""Compiled steps of many clusters, one decision per call, for deciders outside the kernels."""

from __future__ import annotations

from parcae.kernels import kernel, row_of
from parcae.packing.kernels.transitions import begin, first_fit, take
from parcae.packing.kernels.views import show
from parcae.packing.layout import NO_JOB, NOT_YET


@kernel
def begin_many(states, sequences, sequence_rows, first, last):  # type: ignore[no-untyped-def]
    """Reset clusters first..last-1 to the start of their sequences.

    Args:
        states: the states of all clusters, written.
        sequences: the job sequences.
        sequence_rows: int64[num_clusters], each cluster's sequence.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        begin(row_of(states, row), row_of(sequences, sequence_rows[row]))


@kernel
def show_many(states, sequences, sequence_rows, views, first, last):  # type: ignore[no-untyped-def]
    """Fill the views of clusters first..last-1.

    Args:
        states: the states of all clusters.
        sequences: the job sequences.
        sequence_rows: int64[num_clusters], each cluster's sequence.
        views: the views of all clusters, written.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        show(row_of(states, row), row_of(sequences, sequence_rows[row]), row_of(views, row))


@kernel
def step_many(  # type: ignore[no-untyped-def]
    states, sequences, sequence_rows, slots, is_placed, first, last
):
    """Take one decision in each of clusters first..last-1 that is not over.

    Args:
        states: the states of all clusters, changed.
        sequences: the job sequences.
        sequence_rows: int64[num_clusters], each cluster's sequence.
        slots: int64[num_clusters], the decisions: a slot, or VOID to let time pass.
        is_placed: int64[num_clusters], written: 1 where a job was placed.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        if states.clock.is_over[row, 0] == 0:
            is_placed[row] = int(
                take(row_of(states, row), row_of(sequences, sequence_rows[row]), slots[row])
            )


@kernel
def mask_many(states, sequences, sequence_rows, masks, first, last):  # type: ignore[no-untyped-def]
    """Write which decisions do something in clusters first..last-1.

    These are the slots whose job fits somewhere in the horizon, and always VOID, the last column.

    Args:
        states: the states of all clusters.
        sequences: the job sequences.
        sequence_rows: int64[num_clusters], each cluster's sequence.
        masks: int8[num_clusters, num_slots + 1], written.
        first: first cluster.
        last: one past the last cluster.
    """
    for row in range(first, last):
        state = row_of(states, row)
        sequence = row_of(sequences, sequence_rows[row])
        for slot in range(state.slots.shape[0]):
            job = state.slots[slot]
            masks[row, slot] = int(job != NO_JOB and first_fit(state, sequence, job) != NOT_YET)
        masks[row, state.slots.shape[0]] = 1
