"""Virtual runs that go along with a real one, as a policy that must earn its decisions needs them.

With exact times, four virtual runs of the same jobs follow the real one: under EASY, EASY in order
of expansion factors, EASY with the shortest job first, and the policy. They know what a scheduler
knows: until a job has ended in the real run, its duration counts as its estimate times the error of
an estimate of another job that has ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, mix, row_of
from parcae.rigid.kernels.transitions import advance, begin, next_event, place, take
from parcae.rigid.kernels.views import show
from parcae.rigid.layout import NO_JOB, NOT_YET, VOID, Cost, Packing, SequenceTables, View
from parcae.rigid.policies.kernels.backfilling import Order
from parcae.rigid.units import copy_units

#: The virtual runs: EASY in each order, and the policy.
EASY = int(Order.ARRIVAL)
EXPANSION = int(Order.EXPANSION)
SHORTEST = int(Order.SHORTEST)
POLICY = 3
NUM_VIRTUAL = 4
#: Columns of `Virtual.waits`.
TOTAL = 0
_RATE = 1
_TIME = 2
#: Columns of `Virtual.sums`.
JOBS = 0
DONE = 1
_UTILIZATION = int(Cost.UTILIZATION)
#: What is left of all sums after each arrival: what happened long ago counts less.
_MEMORY = 0.999


class Virtual(NamedTuple):
    """The virtual runs, and what is known of the jobs' durations."""

    states: Packing  # of NUM_VIRTUAL clusters
    specs: Any  # SPEC[num_jobs], with durations as far as they are known
    seen: View  # of the virtual run that decides now
    weight: Any  # float64[num_jobs], 1 / bounded duration as far as it is known
    has_ended: Any  # int64[num_jobs], 1 if the job has ended in the real run
    # float64[NUM_VIRTUAL, 3], of every virtual run: sum over jobs of (wait x weight) up to a time,
    # its growth per unit of time, the time
    waits: Any
    error: Any  # float64[num_jobs], duration / estimate of the jobs that have ended, in this order
    num_ended: Any  # int64[1]
    error_sum: Any  # float64[1], sum of `error`
    # float64[2, 2]: arrived jobs, work done in the real run; below, both without forgetting
    sums: Any
    work: Any  # float64[2, NUM_VIRTUAL]: the same of the virtual runs
    is_settled: Any  # int64[NUM_VIRTUAL], 1 if no further job starts before the next event


@inlined
def _expect(virtual, sequence, job):  # type: ignore[no-untyped-def]
    """Set the duration and the weight that a job that arrives is expected to have."""
    ended = virtual.num_ended[0]
    error = 1.0
    if ended > 0:
        error = virtual.error[mix(np.uint64(job)) % np.uint64(ended)]
    expected = max(1.0, sequence.specs.estimate[job] * error)
    virtual.specs.duration[job] = int(expected)
    virtual.weight[job] = 1.0 / max(sequence.rules[0].bound, expected)


@inlined
def _known_sequence(virtual, sequence):  # type: ignore[no-untyped-def]
    """Return the sequence as the virtual runs know it."""
    return SequenceTables(virtual.specs, sequence.demand, sequence.num_jobs, sequence.rules)


@inlined
def _accrue(virtual, run, now):  # type: ignore[no-untyped-def]
    waits = virtual.waits
    waits[run, TOTAL] += waits[run, _RATE] * (now - waits[run, _TIME])
    waits[run, _TIME] = now


@kernel
def begin_virtual(virtual, state, sequence):  # type: ignore[no-untyped-def]
    """Begin the virtual runs of a cluster that has just begun."""
    clock = state.clock[0]
    virtual.waits[:] = 0.0
    virtual.sums[:] = 0.0
    virtual.work[:] = 0.0
    virtual.num_ended[0] = 0
    virtual.error_sum[0] = 0.0
    for job in range(sequence.num_jobs[0]):
        virtual.has_ended[job] = 0
        virtual.specs.arrival[job] = sequence.specs.arrival[job]
        virtual.specs.estimate[job] = sequence.specs.estimate[job]
        virtual.specs.log_estimate[job] = sequence.specs.log_estimate[job]
        _expect(virtual, sequence, job)
    known = _known_sequence(virtual, sequence)
    for run in range(NUM_VIRTUAL):
        one = row_of(virtual.states, run)
        copy_units(state.capacity, one.capacity)
        begin(one, known)
        virtual.is_settled[run] = 0
        virtual.waits[run, _TIME] = clock.now
        for job in range(clock.num_arrived):
            virtual.waits[run, _RATE] += virtual.weight[job]


@inlined
def _extra(estimate, length):  # type: ignore[no-untyped-def]
    """Return by how much longer a job will run that has run for a length: at most as long again."""
    return length if estimate <= length else min(estimate - length, length)


