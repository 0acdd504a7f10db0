"""Speculation in the world of cores: which running tasks get a copy (`kernels.faults` starts it).

`state` is the `ClusterState` and `future` the `Future` of the same simulator.

Source: Spark's TaskSetManager.checkSpeculatableTasks.
"""

from __future__ import annotations

import math

import numpy as np

from parcae.cluster.kernels.faults import change_pending
from parcae.cluster.state import NO_EXECUTOR, NO_STAGE
from parcae.kernels import inlined, kernel
from parcae.simulation.future import NEVER_MS

_NEVER = np.int64(NEVER_MS)
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
    """Insert the duration of the attempt that finishes into the sorted durations of its stage.

    Args:
        state: the cluster; read only.
        future: `fault_tasks` is written.
        stage: row of the stage.
        core: row of the core that the attempt runs on.
    """
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
    least = max(np.int64(math.floor(future.faults.quantile[0] * num_tasks)), 1)
    return num_tasks > 1 and state.stages.num_finished[stage] >= least


@inlined
def _check_after(future, time_ms):  # type: ignore[no-untyped-def]
    """Return the time of the first check at or after `time_ms`."""
    check_ms = future.faults.check_ms[0]
    return (time_ms + check_ms - 1) // check_ms * check_ms


@inlined
def expect_check(state, future, stage):  # type: ignore[no-untyped-def]
    """Make the next check count after a change of the stage's running or finished tasks.

    Args:
        state: the cluster; read only.
        future: the time of the next check is written.
        stage: row of the stage.
    """
    faults = future.faults
    if faults.speculates[0] and _is_checked(state, future, stage):
        check_ms = _check_after(future, state.now.clock_ms[0] + 1)
        if check_ms < faults.next_check_ms[0]:
            faults.next_check_ms[0] = check_ms
            update_next_fault(future)


@inlined
def _longest_ms(state, future, stage):  # type: ignore[no-untyped-def]
    """Return the time after which a task of the stage runs long."""
    middle = future.fault_stages.first_row[stage] + state.stages.num_finished[stage] // 2
    longest_ms = future.faults.multiplier[0] * future.fault_tasks.duration_ms[middle]
    return max(longest_ms, float(future.faults.least_ms[0]))


@kernel
def check_tasks(state, future):  # type: ignore[no-untyped-def]
    """Mark the tasks that run long, and find the time of the next check that may find one.

    A task runs long if it has no other attempt and runs for longer than `multiplier` medians of its
    stage's finished tasks. Between two checks that may find a task, checks are skipped.
    """
    faults = future.faults
    cores = future.fault_cores
    clock_ms = state.now.clock_ms[0]
    earliest = _NEVER
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
