"""The event loop of the executors world: fires events until the policy must decide.

`start`, `resume` and `step` serve both worlds: in the world of cores they call the kernels of
`cores_loop`. Every kernel here reads and writes `state` (`ClusterState`) and `future` (`Future`),
and reads `tables` (`WorkloadTables`).
"""

from __future__ import annotations

from parcae.base.compiled.kernels import INTEGER, deferred, inlined, kernel
from parcae.cluster.kernels.decisions import apply_decision, hold_ended
from parcae.cluster.kernels.executors import offer_pool, offer_to_newcomers
from parcae.cluster.kernels.tables import account_time, active_jobs, stages_of
from parcae.cluster.kernels.transitions import continue_stage, executor_arrived, stage_exhausted
from parcae.cluster.state import NO_JOB, NO_STAGE, World
from parcae.simulation.future import NEVER_MS, Status
from parcae.simulation.kernels.cores_loop import resume_cores, start_cores, step_cores
from parcae.simulation.kernels.events import (
    begin,
    carry_out_commands,
    go_on_with_session,
    next_executor,
    next_ms,
    pop,
    schedule_task,
    submit,
)

__all__ = ["advance", "count_schedulable", "resume", "start", "step"]

_CORES = int(World.CORES)
_REST = 2
_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_ENDED = int(Status.ENDED)
_BAD_DECISION = int(Status.BAD_DECISION)
_TIME_OVERFLOW = int(Status.TIME_OVERFLOW)


@deferred(INTEGER)
def start(state, future, tables):  # type: ignore[no-untyped-def]
    """Reset the cluster, add the jobs that arrive at time 0 and run until the first decision.
    Returns a `Status`.
    """
    if state.now.world[0] == _CORES:
        return start_cores(state, future, tables)
    events = future.events
    begin(state, future)
    while (
        events.next_arrival[0] < future.arrival_ms.shape[0]
        and future.arrival_ms[events.next_arrival[0]] == 0
    ):
        submit(state, future, tables)
    offer_pool(state, NO_JOB)
    _find_next_other(state, future)
    return advance(state, future, tables)


@deferred(INTEGER)
def resume(state, future, tables):  # type: ignore[no-untyped-def]
    """Continue a run that stopped, after the caller moved `end_ms`. Returns a `Status`.

    It stopped at the end of its episode, or before a decision, which is still due then.
    """
    if state.now.world[0] == _CORES:
        return resume_cores(state, future, tables)
    _find_next_other(state, future)
    return advance(state, future, tables)


@kernel
def _find_next_other(state, future):  # type: ignore[no-untyped-def]
    """Set `next_other_ms`: the earliest of next arrival, end of an idle slot, end of episode."""
    events = future.events
    earliest = events.end_ms[0]
    if events.next_arrival[0] < future.arrival_ms.shape[0]:
        earliest = min(earliest, future.arrival_ms[events.next_arrival[0]])
    for hold in range(state.now.num_holds[0]):
        earliest = min(earliest, state.holds.end_ms[hold])
    events.next_other_ms[0] = earliest


@kernel
def _fire_other(state, future, tables):  # type: ignore[no-untyped-def]
    """Fire the earliest arrival or end of an idle slot. Returns False if the episode ends first."""
    events = future.events
    time_ms = future.events.next_other_ms[0]
    if time_ms >= events.end_ms[0]:
        return False
    state.now.clock_ms[0] = time_ms
    if (
        events.next_arrival[0] < future.arrival_ms.shape[0]
        and future.arrival_ms[events.next_arrival[0]] == time_ms
    ):
        events.num_fired_arrivals[0] += 1
        submit(state, future, tables)
        offer_to_newcomers(state)
    else:
        for hold in range(state.now.num_holds[0]):
            if state.holds.end_ms[hold] == time_ms:
                hold_ended(state, hold)
                break
    _find_next_other(state, future)
    return True


@inlined
def _fire_executor(state, future, tables, executor):  # type: ignore[no-untyped-def]
    """Fire an executor's event: its task finished, or it arrived at the job that it moved to.
    Returns false if a new event is too far away for an event key.
    """
    stage = state.executors.stage[executor]
    if stage != NO_STAGE:
        if continue_stage(state, executor, stage):
            # Most frequent case: the next task of the stage. `push` replaces the old event.
            task = state.stages.num_started[stage] - 1
            attached = state.jobs.num_attached[state.stages.job[stage]]
            return schedule_task(state, future, tables, executor, stage, task, _REST, attached)
        pop(future, executor)
        stage_exhausted(state, executor)
        go_on_with_session(state, future, state.stages.job[stage])
    else:
        pop(future, executor)
        executor_arrived(state, executor)
    return carry_out_commands(state, future, tables)


