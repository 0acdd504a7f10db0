"""Compiled transitions of a packing cluster: jobs arrive, are placed and finish; time passes.

Source: DeepRM, section 3.1 and 3.2. Time goes in steps, or with exact times from event to event;
everything else is the same in both modes.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.rigid.layout import NO_JOB, NOT_YET, VOID, Cost

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
    _reset(state.clock)
    for cost in range(state.costs.shape[0]):
        state.costs[cost] = 0.0
    for slot in range(state.slots.shape[0]):
        state.slots[slot] = NO_JOB
    for job in range(sequence.num_jobs[0]):
        state.jobs.start[job] = state.jobs.finish[job] = state.jobs.expected[job] = NOT_YET
        state.jobs.is_dropped[job] = 0
    for row in range(state.free.shape[0]):
        for resource in range(state.free.shape[1]):
            state.free[row, resource] = state.capacity[resource]
    if sequence.rules.is_exact[0] == 1 and sequence.num_jobs[0] > 0:
        state.clock.now[0] = sequence.specs.arrival[0]
    _admit(state, sequence)
    _mark_end(state, sequence)


@inlined
def _reset(clock):  # type: ignore[no-untyped-def]
    """Set the clock's counters and sums to zero."""
    clock.now[0] = clock.num_arrived[0] = clock.num_waiting[0] = clock.num_backlog[
        0
    ] = clock.first_backlog[0] = 0
    clock.num_running[0] = clock.num_finished[0] = clock.num_dropped[0] = clock.num_decisions[
        0
    ] = clock.num_placed[0] = 0
    clock.last_arrival[0] = NOT_YET
    clock.arrived_work[0] = clock.log_estimate[0] = clock.weight[0] = clock.bounded_weight[
        0
    ] = clock.used[0] = 0.0


@inlined
def _admit(state, sequence):  # type: ignore[no-untyped-def]
    """Admit every job whose arrival has come.

    It takes the first empty slot, else the end of the backlog; else it is dropped and counted.
    """
    clock = state.clock
    while (
        clock.num_arrived[0] < sequence.num_jobs[0]
        and sequence.specs.arrival[clock.num_arrived[0]] <= clock.now[0]
    ):
        job = clock.num_arrived[0]
        clock.num_arrived[0] += 1
        clock.last_arrival[0] = clock.now[0]
        if _enqueue(state, sequence, job):
            clock.weight[0] += 1.0 / sequence.specs.duration[job]
            clock.bounded_weight[0] += 1.0 / max(
                sequence.rules.bound[0], float(sequence.specs.duration[job])
            )
            share = 0.0
            for resource in range(sequence.demand.shape[1]):
                share = max(share, sequence.demand[job, resource] / state.capacity[resource])
            clock.arrived_work[0] += share * sequence.specs.estimate[job]
            clock.log_estimate[0] += sequence.specs.log_estimate[job]
        else:
            clock.num_dropped[0] += 1
            state.jobs.is_dropped[job] = 1


@inlined
def _enqueue(state, sequence, job):  # type: ignore[no-untyped-def]
    """Put an arriving job into a slot or the backlog. Returns whether there was room."""
    clock = state.clock
    if sequence.rules.is_exact[0] == 1:
        state.slots[clock.num_waiting[0]] = job
        clock.num_waiting[0] += 1
        return True
    if clock.num_waiting[0] < state.slots.shape[0]:
        slot = 0
        while state.slots[slot] != NO_JOB:
            slot += 1
        state.slots[slot] = job
        clock.num_waiting[0] += 1
        return True
    if clock.num_backlog[0] < state.backlog.shape[0]:
        state.backlog[(clock.first_backlog[0] + clock.num_backlog[0]) % state.backlog.shape[0]] = (
            job
        )
        clock.num_backlog[0] += 1
        return True
    return False


