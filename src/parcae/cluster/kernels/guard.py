"""The guard: no job is to end later than so many times its time under fair sharing.

A virtual run of fair sharing gives every job a deadline. When serving the jobs in order of their deadlines would only just meet
one of them, that job and those with earlier deadlines are served first, in that order; all others keep the policy's order.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.estimates import correction, foretold_ms
from parcae.cluster.kernels.virtual import carry_on, foretell_ends, virtual_of
from parcae.kernels import inlined, kernel

#: Tier of guarded jobs: before all that policies order.
_FIRST_TIER = -1e30
#: Two deadlines are told apart by tiers this far from each other.
_TIER_STEP = 1e16


@kernel
def left_to_run(seen, virtual, job):  # type: ignore[no-untyped-def]
    """(core time that the job still needs, its remaining critical path), running tasks counted as half done."""
    stages, first, factor = seen.stages, seen.jobs.stage_start[job], correction(seen, job)
    work_ms, path_ms = 0.0, 0.0
    for stage in range(first, first + seen.jobs.num_stages[job]):
        running = stages.num_bound[stage]
        unstarted = stages.num_tasks[stage] - stages.num_started[stage]
        if running + unstarted > 0:
            work_ms += (unstarted + 0.5 * running) * foretold_ms(seen, stage) * factor
            path_ms = max(path_ms, virtual.stages.path_ms[stage] * factor)
    return work_ms, path_ms


@inlined
def _deadline_ms(seen, virtual, job):  # type: ignore[no-untyped-def]
    arrival_ms = float(seen.jobs.arrival_ms[job])
    return arrival_ms + seen.now.guard[0] * (virtual.jobs.end_ms[job] - arrival_ms)


@kernel
def _sort_by_deadline(seen, virtual):  # type: ignore[no-untyped-def]
    """Jobs in the system by deadline, ascending, in `virtual.jobs.by_left` (Shell's sort: nothing is allocated)."""
    order, count = virtual.jobs.by_left, seen.now.num_active[0]
    for position in range(count):
        order[position] = seen.active[position]
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for row in range(gap, count):
            job, at = order[row], row
            own_ms = _deadline_ms(seen, virtual, job)
            while at >= gap and _deadline_ms(seen, virtual, order[at - gap]) > own_ms:
                order[at] = order[at - gap]
                at -= gap
            order[at] = job
        gap //= 3


#: The rate at which work arrives is learned from so many of the latest jobs.
_LATEST = 128


@kernel
def _arriving_share(seen, virtual, job):  # type: ignore[no-untyped-def]
    """Share of the cores that jobs smaller than this one will take as they arrive: they will have earlier deadlines."""
    first = max(1, seen.now.num_jobs[0] - _LATEST)
    from_ms = seen.jobs.arrival_ms[first - 1]
    elapsed_ms = seen.now.clock_ms[0] - from_ms
    if elapsed_ms <= 0:
        return 0.0
    work_ms, own_ms = 0.0, virtual.jobs.total_ms[job]
    for other in range(first, seen.now.num_jobs[0]):
        if seen.jobs.arrival_ms[other] > from_ms and virtual.jobs.total_ms[other] < own_ms:
            work_ms += virtual.jobs.total_ms[other]
    return min(0.9, work_ms / (elapsed_ms * seen.now.num_executors[0]))


@kernel
def guard_orders(state):  # type: ignore[no-untyped-def]
    """Put the jobs that are about to be late before all others. Changes the orders that the policy wrote."""
    virtual, clock_ms, num_cores = virtual_of(state), state.now.clock_ms[0], state.now.num_executors[0]
    carry_on(state, virtual)
    foretell_ends(state, virtual)
    _sort_by_deadline(state, virtual)
    order, num_urgent, passed_ms = virtual.jobs.by_left, 0, 0.0
    for position in range(state.now.num_active[0]):
        job = order[position]
        work_ms, path_ms = left_to_run(state, virtual, job)
        passed_ms += work_ms
        needed_ms = passed_ms / num_cores / (1.0 - state.now.g1[0] * _arriving_share(state, virtual, job)) + path_ms
        margin_ms = _margin_ms(state, virtual, job)
        if clock_ms + needed_ms + margin_ms >= _deadline_ms(state, virtual, job):
            num_urgent = position + 1
    for position in range(num_urgent):
        job = order[position]
        state.job_orders.tier[job] = _FIRST_TIER + position * _TIER_STEP
        state.job_orders.weight[job] = 0.0


@inlined
def _margin_ms(state, virtual, job):  # type: ignore[no-untyped-def]
    """What is kept in hand: cores come free task by task, and the fluid run is not the real one."""
    allowed_ms = (state.now.guard[0] - 1.0) * (virtual.jobs.end_ms[job] - state.jobs.arrival_ms[job])
    return state.now.g2[0] * max(0.0, allowed_ms) if not math.isnan(allowed_ms) else 0.0
