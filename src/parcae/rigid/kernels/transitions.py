"""Compiled transitions of a packing cluster: jobs arrive, are placed and finish; time passes.

Source: DeepRM, section 3.1 and 3.2. Time goes in steps, or with exact times from event to event;
everything else is the same in both modes.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.rigid.layout import (
    NO_JOB,
    NOT_YET,
    VOID,
    Cost,
    add_units,
    copy_units,
    fits,
    largest_share,
)

_SLOWDOWN = int(Cost.SLOWDOWN)
_BOUNDED = int(Cost.BOUNDED_SLOWDOWN)
_COMPLETION = int(Cost.COMPLETION)
_UTILIZATION = int(Cost.UTILIZATION)
_MAKESPAN = int(Cost.MAKESPAN)
_BOTH = int(Cost.SLOWDOWN_MAKESPAN)


@inlined
def cluster_of(clusters, row):  # type: ignore[no-untyped-def]
    """Return (state, sequence) of one cluster of many. Arguments: the Clusters, and its row."""
    sequence = row_of(clusters.sequences, clusters.sequence_rows[row])
    return row_of(clusters.states, row), sequence


@kernel
def begin(state, sequence):  # type: ignore[no-untyped-def]
    """Reset the cluster to empty at its start, and admit the jobs that arrive then.

    The caller sets `state.capacity` before.
    """
    _reset(state.clock[0])
    for cost in range(state.costs.shape[0]):
        state.costs[cost] = 0.0
    for slot in range(state.slots.shape[0]):
        state.slots[slot] = NO_JOB
    for job in range(sequence.num_jobs[0]):
        state.jobs.start[job] = state.jobs.finish[job] = state.jobs.expected[job] = NOT_YET
        state.jobs.is_dropped[job] = 0
    for row in range(state.free.shape[0]):
        copy_units(state.capacity, state.free[row])
    if sequence.rules[0].is_exact == 1 and sequence.num_jobs[0] > 0:
        state.clock[0].now = sequence.specs.arrival[0]
    _admit(state, sequence)
    _mark_end(state, sequence)


@inlined
def _reset(clock):  # type: ignore[no-untyped-def]
    """Set the clock's counters and sums to zero."""
    clock.now = clock.num_arrived = clock.num_waiting = clock.num_backlog = clock.first_backlog = 0
    clock.num_running = clock.num_finished = clock.num_dropped = clock.num_decisions = (
        clock.num_placed
    ) = 0
    clock.last_arrival = NOT_YET
    clock.arrived_work = clock.log_estimate = clock.weight = clock.bounded_weight = clock.used = 0.0


@inlined
def _admit(state, sequence):  # type: ignore[no-untyped-def]
    """Admit every job whose arrival has come.

    It takes the first empty slot, else the end of the backlog; else it is dropped and counted.
    """
    clock = state.clock[0]
    while (
        clock.num_arrived < sequence.num_jobs[0]
        and sequence.specs.arrival[clock.num_arrived] <= clock.now
    ):
        job = clock.num_arrived
        clock.num_arrived += 1
        clock.last_arrival = clock.now
        if _enqueue(state, sequence, job):
            clock.weight += 1.0 / sequence.specs.duration[job]
            clock.bounded_weight += 1.0 / max(
                sequence.rules[0].bound, float(sequence.specs.duration[job])
            )
            share = largest_share(sequence.demand[job], state.capacity)
            clock.arrived_work += share * sequence.specs.estimate[job]
            clock.log_estimate += sequence.specs.log_estimate[job]
        else:
            clock.num_dropped += 1
            state.jobs.is_dropped[job] = 1


@inlined
def _enqueue(state, sequence, job):  # type: ignore[no-untyped-def]
    """Put an arriving job into a slot or the backlog. Returns whether there was room."""
    clock = state.clock[0]
    if sequence.rules[0].is_exact == 1:
        state.slots[clock.num_waiting] = job
        clock.num_waiting += 1
        return True
    if clock.num_waiting < state.slots.shape[0]:
        slot = 0
        while state.slots[slot] != NO_JOB:
            slot += 1
        state.slots[slot] = job
        clock.num_waiting += 1
        return True
    if clock.num_backlog < state.backlog.shape[0]:
        state.backlog[(clock.first_backlog + clock.num_backlog) % state.backlog.shape[0]] = job
        clock.num_backlog += 1
        return True
    return False


