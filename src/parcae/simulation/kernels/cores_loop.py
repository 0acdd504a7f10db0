"""The event loop of the world of cores: fires events until the policy must plan.

Events at the same time fire in this order: arrivals, events of an elastic cluster
(`parcae.simulation.kernels.elastic`) and wake-ups, then ends of tasks, then the follow-ups of those
events, oldest first. After every single event there is an offer round.

Every public kernel takes the same three tables and writes the first two:

- state: the `ClusterState`, which the transitions of `parcae.cluster.kernels` change;
- future: the `Future` of the same simulator (event queue, follow-ups, recorded tasks);
- tables: the `WorkloadTables` of the workload.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import INTEGER, deferred, inlined, kernel
from parcae.cluster.kernels.accounts import move_clock
from parcae.cluster.kernels.cores import (
    accept_orders,
    ask_for_plan,
    can_plan,
    complete_stage,
    end_task,
    note_stall,
    plan_stage,
    reveal_stage,
)
from parcae.cluster.kernels.dispatch import (
    begin_task,
    dispatch,
    finish_task,
    is_plain,
    next_stage,
    release_core,
    task_begun,
)
from parcae.cluster.kernels.tables import account_time
from parcae.cluster.state import NO_STAGE, NOT_YET
from parcae.simulation.future import NEVER_MS, Followup, Status
from parcae.simulation.kernels.driver import begin_driver, fire_timer, parents_ended, stage_ended
from parcae.simulation.kernels.elastic import (
    begin_elastic,
    drop_idle,
    fire_elastic,
    is_all_done,
    is_draining,
    note_backlog,
    note_idle,
)
from parcae.simulation.kernels.events import (
    KINDS,
    begin,
    draw_duration_ms,
    follow_up,
    go_on_with_session,
    next_executor,
    next_ms,
    pop,
    push,
    submit,
)
from parcae.simulation.kernels.faults import (
    admit_job,
    begin_faults,
    end_next_attempt,
    fire_fault,
    follow_up_attempt,
    only_faults_left,
    start_attempts,
)

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_ENDED = int(Status.ENDED)
_BAD_DECISION = int(Status.BAD_DECISION)
_TIME_OVERFLOW = int(Status.TIME_OVERFLOW)
_BAD_ORDERS = int(Status.BAD_ORDERS)
_REVEAL = int(Followup.REVEAL_STAGE)
_COMPLETE_STAGE = int(Followup.COMPLETE_STAGE)
_END_TASK = int(Followup.END_TASK)
_REST = 2


@inlined
def find_next_other(state, future):  # type: ignore[no-untyped-def]
    """Set `next_other_ms`: the earliest of next arrival, wake-up, fault, elastic event and end."""
    events = future.events
    earliest = min(events.end_ms[0], events.next_fault_ms[0])
    if future.elastic.shape[0] > 0:
        earliest = min(earliest, future.elastic.next_ms[0])
    if events.next_arrival[0] < future.arrival_ms.shape[0]:
        earliest = min(earliest, future.arrival_ms[events.next_arrival[0]])
    if events.num_timers[0] > 0:
        earliest = min(earliest, future.timers.time_ms[0])
    # A wake-up lies at least 1 ms ahead: a policy that asks for one at once must not stop time.
    if state.now.wake_ms[0] != NOT_YET:
        earliest = min(earliest, max(state.now.wake_ms[0], state.now.clock_ms[0] + 1))
    events.next_other_ms[0] = earliest


@kernel
def _end_task(state, future, executor):  # type: ignore[no-untyped-def]
    """End the executor's task; if it was the last of its stage, the stage completes later."""
    stage = end_task(state, executor)
    if stage != NO_STAGE:
        follow_up(future, _COMPLETE_STAGE, stage)


@kernel
def _free_core(state, future):  # type: ignore[no-untyped-def]
    """End the next task; the offer round that follows assigns its core."""
    executor = next_executor(future)
    pop(future, executor)
    _end_task(state, future, executor)


