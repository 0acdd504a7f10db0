"""What goes wrong in the world of cores: failed attempts, lost executors, copies of slow tasks.

A task runs in *attempts*. A task whose attempt failed counts as not started, and is the next of its
stage that starts. A task that runs long counts as one more task to start, too: the dispatcher knows
nothing of copies. When it gives a core to a stage, `_next_task` says which task starts there.

Every draw is a hash of (seed, job, stage, task, attempt), so policies that are compared on a seed
see the same faults. The first attempt of a task has the duration that it has without faults.

In all kernels `state` is the `ClusterState` and `future` the `Future` of the same simulator.

`parcae.simulation.kernels.faults` says which tasks get a copy.

Source: Spark's TaskSetManager (resourceOffer, handleFailedTask, executorLost).
"""

from __future__ import annotations

import math

import numpy as np

from parcae.base.compiled.kernels import INTEGER, NOTHING, deferred, inlined, kernel, mix, unit
from parcae.cluster.kernels.cores import change_pending, drop_task
from parcae.cluster.kernels.dispatch import free_core
from parcae.cluster.kernels.tables import (
    add_cores,
    begin_changes,
    push_idle,
    remove_cores,
    stages_of,
)
from parcae.cluster.state import NO_EXECUTOR, NO_STAGE, NOT_YET
from parcae.simulation.future import NEVER_MS, NO_TASK, Followup
from parcae.simulation.kernels.elastic import note_idle
from parcae.simulation.kernels.events import (
    follow_up,
    has_event,
    next_executor,
    next_ms,
    pop,
    push,
    record_task,
    sample_ms,
    task_bits,
)

#: Times beyond this one (285,000 years) never come.
LONGEST_MS = 9e15


@inlined
def update_next_fault(future):  # type: ignore[no-untyped-def]
    """Set the time of the next fault after a change of one of its two parts."""
    faults = future.faults
    events = future.events
    events.next_fault_ms[0] = min(faults.next_change_ms[0], faults.next_check_ms[0])
    events.next_other_ms[0] = min(events.next_other_ms[0], events.next_fault_ms[0])


@kernel
def note_duration(state, future, stage, core):  # type: ignore[no-untyped-def]
    """Insert the duration of the attempt that finishes into the sorted durations of its stage."""
    durations = future.fault_tasks.duration_ms
    first = future.fault_stages.first_row[stage]
    duration_ms = state.now.clock_ms[0] - state.executors.started_ms[core]
    row = first + state.stages.num_finished[stage]
    while row > first and durations[row - 1] > duration_ms:
        durations[row] = durations[row - 1]
        row -= 1
    durations[row] = duration_ms


@inlined
def _is_checked(state, future, stage):  # type: ignore[no-untyped-def]
    """Whether enough tasks of the stage have finished for its running tasks to be checked."""
    num_tasks = state.stages.num_tasks[stage]
    least = max(np.int64(math.floor(future.faults.speculation_quantile[0] * num_tasks)), 1)
    return num_tasks > 1 and state.stages.num_finished[stage] >= least


@inlined
def _check_after(future, time_ms):  # type: ignore[no-untyped-def]
    check_ms = future.faults.speculation_interval_ms[0]
    return (time_ms + check_ms - 1) // check_ms * check_ms


@inlined
def expect_check(state, future, stage):  # type: ignore[no-untyped-def]
    """Make the next check count after a change of the stage's running or finished tasks."""
    faults = future.faults
    if faults.speculation[0] and _is_checked(state, future, stage):
        check_ms = _check_after(future, state.now.clock_ms[0] + 1)
        if check_ms < faults.next_check_ms[0]:
            faults.next_check_ms[0] = check_ms
            update_next_fault(future)


@inlined
def _longest_ms(state, future, stage):  # type: ignore[no-untyped-def]
    """Return the time after which a task of the stage runs long."""
    middle = future.fault_stages.first_row[stage] + state.stages.num_finished[stage] // 2
    longest_ms = future.faults.speculation_multiplier[0] * future.fault_tasks.duration_ms[middle]
    return max(longest_ms, float(future.faults.speculation_least_ms[0]))