@inlined
def first_fit(state, sequence, job):  # type: ignore[no-untyped-def]
    """Find the first step at which a job fits until its end within the horizon. Returns steps from
    now, or NOT_YET if the job fits nowhere. With exact times only 0 is possible.
    """
    horizon = state.free.shape[0]
    length = sequence.specs.estimate[job]
    if sequence.rules.is_exact[0] == 1:
        length = 1
    last = horizon - length - sequence.rules.as_coded[0]
    # `offset` is the candidate, `row` the next step to check. Where a step has no room, the search
    # goes on behind it, because every start up to there would need that step.
    offset = 0
    row = 0
    while offset <= last:
        while row < offset + length:
            fits = True
            for resource in range(state.free.shape[1]):
                fits = fits and state.free[row, resource] >= sequence.demand[job, resource]
            if not fits:
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
    if slot < 0 or slot >= state.slots.shape[0] or state.slots[slot] == NO_JOB:
        return False
    job = state.slots[slot]
    offset = first_fit(state, sequence, job)
    if offset == NOT_YET:
        return False
    rows = 1 if sequence.rules.is_exact[0] == 1 else sequence.specs.estimate[job]
    for row in range(offset, offset + rows):
        for resource in range(state.free.shape[1]):
            state.free[row, resource] -= sequence.demand[job, resource]
    jobs = state.jobs
    jobs.start[job] = state.clock.now[0] + offset
    jobs.finish[job] = jobs.start[job] + sequence.specs.duration[job]
    jobs.expected[job] = jobs.start[job] + sequence.specs.estimate[job]
    _enlist(state, sequence, job)
    _refill(state, sequence, slot)
    state.clock.num_placed[0] += 1
    return True


@inlined
def _enlist(state, sequence, job):  # type: ignore[no-untyped-def]
    """Add a job to the running ones: in order of placing, with exact times by expected finish."""
    row = state.clock.num_running[0]
    if sequence.rules.is_exact[0] == 1:
        while row > 0 and state.jobs.expected[state.running[row - 1]] > state.jobs.expected[job]:
            state.running[row] = state.running[row - 1]
            row -= 1
        for resource in range(state.free.shape[1]):
            state.clock.used[0] += sequence.demand[job, resource] / state.capacity[resource]
    state.running[row] = job
    state.clock.num_running[0] += 1


@inlined
def _refill(state, sequence, slot):  # type: ignore[no-untyped-def]
    """Move the first job of the backlog to the empty slot; exact times: close the gap."""
    clock = state.clock
    if sequence.rules.is_exact[0] == 1:
        clock.num_waiting[0] -= 1
        for row in range(slot, clock.num_waiting[0]):
            state.slots[row] = state.slots[row + 1]
        state.slots[clock.num_waiting[0]] = NO_JOB
    elif clock.num_backlog[0] > 0:
        state.slots[slot] = state.backlog[clock.first_backlog[0]]
        clock.first_backlog[0] = (clock.first_backlog[0] + 1) % state.backlog.shape[0]
        clock.num_backlog[0] -= 1
    else:
        state.slots[slot] = NO_JOB
        clock.num_waiting[0] -= 1


@inlined
def advance(state, sequence):  # type: ignore[no-untyped-def]
    """Let time pass to the next step or the next event, and add the costs of that time."""
    clock = state.clock
    then = clock.now[0] + 1
    if sequence.rules.is_exact[0] == 1:
        then = next_event(state, sequence)
    _charge(state, sequence, then - clock.now[0])
    clock.now[0] = then
    if sequence.rules.is_exact[0] == 0:
        _shift(state)
    _finish(state, sequence)
    _mark_end(state, sequence)
    if clock.is_over[0] == 0:
        _admit(state, sequence)


@inlined
def next_event(state, sequence):  # type: ignore[no-untyped-def]
    """Return the time of the next arrival or finish; now, if there is neither.

    Arguments: the state of one cluster with exact times, and its sequence.
    """
    clock = state.clock
    then = clock.now[0]
    is_known = False
    if clock.num_arrived[0] < sequence.num_jobs[0]:
        then = sequence.specs.arrival[clock.num_arrived[0]]
        is_known = True
    for row in range(clock.num_running[0]):
        finish = state.jobs.finish[state.running[row]]
        if not is_known or finish < then:
            then = finish
            is_known = True
    return then


