"""Figure 20: one run over time, on executors of several sizes.

Source: Decima, Figure 20 and Appendix G.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import Trace
from parcae.evaluation.pictures import tidy
from parcae.evaluation.plots import policy_color
from parcae.papers.learners import budget_notes
from parcae.papers.multi_resource import gather, missing_notes, recorded_runs, worlds
from parcae.papers.pictures import save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.simulation.metrics import (
    concurrency,
    executors_per_job,
    jct_ms,
    last_completion_ms,
    mean_over_spans,
)
from parcae.workloads.arrivals import JobSequence

#: Number of intervals in which time series are averaged.
_NUM_SPANS = 100
#: Share of the intervals that counts as the busy period.
_BUSY = 1 / 8

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """One policy's run over time.

    Intervals have equal length and end at the last completion of the slowest policy.
    """

    time_s: FloatArray
    jobs: FloatArray
    executors: FloatArray
    done_s: FloatArray
    jct_s: FloatArray


def series_of(traces: Mapping[str, Trace]) -> dict[str, Series]:
    """The time series of one run under several policies. The traces need recorded tasks."""
    # Common intervals for all policies, up to the end of the slowest run.
    edges_ms = np.linspace(
        0, max(1, *(last_completion_ms(trace) for trace in traces.values())), _NUM_SPANS + 1
    )
    return {
        label: Series(
            edges_ms[:-1] / MS_PER_S,
            mean_over_spans(*concurrency(trace), edges_ms),
            executors_per_job(trace, edges_ms),
            trace.completion_ms / MS_PER_S,
            jct_ms(trace) / MS_PER_S,
        )
        for label, trace in traces.items()
    }


def busy_spans(first: Series) -> npt.NDArray[np.bool_]:
    """The eighth of the intervals in which a policy has most jobs in the system, as a mask."""
    return np.asarray(first.jobs >= np.quantile(first.jobs, 1 - _BUSY))


def facts(
    series: Mapping[str, Series], sequence: JobSequence
) -> dict[str, dict[str, float | None]]:
    """Figures of the whole run and of the busy period of the first policy, by policy.

    A figure is None if no job arrived in the busy period.
    """
    first = next(iter(series.values()))
    is_busy = busy_spans(first)
    # The interval in which each job arrives.
    span = np.clip(
        np.searchsorted(first.time_s, sequence.arrival_ms / MS_PER_S, side="right") - 1,
        0,
        _NUM_SPANS - 1,
    )
    # Jobs that arrive in the busy period of the first policy.
    arrives_then = is_busy[span]
    return {
        label: {
            "average_jct_s": float(entry.jct_s.mean()),
            "mean_jobs": float(entry.jobs.mean()),
            "most_jobs": float(entry.jobs.max()),
            "busy_jobs": float(entry.jobs[is_busy].mean()),
            "busy_executors_per_job": float(entry.executors[is_busy].mean()),
            "busy_jct_s": float(entry.jct_s[arrives_then].mean()) if arrives_then.any() else None,
        }
        for label, entry in series.items()
    }


def fig20(request: StudyRequest) -> StudyResult:
    """Jobs in the system, executors of each job and completion times over one run.

    Source: Decima, Figure 20 and Appendix G.
    """
    all_worlds = worlds(request)
    notes = list[str]()
    series = dict[str, dict[str, Series]]()
    numbers = dict[str, dict[str, dict[str, float | None]]]()
    for world in all_worlds:
        lineup = gather(request, world, all_worlds)
        ((sequence, traces),) = recorded_runs(request, world, lineup.contenders, 1)
        series[world.name] = series_of(traces)
        numbers[world.name] = facts(series[world.name], sequence)
        notes += [*world.notes, *lineup.notes]
    columns = (
        "average JCT (s)",
        "mean jobs",
        "most jobs",
        "jobs when busy",
        "executors per job then",
        "JCT of arrivals then (s)",
    )
    return StudyResult(
        "one run over time: busy periods, and executors for each job",
        "in busy periods Decima gives each job more executors than Graphene*, finishes jobs faster "
        "and keeps fewer of them in the system (Figure 20, Appendix G)",
        ("workload", "policy", *columns),
        [
            [name, label, *("-" if value is None else f"{value:,.1f}" for value in entry.values())]
            for name, by_policy in numbers.items()
            for label, entry in by_policy.items()
        ],
        dict(numbers),
        [
            *missing_notes(request),
            f"one run, seed {request.first_seed}, so no intervals; busy: the eighth of the time in "
            "which the first policy has most jobs",
            *notes,
            *budget_notes(request, trained=not request.policies),
        ],
        partial(save, partial(_draw, series), (12.0, 3.2 * len(series))),
    )


def _draw(series: Mapping[str, Mapping[str, Series]], figure: Any) -> None:
    axes = figure.subplots(len(series), 3, squeeze=False)
    for row, (name, by_policy) in zip(axes, series.items(), strict=True):
        for color, (label, entry) in enumerate(by_policy.items()):
            row[0].plot(
                entry.time_s, entry.jobs, color=policy_color(color), label=label, linewidth=1
            )
            row[1].plot(entry.time_s, entry.executors, color=policy_color(color), linewidth=1)
            row[2].plot(
                entry.done_s, entry.jct_s, ".", color=policy_color(color), alpha=0.6, markersize=3
            )
        tidy(row[0], ("time (s)", "jobs in the system"), name)
        tidy(row[1], ("time (s)", "executors per job"))
        tidy(row[2], ("completion (s)", "JCT (s)"))