@kernel
def check_tasks(state, future):  # type: ignore[no-untyped-def]
    """Mark the tasks that run long, and find the time of the next check that may find one.

    A task runs long if it has no other attempt and runs for longer than `multiplier` medians of its
    stage's finished tasks. Between two checks that may find a task, checks are skipped.
    """
    faults = future.faults
    cores = future.fault_cores
    clock_ms = state.now.clock_ms[0]
    earliest = NEVER_MS
    for core in range(state.executors.shape[0]):
        stage = state.executors.stage[core]
        if stage == NO_STAGE or cores.twin[core] != NO_EXECUTOR or cores.mark[core] > 0:
            continue
        if not _is_checked(state, future, stage):
            continue
        longest_ms = _longest_ms(state, future, stage)
        if clock_ms - state.executors.started_ms[core] > longest_ms:
            faults.num_marks[0] += 1
            cores.mark[core] = faults.num_marks[0]
            change_pending(state, stage, 1)
        elif longest_ms < LONGEST_MS:
            is_long_ms = state.executors.started_ms[core] + np.int64(longest_ms) + 1
            earliest = min(earliest, _check_after(future, is_long_ms))
    faults.next_check_ms[0] = earliest
    update_next_fault(future)


_COMPLETE_STAGE = int(Followup.COMPLETE_STAGE)
_END_TASK = int(Followup.END_TASK)
_RETRY_TASK = int(Followup.RETRY_TASK)
_REST = 2
_HOUR_MS = 3_600_000.0
_ATTEMPT_STEP = np.uint64(0xA24BAED4963EE407)
_EXECUTOR_STEP = np.uint64(0x9FB21C651E98DF25)
# Each kind of draw has random bits of its own.
_FAILS = np.uint64(0x8CB92BA72F3D8DD7)
_FAILS_AT = np.uint64(0xD6E8FEB86659FD93)
_STRAGGLES = np.uint64(0xE7037ED1A0B428DB)
_LASTS = np.uint64(0xC6A4A7935BD1E995)


@inlined
def _num_lost_together(state, future):  # type: ignore[no-untyped-def]
    """Return the number of executors (which are lost as a whole)."""
    cores = future.faults.executor_cores[0]
    return (state.executors.shape[0] + cores - 1) // cores


@kernel
def _plan_loss(future, executor, clock_ms):  # type: ignore[no-untyped-def]
    """Draw when the executor, which is up from now on, is lost."""
    faults = future.faults
    rows = future.fault_cores
    rows.is_down[executor] = 0
    rows.change_ms[executor] = NEVER_MS
    if faults.lost_per_hour[0] > 0.0:
        bits = mix(future.events.seed[0] ^ _LASTS) + np.uint64(executor) * _EXECUTOR_STEP
        bits = mix(bits + np.uint64(rows.num_losses[executor]))
        lasts_ms = -math.log(1.0 - unit(bits)) * _HOUR_MS / faults.lost_per_hour[0]
        if lasts_ms < LONGEST_MS:
            rows.change_ms[executor] = clock_ms + 1 + np.int64(lasts_ms)


@kernel
def _find_next_change(state, future):  # type: ignore[no-untyped-def]
    """Find the time of the next loss or return of an executor."""
    earliest = NEVER_MS
    for executor in range(_num_lost_together(state, future)):
        earliest = min(earliest, future.fault_cores.change_ms[executor])
    future.faults.next_change_ms[0] = earliest
    update_next_fault(future)


@deferred(NOTHING)
def begin_faults(state, future):  # type: ignore[no-untyped-def]
    """Begin a run: all executors are up, no task has had an attempt, nothing went wrong yet."""
    faults = future.faults
    faults.num_task_rows[0] = 0
    faults.num_marks[0] = 0
    faults.num_failed[0] = 0
    faults.num_interrupted[0] = 0
    faults.num_copies[0] = 0
    faults.num_copies_won[0] = 0
    faults.num_losses[0] = 0
    faults.wasted_ms[0] = 0
    faults.down_ms[0] = 0
    faults.next_check_ms[0] = NEVER_MS
    begin_changes(state)  # executors that are lost are cores that the cluster does not have
    for core in range(state.executors.shape[0]):
        _clear_attempt(future, core)
        future.fault_cores.num_stale[core] = 0
        future.fault_cores.num_losses[core] = 0
        _plan_loss(future, core, 0)
    _find_next_change(state, future)


