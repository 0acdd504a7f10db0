"""The guard: no job may end later than a given multiple of its time under fair sharing.

A virtual run of fair sharing gives every job a deadline. A job is urgent if serving all jobs in
order of their deadlines would only just meet its deadline. Urgent jobs, and jobs with earlier
deadlines, are served before all others; among themselves they keep the policy's order. A job that
can no longer meet its deadline gets the next one: with a bound of 1.1, 1.2 times its time under
fair sharing instead of 1.1.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import NOTHING, deferred, inlined, kernel, sort_rows
from parcae.cluster.kernels.tables import correction, stages_of
from parcae.cluster.kernels.virtual import advance_virtual_run, predict_ends, virtual_of
from parcae.cluster.state import NOT_YET, UNLIMITED

#: Share of the expected arriving work with earlier deadlines that the guard takes into account.
_ARRIVALS_COUNT = 0.6
#: Share of the allowed delay that is kept as a margin: the virtual run only approximates Spark's
#: FAIR.
_MARGIN = 0.75
#: The arrival rate of work is estimated from this many of the latest jobs.
_LATEST = 128
#: The guard's next wake-up is when the job with the least slack would become urgent, but not before
#: this share of that job's margin has passed.
_LEAST_WAIT = 0.1
#: Tiers and waiting times beyond this are treated as infinite.
_LARGEST_TIER = 1e12


@kernel
def remaining_work(state, virtual, job):  # type: ignore[no-untyped-def]
    """Estimate (core time that the job still needs, its remaining critical path), in ms.

    A running task counts as half done.
    """
    stages = state.stages
    factor = correction(state, job)
    work_ms = 0.0
    path_ms = 0.0
    for stage in stages_of(state, job):
        running = stages.num_bound[stage]
        unstarted = stages.num_tasks[stage] - stages.num_started[stage]
        if running + unstarted > 0:
            task_ms = stages.task_ms[stage] * factor
            done_ms = 0.5 * task_ms if unstarted == 0 else 0.0
            work_ms += (unstarted + 0.5 * running) * task_ms
            path_ms = max(path_ms, virtual.stages.path_ms[stage] * factor - done_ms)
    return work_ms, path_ms


@kernel
def _set_deadlines(state, virtual):  # type: ignore[no-untyped-def]
    """Write every job's deadline, its remaining work (`left_ms`) and its time with all cores."""
    jobs = virtual.jobs
    now = state.now
    allowed = now.guard[0] - 1.0
    for position in range(now.num_active[0]):
        job = state.active[position]
        arrival_ms = float(state.jobs.arrival_ms[job])
        fair_ms = max(1.0, jobs.end_ms[job] - arrival_ms)
        work_ms, path_ms = remaining_work(state, virtual, job)
        alone_ms = max(work_ms / now.num_executors[0], path_ms)
        # If even all cores could not meet the first deadline, promise the first multiple that they
        # can.
        least_delay = (now.clock_ms[0] + alone_ms - arrival_ms) / fair_ms - 1.0
        delay = allowed * max(1.0, math.ceil(least_delay / allowed))
        jobs.left_ms[job] = work_ms
        jobs.alone_ms[job] = alone_ms
        jobs.deadline_ms[job] = arrival_ms + fair_ms * (1.0 + delay)
        jobs.urgency[job] = 0


@kernel
def _arriving_share(state, virtual, job):  # type: ignore[no-untyped-def]
    """Estimate the share of the cores that smaller jobs will take as they arrive.

    They will have earlier deadlines than this job.
    """
    first = max(1, state.now.num_jobs[0] - _LATEST)
    from_ms = state.jobs.arrival_ms[first - 1]
    elapsed_ms = state.now.clock_ms[0] - from_ms
    if elapsed_ms <= 0:
        return 0.0
    work_ms = 0.0
    total_ms = virtual.jobs.total_ms[job]
    for other in range(first, state.now.num_jobs[0]):
        if state.jobs.arrival_ms[other] > from_ms and virtual.jobs.total_ms[other] < total_ms:
            work_ms += virtual.jobs.total_ms[other]
    return min(0.9, work_ms / (elapsed_ms * state.now.num_executors[0]))


