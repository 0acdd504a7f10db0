"""Dynamic allocation: executors of an elastic cluster start and are removed, as in Spark.

Every CHECK_MS the manager compares its target, a number of executors, with what running and waiting
tasks need. The target falls at once to that number. It grows by 1, 2, 4, ... executors while tasks
wait: first after the backlog time-out, then after every sustained time-out. Executors are requested
and requests are cancelled so that executors up and starting are as many as the target. An executor
whose cores have all been idle for the idle time-out is removed while more than the target are up.

`state` is a `ClusterState`, `future` the `Future` of the same simulator with tables for an elastic
cluster.

Source: Spark's ExecutorAllocationManager and ExecutorMonitor.
"""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.tables import (
    active_jobs,
    add_cores,
    begin_changes,
    remove_cores,
    waiting_tasks,
)
from parcae.cluster.state import NO_JOB, NOT_YET
from parcae.simulation.future import NEVER_MS, Manager

_NOBODY = int(Manager.NONE)
_TELLS = int(Manager.TELLS)
#: Spark checks ten times a second, at whole multiples of this time.
CHECK_MS = 100


@kernel
def _account(future, clock_ms):  # type: ignore[no-untyped-def]
    """Add the cores that have been held since the last call to the integral over time."""
    elastic = future.elastic
    held = (elastic.num_up[0] + elastic.num_starting[0]) * elastic.executor_cores[0]
    elastic.held_ms[0] += held * (clock_ms - elastic.held_until_ms[0])
    elastic.held_until_ms[0] = clock_ms


@inlined
def cores_of(future, executor):  # type: ignore[no-untyped-def]
    """Return the rows of an executor's cores."""
    cores = future.elastic.executor_cores[0]
    return range(executor * cores, (executor + 1) * cores)


@inlined
def _take_down(state, future, executor):  # type: ignore[no-untyped-def]
    """Count an executor as up no more."""
    _account(future, state.now.clock_ms[0])
    future.elastic_executors.is_up[executor] = 0
    future.elastic.num_up[0] -= 1


@kernel
def begin_elastic(state, future):  # type: ignore[no-untyped-def]
    """Begin a run: only the cores of the initial executors are up."""
    elastic = future.elastic
    executors = future.elastic_executors
    cores = elastic.executor_cores[0]
    future.core_idle_ms[:] = 0
    elastic.num_up[0] = elastic.initial_executors[0]
    elastic.num_starting[0] = 0
    for executor in range(executors.shape[0]):
        executors.ready_ms[executor] = NOT_YET
        executors.is_up[executor] = 1 if executor < elastic.num_up[0] else 0
        executors.up_ms[executor] = 0
        executors.is_leaving[executor] = 0
        executors.num_left[executor] = 0
    elastic.num_leaving[0] = 0
    begin_changes(state)
    remove_cores(
        state,
        elastic.num_up[0] * cores,
        (elastic.max_executors[0] - elastic.num_up[0]) * cores,
    )
    state.now.is_plan_due[0] = 0
    elastic.target[0] = elastic.num_up[0]
    elastic.num_to_add[0] = 1
    elastic.add_ms[0] = NOT_YET
    elastic.is_initializing[0] = 1
    elastic.held_ms[0] = 0
    elastic.held_until_ms[0] = 0
    elastic.next_change[0] = 0
    if follows_record(future):
        elastic.next_check_ms[0] = NEVER_MS
        _change_cores(state, future)
        return
    if elastic.manager[0] == _TELLS:
        elastic.next_check_ms[0] = NEVER_MS
    else:
        elastic.next_check_ms[0] = _next_check_ms(state, future)
    _find_next(state, future)


@inlined
def follows_record(future):  # type: ignore[no-untyped-def]
    """Whether cores come and go as they did in a log, and no manager decides."""
    return future.slots.shape[0] > 0


@inlined
def is_draining(future):  # type: ignore[no-untyped-def]
    """Whether a core that becomes idle may leave."""
    elastic = future.elastic
    has_more = follows_record(future) and elastic.num_up[0] > elastic.target[0]
    return has_more or elastic.num_leaving[0] > 0