@deferred(NOTHING)
def admit_job(state, future, job):  # type: ignore[no-untyped-def]
    """Set the rows of a job that arrived: no task of it has had an attempt."""
    rows = future.fault_stages
    tasks = future.fault_tasks
    for stage in stages_of(state, job):
        row = future.faults.num_task_rows[0]
        end = row + state.stages.num_tasks[stage]
        rows.first_row[stage] = row
        rows.num_fresh[stage] = 0
        rows.retry[stage] = NO_TASK
        tasks.stage[row:end] = stage
        tasks.num_attempts[row:end] = 0
        tasks.num_failures[row:end] = 0
        future.faults.num_task_rows[0] = end


@inlined
def _clear_attempt(future, core):  # type: ignore[no-untyped-def]
    rows = future.fault_cores
    rows.twin[core] = NO_EXECUTOR
    rows.mark[core] = 0
    rows.is_copy[core] = 0
    rows.is_failing[core] = 0


@kernel
def _copy_task(state, future, stage, core):  # type: ignore[no-untyped-def]
    """Return the stage's task that was marked last; the core runs a copy of it."""
    cores = future.fault_cores
    twin = core
    for other in range(state.executors.shape[0]):
        if state.executors.stage[other] == stage and cores.mark[other] > cores.mark[twin]:
            twin = other
    cores.mark[twin] = 0
    cores.twin[twin] = core
    cores.twin[core] = twin
    cores.is_copy[core] = 1
    future.faults.num_copies[0] += 1
    return cores.task[twin]


@kernel
def _next_task(state, future, stage, core):  # type: ignore[no-untyped-def]
    """Return the task that the stage starts on the core.

    The task that failed last comes first, then the tasks without an attempt, by index, then a copy
    of the running task that was marked last.
    """
    rows = future.fault_stages
    task = rows.retry[stage]
    if task != NO_TASK:
        rows.retry[stage] = future.fault_tasks.next_retry[rows.first_row[stage] + task]
        return task
    if rows.num_fresh[stage] < state.stages.num_tasks[stage]:
        task = rows.num_fresh[stage]
        rows.num_fresh[stage] = task + 1
        return task
    return _copy_task(state, future, stage, core)


@inlined
def _next_bits(future, stage, task, row):  # type: ignore[no-untyped-def]
    """Count an attempt of the task, and return its random bits, and those by which samples are
    dealt and drawn; an attempt with a duration of its own is dealt to apart from the others.
    """
    attempt = future.fault_tasks.num_attempts[row]
    future.fault_tasks.num_attempts[row] = attempt + 1
    stage_bits = future.stage_bits[stage]
    first_bits = task_bits(stage_bits, task)
    if attempt == 0:
        return first_bits, stage_bits, first_bits
    bits = mix(first_bits + np.uint64(attempt) * _ATTEMPT_STEP)
    if future.faults.redraws[0]:
        return bits, bits, bits
    return bits, stage_bits, first_bits


@kernel
def _begin_attempt(  # type: ignore[no-untyped-def]
    state, future, tables, core, stage, num_cores
):
    """Begin an attempt on the core, and return how long it runs in ms if nothing interrupts it."""
    faults = future.faults
    cores = future.fault_cores
    task = _next_task(state, future, stage, core)
    row = future.fault_stages.first_row[stage] + task
    bits, deal_bits, sample_bits = _next_bits(future, stage, task, row)
    duration_ms = sample_ms(future, tables, stage, task, _REST, num_cores, deal_bits, sample_bits)
    if unit(mix(bits ^ _STRAGGLES)) < faults.straggler_share[0]:
        duration_ms = np.int64(math.floor(duration_ms * faults.straggler_factor[0] + 0.5))
    num_failures = future.fault_tasks.num_failures[row]
    twin = cores.twin[core]
    if twin != NO_EXECUTOR:
        # The task may have failed once more before this attempt ends.
        num_failures += cores.is_failing[twin]
    is_last = num_failures >= faults.max_failures[0] - 1
    cores.task[core] = task
    if unit(mix(bits ^ _FAILS)) < faults.failure_rate[0] and not is_last:
        cores.is_failing[core] = 1
        duration_ms = np.int64(unit(mix(bits ^ _FAILS_AT)) * duration_ms)
    cores.record[core] = future.events.num_tasks[0]
    if cores.record[core] < future.tasks.shape[0]:
        record_task(state, future, core, stage, task, duration_ms)
    future.events.num_tasks[0] += 1
    expect_check(state, future, stage)
    return duration_ms