@kernel
def _offer_stalled(state, future):  # type: ignore[no-untyped-def]
    """Offer the next pool of idle executors to the policy in a stalled run. Returns whether a pool
    with executors was offered.

    A run is stalled if no task runs and no executor moves although stages are schedulable. It can
    happen because an executor whose stage is not yet runnable on arrival is parked without a
    decision: a policy that leaves the other executors idle meanwhile would never be called again.
    Every pool is offered once for each stall.
    """
    now = state.now
    events = future.events
    # A changed count means that something ran since the last stall: begin with the first pool.
    count = events.num_tasks[0] + events.num_moves[0]
    if events.stall_count[0] != count:
        events.stall_count[0] = count
        events.stall_position[0] = 0
    while events.stall_position[0] <= now.num_active[0]:
        position = events.stall_position[0]
        events.stall_position[0] = position + 1
        offer_pool(state, state.active[position] if position < now.num_active[0] else NO_JOB)
        if now.num_source[0] > 0:
            return True
    return False


@deferred(INTEGER)
def advance(state, future, tables):  # type: ignore[no-untyped-def]
    """Fire events until a decision is due or the run is over. Returns a `Status`.

    At the same time, arrivals and ends of idle slots come before executor events; executor events
    fire in the order in which they were pushed.
    """
    now = state.now
    events = future.events
    while now.num_source[0] == 0:
        time_ms = next_ms(future)
        if (
            time_ms == NEVER_MS
            and now.num_schedulable[0] > 0
            and now.num_holds[0] == 0
            and _offer_stalled(state, future)
        ):
            return _NEEDS_DECISION
        if time_ms < events.next_other_ms[0]:
            now.clock_ms[0] = time_ms
            if not _fire_executor(state, future, tables, next_executor(future)):
                return _TIME_OVERFLOW
        elif events.next_other_ms[0] == NEVER_MS:
            return _COMPLETE
        elif not _fire_other(state, future, tables):
            is_last = now.num_holds[0] == 0 and events.next_arrival[0] == future.arrival_ms.shape[0]
            if time_ms == NEVER_MS and is_last:
                return _COMPLETE
            now.clock_ms[0] = events.end_ms[0]
            account_time(state, now.clock_ms[0])
            return _ENDED
    return _NEEDS_DECISION


@deferred(INTEGER)
def step(  # type: ignore[no-untyped-def]
    state, future, tables, stage, limit, executor_class, hold_ms
):
    """Apply a decision and run until the next one is due.

    Args:
        state: the cluster; read and written.
        future: pending events and, if decisions are recorded, their records; read and written.
        tables: the workload; read only.
        stage: row of the chosen stage, or NO_STAGE to leave the executors idle.
        limit: number of executors, at most, that the decision may assign.
        executor_class: class of the executors.
        hold_ms: length of the idle slot in ms; 0: none.

    Returns:
        a `Status`; BAD_DECISION if the decision cannot be carried out.
    """
    if state.now.world[0] == _CORES:
        return _BAD_DECISION if hold_ms > 0 else step_cores(state, future, tables, stage, limit)
    row = state.now.num_decisions[0]
    records = future.decisions
    num_holds = state.now.num_holds[0]
    if records.shape[0] > row:
        records.clock_ms[row] = state.now.clock_ms[0]
        records.source_job[row] = state.now.source_job[0]
        records.num_source[row] = state.now.num_source[0]
        records.num_schedulable[row] = count_schedulable(state)
        records.stage[row] = records.job[row] = -1
        if stage != NO_STAGE:
            records.job[row] = state.stages.job[stage]
            records.stage[row] = stage - state.jobs.stage_start[records.job[row]]
    count = apply_decision(state, stage, limit, executor_class, hold_ms)
    if records.shape[0] > row:
        records.num_executors[row] = count
    if count < 0:
        return _BAD_DECISION
    # The decision began or ended an idle slot: the next arrival or end may be another one now.
    if hold_ms > 0 or num_holds != state.now.num_holds[0]:
        _find_next_other(state, future)
    if not carry_out_commands(state, future, tables):
        return _TIME_OVERFLOW
    return advance(state, future, tables)


@kernel
def count_schedulable(state):  # type: ignore[no-untyped-def]
    """Count the stages that the policy may choose from; reads the state, writes nothing."""
    count = 0
    stages = state.stages
    for job in active_jobs(state):
        for stage in stages_of(state, job):
            if (
                stages.is_saturated[stage] == 0
                and stages.num_parents_unsaturated[stage] == 0
                and stages.selected_round[stage] != state.now.round_id[0]
            ):
                count += 1
    return count