@kernel
def _find_urgent(state, virtual):  # type: ignore[no-untyped-def]
    """Find the urgent jobs; `by_left` holds the jobs in order of their deadlines.

    Each urgent job starts a new level of urgency, which the jobs with earlier deadlines share.
    Returns (number of levels, time until the guard has to check again in ms).
    """
    jobs = virtual.jobs
    order = virtual.jobs.by_left
    now = state.now
    num_urgent = 0
    urgency = 0
    ahead_ms = 0.0  # work of the jobs with earlier deadlines
    wait_ms = math.inf
    for position in range(now.num_active[0]):
        job = order[position]
        free_share = 1.0 - _ARRIVALS_COUNT * _arriving_share(state, virtual, job)
        needed_ms = (ahead_ms / now.num_executors[0] + jobs.alone_ms[job]) / free_share
        ahead_ms += jobs.left_ms[job]
        allowed_ms = (now.guard[0] - 1.0) * (jobs.end_ms[job] - state.jobs.arrival_ms[job])
        margin_ms = _MARGIN * max(0.0, allowed_ms)
        slack_ms = jobs.deadline_ms[job] - now.clock_ms[0] - needed_ms - margin_ms
        if slack_ms <= 0.0:
            urgency += 1
            for earlier in range(num_urgent, position + 1):
                jobs.urgency[order[earlier]] = urgency
            num_urgent = position + 1
            _lift_limits(state, job)
        else:
            wait_ms = min(wait_ms, max(slack_ms, _LEAST_WAIT * margin_ms))
    return urgency, wait_ms


@inlined
def _lift_limits(state, job):  # type: ignore[no-untyped-def]
    """Remove the limits that the policy set for the job."""
    state.job_orders.limit[job] = UNLIMITED
    for stage in stages_of(state, job):
        state.stage_orders.limit[stage] = UNLIMITED


@kernel
def _span_of_tiers(state):  # type: ignore[no-untyped-def]
    """Return a number larger than the difference between the tiers of any two stages."""
    least = 0.0
    most = 0.0
    for position in range(state.now.num_active[0]):
        job = state.active[position]
        for stage in stages_of(state, job):
            tier = state.job_orders.tier[job] + state.stage_orders.tier[stage]
            if -_LARGEST_TIER < tier < _LARGEST_TIER:
                least = min(least, tier)
                most = max(most, tier)
    return most - least + 1.0


@deferred(NOTHING)
def guard_orders(state):  # type: ignore[no-untyped-def]
    """Move urgent jobs before all others, in the orders that the policy has just written.

    Sets the wake-up to the time when another job becomes urgent, if that is earlier than the
    policy's. Takes O(jobs log jobs + stages).
    """
    virtual = virtual_of(state)
    now = state.now
    tiers = state.job_orders.tier
    advance_virtual_run(state, virtual)
    predict_ends(state, virtual)
    _set_deadlines(state, virtual)
    for position in range(now.num_active[0]):
        virtual.jobs.by_left[position] = state.active[position]
    sort_rows(virtual.jobs.by_left, virtual.jobs.deadline_ms, now.num_active[0])
    num_urgencies, wait_ms = _find_urgent(state, virtual)
    if num_urgencies > 0:
        span = _span_of_tiers(state)
        for position in range(now.num_active[0]):
            job = state.active[position]
            urgency = virtual.jobs.urgency[job]
            if urgency > 0:
                # Shifting by multiples of the span keeps the policy's order within a level of
                # urgency.
                tier = min(max(tiers[job], -_LARGEST_TIER), _LARGEST_TIER)
                tiers[job] = tier - (1 + num_urgencies - urgency) * span
    if wait_ms < _LARGEST_TIER:
        wake_ms = now.clock_ms[0] + np.int64(wait_ms) + 1
        if now.wake_ms[0] == NOT_YET or wake_ms < now.wake_ms[0]:
            now.wake_ms[0] = wake_ms
