"""Metrics of a run's jobs against their deadlines (`parcae.workloads.deadlines`).

A job misses its deadline if it completes later; its tardiness is the time by which it does, 0 for a
job that meets its deadline. Jobs without a deadline do not count.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import Trace
from parcae.metrics.jobs import arrived, jct_ms
from parcae.workloads.arrivals import JobSequence

FloatArray = npt.NDArray[np.float64]


def deadlines_ms(sequence: JobSequence) -> FloatArray | None:
    """Return the deadline of every job after its arrival, float64[num_jobs].

    Infinite for a job without one; None if no job of the workload has one.
    """
    if not sequence.workload.has_deadlines:
        return None
    given = (job.deadline_ms for job in sequence.jobs)
    return np.array([np.inf if one is None else one for one in given], np.float64)


def missed_and_tardiness(trace: Trace, sequence: JobSequence) -> dict[str, float | int]:
    """Return how a run did against its deadlines; empty if the workload has none.

    A job that was not complete at the end of the run counts with the time up to the end.

    Returns:
        "deadlines": number of jobs with a deadline that arrived; "missed_deadline_share": share of
        them that missed it; "mean_tardiness_ms": mean over them. Both are 0 without such a job.

    Example: of two jobs with deadlines of 5 s that take 4 and 8 s, half miss theirs; the mean
    tardiness is 1500 ms.
    """
    due_ms = deadlines_ms(sequence)
    if due_ms is None:
        return {}
    counts = arrived(trace) & np.isfinite(due_ms)
    late_ms = np.maximum(0.0, jct_ms(trace) - due_ms)[counts]
    num_jobs = int(np.count_nonzero(counts))
    return {
        "deadlines": num_jobs,
        "missed_deadline_share": float(np.count_nonzero(late_ms > 0) / max(1, num_jobs)),
        "mean_tardiness_ms": float(late_ms.sum() / max(1, num_jobs)),
    }
