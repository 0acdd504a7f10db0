"""The theory of two jobs and one machine, compiled: the idle slot before a stage, a pure function of the observation.

The policy srpt-cap (shortest remaining work first) says which stage is next; where that takes the
last free executor and nobody else waits, the stage may wait for the next job in an idle slot. Arrivals and lengths are learned
from the jobs that have come: exponential gaps at their rate, and each of their works as likely as any other.

# Deviation: Duan & Wu's theory knows one machine. Here it is the last free executor; until another becomes free it is the only
# one for the next job, too. Where more than one stage waits, none gets a slot, so that the rule of skipped pairs keeps itself.
# Deviation: a job counts by its work on one executor (section IV-A, one-stage abstraction), the stage that may wait by what it
# keeps the executor for: the work that it has left / the executors that would share it.
# Deviation: a live service forgets jobs that are done when it needs their rows; arrivals are then learned from those it knows.
"""

from __future__ import annotations

import math

from parcae.cluster.kernels.tables import demand
from parcae.cluster.state import NO_EXECUTOR, NO_STAGE, NOT_YET
from parcae.kernels import inlined, kernel

#: The jobs that came last, of which the law of arrivals is learned.
_NUM_LATEST = 200
#: Arrivals before which nothing is known of their rate.
_NUM_ENOUGH = 10
#: Halvings of an interval that a root is looked for in: to a thousandth of a percent of it.
_NUM_HALVINGS = 17


@inlined
def _first_row(seen):  # type: ignore[no-untyped-def]
    return max(0, seen.now.num_jobs[0] - _NUM_LATEST)


@kernel
def arrival_rate(seen):  # type: ignore[no-untyped-def]
    """Arrivals a ms since the first of the latest jobs; 0 until there are enough to tell.

    Time that passed without one counts. Jobs that came together with the first do not.
    """
    now = seen.now
    first = _first_row(seen)
    count = 0
    if now.num_jobs[0] == 0:
        return 0.0
    begin_ms = seen.jobs.arrival_ms[first]
    for job in range(first, now.num_jobs[0]):
        count += seen.jobs.arrival_ms[job] > begin_ms
    return count / max(1.0, now.clock_ms[0] - begin_ms) if count >= _NUM_ENOUGH else 0.0


@kernel
def next_free_ms(seen):  # type: ignore[no-untyped-def]
    """Time until the first of the working executors is expected to be free; infinite where none works."""
    soonest = math.inf
    executors = seen.executors
    stages = seen.stages
    for executor in range(executors.shape[0]):
        stage = executors.stage[executor]
        started_ms = executors.started_ms[executor]
        if executor == seen.now.acting_executor[0]:
            continue
        if stage == NO_STAGE:
            stage = executors.destination[executor]
            started_ms = seen.now.clock_ms[0]
        if stage != NO_STAGE:
            left_ms = max(0.0, started_ms + stages.task_ms[stage] - seen.now.clock_ms[0])
            waves = (stages.num_tasks[stage] - stages.num_started[stage]) // max(
                1, stages.num_bound[stage]
            )
            soonest = min(soonest, left_ms + waves * stages.task_ms[stage])
    return soonest


@inlined
def _length_ms(seen, stage):  # type: ignore[no-untyped-def]
    """For how long the stage would keep the executor."""
    stages = seen.stages
    left = stages.num_tasks[stage] - stages.num_started[stage]
    return (
        stages.task_ms[stage]
        * left
        / (1 + stages.num_committed[stage] + stages.num_moving[stage] + stages.num_bound[stage])
    )


@kernel
def _spared_ms(seen, length_ms, free_ms):  # type: ignore[no-untyped-def]
    """What a job that comes now is expected to be spared where the stage has not started yet, less what the stage then waits.

    Without the slot the job waits until the stage is done, or another executor is free; with it the stage waits for the job, or
    for that executor. The shorter goes first.
    """
    first = _first_row(seen)
    total_ms = 0.0
    wait_ms = min(length_ms, free_ms)
    for job in range(first, seen.now.num_jobs[0]):
        total_ms += max(0.0, wait_ms - seen.jobs.work_ms[job])
    return total_ms / max(1, seen.now.num_jobs[0] - first)


