"""Compiled idle slots by the theory of two jobs and one machine: functions of the observation only.

The policy srpt-cap (shortest remaining work first) chooses the next stage. If this stage would take
the last free executor and no other stage waits, it may wait in an idle slot for the next job. The
distributions of arrivals and lengths are estimated from the latest jobs: exponential gaps at their
rate, and each of their works with equal probability.

# Deviation: Duan & Wu's theory has one machine. Here the machine is the last free executor: until
another executor becomes free, it is the only one for the next job, too. If more than one stage
waits, none gets a slot, so that their rule of skipped pairs holds by itself.
# Deviation: the length of a job is its work on one executor (section IV-A, one-stage abstraction).
The length of the stage that may wait is the time for which it keeps the executor: its remaining
work / the executors that would share it.
# Deviation: a live service drops finished jobs when it needs their rows; arrivals are then
estimated from the remaining ones.
"""

from __future__ import annotations

import math

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.tables import demand
from parcae.cluster.state import NO_EXECUTOR, NO_STAGE, NOT_YET

#: Number of latest jobs from which arrivals and lengths are estimated.
_NUM_LATEST = 200
#: With fewer arrivals, the rate counts as unknown.
_NUM_ENOUGH = 10
#: Steps of a bisection: they find a root to a thousandth of a percent of the interval.
_NUM_HALVINGS = 17


@inlined
def _first_row(view):  # type: ignore[no-untyped-def]
    """Return the row of the first of the latest jobs."""
    return max(0, view.now.num_jobs[0] - _NUM_LATEST)


@kernel
def arrival_rate(view):  # type: ignore[no-untyped-def]
    """Return the arrivals per ms since the first of the latest jobs.

    It is 0 if there are too few arrivals to estimate it.

    The time since the last arrival counts. Jobs that arrived together with the first do not.
    """
    now = view.now
    first = _first_row(view)
    count = 0
    if now.num_jobs[0] == 0:
        return 0.0
    begin_ms = view.jobs.arrival_ms[first]
    for job in range(first, now.num_jobs[0]):
        count += view.jobs.arrival_ms[job] > begin_ms
    return count / max(1.0, now.clock_ms[0] - begin_ms) if count >= _NUM_ENOUGH else 0.0


@kernel
def next_free_ms(view):  # type: ignore[no-untyped-def]
    """Return the expected time until the first busy executor is free; infinite if none is busy."""
    soonest = math.inf
    executors = view.executors
    stages = view.stages
    for executor in range(executors.shape[0]):
        stage = executors.stage[executor]
        started_ms = executors.started_ms[executor]
        if executor == view.now.acting_executor[0]:
            continue
        # An executor that is on its way counts as if its first task started now.
        if stage == NO_STAGE:
            stage = executors.destination[executor]
            started_ms = view.now.clock_ms[0]
        if stage != NO_STAGE:
            left_ms = max(0.0, started_ms + stages.task_ms[stage] - view.now.clock_ms[0])
            waves = (stages.num_tasks[stage] - stages.num_started[stage]) // max(
                1, stages.num_bound[stage]
            )
            soonest = min(soonest, left_ms + waves * stages.task_ms[stage])
    return soonest


@inlined
def _length_ms(view, stage):  # type: ignore[no-untyped-def]
    """Return the time for which the stage would keep the executor."""
    stages = view.stages
    left = stages.num_tasks[stage] - stages.num_started[stage]
    return (
        stages.task_ms[stage]
        * left
        / (1 + stages.num_committed[stage] + stages.num_moving[stage] + stages.num_bound[stage])
    )


@kernel
def _spared_ms(view, length_ms, free_ms):  # type: ignore[no-untyped-def]
    """Return the expected time that an idle slot saves for a job that arrives now.

    The time that the stage then waits is subtracted. Without the slot the job waits until the stage
    is done or another executor is free. With the slot the stage waits for the job, or for that
    executor. The shorter of the two goes first.
    """
    first = _first_row(view)
    total_ms = 0.0
    wait_ms = min(length_ms, free_ms)
    for job in range(first, view.now.num_jobs[0]):
        total_ms += max(0.0, wait_ms - view.jobs.work_ms[job])
    return total_ms / max(1, view.now.num_jobs[0] - first)