@inlined
def _continue_core(state, future, tables):  # type: ignore[no-untyped-def]
    """End the next task and start another on its core: event and offer round in one step. Returns
    false if the end of the new task is too far away for an event key.

    This is the fast path for the most frequent event: a task ends while no other core is free. It
    has the same effect as `_free_core` and `dispatch`, without idle pools and commands.
    """
    executor = next_executor(future)
    ended = finish_task(state, executor)
    left = state.stages.job[ended]
    if state.stages.num_finished[ended] == state.stages.num_tasks[ended]:
        follow_up(future, _COMPLETE_STAGE, ended)
    stage = next_stage(state, left)
    if stage == NO_STAGE:
        pop(future, executor)
        release_core(state, executor)
        return True
    task = begin_task(state, executor, stage)
    task_begun(state, stage, left)
    num_cores = state.now.num_executors[0]
    duration_ms = draw_duration_ms(state, future, tables, executor, stage, task, _REST, num_cores)
    if duration_ms > 0:
        return push(future, executor, state.now.clock_ms[0] + duration_ms)
    pop(future, executor)
    follow_up(future, _END_TASK, executor)
    return True


@kernel
def _fire_followup(state, future, tables, has_faults, is_elastic):  # type: ignore[no-untyped-def]
    """Remove the oldest follow-up from the ring and carry it out."""
    events = future.events
    code = future.followups[events.first_followup[0]]
    events.first_followup[0] = (events.first_followup[0] + 1) % future.followups.shape[0]
    events.num_followups[0] -= 1
    kind = code % KINDS
    row = code // KINDS
    if kind == _REVEAL:
        if future.timers.shape[0] > 0:
            parents_ended(state, future, tables, row)
        else:
            reveal_stage(state, row)
    elif kind == _COMPLETE_STAGE:
        complete_stage(state, row)
        if future.timers.shape[0] > 0:
            stage_ended(state, future, tables, row)
        go_on_with_session(state, future, state.stages.job[row])
    else:
        if is_elastic and kind == _END_TASK:
            note_idle(state, future, row)
        if has_faults:
            follow_up_attempt(state, future, kind, row)
        else:
            _end_task(state, future, row)


@kernel
def _arrive(state, future, tables, has_faults):  # type: ignore[no-untyped-def]
    """Add the next job; its stages without parents are revealed one by one, in Spark's order."""
    profile = future.job_profile[future.events.next_arrival[0]]
    job = submit(state, future, tables)
    for row in range(tables.job_first_root[profile], tables.job_first_root[profile + 1]):
        follow_up(future, _REVEAL, state.jobs.stage_start[job] + tables.roots[row])
    if future.timers.shape[0] > 0:
        begin_driver(state, future, tables, job)
    if has_faults:
        admit_job(state, future, job)


@kernel
def _fire_other(state, future, tables, has_faults, is_elastic):  # type: ignore[no-untyped-def]
    """Fire an arrival, a fault, an elastic event, a timer or a wake-up. Returns false if the
    episode ends first.
    """
    events = future.events
    now = state.now
    time_ms = future.events.next_other_ms[0]
    if time_ms >= events.end_ms[0]:
        return False
    move_clock(state, time_ms)
    if (
        events.next_arrival[0] < future.arrival_ms.shape[0]
        and future.arrival_ms[events.next_arrival[0]] == time_ms
    ):
        events.num_fired_arrivals[0] += time_ms > 0
        _arrive(state, future, tables, has_faults)
    elif has_faults and events.next_fault_ms[0] == time_ms:
        fire_fault(state, future)
    elif is_elastic and future.elastic.next_ms[0] == time_ms:
        fire_elastic(state, future)
    elif events.num_timers[0] > 0 and future.timers.time_ms[0] == time_ms:
        fire_timer(state, future, tables)
    else:
        now.wake_ms[0] = NOT_YET
        now.is_plan_due[0] = 1
    find_next_other(state, future)
    return True


