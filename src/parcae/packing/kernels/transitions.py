"""What happens: a job arrives, is placed, finishes; time passes.

Source: DeepRM, section 3.1 and 3.2. Time goes in steps, or exactly from event to event; everything else is the same.
"""

from __future__ import annotations

from parcae.kernels import inlined, kernel
from parcae.packing.layout import NO_JOB, NOT_YET, VOID, Cost

_SLOWDOWN = int(Cost.SLOWDOWN)
_BOUNDED = int(Cost.BOUNDED_SLOWDOWN)
_COMPLETION = int(Cost.COMPLETION)
_UTILIZATION = int(Cost.UTILIZATION)
_MAKESPAN = int(Cost.MAKESPAN)


@kernel
def begin(state, asked):  # type: ignore[no-untyped-def]
    """An empty cluster at time 0, with what arrives then. `state.capacity` is set from outside."""
    _reset(state.clock)
    for cost in range(state.costs.shape[0]):
        state.costs[cost] = 0.0
    for slot in range(state.slots.shape[0]):
        state.slots[slot] = NO_JOB
    for job in range(asked.num_jobs[0]):
        state.jobs.start[job] = state.jobs.finish[job] = state.jobs.expected[job] = NOT_YET
        state.jobs.is_dropped[job] = 0
    for row in range(state.free.shape[0]):
        for resource in range(state.free.shape[1]):
            state.free[row, resource] = state.capacity[resource]
    if asked.rules.is_exact[0] == 1 and asked.num_jobs[0] > 0:
        state.clock.now[0] = asked.specs.arrival[0]
    _admit(state, asked)
    _mark_end(state, asked)


@inlined
def _reset(clock):  # type: ignore[no-untyped-def]
    clock.now[0] = clock.num_arrived[0] = clock.num_waiting[0] = clock.num_backlog[
        0
    ] = clock.first_backlog[0] = 0
    clock.num_running[0] = clock.num_finished[0] = clock.num_dropped[0] = clock.num_decisions[
        0
    ] = clock.num_placed[0] = 0
    clock.last_arrival[0] = NOT_YET
    clock.arrived_work[0] = clock.log_told[0] = clock.weight[0] = clock.bounded_weight[
        0
    ] = clock.used[0] = 0.0


@inlined
def _admit(state, asked):  # type: ignore[no-untyped-def]
    """Every job whose time has come takes the first empty slot, else the backlog's end, else it is lost (and counted)."""
    clock = state.clock
    while (
        clock.num_arrived[0] < asked.num_jobs[0]
        and asked.specs.arrival[clock.num_arrived[0]] <= clock.now[0]
    ):
        job = clock.num_arrived[0]
        clock.num_arrived[0] += 1
        clock.last_arrival[0] = clock.now[0]
        if _enqueue(state, asked, job):
            clock.weight[0] += 1.0 / asked.specs.duration[job]
            clock.bounded_weight[0] += 1.0 / max(
                asked.rules.bound[0], float(asked.specs.duration[job])
            )
            share = 0.0
            for resource in range(asked.demand.shape[1]):
                share = max(share, asked.demand[job, resource] / state.capacity[resource])
            clock.arrived_work[0] += share * asked.specs.told[job]
            clock.log_told[0] += asked.specs.log_told[job]
        else:
            clock.num_dropped[0] += 1
            state.jobs.is_dropped[job] = 1


@inlined
def _enqueue(state, asked, job):  # type: ignore[no-untyped-def]
    clock = state.clock
    if asked.rules.is_exact[0] == 1:
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
def first_fit(state, asked, job):  # type: ignore[no-untyped-def]
    """Steps from now to the first at which the job fits to its end within the horizon; NOT_YET if there is none."""
    horizon = state.free.shape[0]
    length = asked.specs.told[job]
    if asked.rules.is_exact[0] == 1:
        length = 1
    last = horizon - length - asked.rules.as_coded[0]
    offset = 0
    row = 0
    while offset <= last:
        while row < offset + length:
            fits = True
            for resource in range(state.free.shape[1]):
                fits = fits and state.free[row, resource] >= asked.demand[job, resource]
            if not fits:
                break
            row += 1
        if row == offset + length:
            return offset
        offset = row + 1
        row = offset
    return NOT_YET


@inlined
def place(state, asked, slot):  # type: ignore[no-untyped-def]
    """Book the slot's job at the first step at which it fits to its end; False if the slot is empty or it fits nowhere."""
    if slot < 0 or slot >= state.slots.shape[0] or state.slots[slot] == NO_JOB:
        return False
    job = state.slots[slot]
    offset = first_fit(state, asked, job)
    if offset == NOT_YET:
        return False
    rows = 1 if asked.rules.is_exact[0] == 1 else asked.specs.told[job]
    for row in range(offset, offset + rows):
        for resource in range(state.free.shape[1]):
            state.free[row, resource] -= asked.demand[job, resource]
    jobs = state.jobs
    jobs.start[job] = state.clock.now[0] + offset
    jobs.finish[job] = jobs.start[job] + asked.specs.duration[job]
    jobs.expected[job] = jobs.start[job] + asked.specs.told[job]
    _enlist(state, asked, job)
    _refill(state, asked, slot)
    state.clock.num_placed[0] += 1
    return True


