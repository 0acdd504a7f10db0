"""Time in which no task of a query could run, and the task slots of an application over time.

A query begins with its first Spark job or SQL execution and ends with its last; a stage ends with
the last finish of the attempts that the simulator plays. The *gap* of a stage is the time from the
ends of its data and control parents to its submission, its *lag* the time from there to its first
launch in which a slot was free (the rest of that time is queueing), and the *tail* of the query the
time from the end of its last stage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parcae.base.arrays import Int64Array, level
from parcae.workloads.spark_log.application import UNKNOWN_SLOTS, ApplicationLog, TaskColumns
from parcae.workloads.spark_log.durations import PlacedTasks
from parcae.workloads.spark_log.events import Outcome

#: Executors that begin this long after the first task was launched are those of an edited log.
_LATE_MS = 1_000


def own_finish_ms(placed: PlacedTasks) -> Int64Array:
    """When every attempt left its slot: its finish, or the next launch there if that is earlier.

    Spark's driver launches the next task before it has recorded the end of the last one. But where
    a log has more tasks at once than slots, an attempt still keeps the time in which its core
    worked.
    """
    tasks = placed.tasks
    order = np.lexsort((tasks.launch_ms, placed.slot))
    finish_ms = tasks.finish_ms.copy()
    before, after = order[:-1], order[1:]
    same = placed.slot[before] == placed.slot[after]
    before, after = before[same], after[same]
    done_ms = tasks.launch_ms[before] + tasks.busy_ms[before]
    next_ms = np.maximum(tasks.launch_ms[after], done_ms)
    finish_ms[before] = np.minimum(finish_ms[before], next_ms)
    return finish_ms


def slot_changes(log: ApplicationLog, placed: PlacedTasks) -> list[tuple[int, int]]:
    """How the number of task slots changed: (wall-clock ms, change), in order of time.

    An executor is there from its first launch on at the latest, and until its last finish at least.
    Where executors are not known, or come after the tasks that they ran (edited or cut logs), the
    slots are constant: as many as the log has, or as tasks ever ran at once.
    """
    tasks = placed.tasks
    changes: list[tuple[int, int]] = []
    last_ms = int(tasks.finish_ms.max(initial=-1))
    for name, (start_ms, until_ms) in log.presence(last_ms).items():
        slots = log.slots_of(name)
        if slots == UNKNOWN_SLOTS:
            continue
        rows = tasks.executor == log.executor_codes.get(name, -1)
        if rows.any():
            launched_ms = int(tasks.launch_ms[rows].min())
            start_ms = launched_ms if start_ms < 0 else min(start_ms, launched_ms)
            until_ms = max(until_ms, int(tasks.finish_ms[rows].max()))
        changes.append((start_ms, slots))
        # What leaves with the last task, or after it, is the end of the application.
        if until_ms < last_ms:
            changes.append((until_ms, -slots))
    changes.sort()
    if not placed.slot.size:
        return changes
    first_ms = int(tasks.launch_ms.min())
    known = {name for name in log.executor_codes if log.slots_of(name) != UNKNOWN_SLOTS}
    if not known or changes[0][0] > first_ms + _LATE_MS:
        at_once = sum(change for _, change in changes if change > 0)
        return [(first_ms, at_once or int(placed.slot.max()) + 1)]
    return changes


class FreeTime:
    """When at least one slot of an application was free."""

    def __init__(self, changes: Sequence[tuple[int, int]], tasks: TaskColumns) -> None:
        at_ms, slots = np.array(changes, np.int64).reshape(-1, 2).T
        self._times = np.unique(np.concatenate([at_ms, tasks.launch_ms, tasks.finish_ms]))
        free = level(self._times, (at_ms, slots), (tasks.launch_ms, -1), (tasks.finish_ms, 1))
        self._is_free = free > 0
        spans_ms = np.diff(self._times) * self._is_free[:-1]
        self._free_ms = np.concatenate([[0], np.cumsum(spans_ms)])

    def between(self, start_ms: int, end_ms: int) -> int:
        """For how long a slot was free in an interval, in ms."""
        return max(0, self._until(end_ms) - self._until(start_ms))

    def _until(self, time_ms: int) -> int:
        row = int(np.searchsorted(self._times, time_ms, side="right")) - 1
        if row < 0:
            return 0
        rest_ms = (time_ms - int(self._times[row])) * int(self._is_free[row])
        return int(self._free_ms[row]) + rest_ms


def replayed_ms(
    tasks: TaskColumns, left_ms: Int64Array, rows: Int64Array, succeeded: Int64Array
) -> Int64Array:
    """Durations of a stage's tasks in order of launch, for a replay.

    A task's duration is that of its successful attempt, with those of the failed (not the killed,
    not the speculative) attempts of its partition before it.
    """
    order = succeeded[np.argsort(tasks.launch_ms[succeeded], kind="stable")]
    duration_ms = left_ms[order] - tasks.launch_ms[order]
    if rows.size == succeeded.size:
        return duration_ms
    is_failed = (tasks.outcome[rows] != Outcome.SUCCESS) & (tasks.outcome[rows] != Outcome.KILLED)
    failed = rows[is_failed & (tasks.is_speculative[rows] == 0)]
    row_of = {int(tasks.task_index[row]): place for place, row in enumerate(order)}
    for attempt in failed.tolist():
        place = row_of.get(int(tasks.task_index[attempt]))
        if place is not None and tasks.launch_ms[attempt] < tasks.launch_ms[order[place]]:
            duration_ms[place] += tasks.finish_ms[attempt] - tasks.launch_ms[attempt]
    return duration_ms