@inlined
def first_fit(state, sequence, job):  # type: ignore[no-untyped-def]
    """Find the first step at which a job fits until its end within the horizon. Returns steps from
    now, or NOT_YET if the job fits nowhere. With exact times only 0 is possible.
    """
    rules = sequence.rules[0]
    horizon = state.free.shape[0]
    length = sequence.specs.estimate[job]
    if rules.is_exact == 1:
        length = 1
    last = horizon - length - rules.as_coded
    # `offset` is the candidate, `row` the next step to check. Where a step has no room, the search
    # goes on behind it, because every start up to there would need that step.
    offset = 0
    row = 0
    while offset <= last:
        while row < offset + length:
            if not fits(sequence.demand[job], state.free[row]):
                break
            row += 1
        if row == offset + length:
            return offset
        offset = row + 1
        row = offset
    return NOT_YET


@inlined
def place(state, sequence, slot):  # type: ignore[no-untyped-def]
    """Book a slot's job at the first step at which it fits until its end. Returns whether the job
    was booked; False if the slot is empty or the job fits nowhere.
    """
    clock = state.clock[0]
    if slot < 0 or slot >= state.slots.shape[0] or state.slots[slot] == NO_JOB:
        return False
    job = state.slots[slot]
    offset = first_fit(state, sequence, job)
    if offset == NOT_YET:
        return False
    rows = 1 if sequence.rules[0].is_exact == 1 else sequence.specs.estimate[job]
    for row in range(offset, offset + rows):
        add_units(state.free[row], sequence.demand[job], -1)
    jobs = state.jobs
    jobs.start[job] = clock.now + offset
    jobs.finish[job] = jobs.start[job] + sequence.specs.duration[job]
    jobs.expected[job] = jobs.start[job] + sequence.specs.estimate[job]
    _enlist(state, sequence, job)
    _refill(state, sequence, slot)
    clock.num_placed += 1
    return True


@inlined
def _enlist(state, sequence, job):  # type: ignore[no-untyped-def]
    """Add a job to the running ones: in order of placing, with exact times by expected finish."""
    clock = state.clock[0]
    row = clock.num_running
    if sequence.rules[0].is_exact == 1:
        while row > 0 and state.jobs.expected[state.running[row - 1]] > state.jobs.expected[job]:
            state.running[row] = state.running[row - 1]
            row -= 1
        for resource in range(state.free.shape[1]):
            clock.used += sequence.demand[job, resource] / state.capacity[resource]
    state.running[row] = job
    clock.num_running += 1


@inlined
def _refill(state, sequence, slot):  # type: ignore[no-untyped-def]
    """Move the first job of the backlog to the empty slot; exact times: close the gap."""
    clock = state.clock[0]
    if sequence.rules[0].is_exact == 1:
        clock.num_waiting -= 1
        for row in range(slot, clock.num_waiting):
            state.slots[row] = state.slots[row + 1]
        state.slots[clock.num_waiting] = NO_JOB
    elif clock.num_backlog > 0:
        state.slots[slot] = state.backlog[clock.first_backlog]
        clock.first_backlog = (clock.first_backlog + 1) % state.backlog.shape[0]
        clock.num_backlog -= 1
    else:
        state.slots[slot] = NO_JOB
        clock.num_waiting -= 1


@inlined
def advance(state, sequence):  # type: ignore[no-untyped-def]
    """Let time pass to the next step or the next event, and add the costs of that time."""
    rules = sequence.rules[0]
    clock = state.clock[0]
    then = clock.now + 1
    if rules.is_exact == 1:
        then = next_event(state, sequence)
    _charge(state, sequence, then - clock.now)
    clock.now = then
    if rules.is_exact == 0:
        _shift(state)
    _finish(state, sequence)
    _mark_end(state, sequence)
    if clock.is_over == 0:
        _admit(state, sequence)


