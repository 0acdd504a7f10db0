"""Attempts of tasks and stages in an event log: slots, the attempt that counts, times."""

from __future__ import annotations

import numpy as np

from parcae.workloads.spark_log.application import ApplicationLog, TaskColumns
from parcae.workloads.spark_log.durations import PlacedTasks, place_tasks, stage_samples
from parcae.workloads.spark_log.events import Outcome, StageCompleted, StageInfo


def _attempts(*rows: tuple[int, int, int, int]) -> TaskColumns:
    """Successful attempts on one executor: (stage, task, launch, finish)."""
    stage, task, launch, finish = np.array(rows, np.int64).T
    none = np.zeros(len(rows), np.int64)
    outcome = np.full(len(rows), int(Outcome.SUCCESS), np.int64)
    return TaskColumns(stage, task, launch, finish, none, outcome, none, none, none)


def _placed(tasks: TaskColumns) -> PlacedTasks:
    return place_tasks(tasks, [2])


def test_a_task_takes_the_slot_that_became_free_last() -> None:
    placed = _placed(_attempts((0, 0, 0, 10), (0, 1, 0, 20), (1, 0, 30, 40)))
    assert placed.slot.tolist() == [0, 1, 1]


def test_of_two_attempts_that_succeed_the_first_to_finish_counts() -> None:
    placed = _placed(_attempts((0, 0, 0, 100), (0, 0, 50, 80)))
    samples = stage_samples(placed, {0: np.arange(2)}, 0)
    assert samples is not None
    assert np.concatenate(samples.by_wave).tolist() == [30]


def test_a_stage_ends_with_the_last_of_its_attempts_in_whichever_order_they_are_logged() -> None:
    log = ApplicationLog("a log")
    for attempt, start_ms, end_ms in ((1, 50, 90), (0, 10, 40)):
        info = StageInfo(3, attempt, "collect", 1, (), 0, ())
        log.add(StageCompleted(info, start_ms, end_ms, attempt == 1, frozenset()))
    record = log.stages[3]
    assert (record.submission_ms, record.completion_ms, record.is_success) == (10, 90, True)
