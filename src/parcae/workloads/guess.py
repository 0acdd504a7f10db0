"""How long the tasks of a job take that no profile knows, guessed by what is known when it is submitted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from parcae.workloads.job import JobSpec, Workload

Float64Array = npt.NDArray[np.float64]

#: A line through fewer jobs than this says too little.
_LEAST_JOBS = 5


def mean_log_task_ms(workload: Workload) -> float:
    """Mean over the jobs of the logarithm of the mean duration of their tasks, in log ms."""
    return float(np.mean(_log_task_ms(workload)))


def guess_task_ms(workload: Workload) -> Float64Array:
    """The duration that a scheduler assumes of every task of a job, for each job of the workload.

    Known at submission are the numbers of tasks and, where the log has them, the bytes that the parentless stages read. The
    more a task reads, the longer it takes: by a line through the logarithms of all *other* jobs with known bytes. Without
    them it is the geometric mean of all jobs' mean task durations.

    Args:
        workload: the jobs; `StageSpec.input_bytes` of their parentless stages are looked at.

    Returns:
        float64[number of jobs], in ms, > 0.
    """
    guess_ms = np.full(len(workload.jobs), np.exp(mean_log_task_ms(workload)))
    bytes_per_task = np.array([_bytes_per_task(job) for job in workload.jobs])
    has_bytes = bytes_per_task > 0
    if has_bytes.sum() > _LEAST_JOBS:
        log_bytes = np.log(bytes_per_task[has_bytes])
        log_ms = _log_task_ms(workload)[has_bytes]
        guess_ms[has_bytes] = np.exp(_foretell_by_others(log_bytes, log_ms))
    return guess_ms


def _log_task_ms(workload: Workload) -> Float64Array:
    work_ms = np.array([max(1.0, job.work_ms) for job in workload.jobs])
    log_ms: Float64Array = np.log(work_ms / np.array([job.num_tasks for job in workload.jobs]))
    return log_ms


def _bytes_per_task(job: JobSpec) -> float:
    roots = [stage for stage in job.stages if not stage.parents]
    return sum(stage.input_bytes for stage in roots) / sum(stage.num_tasks for stage in roots)


def _foretell_by_others(x: Float64Array, y: Float64Array) -> Float64Array:
    """y[i] by the least-squares line through all other points; its slope is kept within 0..1.

    A task that reads twice as much takes neither less time nor more than twice as much.
    """
    others = len(x) - 1
    mean_x = (x.sum() - x) / others
    mean_y = (y.sum() - y) / others
    variance = np.maximum(0.0, ((x * x).sum() - x * x) / others - mean_x * mean_x)
    covariance = ((x * y).sum() - x * y) / others - mean_x * mean_y
    slope = np.divide(covariance, variance, out=np.zeros_like(x), where=variance > 1e-9)
    found: Float64Array = mean_y + np.clip(slope, 0.0, 1.0) * (x - mean_x)
    return found


def guess_new_task_ms(workload: Workload) -> Callable[[float], float]:
    """The same guess for a job that is not one of the workload's: by the bytes that a task reads.

    Returns:
        a function of the bytes that a task of its parentless stages reads (0: not known), in ms.
    """
    typical_ms = float(np.exp(mean_log_task_ms(workload)))
    bytes_per_task = np.array([_bytes_per_task(job) for job in workload.jobs])
    has_bytes = bytes_per_task > 0
    if has_bytes.sum() < _LEAST_JOBS:
        return lambda _: typical_ms
    x = np.append(np.log(bytes_per_task[has_bytes]), 0.0)
    y = np.append(_log_task_ms(workload)[has_bytes], 0.0)

    def guess(num_bytes: float) -> float:
        if num_bytes <= 0:
            return typical_ms
        x[-1] = np.log(num_bytes)
        return float(np.exp(_foretell_by_others(x, y)[-1]))

    return guess
