"""One run in a row of numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.metrics.classes import memory_fragmentation
from parcae.metrics.cluster import last_completion_ms, makespan_ms, utilization, work_inflation
from parcae.metrics.jobs import arrived, bounded_slowdown, jct_ms, jct_percentiles_ms, slowdown
from parcae.metrics.objectives import DEADLINE_SLOWDOWN
from parcae.workloads.arrivals import JobSequence


@dataclass(frozen=True)
class RunSummary:
    """What one run came to; see `summarize` for jobs that the run's end cut off.

    Args:
        average_jct_ms, median_jct_ms, p95_jct_ms, p99_jct_ms: job completion times.
        makespan_ms: last completion - first arrival.
        last_completion_ms: when the last job completed.
        mean_slowdown, bounded_slowdown: means over jobs; see `parcae.metrics.jobs`.
        utilization: share of the executors' time in which they ran tasks.
        work_inflation: executor time of completed jobs / their work with mean task durations.
        moves: executors that moved between jobs.
        decisions, events, tasks: how often the policy was asked, events fired, tasks run.
        unfinished: jobs that had arrived but not completed when the run ended.
        missed_deadlines: share of jobs that took longer than DEADLINE_SLOWDOWN times their ideal duration.
        fragmentation: share of the busy executors' memory that their tasks did not need; None where tasks were not recorded or
            executors have no stated memory.
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

    def to_json(self) -> dict[str, float]:
        """Plain numbers, times in ms; without those that are not known."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def summarize(trace: Trace, sequence: JobSequence) -> RunSummary:
    """Summarize a run.

    A job that the run's end cut off counts its time in the system up to the end, so that averages over such runs are
    lower bounds; `unfinished` says how many there are. Jobs that had not arrived yet are left out.

    Example: jobs of 4 and 8 seconds that arrive together average 6000 ms with a makespan of 8000 ms.
    """
    here = arrived(trace)
    p50, p95, p99 = jct_percentiles_ms(trace, (50, 95, 99))
    return RunSummary(
        average_jct_ms=float(jct_ms(trace)[here].mean()),
        median_jct_ms=p50,
        p95_jct_ms=p95,
        p99_jct_ms=p99,
        makespan_ms=makespan_ms(trace),
        last_completion_ms=last_completion_ms(trace),
        mean_slowdown=float(slowdown(trace, sequence)[here].mean()),
        bounded_slowdown=float(bounded_slowdown(trace, sequence)[here].mean()),
        utilization=utilization(trace),
        work_inflation=work_inflation(trace, sequence),
        moves=int(trace.num_moves.sum()),
        decisions=trace.num_decisions,
        events=trace.num_events,
        tasks=trace.num_tasks,
        unfinished=int(np.count_nonzero(here & (trace.completion_ms == NOT_COMPLETED))),
        missed_deadlines=float((slowdown(trace, sequence)[here] > DEADLINE_SLOWDOWN).mean()),
        fragmentation=memory_fragmentation(trace, sequence),
    )
