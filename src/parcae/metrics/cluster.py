"""What a run meant for the cluster: utilization, work inflation, concurrency and shares over time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.errors import ConfigError
from parcae.metrics.jobs import arrived
from parcae.workloads.arrivals import JobSequence

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def last_completion_ms(trace: Trace) -> int:
    """When the last job completed; the run's end where one did not."""
    return int(trace.completion_ms.max()) if trace.is_complete else trace.clock_ms


def makespan_ms(trace: Trace) -> int:
    """Last completion - first arrival."""
    return last_completion_ms(trace) - int(trace.arrival_ms.min())


def utilization(trace: Trace) -> float:
    """Share of the executors' time, from first arrival to last completion, in which they ran tasks."""
    available = trace.num_executors * makespan_ms(trace)
    return float(trace.executed_ms.sum()) / available if available > 0 else 0.0


def work_inflation(trace: Trace, sequence: JobSequence) -> float:
    """Executor time of the completed jobs' tasks / their work with mean task durations (Decima, section 2.2)."""
    completed = trace.completion_ms != NOT_COMPLETED
    work = sum(job.work_ms for job, done in zip(sequence.jobs, completed, strict=True) if done)
    return float(trace.executed_ms[completed].sum()) / work if work > 0 else 1.0


def steps(up_ms: Int64Array, down_ms: Int64Array) -> tuple[Int64Array, Int64Array]:
    """A count that rises at each of `up_ms` and falls at each of `down_ms`: (times, count from that time on).

    Example: `steps([0, 5], [7, 9])` is ([0, 5, 7, 9], [1, 2, 1, 0]).
    """
    times = np.concatenate([np.asarray(up_ms, np.int64), np.asarray(down_ms, np.int64)])
    change = np.concatenate([np.ones(len(up_ms), np.int64), -np.ones(len(down_ms), np.int64)])
    at, row = np.unique(times, return_inverse=True)
    total = np.zeros(len(at), np.int64)
    np.add.at(total, row, change)
    return at, np.cumsum(total)


def mean_over_spans(times_ms: Int64Array, count: Int64Array, edges_ms: FloatArray) -> FloatArray:
    """Time averages of a step function over the spans between edges, float64[num_edges - 1].

    Args:
        times_ms, count: as from `steps`; 0 before the first time.
        edges_ms: ascending.

    Example: a count of 2 from 0 to 5 and 0 afterwards averages 1 over the span 0 to 10.
    """
    if len(times_ms) == 0:
        return np.zeros(len(edges_ms) - 1)
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times_ms))])
    end = float(times_ms[-1])
    last = float(count[-1])
    at = np.interp(edges_ms, times_ms, area) + last * np.maximum(0.0, edges_ms - end)
    return np.asarray(np.diff(at) / np.diff(edges_ms), np.float64)


def concurrency(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Jobs in the system over time: (times in ms, jobs from that time on)."""
    return steps(
        trace.arrival_ms[arrived(trace)], trace.completion_ms[trace.completion_ms != NOT_COMPLETED]
    )


def busy_executors(trace: Trace, job: int | None = None) -> tuple[Int64Array, Int64Array]:
    """Executors that run tasks (of one job, or of any) over time: (times in ms, executors from that time on).

    Raises:
        ConfigError: the tasks were not recorded.
    """
    if trace.tasks is None:
        raise ConfigError("executors over time need recorded tasks: simulate with record=True")
    tasks = trace.tasks if job is None else trace.tasks[trace.tasks["job"] == job]
    return steps(tasks["start_ms"], tasks["finish_ms"])


def executors_per_job(trace: Trace, edges_ms: FloatArray) -> FloatArray:
    """Executors that run tasks for each job in the system, averaged over spans, float64[num_edges - 1]; 0 where no job is there.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    busy = mean_over_spans(*busy_executors(trace), edges_ms)
    jobs = mean_over_spans(*concurrency(trace), edges_ms)
    return np.asarray(np.divide(busy, jobs, out=np.zeros_like(busy), where=jobs > 0))


def executor_share(trace: Trace) -> FloatArray:
    """Mean number of executors that ran each job's tasks while it was in the system, float64[num_jobs]."""
    end = np.where(trace.completion_ms == NOT_COMPLETED, trace.clock_ms, trace.completion_ms)
    return np.asarray(trace.executed_ms / np.maximum(1, end - trace.arrival_ms), np.float64)