@kernel
def _carry_out_starts(state, future, tables):  # type: ignore[no-untyped-def]
    """Push the ends of the tasks that the last offer round started. Returns false if one of them is
    too far away for an event key.
    """
    in_range = True
    commands = state.commands
    clock_ms = state.now.clock_ms[0]
    for row in range(state.now.num_commands[0]):
        executor = commands.executor[row]
        task = commands.task[row]
        wave = commands.wave[row]
        num_cores = commands.parallelism[row]
        duration_ms = draw_duration_ms(
            state, future, tables, executor, commands.stage[row], task, wave, num_cores
        )
        if duration_ms > 0:
            in_range &= push(future, executor, clock_ms + duration_ms)
        else:
            follow_up(future, _END_TASK, executor)
    state.now.num_commands[0] = 0
    return in_range


@kernel
def _stop(state, future):  # type: ignore[no-untyped-def]
    """End the episode before the next event. Returns the Status."""
    move_clock(state, future.events.end_ms[0])
    account_time(state, state.now.clock_ms[0])
    return _ENDED


@inlined
def _carry_out(state, future, tables, has_faults):  # type: ignore[no-untyped-def]
    """Carry out the starts of the last offer round. Returns False on an event too far away."""
    if has_faults:
        return start_attempts(state, future, tables) != 0
    return _carry_out_starts(state, future, tables)


@inlined
def _is_over(state, future, has_faults, is_elastic):  # type: ignore[no-untyped-def]
    """Whether no event is left but those that go on for ever."""
    if future.events.next_other_ms[0] == NEVER_MS or (is_elastic and is_all_done(state, future)):
        return True
    return has_faults and not is_elastic and only_faults_left(state, future)


@inlined
def _end_next_task(state, future, tables, has_faults, is_elastic):  # type: ignore[no-untyped-def]
    """End the next task. Returns False on an event too far away."""
    if has_faults:
        end_next_attempt(state, future)
    elif not is_plain(state) or (is_elastic and is_draining(future)):
        _free_core(state, future)
    else:
        return _continue_core(state, future, tables)
    return True


@inlined
def _advance(state, future, tables, has_faults, is_elastic):  # type: ignore[no-untyped-def]
    """Fire events until a plan is due or the run is over. Returns a `Status`.

    `has_faults` and `is_elastic` are constants, so that a run without faults on a cluster of a
    fixed size has no code for them.
    """
    now = state.now
    events = future.events
    has_ended = False
    while True:
        if is_elastic and is_draining(future):
            drop_idle(state, future)
        if can_plan(state, 1, 1):
            ask_for_plan(state)
            return _NEEDS_DECISION
        if now.num_idle[0] > 0 and now.num_schedulable[0] > 0:
            dispatch(state)
            note_stall(state, has_ended)
        if now.num_commands[0] > 0 and not _carry_out(state, future, tables, has_faults):
            return _TIME_OVERFLOW
        if is_elastic:
            note_backlog(state, future)
        if can_plan(state, 1, 1):
            # Limits leave cores idle and a stage has just started its last task: plan at once.
            continue
        time_ms = next_ms(future)
        followup_ms = now.clock_ms[0] if events.num_followups[0] > 0 else NEVER_MS
        if events.next_other_ms[0] <= min(time_ms, followup_ms):
            if _is_over(state, future, has_faults, is_elastic):
                return _COMPLETE
            if not _fire_other(state, future, tables, has_faults, is_elastic):
                is_over = time_ms == NEVER_MS and now.num_active[0] == 0
                return (
                    _COMPLETE
                    if is_over and events.next_arrival[0] == future.arrival_ms.shape[0]
                    else _stop(state, future)
                )
        elif time_ms <= followup_ms:
            has_ended = True
            move_clock(state, time_ms)
            if is_elastic:
                note_idle(state, future, next_executor(future))
            if not _end_next_task(state, future, tables, has_faults, is_elastic):
                return _TIME_OVERFLOW
        else:
            has_ended = True
            _fire_followup(state, future, tables, has_faults, is_elastic)


