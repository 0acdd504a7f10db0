"""Reconstructs the task slots of tasks, and derives waves, parallelism and durations of stages.

A task slot is the part of an executor that runs one task at a time (`spark.task.cpus` cores).

A query begins with its first Spark job or SQL execution and ends with its last; a stage ends with
the last finish of the attempts that the simulator plays. The *gap* of a stage is the time from the
ends of its data and control parents to its submission, its *lag* the time from there to its first
launch in which a slot was free (the rest of that time is queueing), and the *tail* of the query the
time from the end of its last stage. In these times no task of the query could run.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parcae.base.arrays import Int64Array, level
from parcae.workloads.durations import NUM_WAVES, Wave
from parcae.workloads.spark_log.application import (
    UNKNOWN_SLOTS,
    ApplicationLog,
    Outcome,
    TaskColumns,
)

#: Tolerated overlap of two tasks on one slot, if the executor's number of cores is not known.
#: Spark's driver launches the next task before it has recorded the end of the last one (median 1
#: ms, rarely above 50 ms).
OVERLAP_MS = 50


class PlacedTasks(NamedTuple):
    """Tasks with the slot and the wave of each attempt.

    `slot` is int64[num_attempts], numbered over all executors; `wave` is int64[num_attempts].
    """

    tasks: TaskColumns
    slot: Int64Array
    wave: Int64Array


@dataclass(frozen=True, eq=False)
class StageSamples:
    """Measured durations (int64 ms) of one run of a stage by wave, and the parallelism of its job.

    `input_bytes` are the bytes that its successful attempts read.
    """

    level: int
    by_wave: tuple[Int64Array, ...]
    input_bytes: float = 0.0


@dataclass(eq=False)
class _Slot:
    """The state of one task slot while the log is replayed."""

    number: int
    launch_ms: int
    free_ms: int
    stage_id: int

    def is_free_at(self, launch_ms: int, overlap_ms: int) -> bool:
        """Whether a task can be launched on the slot.

        An overlap of `overlap_ms` is tolerated, but at most a quarter of the last task.
        """
        return self.free_ms <= launch_ms + min(overlap_ms, (self.free_ms - self.launch_ms) // 4)


def place_tasks(
    tasks: TaskColumns,
    slots_of_executor: Sequence[int],
    ignored_stages: Container[int] = frozenset(),
) -> PlacedTasks:
    """Place every attempt on a slot of its executor, and determine its wave.

    A slot's first task is FRESH (a cold JVM), its first task of a stage FIRST, and every later task
    of that stage REST. A task goes to a free slot, preferably the one that last ran the same stage.
    If no slot is free and the executor has no more cores, it goes to the slot that becomes free
    first.
    """
    slot = _assigned_slots(tasks, slots_of_executor)
    wave = np.full(len(slot), int(Wave.REST), np.int64)
    known_stages = set()
    warm_slots = set()
    for row, (number, stage_id) in enumerate(
        zip(slot.tolist(), tasks.stage_id.tolist(), strict=True)
    ):
        if stage_id not in ignored_stages and number not in warm_slots:
            warm_slots.add(number)
            wave[row] = Wave.FRESH
        elif (number, stage_id) not in known_stages:
            wave[row] = Wave.FIRST
        known_stages.add((number, stage_id))
    return PlacedTasks(tasks, slot, wave)


def _assigned_slots(tasks: TaskColumns, slots_of_executor: Sequence[int]) -> Int64Array:
    """The number of the slot of every attempt, over all executors in order of first use."""
    numbers = []
    open_slots: list[list[_Slot]] = [[] for _ in slots_of_executor]
    num_slots = 0
    columns = (tasks.executor, tasks.stage_id, tasks.launch_ms, tasks.finish_ms)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for executor, stage_id, launch_ms, finish_ms in rows:
        capacity = slots_of_executor[executor]
        chosen = _choose_slot(open_slots[executor], capacity, stage_id, launch_ms)
        if chosen is None:
            chosen = _Slot(num_slots, launch_ms, finish_ms, stage_id)
            open_slots[executor].append(chosen)
            num_slots += 1
        chosen.launch_ms = launch_ms
        chosen.free_ms = max(finish_ms, chosen.free_ms)
        chosen.stage_id = stage_id
        numbers.append(chosen.number)
    return np.array(numbers, np.int64)


def _choose_slot(slots: list[_Slot], capacity: int, stage_id: int, launch_ms: int) -> _Slot | None:
    """The slot for a task, or None if a new slot has to be created."""
    overlap_ms = OVERLAP_MS if capacity == UNKNOWN_SLOTS else 0
    free = [slot for slot in slots if slot.is_free_at(launch_ms, overlap_ms)]
    if free:
        # The same stage first, then the one that became free last.
        return max(free, key=lambda slot: (slot.stage_id == stage_id, slot.free_ms))
    if capacity == UNKNOWN_SLOTS or len(slots) < capacity:
        return None
    return min(slots, key=lambda slot: slot.free_ms)


def level_bucket(num_slots: int) -> int:
    """The degree of parallelism to which `num_slots` is rounded: 1, 2, 3, 4, 6, 8, 12, 16, 24, ...

    The level with the nearest ratio is chosen.

    Example: `level_bucket(7)` is 8 and `level_bucket(50)` is 48.
    """
    exponent = int(math.log2(max(num_slots, 1)))
    candidates = (1 << exponent, 3 << exponent - 1 if exponent else 2, 2 << exponent)
    return min(candidates, key=lambda level: abs(math.log(level / max(num_slots, 1))))


def stage_samples(
    placed: PlacedTasks, stages: dict[int, Int64Array], stage_id: int
) -> StageSamples:
    """Durations of the successful task attempts of one stage, one per task index.

    The parallelism is the number of slots that the whole job used between the stage's first launch
    and its last finish.
    """
    rows = stages[stage_id]
    tasks = placed.tasks
    succeeded = first_successes(tasks, rows)
    if succeeded.size == 0:
        return StageSamples(1, (succeeded,) * NUM_WAVES)
    duration_ms = tasks.finish_ms[succeeded] - tasks.launch_ms[succeeded]
    by_wave = [duration_ms[placed.wave[succeeded] == wave] for wave in range(NUM_WAVES)]
    # If the first attempts on all slots failed, the later ones take their place: a profile needs
    # samples of a fresh or first wave.
    if by_wave[Wave.FRESH].size == 0 and by_wave[Wave.FIRST].size == 0:
        by_wave[Wave.FIRST], by_wave[Wave.REST] = by_wave[Wave.REST], by_wave[Wave.FIRST]
    level = level_bucket(_slots_held(placed, np.concatenate(list(stages.values())), rows))
    input_bytes = float(tasks.input_bytes[succeeded].sum(dtype=np.float64))
    return StageSamples(level, tuple(by_wave), input_bytes)


def first_successes(tasks: TaskColumns, rows: Int64Array) -> Int64Array:
    """The rows of the successful attempts, ascending; of several of one task the first to finish.

    Speculation can make several attempts of one task succeed.
    """
    succeeded = rows[tasks.outcome[rows] == Outcome.SUCCESS]
    order = np.lexsort((tasks.finish_ms[succeeded], tasks.task_index[succeeded]))
    by_finish = succeeded[order]
    _, first_of_index = np.unique(tasks.task_index[by_finish], return_index=True)
    return np.sort(by_finish[first_of_index])


def _slots_held(placed: PlacedTasks, job_rows: Int64Array, stage_rows: Int64Array) -> int:
    """On how many slots at once the job ran tasks while the stage ran.

    A slot counts from its first to its last task then: those of an executor that took the place of
    a lost one are no further ones.
    """
    tasks = placed.tasks
    start_ms = tasks.launch_ms[stage_rows].min()
    end_ms = tasks.finish_ms[stage_rows].max()
    during = (tasks.launch_ms[job_rows] <= end_ms) & (tasks.finish_ms[job_rows] >= start_ms)
    rows = job_rows[during]
    slots, of_row = np.unique(placed.slot[rows], return_inverse=True)
    begin_ms = np.full(len(slots), np.iinfo(np.int64).max)
    last_ms = np.full(len(slots), -1)
    np.minimum.at(begin_ms, of_row, tasks.launch_ms[rows])
    np.maximum.at(last_ms, of_row, tasks.finish_ms[rows])
    # A task of no length holds its slot, too.
    edges = np.unique(np.concatenate([begin_ms, last_ms + 1]))
    return int(level(edges, (begin_ms, 1), (last_ms + 1, -1)).max(initial=0))


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
