"""Metrics of a run that concern the cluster: utilization, work inflation, counts over time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.errors import ConfigError
from parcae.metrics.jobs import arrived
from parcae.units import MS_PER_HOUR
from parcae.workloads.arrivals import JobSequence

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def last_completion_ms(trace: Trace) -> int:
    """Return when the last job completed, or the end of the run if a job did not complete."""
    return int(trace.completion_ms.max()) if trace.is_complete else trace.clock_ms


def makespan_ms(trace: Trace) -> int:
    """Return last completion - first arrival, in ms."""
    return last_completion_ms(trace) - int(trace.arrival_ms.min())


def utilization(trace: Trace) -> float:
    """Return the share of the executors' time in which they ran tasks.

    The time is that from the first arrival to the last completion; on an elastic cluster, the time
    for which cores were held. Tasks that the end of the run cut off do not count, so that the share
    of such a run is a lower bound.
    """
    fixed_ms = trace.num_executors * makespan_ms(trace)
    available = fixed_ms if trace.held_ms is None else trace.held_ms
    wasted = 0 if trace.faults is None else trace.faults.wasted_ms
    return (float(trace.executed_ms.sum()) + wasted) / available if available > 0 else 0.0


def wasted_share(trace: Trace) -> float | None:
    """Return the share of the core time of all attempts of tasks that brought no result.

    These are attempts that failed, whose executor was lost, or whose task finished elsewhere. None
    for a cluster without faults.
    """
    if trace.faults is None:
        return None
    ran_ms = float(trace.executed_ms.sum()) + trace.faults.wasted_ms
    return trace.faults.wasted_ms / ran_ms if ran_ms > 0 else 0.0


def cores_held(trace: Trace) -> float | None:
    """Return the mean number of cores up or starting during the run; None for a fixed cluster."""
    return None if trace.held_ms is None else trace.held_ms / max(1, trace.clock_ms)


def core_hours_per_job(trace: Trace) -> float | None:
    """Return the core hours held / jobs that arrived; None for a fixed cluster."""
    if trace.held_ms is None:
        return None
    num_jobs = int(np.count_nonzero(arrived(trace)))
    return trace.held_ms / MS_PER_HOUR / max(1, num_jobs)


def work_inflation(trace: Trace, sequence: JobSequence) -> float:
    """Return executor time of the completed jobs' tasks / their work with mean task durations.

    Source: Decima, section 2.2.
    """
    completed = trace.completion_ms != NOT_COMPLETED
    work = sum(job.work_ms for job, done in zip(sequence.jobs, completed, strict=True) if done)
    return float(trace.executed_ms[completed].sum()) / work if work > 0 else 1.0


def steps(
    up: Int64Array, down: Int64Array, amount: Int64Array | None = None
) -> tuple[Int64Array, Int64Array]:
    """Return a step function that rises by `amount` at `up` and falls by it at `down`.

    Args:
        up: int64[num_steps], times at which it rises.
        down: int64[num_steps], times at which it falls; any number without `amount`.
        amount: int64[num_steps]; 1 by default.

    Returns:
        (times, ascending; value from each of these times on).

    Example: `steps([0, 5], [7, 9])` is ([0, 5, 7, 9], [1, 2, 1, 0]).
    """
    times = np.concatenate([np.asarray(up, np.int64), np.asarray(down, np.int64)])
    rise = np.ones(len(up), np.int64) if amount is None else amount
    fall = np.ones(len(down), np.int64) if amount is None else amount
    change = np.concatenate([rise, -fall])
    at, row = np.unique(times, return_inverse=True)
    total = np.zeros(len(at), np.int64)
    np.add.at(total, row, change)
    return at, np.cumsum(total)


def mean_over_spans(times_ms: Int64Array, count: Int64Array, edges_ms: FloatArray) -> FloatArray:
    """Return time averages of a step function over the spans between edges.

    Args:
        times_ms: int64[num_times], as from `steps`.
        count: int64[num_times], as from `steps`; the function is 0 before the first time.
        edges_ms: float64[num_edges], ascending.

    Returns:
        float64[num_edges - 1].

    Example: a count of 2 from 0 to 5 and 0 afterwards averages 1 over the span 0 to 10.
    """
    if len(times_ms) == 0:
        return np.zeros(len(edges_ms) - 1)
    # The integral of the step function is piecewise linear: interpolate it at the edges.
    # As floats: in KB of memory x seconds it may exceed the largest int64.
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times_ms).astype(np.float64))])
    end = float(times_ms[-1])
    last = float(count[-1])
    at = np.interp(edges_ms, times_ms, area) + last * np.maximum(0.0, edges_ms - end)
    return np.asarray(np.diff(at) / np.diff(edges_ms), np.float64)


def concurrency(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return the number of jobs in the system over time: (times in ms, jobs from that time on)."""
    return steps(
        trace.arrival_ms[arrived(trace)], trace.completion_ms[trace.completion_ms != NOT_COMPLETED]
    )


def busy_executors(trace: Trace, job: int | None = None) -> tuple[Int64Array, Int64Array]:
    """Return the number of executors that run tasks over time, of one job or of all jobs.

    Returns:
        (times in ms, executors from that time on).

    Raises:
        ConfigError: the tasks were not recorded.
    """
    if trace.tasks is None:
        raise ConfigError("executors over time need recorded tasks: simulate with record=True")
    tasks = trace.tasks if job is None else trace.tasks[trace.tasks["job"] == job]
    return steps(tasks["start_ms"], tasks["finish_ms"])


def executors_per_job(trace: Trace, edges_ms: FloatArray) -> FloatArray:
    """Return the mean number of executors that run tasks per job in the system, by spans.

    Returns:
        float64[num_edges - 1]; 0 for spans without jobs.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    busy = mean_over_spans(*busy_executors(trace), edges_ms)
    jobs = mean_over_spans(*concurrency(trace), edges_ms)
    return np.asarray(np.divide(busy, jobs, out=np.zeros_like(busy), where=jobs > 0))


def executor_share(trace: Trace) -> FloatArray:
    """Return the mean number of executors that ran each job's tasks while it was in the system.

    Tasks that the end of the run cut off do not count.

    Returns:
        float64[num_jobs].
    """
    end = np.where(trace.completion_ms == NOT_COMPLETED, trace.clock_ms, trace.completion_ms)
    return np.asarray(trace.executed_ms / np.maximum(1, end - trace.arrival_ms), np.float64)
