"""What a policy is shown."""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, mix
from parcae.packing.kernels.transitions import first_fit
from parcae.packing.layout import NO_JOB, Asked, Packing, View

_STEP = np.uint64(0x9E3779B97F4A7C15)


@inlined
def show(state, asked, view):  # type: ignore[no-untyped-def]
    """Fill the view with what may be known now."""
    clock = state.clock
    head = view.head
    head.now[0] = clock.now[0]
    head.num_backlog[0] = clock.num_backlog[0]
    head.is_exact[0] = asked.rules.is_exact[0]
    head.num_running[0] = clock.num_running[0]
    head.num_arrived[0] = clock.num_arrived[0]
    head.arrived_work[0] = clock.arrived_work[0]
    head.log_told[0] = clock.log_told[0]
    head.luck[0] = mix(mix(state.luck[0] + _STEP) + np.uint64(clock.num_decisions[0]) * _STEP)
    head.since_arrival[0] = clock.now[0] - max(0, clock.last_arrival[0])
    for resource in range(state.free.shape[1]):
        view.free[resource] = state.free[0, resource]
        view.capacity[resource] = state.capacity[resource]
    count = 0
    slots = clock.num_waiting[0] if asked.rules.is_exact[0] == 1 else state.slots.shape[0]
    for slot in range(slots):
        if state.slots[slot] != NO_JOB:
            _show_job(state, asked, view, slot, count)
            count += 1
    head.num_jobs[0] = count
    if head.wants_profile[0] == 1:
        _show_profile(state, asked, view)


@inlined
def _show_job(state, asked, view, slot, row):  # type: ignore[no-untyped-def]
    job = state.slots[slot]
    seen = view.jobs
    seen.slot[row] = slot
    seen.told[row] = asked.specs.told[job]
    seen.log_told[row] = asked.specs.log_told[job]
    seen.age[row] = state.clock.now[0] - asked.specs.arrival[job]
    fits = True
    for resource in range(state.free.shape[1]):
        view.demand[row, resource] = asked.demand[job, resource]
        fits = fits and state.free[0, resource] >= asked.demand[job, resource]
    seen.can_start[row] = int(fits and first_fit(state, asked, job) == 0)


@inlined
def _show_profile(state, asked, view):  # type: ignore[no-untyped-def]
    if asked.rules.is_exact[0] == 1:
        _profile_of_running(state, asked, view)
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
def _profile_of_running(state, asked, view):  # type: ignore[no-untyped-def]
    """What becomes free as the running finish when expected; who is late is expected at any moment."""
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
            view.free_from[count, resource] += asked.demand[job, resource]
    view.head.num_points[0] = count + 1


@inlined
def cluster(states, row):  # type: ignore[no-untyped-def]
    """One cluster's tables."""
    return Packing(
        states.clock[row], states.jobs[row], states.slots[row], states.backlog[row], states.running[row], states.free[row],
        states.capacity[row], states.costs[row], states.luck[row],
    )  # fmt: skip


@inlined
def sequence_of(asked, row):  # type: ignore[no-untyped-def]
    """One sequence's tables."""
    return Asked(asked.specs[row], asked.demand[row], asked.num_jobs[row], asked.rules[row])


@inlined
def view_of(views, row):  # type: ignore[no-untyped-def]
    """One cluster's view."""
    return View(
        views.head[row], views.jobs[row], views.demand[row], views.free[row], views.capacity[row], views.points[row],
        views.free_from[row],
    )  # fmt: skip