@inlined
def _postpone(virtual, one, real, then):  # type: ignore[no-untyped-def]
    """Let jobs run on in a virtual run that have already run longer in the real one.

    Returns whether there was one among those that would end by `then`.
    """
    is_any = False
    for row in range(one.clock[0].num_running):
        job = one.running[row]
        if one.jobs.finish[job] > then or virtual.has_ended[job] == 1:
            continue
        length = one.jobs.finish[job] - one.jobs.start[job]
        if real.jobs.start[job] != NOT_YET and then - real.jobs.start[job] >= length:
            one.jobs.finish[job] += _extra(virtual.specs.estimate[job], length)
            is_any = True
    return is_any


@kernel
def must_decide(virtual, run, real, sequence):  # type: ignore[no-untyped-def]
    """Run a virtual cluster on to its next decision, or to the real cluster's time. Returns whether
    there is a decision to take, see `answer`.
    """
    one = row_of(virtual.states, run)
    clock = one.clock[0]
    known = _known_sequence(virtual, sequence)
    while clock.is_over == 0:
        if virtual.is_settled[run] == 0:
            show(one, known, virtual.seen)
            return True
        then = next_event(one, known)
        if then > real.clock[0].now:
            return False
        if _postpone(virtual, one, real, then):
            continue
        before = clock.num_arrived
        if clock.num_running == 0 and before == sequence.num_jobs[0]:
            return False
        advance(one, known)
        virtual.is_settled[run] = 0
        for job in range(before, clock.num_arrived):
            _accrue(virtual, run, clock.now)
            virtual.waits[run, _RATE] += virtual.weight[job]
    return False


@kernel
def answer(virtual, run, sequence, slot):  # type: ignore[no-untyped-def]
    """Take a decision in a virtual run."""
    one = row_of(virtual.states, run)
    job = NO_JOB if slot == VOID else one.slots[slot]
    # Time passes also if the job cannot be placed, as in a real run.
    if slot == VOID or not place(one, _known_sequence(virtual, sequence), slot):
        virtual.is_settled[run] = 1
        return
    _accrue(virtual, run, one.clock[0].now)
    virtual.waits[run, _RATE] -= virtual.weight[job]


@inlined
def _end(virtual, sequence, job, before):  # type: ignore[no-untyped-def]
    """Learn the duration of a job that ends in the real run.

    The virtual runs have been played up to the time `before`, that of the last real event.
    """
    specs = sequence.specs
    duration = specs.duration[job]
    virtual.error[virtual.num_ended[0]] = duration / specs.estimate[job]
    virtual.num_ended[0] += 1
    virtual.error_sum[0] += duration / specs.estimate[job]
    weight = 1.0 / max(sequence.rules[0].bound, float(duration))
    change = weight - virtual.weight[job]
    virtual.weight[job] = weight
    virtual.has_ended[job] = 1
    virtual.specs.duration[job] = duration
    for run in range(NUM_VIRTUAL):
        jobs = virtual.states.jobs[run]
        waits = virtual.waits
        if jobs.start[job] == NOT_YET:
            waits[run, TOTAL] += change * (waits[run, _TIME] - specs.arrival[job])
            waits[run, _RATE] += change
        else:
            waits[run, TOTAL] += change * (jobs.start[job] - specs.arrival[job])
            if jobs.finish[job] > before:
                jobs.finish[job] = max(before, jobs.start[job] + duration)


@kernel
def act(virtual, state, sequence, slot):  # type: ignore[no-untyped-def]
    """Take one decision in the real run. Returns whether time passed, so that the virtual runs must
    follow.
    """
    clock = state.clock[0]
    if slot != VOID:
        return not take(state, sequence, slot)
    then = next_event(state, sequence)
    for row in range(clock.num_running):
        job = state.running[row]
        if state.jobs.finish[job] <= then:
            _end(virtual, sequence, job, clock.now)
    before = clock.num_arrived
    take(state, sequence, VOID)
    for job in range(before, clock.num_arrived):
        _expect(virtual, sequence, job)
    return True


@inlined
def _update(sums, column, whole, left):  # type: ignore[no-untyped-def]
    """Add what a sum without forgetting has grown by, and let the sum count less."""
    sums[0, column] = (sums[0, column] + whole - sums[1, column]) * left
    sums[1, column] = whole


@kernel
def forget(virtual, state):  # type: ignore[no-untyped-def]
    """Bring all sums up to the present, and let them count less by the arrivals since."""
    now = state.clock[0].now
    sums = virtual.sums
    work = virtual.work
    arrived = state.clock[0].num_arrived - sums[1, JOBS]
    left = _MEMORY**arrived
    _update(sums, JOBS, float(state.clock[0].num_arrived), left)
    _update(sums, DONE, -state.costs[_UTILIZATION], left)
    for run in range(NUM_VIRTUAL):
        one = row_of(virtual.states, run)
        since = now - one.clock[0].now
        _update(work, run, one.clock[0].used * since - one.costs[_UTILIZATION], left)
        _accrue(virtual, run, now)
        virtual.waits[run, TOTAL] *= left