@deferred(INTEGER)
def start_attempts(state, future, tables):  # type: ignore[no-untyped-def]
    """Begin an attempt on every core that the last offer round gave to a stage. Returns 0 if an
    event is too far away for an event key.
    """
    in_range = 1
    commands = state.commands
    for row in range(state.now.num_commands[0]):
        core = commands.executor[row]
        stage = commands.stage[row]
        duration_ms = _begin_attempt(state, future, tables, core, stage, commands.parallelism[row])
        if duration_ms <= 0:
            follow_up(future, _END_TASK, core)
        elif not push(future, core, state.now.clock_ms[0] + duration_ms):
            in_range = 0
    state.now.num_commands[0] = 0
    return in_range


@kernel
def _stop_attempt(state, future, core):  # type: ignore[no-untyped-def]
    """Stop the attempt on the core before its event fires."""
    if not has_event(future, core):
        # Its end of 0 ms is a follow-up, which stays in the ring.
        future.fault_cores.num_stale[core] += 1
    pop(future, core)
    record = future.fault_cores.record[core]
    if record < future.tasks.shape[0]:
        future.tasks.finish_ms[record] = state.now.clock_ms[0]
    if future.core_idle_ms.shape[0] > 0:
        note_idle(state, future, core)


@inlined
def _put_first(future, row):  # type: ignore[no-untyped-def]
    """Let the task, given by its row in `fault_tasks`, be the next of its stage that starts."""
    rows = future.fault_stages
    stage = future.fault_tasks.stage[row]
    future.fault_tasks.next_retry[row] = rows.retry[stage]
    rows.retry[stage] = row - rows.first_row[stage]


@kernel
def _retry(state, future, row):  # type: ignore[no-untyped-def]
    """Let a task without an attempt that runs, given by its row in `fault_tasks`, start again."""
    _put_first(future, row)
    change_pending(state, future.fault_tasks.stage[row], 1)


@kernel
def _lose_result(state, future, core, is_known):  # type: ignore[no-untyped-def]
    """End the attempt on the core without a result; its task starts again unless it has a twin."""
    cores = future.fault_cores
    stage = state.executors.stage[core]
    row = future.fault_stages.first_row[stage] + cores.task[core]
    twin = cores.twin[core]
    was_waiting = cores.mark[core] > 0
    future.faults.wasted_ms[0] += state.now.clock_ms[0] - state.executors.started_ms[core]
    _clear_attempt(future, core)
    drop_task(state, core)
    if twin != NO_EXECUTOR:
        cores.twin[twin] = NO_EXECUTOR
        expect_check(state, future, stage)
    elif was_waiting:
        _put_first(future, row)  # it counts as one to start already
    elif is_known:
        _retry(state, future, row)
    else:
        follow_up(future, _RETRY_TASK, row)


@kernel
def _finish(state, future, core):  # type: ignore[no-untyped-def]
    """Finish the task on the core, and stop its other attempt."""
    cores = future.fault_cores
    faults = future.faults
    stage = state.executors.stage[core]
    twin = cores.twin[core]
    if cores.mark[core] > 0:
        change_pending(state, stage, -1)
    if faults.speculation[0]:
        note_duration(state, future, stage, core)
    # An attempt that outlived its twin is no winner of a race.
    if twin != NO_EXECUTOR:
        faults.num_copies_won[0] += cores.is_copy[core]
    _clear_attempt(future, core)
    if free_core(state, core):
        follow_up(future, _COMPLETE_STAGE, stage)
    if twin != NO_EXECUTOR:
        faults.wasted_ms[0] += state.now.clock_ms[0] - state.executors.started_ms[twin]
        _stop_attempt(state, future, twin)
        _clear_attempt(future, twin)
        drop_task(state, twin)
        push_idle(state, 0, twin)
    expect_check(state, future, stage)