@inlined
def _enlist(state, asked, job):  # type: ignore[no-untyped-def]
    """Among the running: in order of placing; exact: by expected finish."""
    row = state.clock.num_running[0]
    if asked.rules.is_exact[0] == 1:
        while row > 0 and state.jobs.expected[state.running[row - 1]] > state.jobs.expected[job]:
            state.running[row] = state.running[row - 1]
            row -= 1
        for resource in range(state.free.shape[1]):
            state.clock.used[0] += asked.demand[job, resource] / state.capacity[resource]
    state.running[row] = job
    state.clock.num_running[0] += 1


@inlined
def _refill(state, asked, slot):  # type: ignore[no-untyped-def]
    """The backlog's head takes the empty slot; exact: those behind move up."""
    clock = state.clock
    if asked.rules.is_exact[0] == 1:
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
def advance(state, asked):  # type: ignore[no-untyped-def]
    """Let time pass to the next step, or to the next event, and charge for it."""
    clock = state.clock
    then = clock.now[0] + 1
    if asked.rules.is_exact[0] == 1:
        then = _next_event(state, asked)
    _charge(state, asked, then - clock.now[0])
    clock.now[0] = then
    if asked.rules.is_exact[0] == 0:
        _shift(state)
    _finish(state, asked)
    _mark_end(state, asked)
    if clock.is_over[0] == 0:
        _admit(state, asked)


@inlined
def _next_event(state, asked):  # type: ignore[no-untyped-def]
    clock = state.clock
    then = clock.now[0]
    is_known = False
    if clock.num_arrived[0] < asked.num_jobs[0]:
        then = asked.specs.arrival[clock.num_arrived[0]]
        is_known = True
    for row in range(clock.num_running[0]):
        finish = state.jobs.finish[state.running[row]]
        if not is_known or finish < then:
            then = finish
            is_known = True
    return then


@inlined
def _charge(state, asked, steps):  # type: ignore[no-untyped-def]
    clock = state.clock
    costs = state.costs
    costs[_SLOWDOWN] += clock.weight[0] * steps
    costs[_BOUNDED] += clock.bounded_weight[0] * steps
    present = clock.num_waiting[0] + clock.num_backlog[0] + clock.num_running[0]
    costs[_COMPLETION] += present * steps
    if asked.rules.is_exact[0] == 1:
        costs[_UTILIZATION] -= clock.used[0] * steps
    else:
        for resource in range(state.free.shape[1]):
            costs[_UTILIZATION] -= 1.0 - state.free[0, resource] / state.capacity[resource]
    if present > 0 or clock.num_arrived[0] < asked.num_jobs[0]:
        costs[_MAKESPAN] += steps


@inlined
def _shift(state):  # type: ignore[no-untyped-def]
    last = state.free.shape[0] - 1
    for resource in range(state.free.shape[1]):
        for row in range(last):
            state.free[row, resource] = state.free[row + 1, resource]
        state.free[last, resource] = state.capacity[resource]


@inlined
def _finish(state, asked):  # type: ignore[no-untyped-def]
    """Take the finished from the running."""
    clock = state.clock
    kept = 0
    row = 0
    count = clock.num_running[0]
    while row < count:
        job = state.running[row]
        if state.jobs.finish[job] <= clock.now[0]:
            _release(state, asked, job)
            # The released code removes from the list that it walks: the next one is skipped, and may linger a step.
            if asked.rules.as_coded[0] == 1 and row + 1 < count:
                row += 1
                state.running[kept] = state.running[row]
                kept += 1
        else:
            state.running[kept] = job
            kept += 1
        row += 1
    clock.num_running[0] = kept
    if clock.num_waiting[0] + clock.num_backlog[0] + kept == 0:
        clock.weight[0] = clock.bounded_weight[0] = clock.used[0] = 0.0


@inlined
def _release(state, asked, job):  # type: ignore[no-untyped-def]
    clock = state.clock
    clock.num_finished[0] += 1
    clock.weight[0] -= 1.0 / asked.specs.duration[job]
    clock.bounded_weight[0] -= 1.0 / max(asked.rules.bound[0], float(asked.specs.duration[job]))
    if asked.rules.is_exact[0] == 1:
        for resource in range(state.free.shape[1]):
            state.free[0, resource] += asked.demand[job, resource]
            clock.used[0] -= asked.demand[job, resource] / state.capacity[resource]


@inlined
def _mark_end(state, asked):  # type: ignore[no-untyped-def]
    clock = state.clock
    rules = asked.rules
    present = clock.num_waiting[0] + clock.num_backlog[0] + clock.num_running[0]
    is_past = clock.now[0] >= rules.window[0]
    is_done = is_past and present == 0 and clock.num_arrived[0] == asked.num_jobs[0]
    clock.is_over[0] = int(is_done or (is_past and rules.ends_early[0] == 1))


@inlined
def take(state, asked, slot):  # type: ignore[no-untyped-def]
    """One decision: place the slot's job, or let time pass if there is none or it fits nowhere. Whether one was placed."""
    clock = state.clock
    clock.num_decisions[0] += 1
    is_placed = slot != VOID and place(state, asked, slot)
    if not is_placed:
        advance(state, asked)
    if clock.num_decisions[0] >= asked.rules.max_decisions[0]:
        clock.is_over[0] = 1
    return is_placed