@kernel
def slot_among_ms(seen, rate, length_ms, free_ms):  # type: ignore[no-untyped-def]
    """The idle slot before a stage, where another executor is expected to be free in `free_ms`.

    Theorem 2 with that executor: a ms of waiting costs the stage 1 ms and, where it is done before the other is free, as much
    for the job that comes meanwhile; it gains `rate` times what such a job is spared. With nobody else, that stays so until the
    next arrival (see `theory.waiting_gain`); else until the other executor is so near that waiting pays no more.
    """
    shared = 1.0 - math.exp(-rate * length_ms) if length_ms <= free_ms else 0.0
    if rate * _spared_ms(seen, length_ms, free_ms) <= 1.0 + shared:
        return 0.0
    if free_ms == math.inf:
        return length_ms
    low = 0.0
    high = min(free_ms, length_ms)
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if rate * _spared_ms(seen, length_ms, middle) > 1.0:
            high = middle
        else:
            low = middle
    return min(length_ms, free_ms - high)


@kernel
def _slope(seen, rate, length_ms, slot_ms):  # type: ignore[no-untyped-def]
    """The derivative of twice the expected average JCT after a slot (see `theory.best_slot_exponential`)."""
    first = _first_row(seen)
    late = 0.0
    work_ms = 0.0
    for job in range(first, seen.now.num_jobs[0]):
        work_ms += seen.jobs.work_ms[job]
        late += max(0.0, 1.0 - math.exp(-rate * (slot_ms - seen.jobs.work_ms[job])))
    count = max(1, seen.now.num_jobs[0] - first)
    gain = rate * (length_ms - work_ms / count) - 2.0 + math.exp(-rate * length_ms)
    return late / count - gain * math.exp(-rate * slot_ms)


@kernel
def slot_alone_ms(seen, rate, length_ms):  # type: ignore[no-untyped-def]
    """The idle slot before a stage by Theorem 2 to the letter, as if no other executor would ever be free."""
    if _slope(seen, rate, length_ms, 0.0) >= 0.0:
        return 0.0
    low = 0.0
    high = length_ms
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if _slope(seen, rate, length_ms, middle) < 0.0:
            low = middle
        else:
            high = middle
    return low


@inlined
def _may_wait(seen, stage):  # type: ignore[no-untyped-def]
    """Whether one executor is free, no other stage wants it, and the job that the stage could wait for has not come yet."""
    now = seen.now
    from_ms = seen.stages.hold_from_ms[stage]
    free = now.num_idle[0] + (now.acting_executor[0] != NO_EXECUTOR)
    if free != 1 or now.num_schedulable[0] != 1 or demand(seen, stage) == 0:
        return False
    is_running = (
        seen.stages.hold_until_ms[stage] > now.clock_ms[0]
        and seen.jobs.arrival_ms[now.num_jobs[0] - 1] <= from_ms
    )
    return from_ms == NOT_YET or is_running


@kernel
def slot_ms(seen, stage, is_alone):  # type: ignore[no-untyped-def]
    """The idle slot before a stage that could take the last free executor, from now on; at most the stage's length in all."""
    rate = arrival_rate(seen)
    length_ms = _length_ms(seen, stage)
    if rate == 0.0 or not _may_wait(seen, stage):
        return 0
    wait_ms = (
        slot_alone_ms(seen, rate, length_ms)
        if is_alone
        else slot_among_ms(seen, rate, length_ms, next_free_ms(seen))
    )
    if seen.stages.hold_from_ms[stage] != NOT_YET:
        wait_ms = min(wait_ms, seen.stages.hold_from_ms[stage] + length_ms - seen.now.clock_ms[0])
    return max(0, math.floor(wait_ms))
