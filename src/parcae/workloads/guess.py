"""Estimates the task durations of jobs without a profile from what is known at submission."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from parcae.workloads.job import JobSpec
from parcae.workloads.workload import Workload

Float64Array = npt.NDArray[np.float64]

#: A regression over fewer jobs than this is not reliable.
_MIN_JOBS = 5


def mean_log_task_ms(workload: Workload) -> float:
    """Mean, over the jobs, of the logarithm of the job's mean task duration in ms."""
    return float(np.mean(_log_task_ms(workload)))


def guess_task_ms(workload: Workload) -> Float64Array:
    """The duration that a scheduler assumes for every task of a job, in ms, float64[num_jobs].

    Two quantities are known at submission: the numbers of tasks and, where the log has them, the
    bytes that the stages without parents read (`StageSpec.input_bytes`). If the bytes
    are known, the estimate comes from a linear regression of log duration on log bytes per task
    over all *other* jobs with known bytes. Otherwise it is the geometric mean of
    all jobs' mean task durations.
    """
    guess_ms = np.full(len(workload.jobs), np.exp(mean_log_task_ms(workload)))
    bytes_per_task = np.array([_bytes_per_task(job) for job in workload.jobs])
    has_bytes = bytes_per_task > 0
    # Each job is estimated from the others, so one job more than the minimum is needed.
    if has_bytes.sum() > _MIN_JOBS:
        log_bytes = np.log(bytes_per_task[has_bytes])
        log_ms = _log_task_ms(workload)[has_bytes]
        guess_ms[has_bytes] = np.exp(_predict_from_others(log_bytes, log_ms))
    return guess_ms


def _log_task_ms(workload: Workload) -> Float64Array:
    work_ms = np.array([max(1.0, job.work_ms) for job in workload.jobs])
    log_ms: Float64Array = np.log(work_ms / np.array([job.num_tasks for job in workload.jobs]))
    return log_ms


def _bytes_per_task(job: JobSpec) -> float:
    roots = [stage for stage in job.stages if not stage.parents]
    return sum(stage.input_bytes for stage in roots) / sum(stage.num_tasks for stage in roots)


def _predict_from_others(x: Float64Array, y: Float64Array) -> Float64Array:
    """Leave-one-out regression: y[i] on the least-squares line through all other points.

    The slope is limited to 0..1: a task that reads twice as much takes neither less time nor more
    than twice as much.
    """
    # Sums over all points minus the point itself give the moments of the others in one pass.
    others = len(x) - 1
    mean_x = (x.sum() - x) / others
    mean_y = (y.sum() - y) / others
    variance = np.maximum(0.0, ((x * x).sum() - x * x) / others - mean_x * mean_x)
    covariance = ((x * y).sum() - x * y) / others - mean_x * mean_y
    slope = np.divide(covariance, variance, out=np.zeros_like(x), where=variance > 1e-9)
    predicted: Float64Array = mean_y + np.clip(slope, 0.0, 1.0) * (x - mean_x)
    return predicted


def guess_new_task_ms(workload: Workload) -> Callable[[float], float]:
    """The same estimate for a job that does not belong to the workload. Returns a function from the
    bytes that a task of the job's first stages reads (0: not known) to the estimated task duration
    in ms.
    """
    typical_ms = float(np.exp(mean_log_task_ms(workload)))
    bytes_per_task = np.array([_bytes_per_task(job) for job in workload.jobs])
    has_bytes = bytes_per_task > 0
    if has_bytes.sum() < _MIN_JOBS:
        return lambda _: typical_ms
    # The last entry is a placeholder for the new job; `guess` fills in its bytes. Its y is not
    # used.
    x = np.append(np.log(bytes_per_task[has_bytes]), 0.0)
    y = np.append(_log_task_ms(workload)[has_bytes], 0.0)

    def guess(num_bytes: float) -> float:
        if num_bytes <= 0:
            return typical_ms
        x[-1] = np.log(num_bytes)
        return float(np.exp(_predict_from_others(x, y)[-1]))

    return guess
