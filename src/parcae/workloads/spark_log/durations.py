"""Reconstructs the task slots of tasks, and derives waves, parallelism and durations of stages.

A task slot is the part of an executor that runs one task at a time (`spark.task.cpus` cores).
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parcae.base.arrays import Int64Array, level
from parcae.workloads.durations import NUM_WAVES, Wave
from parcae.workloads.spark_log.application import UNKNOWN_SLOTS, TaskColumns
from parcae.workloads.spark_log.events import Outcome

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
