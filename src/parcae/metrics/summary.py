"""One run in a row of numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.metrics.cluster import last_completion_ms, makespan_ms, utilization, work_inflation
from parcae.metrics.jobs import bounded_slowdown, jct_ms, slowdown
from parcae.units import s_from_ms
from parcae.workloads.arrivals import JobSequence


@dataclass(frozen=True)
class RunSummary:
    """What one run came to; times in seconds."""

    average_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    makespan_s: float
    last_completion_s: float
    mean_slowdown: float
    bounded_slowdown: float
    utilization: float
    work_inflation: float
    moves: int
    decisions: int
    events: int
    tasks: int
    unfinished: int

    def to_json(self) -> dict[str, float]:
        """Plain numbers."""
        return asdict(self)


def summarize(trace: Trace, sequence: JobSequence) -> RunSummary:
    """Summarize a run. Jobs that the run's end cut off count up to the end (a lower bound) and in `unfinished`."""
    jct = jct_ms(trace)
    p50, p95, p99 = (s_from_ms(float(v)) for v in np.percentile(jct, [50, 95, 99]))
    return RunSummary(
        average_jct_s=s_from_ms(float(jct.mean())),
        median_jct_s=p50,
        p95_jct_s=p95,
        p99_jct_s=p99,
        makespan_s=s_from_ms(makespan_ms(trace)),
        last_completion_s=s_from_ms(last_completion_ms(trace)),
        mean_slowdown=float(slowdown(trace, sequence).mean()),
        bounded_slowdown=float(bounded_slowdown(trace, sequence).mean()),
        utilization=utilization(trace),
        work_inflation=work_inflation(trace, sequence),
        moves=int(trace.num_moves.sum()),
        decisions=trace.num_decisions,
        events=trace.num_events,
        tasks=trace.num_tasks,
        unfinished=int((trace.completion_ms == NOT_COMPLETED).sum()),
    )
