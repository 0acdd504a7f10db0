"""Many clusters, one decision each, in one call: for whoever decides outside."""

from __future__ import annotations

from parcae.kernels import kernel
from parcae.packing.kernels.transitions import begin, first_fit, take
from parcae.packing.kernels.views import cluster, sequence_of, show, view_of
from parcae.packing.layout import NO_JOB, NOT_YET


@kernel
def begin_many(states, asked, sequence, first, last):  # type: ignore[no-untyped-def]
    """Clusters first..last-1 begin."""
    for row in range(first, last):
        begin(cluster(states, row), sequence_of(asked, sequence[row]))


@kernel
def show_many(states, asked, sequence, views, first, last):  # type: ignore[no-untyped-def]
    """Fill the views of clusters first..last-1."""
    for row in range(first, last):
        show(cluster(states, row), sequence_of(asked, sequence[row]), view_of(views, row))


@kernel
def step_many(states, asked, sequence, slots, is_placed, first, last):  # type: ignore[no-untyped-def]
    """Take slots[row] in clusters first..last-1 that are not over. is_placed: int64, whether a job was placed."""
    for row in range(first, last):
        if states.clock.is_over[row, 0] == 0:
            is_placed[row] = int(
                take(cluster(states, row), sequence_of(asked, sequence[row]), slots[row])
            )


@kernel
def mask_many(states, asked, sequence, masks, first, last):  # type: ignore[no-untyped-def]
    """masks int8[num_clusters, num_slots + 1]: slots whose job fits somewhere in the horizon; VOID, the last, always."""
    for row in range(first, last):
        state = cluster(states, row)
        own = sequence_of(asked, sequence[row])
        for slot in range(state.slots.shape[0]):
            job = state.slots[slot]
            masks[row, slot] = int(job != NO_JOB and first_fit(state, own, job) != NOT_YET)
        masks[row, state.slots.shape[0]] = 1
