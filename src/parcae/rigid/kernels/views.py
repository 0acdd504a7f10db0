"""Compiled views: what a policy sees of a cluster."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, mix
from parcae.rigid.kernels.transitions import cluster_of, first_fit
from parcae.rigid.layout import NO_JOB, add_units, copy_units, fits


@kernel
def draw_images(clusters, images, first, last):  # type: ignore[no-untyped-def]
    """Draw the images of clusters first..last-1; see `parcae.rigid.world.image_shape`.

    # Deviation: the released code draws booked jobs in random colours; here cells are 0 or 1.
    """
    for row in range(first, last):
        state, sequence = cluster_of(clusters, row)
        _draw(state, sequence, images[row])


@inlined
def _draw(state, sequence, image):  # type: ignore[no-untyped-def]
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            image[row, column] = 0.0
    left = 0
    for resource in range(state.free.shape[1]):
        _draw_used(state, image, left, resource)
        left += state.capacity[resource]
        for slot in range(state.slots.shape[0]):
            if state.slots[slot] != NO_JOB:
                _draw_job(sequence, state.slots[slot], image, left, resource)
            left += state.capacity[resource]
    # One cell for each job of the backlog, row by row.
    columns = (state.backlog.shape[0] + image.shape[0] - 1) // image.shape[0]
    for job in range(min(state.clock[0].num_backlog, columns * image.shape[0])):
        image[job // columns, left + job % columns] = 1.0


@inlined
def _draw_used(state, image, left, resource):  # type: ignore[no-untyped-def]
    """Fill each row from the left with the units in use at that moment.

    Bookings never change, so the units of a row need no distinction by job.
    """
    for row in range(image.shape[0]):
        for unit in range(state.capacity[resource] - state.free[row, resource]):
            image[row, left + unit] = 1.0


@inlined
def _draw_job(sequence, job, image, left, resource):  # type: ignore[no-untyped-def]
    """Draw a waiting job: its duration in rows, its demand in columns."""
    for row in range(sequence.specs.estimate[job]):
        for unit in range(sequence.demand[job, resource]):
            image[row, left + unit] = 1.0


#: 2^64 / golden ratio, the increment of the SplitMix64 generator.
_STEP = np.uint64(0x9E3779B97F4A7C15)


@inlined
def show(state, sequence, view):  # type: ignore[no-untyped-def]
    """Fill a view with everything that a policy may know now."""
    rules = sequence.rules[0]
    clock = state.clock[0]
    head = view.head[0]
    head.now = clock.now
    head.num_backlog = clock.num_backlog
    head.is_exact = rules.is_exact
    head.num_running = clock.num_running
    head.num_arrived = clock.num_arrived
    head.arrived_work = clock.arrived_work
    head.log_estimate = clock.log_estimate
    head.random_bits = mix(mix(state.seed[0] + _STEP) + np.uint64(clock.num_decisions) * _STEP)
    head.since_arrival = clock.now - max(0, clock.last_arrival)
    copy_units(state.free[0], view.free)
    copy_units(state.capacity, view.capacity)
    count = 0
    slots = clock.num_waiting if rules.is_exact == 1 else state.slots.shape[0]
    for slot in range(slots):
        if state.slots[slot] != NO_JOB:
            _show_job(state, sequence, view, slot, count)
            count += 1
    head.num_jobs = count
    if head.wants_profile == 1:
        _show_profile(state, sequence, view)


@inlined
def _show_job(state, sequence, view, slot, row):  # type: ignore[no-untyped-def]
    job = state.slots[slot]
    visible = view.jobs
    visible.slot[row] = slot
    visible.estimate[row] = sequence.specs.estimate[job]
    visible.log_estimate[row] = sequence.specs.log_estimate[job]
    visible.age[row] = state.clock[0].now - sequence.specs.arrival[job]
    copy_units(sequence.demand[job], view.demand[row])
    visible.can_start[row] = int(
        fits(sequence.demand[job], state.free[0]) and first_fit(state, sequence, job) == 0
    )


@inlined
def _show_profile(state, sequence, view):  # type: ignore[no-untyped-def]
    """Write the resources that are free from each point in time on."""
    if sequence.rules[0].is_exact == 1:
        _profile_of_running(state, sequence, view)
        return
    horizon = state.free.shape[0]
    for row in range(horizon + 1):
        view.points[row] = state.clock[0].now + row
    for row in range(horizon):
        copy_units(state.free[row], view.free_from[row])
    copy_units(state.capacity, view.free_from[horizon])
    view.head[0].num_points = horizon + 1


@inlined
def _profile_of_running(state, sequence, view):  # type: ignore[no-untyped-def]
    """Write the profile with exact times, in which running jobs end at their expected finish.

    A job that is late is expected to finish in the next unit of time.
    """
    clock = state.clock[0]
    count = 0
    view.points[0] = clock.now
    copy_units(state.free[0], view.free_from[0])
    for row in range(clock.num_running):
        job = state.running[row]
        then = max(clock.now + 1, state.jobs.expected[job])
        if then > view.points[count]:
            count += 1
            view.points[count] = then
            copy_units(view.free_from[count - 1], view.free_from[count])
        add_units(view.free_from[count], sequence.demand[job], 1)
    view.head[0].num_points = count + 1