@inlined
def _charge(state, sequence, steps):  # type: ignore[no-untyped-def]
    """Add the costs of the next `steps` units of time."""
    clock = state.clock
    costs = state.costs
    costs[_SLOWDOWN] += clock.weight[0] * steps
    costs[_BOUNDED] += clock.bounded_weight[0] * steps
    present = clock.num_waiting[0] + clock.num_backlog[0] + clock.num_running[0]
    costs[_COMPLETION] += present * steps
    if sequence.rules.is_exact[0] == 1:
        costs[_UTILIZATION] -= clock.used[0] * steps
    else:
        for resource in range(state.free.shape[1]):
            costs[_UTILIZATION] -= 1.0 - state.free[0, resource] / state.capacity[resource]
    # The makespan begins with the first arrival, wherever the clock begins.
    is_busy = present > 0 or clock.num_arrived[0] < sequence.num_jobs[0]
    if is_busy and clock.num_arrived[0] > 0:
        costs[_MAKESPAN] += steps
        costs[_BOTH] += (clock.bounded_weight[0] + sequence.rules.makespan_weight[0]) * steps


@inlined
def _shift(state):  # type: ignore[no-untyped-def]
    """Move the horizon on by one step; its last row is free."""
    last = state.free.shape[0] - 1
    for resource in range(state.free.shape[1]):
        for row in range(last):
            state.free[row, resource] = state.free[row + 1, resource]
        state.free[last, resource] = state.capacity[resource]


@inlined
def _finish(state, sequence):  # type: ignore[no-untyped-def]
    """Remove the finished jobs from the running ones."""
    clock = state.clock
    kept = 0
    row = 0
    count = clock.num_running[0]
    while row < count:
        job = state.running[row]
        if state.jobs.finish[job] <= clock.now[0]:
            _release(state, sequence, job)
            # The released code removes entries from the list that it iterates over. So it skips the
            # next job, which may stay one step longer.
            if sequence.rules.as_coded[0] == 1 and row + 1 < count:
                row += 1
                state.running[kept] = state.running[row]
                kept += 1
        else:
            state.running[kept] = job
            kept += 1
        row += 1
    clock.num_running[0] = kept
    # In an empty cluster the sums are exactly 0; setting them removes rounding errors.
    if clock.num_waiting[0] + clock.num_backlog[0] + kept == 0:
        clock.weight[0] = clock.bounded_weight[0] = clock.used[0] = 0.0


@inlined
def _release(state, sequence, job):  # type: ignore[no-untyped-def]
    """Count a job as finished and reduce the sums by its share.

    With exact times, also free its resources; in steps, its bookings end by themselves.
    """
    clock = state.clock
    clock.num_finished[0] += 1
    clock.weight[0] -= 1.0 / sequence.specs.duration[job]
    clock.bounded_weight[0] -= 1.0 / max(
        sequence.rules.bound[0], float(sequence.specs.duration[job])
    )
    if sequence.rules.is_exact[0] == 1:
        for resource in range(state.free.shape[1]):
            state.free[0, resource] += sequence.demand[job, resource]
            clock.used[0] -= sequence.demand[job, resource] / state.capacity[resource]


@inlined
def _mark_end(state, sequence):  # type: ignore[no-untyped-def]
    """Note whether the run is over."""
    clock = state.clock
    rules = sequence.rules
    present = clock.num_waiting[0] + clock.num_backlog[0] + clock.num_running[0]
    is_past = clock.now[0] >= rules.window[0]
    is_done = is_past and present == 0 and clock.num_arrived[0] == sequence.num_jobs[0]
    clock.is_over[0] = int(is_done or (is_past and rules.ends_early[0] == 1))


@inlined
def take(state, sequence, slot):  # type: ignore[no-untyped-def]
    """Take one decision: place a slot's job, or let time pass if it cannot be placed. Returns
    whether a job was placed.
    """
    clock = state.clock
    clock.num_decisions[0] += 1
    is_placed = slot != VOID and place(state, sequence, slot)
    if not is_placed:
        advance(state, sequence)
    if clock.num_decisions[0] >= sequence.rules.max_decisions[0]:
        clock.is_over[0] = 1
    return is_placed