@kernel
def drop_idle(state, future):  # type: ignore[no-untyped-def]
    """Remove idle cores while more than recorded are up, or those of executors that are to go."""
    elastic = future.elastic
    if elastic.num_leaving[0] > 0:
        _drop_leaving(state, future)
        return
    while is_draining(future) and state.now.num_idle[0] > 0:
        core = state.sources.idle_head[0]
        _take_down(state, future, core)
        remove_cores(state, core, 1)


@kernel
def _drop_leaving(state, future):  # type: ignore[no-untyped-def]
    """Remove the idle cores of executors that are to go."""
    elastic = future.elastic
    executors = future.elastic_executors
    cores = elastic.executor_cores[0]
    for executor in range(executors.shape[0]):
        if not executors.is_leaving[executor]:
            continue
        for core in cores_of(future, executor):
            if state.executors.job[core] == NO_JOB and future.core_idle_ms[core] != NOT_YET:
                future.core_idle_ms[core] = NOT_YET  # it has left
                remove_cores(state, core, 1)
                executors.num_left[executor] += 1
        if executors.num_left[executor] == cores:
            _take_down(state, future, executor)
            executors.is_leaving[executor] = 0
            executors.num_left[executor] = 0
            elastic.num_leaving[0] -= 1


@kernel
def _change_cores(state, future):  # type: ignore[no-untyped-def]
    """Let recorded cores join and leave that do so now, and find the next change."""
    elastic = future.elastic
    slots = future.slots
    clock_ms = state.now.clock_ms[0]
    row = elastic.next_change[0]
    while row < slots.shape[0] and slots.time_ms[row] <= clock_ms:
        elastic.target[0] += slots.change[row]
        row += 1
    elastic.next_change[0] = row
    elastic.next_ms[0] = slots.time_ms[row] if row < slots.shape[0] else NEVER_MS
    for core in range(future.elastic_executors.shape[0]):
        if elastic.num_up[0] < elastic.target[0] and not future.elastic_executors.is_up[core]:
            _account(future, clock_ms)
            future.elastic_executors.is_up[core] = 1
            elastic.num_up[0] += 1
            add_cores(state, core, 1)
    drop_idle(state, future)


@inlined
def note_idle(state, future, core):  # type: ignore[no-untyped-def]
    """Record that the core's task ends now (it may get another one at once)."""
    future.core_idle_ms[core] = state.now.clock_ms[0]


@inlined
def note_backlog(state, future):  # type: ignore[no-untyped-def]
    """Start or clear the backlog time-out after an offer round, and make checks due again.

    Checks are left out while nothing could change. They are due again when tasks run or stages
    become runnable.
    """
    elastic = future.elastic
    now = state.now
    if follows_record(future) or elastic.manager[0] == _TELLS:
        return
    if now.num_schedulable[0] == 0:
        elastic.add_ms[0] = NOT_YET
        elastic.num_to_add[0] = 1
    elif elastic.add_ms[0] == NOT_YET:
        elastic.add_ms[0] = now.clock_ms[0] + elastic.backlog_ms[0]
    if now.num_revealed[0] > 0:
        elastic.is_initializing[0] = 0
    is_moving = now.num_idle[0] < now.num_executors[0] or future.events.num_followups[0] > 0
    if is_moving and elastic.next_check_ms[0] > now.clock_ms[0] + CHECK_MS:
        elastic.next_check_ms[0] = _check_after(now.clock_ms[0])
        elastic.next_ms[0] = min(elastic.next_ms[0], elastic.next_check_ms[0])
        future.events.next_other_ms[0] = min(future.events.next_other_ms[0], elastic.next_ms[0])


