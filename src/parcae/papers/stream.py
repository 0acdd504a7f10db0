"""Figures 9b and 10: jobs that arrive continuously."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import Trace
from parcae.evaluation.pictures import in_legend, tidy
from parcae.evaluation.plots import policy_color
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contest, contest, named
from parcae.papers.learners import learned_contenders
from parcae.papers.pictures import save
from parcae.papers.study import StudyRequest, StudyResult
from parcae.simulation.metrics import (
    concurrency,
    executor_share,
    jct_ms,
    last_completion_ms,
    mean_over_spans,
)
from parcae.workloads.arrivals import JobSequence

#: Number of intervals in which time series are averaged.
_NUM_SPANS = 200
#: Number of parts of the stream; the part with the longest JCTs is the busiest.
_NUM_PARTS = 8
#: Share of the jobs, by work, that count as small.
_SMALL = 0.2

FloatArray = npt.NDArray[np.float64]
#: A panel: its title, its axis labels, and the function that gives the points of a run.
_Panel = tuple[str, tuple[str, str], Callable[[Trace], tuple[FloatArray, FloatArray]]]


def _scenario(request: StudyRequest) -> Scenario:
    return Scenario(request.workload, request.config, request.stream, request.jobs(200, 1_000))


def _concurrency_panel(axis: Any, traces: Mapping[str, Trace], title: str = "") -> None:
    for row, (label, trace) in enumerate(traces.items()):
        edges = np.linspace(0, max(1, last_completion_ms(trace)), _NUM_SPANS + 1)
        axis.plot(
            edges[:-1] / MS_PER_S,
            mean_over_spans(*concurrency(trace), edges),
            color=policy_color(row),
            label=in_legend(label),
        )
    axis.set_ylim(bottom=0)
    tidy(axis, ("time (s)", "jobs in the system"), title)


def _mean_jobs(trace: Trace) -> float:
    # Each job counts for the time that it is in the system.
    return float(jct_ms(trace).sum()) / max(1, last_completion_ms(trace))


def fig9b(request: StudyRequest) -> StudyResult:
    """Average JCT and jobs in the system under continuous arrivals.

    Source: Decima, Figure 9b and section 7.2.
    """
    scenario = _scenario(request)
    learned, notes = learned_contenders(request, scenario)
    baselines = named("weighted-fair:tuned", "fair", "sjf-cp", "fifo", "naive-weighted-fair")
    outcome = contest(request, scenario, [*baselines, *learned], request.runs(6, 20))
    traces = outcome.traces(request.first_seed, record=False)
    means = {label: _mean_jobs(trace) for label, trace in traces.items()}
    rows = [[*row, f"{means[row[0]]:,.1f}"] for row in outcome.rows()]
    return StudyResult(
        "continuous arrivals: which policies keep up, and how fast jobs complete",
        "at a mean gap of 45 s, which is 85% load on their cluster, optimally weighted fair is the "
        "only heuristic that keeps up; Decima's average JCT is 29% lower (Figure 9b, section 7.2)",
        (*outcome.columns, "jobs in the system"),
        rows,
        {**outcome.to_json(), "mean_jobs_in_system": means},
        [
            *outcome.notes(),
            _gap_note(scenario),
            f"jobs in the system: average over time of the run of seed {request.first_seed}, which "
            "the picture shows",
            "the stream has a finite number of jobs, so a policy that cannot keep up has a long "
            "average JCT, not an infinite one",
            *notes,
        ],
        partial(save, lambda figure: _concurrency_panel(figure.subplots(), traces), (7.5, 4.0)),
    )


def _gap_note(scenario: Scenario) -> str:
    from parcae.decima.learning.recipes import mean_gap_s

    gap_s = mean_gap_s(scenario)
    return (
        f"mean gap between arrivals {gap_s:,.2f} s; the same work takes a different time here than "
        "on the paper's cluster"
    )


@dataclass(frozen=True)
class SeriesFacts:
    """Figures of one stream under one policy."""

    average_jct_s: float
    mean_jobs: float
    most_jobs: int
    busiest_jct_s: float
    small_jct_s: float
    small_share: float
    inflation: float

    def cells(self) -> list[str]:
        """The figures as cells of a table."""
        jobs = [f"{self.average_jct_s:,.1f}", f"{self.mean_jobs:,.1f}", str(self.most_jobs)]
        parts = (self.busiest_jct_s, self.small_jct_s, self.small_share)
        return [*jobs, *(f"{value:,.1f}" for value in parts), f"{self.inflation:.3f}"]


def series_facts(traces: Mapping[str, Trace], sequence: JobSequence) -> dict[str, SeriesFacts]:
    """Figures of one stream under several policies.

    The busiest part is the one in which jobs have the longest JCTs under the first policy.
    """
    first = next(iter(traces.values()))
    # Work in executor-milliseconds, by position in the sequence.
    work = np.array([job.work_ms for job in sequence.jobs])
    # The smallest fifth of the jobs, by work.
    small = work <= np.quantile(work, _SMALL)
    parts = np.array_split(np.arange(sequence.num_jobs), min(_NUM_PARTS, sequence.num_jobs))
    busiest = max(parts, key=lambda rows: float(jct_ms(first)[rows].mean()))
    facts = {}
    for label, trace in traces.items():
        jct_s = jct_ms(trace) / MS_PER_S
        facts[label] = SeriesFacts(
            average_jct_s=float(jct_s.mean()),
            mean_jobs=_mean_jobs(trace),
            most_jobs=int(concurrency(trace)[1].max()),
            busiest_jct_s=float(jct_s[busiest].mean()),
            small_jct_s=float(jct_s[small].mean()),
            small_share=float(executor_share(trace)[small].mean()),
            inflation=float(trace.executed_ms.sum() / max(1, first.executed_ms.sum())),
        )
    return facts


def _draw_series(traces: Mapping[str, Trace], sequence: JobSequence, figure: Any) -> None:
    axes = figure.subplots(2, 3).ravel()
    work_s = np.array([job.work_ms for job in sequence.jobs]) / MS_PER_S
    _concurrency_panel(axes[0], traces, "(a) jobs in the system")
    panels: tuple[_Panel, ...] = (
        (
            "(b) JCT over time",
            ("completion (s)", "JCT (s)"),
            lambda t: (t.completion_ms / MS_PER_S, jct_ms(t) / MS_PER_S),
        ),
        (
            "(c) JCT by size",
            ("work of the job (s)", "JCT (s)"),
            lambda t: (work_s, jct_ms(t) / MS_PER_S),
        ),
        (
            "(d) executors by size",
            ("work of the job (s)", "executors"),
            lambda t: (work_s, executor_share(t)),
        ),
    )
    for axis, panel in zip(axes[1:4], panels, strict=True):
        _points_panel(axis, panel, traces)
    for axis in axes[2:4]:
        axis.set_xscale("log")
    _inflation_panel(axes[4], traces)
    axes[5].set_visible(False)


def _points_panel(axis: Any, panel: _Panel, traces: Mapping[str, Trace]) -> None:
    """Draw one point per job and policy."""
    title, labels, points = panel
    for row, (label, trace) in enumerate(traces.items()):
        axis.plot(
            *points(trace), ".", color=policy_color(row), label=label, alpha=0.6, markersize=4
        )
    tidy(axis, labels, title, has_legend=False)


def _inflation_panel(axis: Any, traces: Mapping[str, Trace]) -> None:
    (first_label, first), *others = traces.items()
    # The end of the diagonal, on which both policies need the same executor time.
    most = 1.0
    for row, (label, trace) in enumerate(others, 1):
        x = first.executed_ms / MS_PER_S
        y = trace.executed_ms / MS_PER_S
        axis.plot(x, y, ".", color=policy_color(row), label=label, alpha=0.6, markersize=4)
        most = max(most, float(x.max()), float(y.max()))
    axis.plot([0, most], [0, most], color="#7f7f7f", linewidth=0.8)
    tidy(
        axis,
        (f"executor time of a job under {first_label} (s)", "under the other (s)"),
        "(e) work inflation",
        has_legend=False,
    )


_SERIES_COLUMNS = (
    "policy",
    "average JCT (s)",
    "mean jobs",
    "most jobs",
    "JCT in the busiest eighth (s)",
    "JCT of the smallest fifth (s)",
    "their executors",
    "executor time / the first's",
)


def fig10(request: StudyRequest) -> StudyResult:
    """One stream over time and by job size, under tuned weighted fair and a learned policy.

    Source: Decima, Figure 10 and section 7.2.
    """
    scenario = _scenario(request)
    learned, notes = learned_contenders(request, scenario, ("decima",))
    outcome: Contest = contest(request, scenario, [*named("weighted-fair:tuned"), *learned], 1)
    traces = outcome.traces(request.first_seed, record=False)
    sequence = scenario.sequence(request.first_seed)
    facts = series_facts(traces, sequence)
    return StudyResult(
        "one stream over time: busy periods, small jobs, work inflation",
        "Decima keeps fewer jobs in the system and completes jobs twice as fast in the busiest "
        "hours, because it gives small jobs more executors at about the same total work "
        "(Figure 10, section 7.2)",
        _SERIES_COLUMNS,
        [[label, *f.cells()] for label, f in facts.items()],
        {label: vars(f) for label, f in facts.items()},
        [
            f"one stream of {scenario.num_jobs} jobs, arrivals {scenario.arrivals}, "
            f"seed {request.first_seed}, so no intervals",
            _gap_note(scenario),
            *notes,
        ],
        partial(save, partial(_draw_series, traces, sequence), (12.0, 6.4)),
    )
