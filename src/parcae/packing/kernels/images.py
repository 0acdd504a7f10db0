"""The state as an image: what DeepRM's and A2cScheduler's networks look at."""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, kernel
from parcae.packing.kernels.views import cluster, sequence_of
from parcae.packing.layout import NO_JOB

#: As in the released code: colours are multiples of 1/40, and time since the last arrival counts in tenths of a step up to 1.
_NUM_COLORS = 39
_LONGEST_PAUSE = 10.0
_COLOR_STEP = 17


@kernel
def draw_images(states, asked, sequence, images, is_colored, has_pause, first, last):  # type: ignore[no-untyped-def]
    """Draw clusters first..last-1 into images float32[num_clusters, horizon, width] (see `parcae.packing.images`)."""
    for row in range(first, last):
        _draw(
            cluster(states, row),
            sequence_of(asked, sequence[row]),
            images[row],
            is_colored,
            has_pause,
        )


@inlined
def _draw(state, asked, image, is_colored, has_pause):  # type: ignore[no-untyped-def]
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            image[row, column] = 0.0
    left = 0
    for resource in range(state.free.shape[1]):
        if is_colored:
            _draw_colors(state, asked, image, left, resource)
        else:
            _draw_used(state, image, left, resource)
        left += state.capacity[resource]
        for slot in range(state.slots.shape[0]):
            if state.slots[slot] != NO_JOB:
                _draw_job(asked, state.slots[slot], image, left, resource)
            left += state.capacity[resource]
    columns = (state.backlog.shape[0] + image.shape[0] - 1) // image.shape[0]
    for job in range(min(state.clock.num_backlog[0], columns * image.shape[0])):
        image[job // columns, left + job % columns] = 1.0
    if has_pause:
        pause = (
            min(_LONGEST_PAUSE, float(state.clock.now[0] - max(0, state.clock.last_arrival[0])))
            / _LONGEST_PAUSE
        )
        for row in range(image.shape[0]):
            image[row, left + columns] = pause


@inlined
def _draw_used(state, image, left, resource):  # type: ignore[no-untyped-def]
    """Units in use fill each row from the left: a row is one moment, and what is booked for it stays booked."""
    for row in range(image.shape[0]):
        for unit in range(state.capacity[resource] - state.free[row, resource]):
            image[row, left + unit] = 1.0


@inlined
def _draw_colors(state, asked, image, left, resource):  # type: ignore[no-untyped-def]
    """The same, each job in a colour of its own, in order of placing.

    # Deviation: the released code takes the first colour of a shuffled table that is not on screen; here a job's colour
    follows from its number and the run's luck, and differs from those of the 38 jobs before and after it.
    """
    shift = np.int64(state.luck[0] % np.uint64(_NUM_COLORS))
    for row in range(image.shape[0]):
        then = state.clock.now[0] + row
        column = left
        for index in range(state.clock.num_running[0]):
            job = state.running[index]
            if state.jobs.start[job] <= then < state.jobs.finish[job]:
                color = np.float32(1 + (job * _COLOR_STEP + shift) % _NUM_COLORS) / np.float32(
                    _NUM_COLORS + 1
                )
                for _ in range(asked.demand[job, resource]):
                    image[row, column] = color
                    column += 1


@inlined
def _draw_job(asked, job, image, left, resource):  # type: ignore[no-untyped-def]
    for row in range(asked.specs.told[job]):
        for unit in range(asked.demand[job, resource]):
            image[row, left + unit] = 1.0