@kernel
def _end_attempt(state, future, core):  # type: ignore[no-untyped-def]
    """End the attempt on the core as it was drawn: its task finishes, or the attempt fails."""
    cores = future.fault_cores
    if not cores.is_failing[core]:
        _finish(state, future, core)
        return
    stage = state.executors.stage[core]
    row = future.fault_stages.first_row[stage] + cores.task[core]
    future.fault_tasks.num_failures[row] += 1
    future.faults.num_failed[0] += 1
    _lose_result(state, future, core, False)
    push_idle(state, 0, core)


@deferred(NOTHING)
def end_next_attempt(state, future):  # type: ignore[no-untyped-def]
    """End the attempt whose event is next; the offer round that follows assigns its core."""
    core = next_executor(future)
    pop(future, core)
    _end_attempt(state, future, core)


@deferred(NOTHING)
def follow_up_attempt(state, future, kind, row):  # type: ignore[no-untyped-def]
    """Carry out a follow-up: let a task start again, or end an attempt of 0 ms unless it
    stopped.
    """
    cores = future.fault_cores
    if kind == _RETRY_TASK:
        _retry(state, future, row)
    elif cores.num_stale[row] > 0:
        cores.num_stale[row] -= 1
    else:
        _end_attempt(state, future, row)


@kernel
def interrupt(state, future, core):  # type: ignore[no-untyped-def]
    """End the attempt on a core that is lost; its task starts again."""
    future.faults.num_interrupted[0] += 1
    _stop_attempt(state, future, core)
    _lose_result(state, future, core, True)


@kernel
def _lose_executor(state, future, executor, first, last):  # type: ignore[no-untyped-def]
    """Lose the executor with the cores `first` to `last` - 1, and all that runs there."""
    faults = future.faults
    rows = future.fault_cores
    for core in range(first, last):
        if state.executors.stage[core] != NO_STAGE:
            interrupt(state, future, core)
    remove_cores(state, first, last - first)
    faults.num_losses[0] += 1
    faults.down_ms[0] += (last - first) * faults.restart_ms[0]
    rows.num_losses[executor] += 1
    rows.is_down[executor] = 1
    rows.change_ms[executor] = state.now.clock_ms[0] + faults.restart_ms[0]


@kernel
def _change_executor(state, future, executor):  # type: ignore[no-untyped-def]
    """Lose the executor, or bring it back if it is lost."""
    first = executor * future.faults.executor_cores[0]
    last = min(first + future.faults.executor_cores[0], state.executors.shape[0])
    if not future.fault_cores.is_down[executor]:
        _lose_executor(state, future, executor, first, last)
        return
    add_cores(state, first, last - first)
    _plan_loss(future, executor, state.now.clock_ms[0])


@deferred(NOTHING)
def fire_fault(state, future):  # type: ignore[no-untyped-def]
    """Fire the fault whose time has come: tasks are checked, or an executor is lost or comes back.

    Checks come first, then losses and returns by number of the executor.
    """
    clock_ms = state.now.clock_ms[0]
    if future.faults.next_check_ms[0] <= clock_ms:
        check_tasks(state, future)
        return
    executor = 0
    while future.fault_cores.change_ms[executor] > clock_ms:
        executor += 1
    _change_executor(state, future, executor)
    _find_next_change(state, future)


@deferred(INTEGER)
def only_faults_left(state, future):  # type: ignore[no-untyped-def]
    """Whether nothing but faults would happen: no job is left, or the orders hold all of them back.

    Arguments: the cluster and its future, both read only. (While all cores are lost, jobs wait for
    their return and are not held back.)
    """
    now = state.now
    events = future.events
    if next_ms(future) != NEVER_MS or events.num_followups[0] > 0:
        return 0
    if events.num_timers[0] > 0:
        return 0
    # With sessions, the arrival of a job that follows a waiting one is not known.
    row = events.next_arrival[0]
    if row < future.arrival_ms.shape[0] and future.arrival_ms[row] != NEVER_MS:
        return 0
    if now.num_active[0] == 0:
        return 1
    is_held = now.num_idle[0] > 0 and now.wake_ms[0] == NOT_YET and events.end_ms[0] == NEVER_MS
    return 1 if is_held else 0