@inlined
def _check_after(time_ms):  # type: ignore[no-untyped-def]
    return (time_ms // CHECK_MS + 1) * CHECK_MS


@kernel
def is_all_done(state, future):  # type: ignore[no-untyped-def]
    """Whether all jobs have arrived and are complete."""
    has_arrivals = future.events.next_arrival[0] < future.arrival_ms.shape[0]
    return state.now.num_active[0] == 0 and not has_arrivals


@kernel
def executors_needed(state, future):  # type: ignore[no-untyped-def]
    """How many executors can run all running and waiting tasks at once."""
    tasks = state.now.num_executors[0] - state.now.num_idle[0]
    for job in active_jobs(state):
        if state.jobs.num_schedulable[job] > 0:
            tasks += waiting_tasks(state, job)
    cores = future.elastic.executor_cores[0]
    return (tasks + cores - 1) // cores


@kernel
def _idle_until_ms(state, future, executor):  # type: ignore[no-untyped-def]
    """When the executor's idle time-out ends; NEVER_MS if it is not up or has a busy core."""
    if (
        not future.elastic_executors.is_up[executor]
        or future.elastic_executors.is_leaving[executor]
    ):
        return NEVER_MS
    idle_ms = np.int64(0)
    for core in cores_of(future, executor):
        if state.executors.job[core] != NO_JOB:
            return NEVER_MS
        idle_ms = max(idle_ms, future.core_idle_ms[core])
    return idle_ms + future.elastic.idle_ms[0]


@kernel
def _first_idle_until_ms(state, future):  # type: ignore[no-untyped-def]
    """The earliest end of an executor's idle time-out, or NEVER_MS."""
    first_ms = NEVER_MS
    for executor in range(future.elastic_executors.shape[0]):
        first_ms = min(first_ms, _idle_until_ms(state, future, executor))
    return first_ms


@kernel
def _request(state, future):  # type: ignore[no-untyped-def]
    """Request executors until as many as the target are up or starting."""
    elastic = future.elastic
    executors = future.elastic_executors
    _account(future, state.now.clock_ms[0])
    executor = 0
    while elastic.num_up[0] + elastic.num_starting[0] < elastic.target[0]:
        if not executors.is_up[executor] and executors.ready_ms[executor] == NOT_YET:
            executors.ready_ms[executor] = (
                state.now.clock_ms[0] + elastic.start_ms[0]
                if elastic.manager[0] == _NOBODY
                else NEVER_MS
            )
            elastic.num_starting[0] += 1
        executor += 1


@kernel
def _cancel(state, future):  # type: ignore[no-untyped-def]
    """Cancel requests beyond the target, the latest first; a manager's grants stay."""
    elastic = future.elastic
    executors = future.elastic_executors
    _account(future, state.now.clock_ms[0])
    while (
        elastic.num_starting[0] > 0
        and elastic.num_up[0] + elastic.num_starting[0] > elastic.target[0]
    ):
        latest = 0
        for executor in range(executors.shape[0]):
            if executors.ready_ms[executor] >= executors.ready_ms[latest]:
                latest = executor
        if elastic.manager[0] != _NOBODY and executors.ready_ms[latest] != NEVER_MS:
            return
        executors.ready_ms[latest] = NOT_YET
        elastic.num_starting[0] -= 1


@kernel
def _grow(state, future, needed):  # type: ignore[no-untyped-def]
    """Raise the target because tasks have waited for the time-out."""
    elastic = future.elastic
    before = elastic.target[0]
    target = max(before, elastic.num_up[0]) + elastic.num_to_add[0]
    target = min(target, needed, elastic.max_executors[0])
    elastic.target[0] = max(before, target)
    added = elastic.target[0] - before
    if added == 0:
        elastic.num_to_add[0] = 1
        return
    elastic.num_to_add[0] = 2 * added if added == elastic.num_to_add[0] else 1
    elastic.add_ms[0] = state.now.clock_ms[0] + elastic.sustained_ms[0]
    _request(state, future)


@kernel
def remove_executor(state, future, executor):  # type: ignore[no-untyped-def]
    """Remove an executor that is up and runs no task."""
    cores = future.elastic.executor_cores[0]
    _take_down(state, future, executor)
    remove_cores(state, executor * cores, cores)


@kernel
def first_idle(state, future, least_ms):  # type: ignore[no-untyped-def]
    """The executor that has been idle longest, if that is so long; -1 without one."""
    found = -1
    until_ms = state.now.clock_ms[0] + future.elastic.idle_ms[0] - least_ms
    for executor in range(future.elastic_executors.shape[0]):
        idle_ms = _idle_until_ms(state, future, executor)
        if idle_ms <= until_ms and (found < 0 or idle_ms < until_ms):
            found = executor
            until_ms = idle_ms
    return found


@kernel
def _remove_idle(state, future):  # type: ignore[no-untyped-def]
    """Remove executors whose idle time-out has ended, while more than the target are up."""
    elastic = future.elastic
    clock_ms = state.now.clock_ms[0]
    for executor in range(future.elastic_executors.shape[0]):
        if elastic.num_up[0] <= elastic.target[0]:
            return
        if _idle_until_ms(state, future, executor) <= clock_ms:
            remove_executor(state, future, executor)


@kernel
def _check(state, future):  # type: ignore[no-untyped-def]
    """Adjust the target and remove idle executors, as Spark does ten times a second."""
    elastic = future.elastic
    clock_ms = state.now.clock_ms[0]
    if elastic.is_initializing[0] and _first_idle_until_ms(state, future) <= clock_ms:
        elastic.is_initializing[0] = 0
    if not elastic.is_initializing[0]:
        needed = executors_needed(state, future)
        if needed < elastic.target[0]:
            elastic.target[0] = max(needed, elastic.min_executors[0])
            elastic.num_to_add[0] = 1
            _cancel(state, future)
        elif elastic.add_ms[0] != NOT_YET and elastic.add_ms[0] <= clock_ms:
            _grow(state, future, needed)
    _remove_idle(state, future)


@kernel
def _join_one(state, future):  # type: ignore[no-untyped-def]
    """Let the executor join that is due now, if there is one. Returns whether there was one."""
    elastic = future.elastic
    executors = future.elastic_executors
    clock_ms = state.now.clock_ms[0]
    cores = elastic.executor_cores[0]
    for executor in range(executors.shape[0]):
        if executors.ready_ms[executor] == clock_ms:
            executors.ready_ms[executor] = NOT_YET
            executors.is_up[executor] = 1
            executors.up_ms[executor] = clock_ms
            elastic.num_starting[0] -= 1
            elastic.num_up[0] += 1
            future.core_idle_ms[executor * cores : (executor + 1) * cores] = clock_ms
            add_cores(state, executor * cores, cores)
            return True
    return False


@kernel
def _next_check_ms(state, future):  # type: ignore[no-untyped-def]
    """The time of the next check that may change something, or NEVER_MS.

    While no task runs, no executor starts and no event follows at this time, nothing but the
    manager's own time-outs changes anything.
    """
    elastic = future.elastic
    now = state.now
    next_ms = _check_after(now.clock_ms[0])
    is_moving = now.num_idle[0] < now.num_executors[0] or future.events.num_followups[0] > 0
    if is_moving or elastic.num_starting[0] > 0:
        return next_ms
    needed = executors_needed(state, future)
    least = max(needed, elastic.min_executors[0])
    wanted = min(needed, elastic.max_executors[0])
    if not elastic.is_initializing[0] and (elastic.target[0] > least or elastic.target[0] < wanted):
        return next_ms
    if elastic.is_initializing[0] or elastic.num_up[0] > elastic.target[0]:
        idle_ms = _first_idle_until_ms(state, future)
        return idle_ms if idle_ms == NEVER_MS else max(next_ms, _check_after(idle_ms - 1))
    return NEVER_MS


@kernel
def _find_next(state, future):  # type: ignore[no-untyped-def]
    """Set the time of the next event: the next check, or the next start of an executor."""
    elastic = future.elastic
    executors = future.elastic_executors
    next_ms = elastic.next_check_ms[0]
    for executor in range(executors.shape[0]):
        if executors.ready_ms[executor] != NOT_YET:
            next_ms = min(next_ms, executors.ready_ms[executor])
    elastic.next_ms[0] = next_ms


@kernel
def fire_elastic(state, future):  # type: ignore[no-untyped-def]
    """Let one executor join that is due; if none is, make the check that is due."""
    if follows_record(future):
        _change_cores(state, future)
        return
    if not _join_one(state, future):
        _check(state, future)
        future.elastic.next_check_ms[0] = _next_check_ms(state, future)
    _find_next(state, future)
