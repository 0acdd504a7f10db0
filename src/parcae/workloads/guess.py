"""Estimates the task durations of jobs without a profile from what is known at submission."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parcae.base.arrays import Float64Array, Int64Array
from parcae.workloads.job import JobSpec, bare_name
from parcae.workloads.workload import Workload

#: A regression over fewer jobs than this is not reliable.
MIN_JOBS = 5
#: What a query costs however little it reads, as so many bytes more (docs/results/sizes.md).
OVERHEAD_BYTES = 5e6


def mean_log_task_ms(workload: Workload) -> float:
    """Mean, over the jobs, of the logarithm of the job's mean task duration in ms."""
    num_tasks = [job.num_tasks for job in workload.jobs]
    return float(np.mean(_log_work_ms(workload) - np.log(num_tasks)))


def guess_task_ms(workload: Workload) -> Float64Array:
    """The duration that a scheduler assumes for every task of a job, in ms, float64[num_jobs].

    The numbers of tasks and, where the log has them, the bytes that the job's scans read
    (`bytes_of`) are known at submission. If the bytes are known, the work comes from a linear
    regression of log work on log bytes (with `OVERHEAD_BYTES`) over all jobs of *other* names with
    known bytes, and is spread over the tasks. Otherwise it is the geometric mean of all jobs' mean
    task durations.
    """
    guess_ms = np.full(len(workload.jobs), np.exp(mean_log_task_ms(workload)))
    num_bytes = np.array([bytes_of(job) for job in workload.jobs])
    known = np.flatnonzero(num_bytes > 0)
    if known.size:
        x, y = np.log(num_bytes[known] + OVERHEAD_BYTES), _log_work_ms(workload)[known]
        names = [bare_name(workload.jobs[row].name) for row in known]
        _, of_name = np.unique(names, return_inverse=True)
        predicted, num_others = _predict_from_others(x, y, of_name)
        num_tasks = np.array([workload.jobs[row].num_tasks for row in known])
        guessed = np.where(num_others >= MIN_JOBS, np.exp(predicted) / num_tasks, guess_ms[known])
        guess_ms[known] = guessed
    return guess_ms


def bytes_of(job: JobSpec) -> float:
    """The bytes that a job reads as far as they are known at submission: of the files of its scans,
    else what its stages without parents read.
    """
    return job.scan_bytes or sum(stage.input_bytes for stage in job.stages if not stage.parents)


def _log_work_ms(workload: Workload) -> Float64Array:
    return np.log([max(1.0, job.work_ms) for job in workload.jobs])


def _predict_from_others(
    x: Float64Array, y: Float64Array, of_name: Int64Array
) -> tuple[Float64Array, Int64Array]:
    """y on the least-squares line through the points of other names, and how many there are.

    The slope is limited to 0..1: a job that reads twice as much has neither less work nor more than
    twice as much.
    """
    # Sums over all points minus those of the name give the moments of the others in one pass.
    columns = (np.ones_like(x), x, y, x * x, x * y)
    count, sum_x, sum_y, sum_xx, sum_xy = (
        column.sum() - np.bincount(of_name, column)[of_name] for column in columns
    )
    others = np.maximum(1.0, count)
    mean_x, mean_y = sum_x / others, sum_y / others
    variance = np.maximum(0.0, sum_xx / others - mean_x * mean_x)
    covariance = sum_xy / others - mean_x * mean_y
    slope = np.divide(covariance, variance, out=np.zeros_like(x), where=variance > 1e-9)
    predicted = mean_y + np.clip(slope, 0.0, 1.0) * (x - mean_x)
    return predicted, np.rint(count).astype(np.int64)


def guess_new_task_ms(workload: Workload) -> Callable[[float, int], float]:
    """The same estimate for a job of another name. Returns a function from the bytes that it reads
    (0: not known) and its number of tasks to the estimated task duration in ms.
    """
    typical_ms = float(np.exp(mean_log_task_ms(workload)))
    num_bytes = np.array([bytes_of(job) for job in workload.jobs])
    known = num_bytes > 0
    if known.sum() < MIN_JOBS:
        return lambda _bytes, _tasks: typical_ms
    # The last entry is a placeholder for the new job; its y is not used.
    x = np.append(np.log(num_bytes[known] + OVERHEAD_BYTES), 0.0)
    y = np.append(_log_work_ms(workload)[known], 0.0)
    of_name = np.append(np.zeros(len(x) - 1, np.int64), 1)

    def guess(new_bytes: float, num_tasks: int) -> float:
        if new_bytes <= 0:
            return typical_ms
        x[-1] = np.log(new_bytes + OVERHEAD_BYTES)
        predicted, _ = _predict_from_others(x, y, of_name)
        return float(np.exp(predicted[-1])) / max(1, num_tasks)

    return guess
