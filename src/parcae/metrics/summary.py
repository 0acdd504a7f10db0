"""A run's metrics in one record."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.metrics.classes import memory_fragmentation
from parcae.metrics.cluster import (
    core_hours_per_job,
    cores_held,
    last_completion_ms,
    makespan_ms,
    utilization,
    wasted_share,
    work_inflation,
)
from parcae.metrics.jobs import arrived, bounded_slowdown, jct_ms, jct_percentiles_ms, slowdown
from parcae.metrics.objectives import DEADLINE_SLOWDOWN
from parcae.workloads.arrivals import JobSequence


@dataclass(frozen=True)
class RunSummary:
    """The metrics of one run; see `summarize` for jobs that were not complete at its end.

    Args:
        average_jct_ms: mean job completion time.
        median_jct_ms: median job completion time.
        p95_jct_ms: 95th percentile of the job completion times.
        p99_jct_ms: 99th percentile of the job completion times.
        makespan_ms: last completion - first arrival.
        last_completion_ms: when the last job completed.
        mean_slowdown: mean over jobs; see `parcae.metrics.jobs.slowdown`.
        bounded_slowdown: mean over jobs; see `parcae.metrics.jobs.bounded_slowdown`.
        utilization: share of the executors' time in which they ran tasks; see
            `parcae.metrics.cluster.utilization`.
        work_inflation: executor time of completed jobs / their work with mean task durations.
        moves: number of moves of executors between jobs.
        decisions: number of decisions of the policy.
        events: number of events of the simulation.
        tasks: number of tasks that ran.
        unfinished: jobs that had arrived but were not complete at the end of the run.
        missed_deadlines: share of jobs that took longer than DEADLINE_SLOWDOWN times their ideal
            duration.
        fragmentation: share of the busy executors' memory that their tasks did not need; None if
            the tasks were not recorded or the executors have no stated memory.
        failed_attempts: attempts of tasks that failed; None, as the next four, without faults.
        interrupted_attempts: attempts that ended because their executor was lost.
        lost_executors: executors lost.
        speculative_copies: copies of running tasks.
        wasted_share: share of the core time of all attempts that brought no result.
        cores_held: mean number of cores that were up or starting; None, as the next, for a cluster
            of a fixed size.
        core_hours_per_job: core hours held / jobs that arrived.
    """

    average_jct_ms: float
    median_jct_ms: float
    p95_jct_ms: float
    p99_jct_ms: float
    makespan_ms: int
    last_completion_ms: int
    mean_slowdown: float
    bounded_slowdown: float
    utilization: float
    work_inflation: float
    moves: int
    decisions: int
    events: int
    tasks: int
    unfinished: int
    missed_deadlines: float
    fragmentation: float | None = None
    failed_attempts: int | None = None
    interrupted_attempts: int | None = None
    lost_executors: int | None = None
    speculative_copies: int | None = None
    wasted_share: float | None = None
    cores_held: float | None = None
    core_hours_per_job: float | None = None

    def to_json(self) -> dict[str, float]:
        """Return the metrics by name, times in ms; unknown ones are left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def summarize(trace: Trace, sequence: JobSequence) -> RunSummary:
    """Compute the metrics of a run.

    For a job that was not complete at the end of the run, its time in the system up to the end is
    used, so that averages over such runs are lower bounds; `unfinished` is the number of these
    jobs. Jobs that had not arrived yet are left out.

    Raises:
        ConfigError: no job arrived before the run ended.

    Example: jobs of 4 and 8 seconds that arrive together average 6000 ms with a makespan of 8000
    ms.
    """
    has_arrived = arrived(trace)
    slowdowns = slowdown(trace, sequence)[has_arrived]
    p50, p95, p99 = jct_percentiles_ms(trace, (50, 95, 99))
    faults = trace.faults
    return RunSummary(
        average_jct_ms=float(jct_ms(trace)[has_arrived].mean()),
        median_jct_ms=p50,
        p95_jct_ms=p95,
        p99_jct_ms=p99,
        makespan_ms=makespan_ms(trace),
        last_completion_ms=last_completion_ms(trace),
        mean_slowdown=float(slowdowns.mean()),
        bounded_slowdown=float(bounded_slowdown(trace, sequence)[has_arrived].mean()),
        utilization=utilization(trace),
        work_inflation=work_inflation(trace, sequence),
        moves=int(trace.num_moves.sum()),
        decisions=trace.num_decisions,
        events=trace.num_events,
        tasks=trace.num_tasks,
        unfinished=int(np.count_nonzero(has_arrived & (trace.completion_ms == NOT_COMPLETED))),
        missed_deadlines=float((slowdowns > DEADLINE_SLOWDOWN).mean()),
        fragmentation=memory_fragmentation(trace, sequence),
        failed_attempts=None if faults is None else faults.failed,
        interrupted_attempts=None if faults is None else faults.interrupted,
        lost_executors=None if faults is None else faults.lost_executors,
        speculative_copies=None if faults is None else faults.copies,
        wasted_share=wasted_share(trace),
        cores_held=cores_held(trace),
        core_hours_per_job=core_hours_per_job(trace),
    )
