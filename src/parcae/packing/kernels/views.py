"""Compiled views: what a policy sees of a cluster."""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, mix
from parcae.packing.kernels.transitions import first_fit
from parcae.packing.layout import NO_JOB

#: 2^64 / golden ratio, the increment of the SplitMix64 generator.
_STEP = np.uint64(0x9E3779B97F4A7C15)


@inlined
def show(state, sequence, view):  # type: ignore[no-untyped-def]
    """Fill a view with everything that a policy may know now.

    Args:
        state: the cluster's state.
        sequence: the cluster's job sequence.
        view: the View, written; the profile only if `head.wants_profile` is 1.
    """
    clock = state.clock
    head = view.head
    head.now[0] = clock.now[0]
    head.num_backlog[0] = clock.num_backlog[0]
    head.is_exact[0] = sequence.rules.is_exact[0]
    head.num_running[0] = clock.num_running[0]
    head.num_arrived[0] = clock.num_arrived[0]
    head.arrived_work[0] = clock.arrived_work[0]
    head.log_estimate[0] = clock.log_estimate[0]
    head.random_bits[0] = mix(
        mix(state.seed[0] + _STEP) + np.uint64(clock.num_decisions[0]) * _STEP
    )
    head.since_arrival[0] = clock.now[0] - max(0, clock.last_arrival[0])
    for resource in range(state.free.shape[1]):
        view.free[resource] = state.free[0, resource]
        view.capacity[resource] = state.capacity[resource]
    count = 0
    slots = clock.num_waiting[0] if sequence.rules.is_exact[0] == 1 else state.slots.shape[0]
    for slot in range(slots):
        if state.slots[slot] != NO_JOB:
            _show_job(state, sequence, view, slot, count)
            count += 1
    head.num_jobs[0] = count
    if head.wants_profile[0] == 1:
        _show_profile(state, sequence, view)


@inlined
def _show_job(state, sequence, view, slot, row):  # type: ignore[no-untyped-def]
    """Write the job of a slot to one row of the view."""
    job = state.slots[slot]
    visible = view.jobs
    visible.slot[row] = slot
    visible.estimate[row] = sequence.specs.estimate[job]
    visible.log_estimate[row] = sequence.specs.log_estimate[job]
    visible.age[row] = state.clock.now[0] - sequence.specs.arrival[job]
    fits = True
    for resource in range(state.free.shape[1]):
        view.demand[row, resource] = sequence.demand[job, resource]
        fits = fits and state.free[0, resource] >= sequence.demand[job, resource]
    visible.can_start[row] = int(fits and first_fit(state, sequence, job) == 0)


@inlined
def _show_profile(state, sequence, view):  # type: ignore[no-untyped-def]
    """Write the resources that are free from each point in time on."""
    if sequence.rules.is_exact[0] == 1:
        _profile_of_running(state, sequence, view)
        return
    horizon = state.free.shape[0]
    for row in range(horizon + 1):
        view.points[row] = state.clock.now[0] + row
        for resource in range(state.free.shape[1]):
            view.free_from[row, resource] = (
                state.free[row, resource] if row < horizon else state.capacity[resource]
            )
    view.head.num_points[0] = horizon + 1


@inlined
def _profile_of_running(state, sequence, view):  # type: ignore[no-untyped-def]
    """Write the profile with exact times, in which running jobs end at their expected finish.

    A job that is late is expected to finish in the next unit of time.
    """
    count = 0
    view.points[0] = state.clock.now[0]
    for resource in range(state.free.shape[1]):
        view.free_from[0, resource] = state.free[0, resource]
    for row in range(state.clock.num_running[0]):
        job = state.running[row]
        then = max(state.clock.now[0] + 1, state.jobs.expected[job])
        if then > view.points[count]:
            count += 1
            view.points[count] = then
            for resource in range(state.free.shape[1]):
                view.free_from[count, resource] = view.free_from[count - 1, resource]
        for resource in range(state.free.shape[1]):
            view.free_from[count, resource] += sequence.demand[job, resource]
    view.head.num_points[0] = count + 1
