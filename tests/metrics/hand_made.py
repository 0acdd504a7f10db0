"""A run written by hand, for tests of the metrics."""

from __future__ import annotations

import numpy as np

from parcae.cluster.state import ExecutorClass
from parcae.cluster.trace import NOT_COMPLETED, TASK_RECORD, Trace
from parcae.workloads.workload import JobSequence
from tests.conftest import arriving, job

#: (job, stage, task, executor, start, finish)
Task = tuple[int, int, int, int, int, int]

#: Two executors. Job 0 (two tasks of 4 s) arrives at 0, job 1 (one task of 2 s) at 1 s. Tasks of
#: job 0 start at 0 and 1 s; job 1 gets executor 0, which is free at 4 s and takes 1 s to move.
TASKS: tuple[Task, ...] = (
    (0, 0, 0, 0, 0, 4_000),
    (0, 0, 1, 1, 1_000, 5_000),
    (1, 0, 0, 0, 5_000, 7_000),
)


def sequence() -> JobSequence:
    return arriving((job("long", (2, 4_000, ())), 0), (job("short", (1, 2_000, ())), 1_000))


def trace(
    tasks: tuple[Task, ...] = TASKS,
    *,
    arrival_ms: tuple[int, ...] = (0, 1_000),
    completion_ms: tuple[int, ...] = (5_000, 7_000),
    clock_ms: int = 8_000,
    num_executors: int = 2,
    recorded: bool = True,
    classes: tuple[ExecutorClass, ...] = (),
) -> Trace:
    table = np.array(list(tasks), TASK_RECORD)
    executed = np.zeros(len(arrival_ms), np.int64)
    np.add.at(executed, table["job"], table["finish_ms"] - table["start_ms"])
    return Trace(
        policy="by hand",
        num_executors=num_executors,
        job_names=tuple(f"job-{row}" for row in range(len(arrival_ms))),
        arrival_ms=np.array(arrival_ms, np.int64),
        completion_ms=np.array(completion_ms, np.int64),
        executed_ms=executed,
        num_moves=np.array([2, 1] + [0] * (len(arrival_ms) - 2), np.int64)[: len(arrival_ms)],
        clock_ms=clock_ms,
        num_arrived=sum(arrival < clock_ms for arrival in arrival_ms),
        num_decisions=3,
        num_events=9,
        num_tasks=len(tasks),
        tasks=table if recorded else None,
        classes=classes,
    )


def three_jobs() -> JobSequence:
    """The jobs of `cut_off`."""
    rows = (("a", (2, 4_000, ()), 0), ("b", (1, 2_000, ()), 1_000), ("c", (1, 1, ()), 9_000))
    return arriving(*((job(name, stage), at_ms) for name, stage, at_ms in rows))


def cut_off() -> Trace:
    """Return the same run, ended at 6 s: job 1 is not complete, a third job would arrive at 9 s."""
    tasks = (*TASKS[:2], (1, 0, 0, 0, 5_000, 6_000))
    return trace(
        tasks,
        arrival_ms=(0, 1_000, 9_000),
        completion_ms=(5_000, NOT_COMPLETED, NOT_COMPLETED),
        clock_ms=6_000,
    )