@kernel
def slot_among_ms(view, rate, length_ms, free_ms):  # type: ignore[no-untyped-def]
    """Return the idle slot before a stage if another executor is expected to be free in `free_ms`.

    This is Theorem 2 with that executor. A ms of waiting costs the stage 1 ms. If the stage is done
    before the other executor is free, it costs the job that arrives meanwhile as much. It gains
    `rate` times what such a job saves. If no other executor works, the balance stays the same until
    the next arrival (see `theory.waiting_gain`). Otherwise it holds until the other executor is so
    close to being free that waiting does not pay any more.
    """
    shared = 1.0 - math.exp(-rate * length_ms) if length_ms <= free_ms else 0.0
    if rate * _spared_ms(view, length_ms, free_ms) <= 1.0 + shared:
        return 0.0
    if free_ms == math.inf:
        return length_ms
    low = 0.0
    high = min(free_ms, length_ms)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if rate * _spared_ms(view, length_ms, middle) > 1.0:
            high = middle
        else:
            low = middle
    return min(length_ms, free_ms - high)


@kernel
def _slope(view, rate, length_ms, slot_ms):  # type: ignore[no-untyped-def]
    """Return the derivative of twice the expected average JCT with respect to the slot's length.

    See `theory.best_slot_exponential`.
    """
    first = _first_row(view)
    late = 0.0
    work_ms = 0.0
    for job in range(first, view.now.num_jobs[0]):
        work_ms += view.jobs.work_ms[job]
        late += max(0.0, 1.0 - math.exp(-rate * (slot_ms - view.jobs.work_ms[job])))
    count = max(1, view.now.num_jobs[0] - first)
    gain = rate * (length_ms - work_ms / count) - 2.0 + math.exp(-rate * length_ms)
    return late / count - gain * math.exp(-rate * slot_ms)


@kernel
def slot_alone_ms(view, rate, length_ms):  # type: ignore[no-untyped-def]
    """Return the idle slot before a stage by Theorem 2, as if no other executor ever became
    free.
    """
    if _slope(view, rate, length_ms, 0.0) >= 0.0:
        return 0.0
    low = 0.0
    high = length_ms
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if _slope(view, rate, length_ms, middle) < 0.0:
            low = middle
        else:
            high = middle
    return low


@inlined
def _may_wait(view, stage):  # type: ignore[no-untyped-def]
    """Return whether the stage may wait in an idle slot.

    This is so if exactly one executor is free, no other stage waits for it, and the job that the
    stage could wait for has not arrived yet.
    """
    now = view.now
    from_ms = view.stages.hold_from_ms[stage]
    free = now.num_idle[0] + (now.acting_executor[0] != NO_EXECUTOR)
    if free != 1 or now.num_schedulable[0] != 1 or demand(view, stage) == 0:
        return False
    # A slot that has begun goes on until its end, unless a job has arrived since it began.
    is_running = (
        view.stages.hold_until_ms[stage] > now.clock_ms[0]
        and view.jobs.arrival_ms[now.num_jobs[0] - 1] <= from_ms
    )
    return from_ms == NOT_YET or is_running


@kernel
def slot_ms(view, stage, is_alone):  # type: ignore[no-untyped-def]
    """Return the idle slot, from now on, before a stage that could take the last free executor.

    The whole slot lasts at most as long as the stage.
    """
    rate = arrival_rate(view)
    length_ms = _length_ms(view, stage)
    if rate == 0.0 or not _may_wait(view, stage):
        return 0
    wait_ms = (
        slot_alone_ms(view, rate, length_ms)
        if is_alone
        else slot_among_ms(view, rate, length_ms, next_free_ms(view))
    )
    if view.stages.hold_from_ms[stage] != NOT_YET:
        wait_ms = min(wait_ms, view.stages.hold_from_ms[stage] + length_ms - view.now.clock_ms[0])
    return max(0, math.floor(wait_ms))
