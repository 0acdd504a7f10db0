"""What a run meant for its jobs: completion times, slowdown, queueing delay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.errors import ConfigError
from parcae.workloads.arrivals import JobSequence

FloatArray = npt.NDArray[np.float64]


def jct_ms(trace: Trace) -> npt.NDArray[np.int64]:
    """Job completion times: completion - arrival, int64[num_jobs].

    A job that the run's end cut off counts up to the end: a lower bound. A job that had not arrived yet counts 0.
    """
    end = np.where(trace.completion_ms == NOT_COMPLETED, trace.clock_ms, trace.completion_ms)
    return np.maximum(0, end - trace.arrival_ms)


def arrived(trace: Trace) -> npt.NDArray[np.bool_]:
    """Which jobs arrived before the run ended, bool[num_jobs]; the others are no part of what the run measured."""
    return np.asarray(
        (trace.arrival_ms <= trace.clock_ms) | (trace.completion_ms != NOT_COMPLETED), np.bool_
    )


def jct_percentiles_ms(trace: Trace, percentiles: Sequence[float]) -> tuple[float, ...]:
    """Percentiles (0 to 100) of the completion times of the jobs that arrived, linear between ranks.

    Example: the 50th percentile of completion times of 1, 2 and 9 seconds is 2000.
    """
    return tuple(float(v) for v in np.percentile(jct_ms(trace)[arrived(trace)], percentiles))


def ideal_ms(sequence: JobSequence, num_executors: int) -> FloatArray:
    """Each job's duration alone on the cluster without delays: max(critical path, work / executors), float64[num_jobs].

    Both with mean task durations.
    """
    return np.array(
        [max(job.critical_path_ms, job.work_ms / num_executors) for job in sequence.jobs]
    )


def slowdown(trace: Trace, sequence: JobSequence) -> FloatArray:
    """JCT / ideal duration, float64[num_jobs]; at least 1 but for lucky tasks, and held to that.

    Example: a job of 10 s that completes 25 s after its arrival has slowdown 2.5.
    """
    ideal = np.maximum(1.0, ideal_ms(sequence, trace.num_executors))
    return np.maximum(1.0, jct_ms(trace) / ideal)


def bounded_slowdown(trace: Trace, sequence: JobSequence, bound_ms: float = 10_000.0) -> FloatArray:
    """Slowdown in which jobs shorter than `bound_ms` count as that long, so that tiny jobs do not dominate."""
    ideal = np.maximum(bound_ms, ideal_ms(sequence, trace.num_executors))
    return np.maximum(1.0, jct_ms(trace) / ideal)


def queueing_delay_ms(trace: Trace) -> npt.NDArray[np.int64]:
    """Start of the first task - arrival, int64[num_jobs]; up to the run's end where no task started.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    if trace.tasks is None:
        raise ConfigError("queueing delays need recorded tasks: simulate with record=True")
    first = np.full(len(trace.arrival_ms), trace.clock_ms, np.int64)
    np.minimum.at(first, trace.tasks["job"], trace.tasks["start_ms"])
    return np.asarray(np.maximum(0, first - trace.arrival_ms), np.int64)
