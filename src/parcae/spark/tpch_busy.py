"""Measures from an event log how busy cores were and how long they idled while tasks waited."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.workloads.spark_log.application import ApplicationLog

FloatArray = npt.NDArray[np.float64]


class TaskTimes(NamedTuple):
    """When attempts of tasks ran; float64[num_attempts] each, ms of one clock."""

    start: FloatArray
    finish: FloatArray


class Waits(NamedTuple):
    """When tasks waited for a core; float64[num_tasks] each, ms of one clock."""

    start: FloatArray
    finish: FloatArray


def task_times(log: ApplicationLog) -> TaskTimes:
    """All attempts of an application, each for the time that a core worked for it.

    That is from the launch of the task for as long as the core deserialized and ran it.
    """
    tasks = log.tasks()
    start = tasks.launch_ms.astype(np.float64)
    return TaskTimes(start, start + tasks.busy_ms)


def driver_times(log: ApplicationLog) -> TaskTimes:
    """All attempts of an application, each for the time that it ran by the driver's clock.

    The driver notes the end of a task some ms after the core has finished it.
    """
    tasks = log.tasks()
    return TaskTimes(tasks.launch_ms.astype(np.float64), tasks.finish_ms.astype(np.float64))


def waits(log: ApplicationLog) -> Waits:
    """When every task of an application waited, from the submission of its stage; no retries."""
    tasks = log.tasks()
    # Only the first launch of a task counts.
    launched: dict[tuple[int, int], int] = {}
    columns = (tasks.stage_id, tasks.task_index, tasks.launch_ms)
    for stage, index, launch in np.stack(columns, axis=1).tolist():
        launched.setdefault((stage, index), launch)
    rows = [
        (log.stages[stage].submission_ms, launch)
        for (stage, _), launch in launched.items()
        if stage in log.stages and 0 <= log.stages[stage].submission_ms <= launch
    ]
    table = np.array(rows, np.float64).reshape(-1, 2)
    return Waits(table[:, 0], table[:, 1])


def busy_ms(tasks: TaskTimes, begin_ms: float, end_ms: float) -> float:
    """Core time that tasks used between two times, in ms.

    Example: a task from 0 to 10 ms and one from 5 to 20 ms took 6 + 3 ms between 2 and 8 ms.
    """
    start = np.clip(tasks.start, begin_ms, end_ms)
    finish = np.clip(tasks.finish, begin_ms, end_ms)
    return float((finish - start).sum())


def busy_share(tasks: TaskTimes, cores: int, begin_ms: float, end_ms: float) -> float:
    """Share of the time of all cores between two times that tasks used. Returns a share, 0..1; 0 if
    no time lies between the two.
    """
    time_ms = cores * (end_ms - begin_ms)
    return busy_ms(tasks, begin_ms, end_ms) / time_ms if time_ms > 0 else 0.0


def idle_while_waiting_share(
    tasks: TaskTimes, waiting: Waits, cores: int, begin_ms: float, end_ms: float
) -> float:
    """Share of the cores' time, between two times, in which a core was idle while a task waited.

    At any moment, the smaller of the number of idle cores and the number of waiting tasks counts.

    Example: two cores, one busy from 0 to 10 ms; a task waits from 4 to 6 ms: 2 of 20 ms.
    """
    if end_ms <= begin_ms:
        return 0.0
    changes = (
        (np.array([begin_ms, end_ms]), 0, 0),
        (tasks.start, 1, 0),
        (tasks.finish, -1, 0),
        (waiting.start, 0, 1),
        (waiting.finish, 0, -1),
    )
    at = np.concatenate([np.clip(times, begin_ms, end_ms) for times, _, _ in changes])
    order = np.argsort(at, kind="stable")
    lengths = [len(times) for times, _, _ in changes]
    # The running sums of the changes in order of time are the numbers from each time to the next.
    running_steps = np.repeat([step for _, step, _ in changes], lengths)[order]
    waiting_steps = np.repeat([step for _, _, step in changes], lengths)[order]
    num_idle = np.maximum(cores - np.cumsum(running_steps)[:-1], 0)
    num_used = np.minimum(num_idle, np.cumsum(waiting_steps)[:-1])
    return float((num_used * np.diff(at[order])).sum() / (cores * (end_ms - begin_ms)))