@deferred(INTEGER)
def _advance_with_faults(state, future, tables):  # type: ignore[no-untyped-def]
    """As `advance_cores`, where something may go wrong."""
    return _advance(state, future, tables, True, False)


@deferred(INTEGER)
def _advance_elastic(state, future, tables):  # type: ignore[no-untyped-def]
    """As `advance_cores`, on an elastic cluster."""
    return _advance(state, future, tables, False, True)


@deferred(INTEGER)
def _advance_elastic_with_faults(state, future, tables):  # type: ignore[no-untyped-def]
    """As `advance_cores`, on an elastic cluster where something may go wrong."""
    return _advance(state, future, tables, True, True)


@deferred(INTEGER)
def advance_cores(state, future, tables):  # type: ignore[no-untyped-def]
    """Fire events until a plan is due or the run is over. Returns a `Status`."""
    has_faults = future.faults.shape[0] > 0
    if future.elastic.shape[0] > 0:
        if has_faults:
            return _advance_elastic_with_faults(state, future, tables)
        return _advance_elastic(state, future, tables)
    if has_faults:
        return _advance_with_faults(state, future, tables)
    return _advance(state, future, tables, False, False)


@kernel
def _keep_pools(state, tables):  # type: ignore[no-untyped-def]
    """Copy the pools that the run keeps between tenants; one pool if it keeps none."""
    for pool in range(tables.pools.shape[0]):
        state.pools[pool] = tables.pools[pool]
    state.now.num_pools[0] = tables.pools.shape[0]


@deferred(INTEGER)
def start_cores(state, future, tables):  # type: ignore[no-untyped-def]
    """Empty the cluster and run until the first plan is due. Returns a `Status`."""
    begin(state, future)
    _keep_pools(state, tables)
    future.events.first_followup[0] = 0
    future.events.num_followups[0] = 0
    if future.faults.shape[0] > 0:
        begin_faults(state, future)
    if future.elastic.shape[0] > 0:
        begin_elastic(state, future)
    find_next_other(state, future)
    return advance_cores(state, future, tables)


@deferred(INTEGER)
def resume_cores(state, future, tables):  # type: ignore[no-untyped-def]
    """Continue a run that stopped, after the caller moved `end_ms`; see `event_loop.resume`.
    Returns a `Status`.
    """
    find_next_other(state, future)
    if state.now.num_source[0] > 0:
        # The planning round goes on; another one would offer its cores a second time.
        return _NEEDS_DECISION
    return advance_cores(state, future, tables)


@deferred(INTEGER)
def follow_orders(state, future, tables):  # type: ignore[no-untyped-def]
    """Put the orders in the state's tables into force and run until the next plan is due. Returns a
    `Status`; BAD_ORDERS if the orders are invalid.
    """
    state.now.num_decisions[0] += 1
    if not accept_orders(state):
        return _BAD_ORDERS
    find_next_other(state, future)
    return advance_cores(state, future, tables)


@deferred(INTEGER)
def step_cores(state, future, tables, stage, limit):  # type: ignore[no-untyped-def]
    """Apply one decision of a planning round (for policies that decide instead of planning).
    Returns a `Status`; NEEDS_DECISION also means that the planning round goes on.

    The decision that assigns the last core puts the plan into force and runs until the next plan.
    """
    num_left = plan_stage(state, stage, limit)
    if num_left < 0:
        return _BAD_DECISION
    if num_left > 0:
        return _NEEDS_DECISION
    if not accept_orders(state):
        return _BAD_ORDERS
    find_next_other(state, future)
    return advance_cores(state, future, tables)