@inlined
def next_event(state, sequence):  # type: ignore[no-untyped-def]
    """Return the time of the next arrival or finish; now, if there is neither.

    Arguments: the state of one cluster with exact times, and its sequence.
    """
    clock = state.clock[0]
    then = clock.now
    is_known = False
    if clock.num_arrived < sequence.num_jobs[0]:
        then = sequence.specs.arrival[clock.num_arrived]
        is_known = True
    for row in range(clock.num_running):
        finish = state.jobs.finish[state.running[row]]
        if not is_known or finish < then:
            then = finish
            is_known = True
    return then


@inlined
def _charge(state, sequence, steps):  # type: ignore[no-untyped-def]
    """Add the costs of the next `steps` units of time."""
    rules = sequence.rules[0]
    clock = state.clock[0]
    costs = state.costs
    costs[_SLOWDOWN] += clock.weight * steps
    costs[_BOUNDED] += clock.bounded_weight * steps
    present = clock.num_waiting + clock.num_backlog + clock.num_running
    costs[_COMPLETION] += present * steps
    if rules.is_exact == 1:
        costs[_UTILIZATION] -= clock.used * steps
    else:
        for resource in range(state.free.shape[1]):
            costs[_UTILIZATION] -= 1.0 - state.free[0, resource] / state.capacity[resource]
    # The makespan begins with the first arrival, wherever the clock begins.
    is_busy = present > 0 or clock.num_arrived < sequence.num_jobs[0]
    if is_busy and clock.num_arrived > 0:
        costs[_MAKESPAN] += steps
        costs[_BOTH] += (clock.bounded_weight + rules.makespan_weight) * steps


@inlined
def _shift(state):  # type: ignore[no-untyped-def]
    """Move the horizon on by one step; its last row is free."""
    last = state.free.shape[0] - 1
    for row in range(last):
        copy_units(state.free[row + 1], state.free[row])
    copy_units(state.capacity, state.free[last])


@inlined
def _finish(state, sequence):  # type: ignore[no-untyped-def]
    """Remove the finished jobs from the running ones."""
    clock = state.clock[0]
    kept = 0
    row = 0
    count = clock.num_running
    while row < count:
        job = state.running[row]
        if state.jobs.finish[job] <= clock.now:
            _release(state, sequence, job)
            # The released code removes entries from the list that it iterates over. So it skips the
            # next job, which may stay one step longer.
            if sequence.rules[0].as_coded == 1 and row + 1 < count:
                row += 1
                state.running[kept] = state.running[row]
                kept += 1
        else:
            state.running[kept] = job
            kept += 1
        row += 1
    clock.num_running = kept
    # In an empty cluster the sums are exactly 0; setting them removes rounding errors.
    if clock.num_waiting + clock.num_backlog + kept == 0:
        clock.weight = clock.bounded_weight = clock.used = 0.0


@inlined
def _release(state, sequence, job):  # type: ignore[no-untyped-def]
    """Count a job as finished and reduce the sums by its share.

    With exact times, also free its resources; in steps, its bookings end by themselves.
    """
    rules = sequence.rules[0]
    clock = state.clock[0]
    clock.num_finished += 1
    clock.weight -= 1.0 / sequence.specs.duration[job]
    clock.bounded_weight -= 1.0 / max(rules.bound, float(sequence.specs.duration[job]))
    if rules.is_exact == 1:
        add_units(state.free[0], sequence.demand[job], 1)
        for resource in range(state.free.shape[1]):
            clock.used -= sequence.demand[job, resource] / state.capacity[resource]


@inlined
def _mark_end(state, sequence):  # type: ignore[no-untyped-def]
    """Note whether the run is over."""
    clock = state.clock[0]
    rules = sequence.rules[0]
    present = clock.num_waiting + clock.num_backlog + clock.num_running
    is_past = clock.now >= rules.window
    is_done = is_past and present == 0 and clock.num_arrived == sequence.num_jobs[0]
    clock.is_over = int(is_done or (is_past and rules.ends_early == 1))


@inlined
def take(state, sequence, slot):  # type: ignore[no-untyped-def]
    """Take one decision: place a slot's job, or let time pass if it cannot be placed. Returns
    whether a job was placed.
    """
    clock = state.clock[0]
    clock.num_decisions += 1
    is_placed = slot != VOID and place(state, sequence, slot)
    if not is_placed:
        advance(state, sequence)
    if clock.num_decisions >= sequence.rules[0].max_decisions:
        clock.is_over = 1
    return is_placed
