"""The pictures of the studies. Each function draws one kind of picture of any study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import Trace
from parcae.evaluation.gantt import cluster_charts, write_gantt
from parcae.evaluation.pictures import as_label, in_legend, new_picture, tidy, write_picture
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate
from parcae.papers.contenders import GREEDY, Learned
from parcae.papers.runner import Measure, PartOutcome, StudyRun
from parcae.simulation.metrics import (
    concurrency,
    executor_share,
    executors_per_job,
    jct_ms,
    last_completion_ms,
    mean_over_spans,
)
from parcae.workloads.workload import JobSequence

#: Lines with more points than this have no markers.
_MANY_POINTS = 40
#: Number of intervals in which time series are averaged.
NUM_SPANS = 100
_EQUAL: dict[str, Any] = {"color": "#7f7f7f", "linewidth": 0.8}


def _seen(
    run: StudyRun, outcome: PartOutcome, label: str, measure: Measure, is_ratio: bool
) -> Estimate:
    """What a picture shows of a measure: its ratio or its value."""
    if is_ratio:
        return run.ratio(outcome, label, measure)
    return outcome.estimate(label, measure.key)


def bars(run: StudyRun, path: Path, shown: int | None = 1) -> None:
    """A row of panels a part: horizontal bars of the first measures, the first policy on top.

    Measures that are shown as ratios only are drawn as ratios.
    """
    panels = [
        [
            one
            for one in run.measures[:shown]
            if any(outcome.has(x, one.key) for x in outcome.values)
        ]
        for outcome in run.outcomes
    ]
    width = max(map(len, panels))
    longest = max(len(outcome.values) for outcome in run.outcomes)
    height = len(run.outcomes) * (0.7 + 0.3 * longest)
    figure = new_picture(3.0 + 4.0 * width, 0.6 + height)
    axes = figure.subplots(len(run.outcomes), width, squeeze=False)
    for row, outcome, measures in zip(axes, run.outcomes, panels, strict=True):
        for axis in row[len(measures) :]:
            axis.set_visible(False)
        for axis, one in zip(row, measures, strict=False):
            is_ratio = not one.has_value
            estimates = {
                label: _seen(run, outcome, label, one, is_ratio) for label in outcome.values
            }
            heading = f"{one.heading} / {run.baseline(outcome, one)}" if is_ratio else one.heading
            bar_panel(axis, estimates, heading, outcome.part.name)
    write_picture(figure, path)


def bar_panel(axis: Any, estimates: Mapping[str, Estimate], label: str, title: str = "") -> None:
    """Draw one horizontal bar per estimate, the first on top."""
    rows = np.arange(len(estimates))
    ends = np.array([[e.mean - e.low, e.high - e.mean] for e in estimates.values()])
    axis.barh(
        rows,
        np.nan_to_num([e.mean for e in estimates.values()]),
        xerr=np.nan_to_num(ends.T),
        color=[policy_color(row) for row in range(len(estimates))],
        height=0.6,
        error_kw={"elinewidth": 1},
    )
    axis.set_yticks(rows, [as_label(name) for name in estimates], fontsize=8)
    axis.invert_yaxis()
    tidy(axis, (label, ""), title, has_legend=False)


def lines(run: StudyRun, path: Path, x: str = "load", is_ratio: bool = False) -> None:
    """A panel for each group of parts: the first measure over the parts' x, with intervals."""
    measure = run.measures[0]
    panels = list(dict.fromkeys(outcome.part.panel for outcome in run.outcomes))
    figure = new_picture(2.0 + 5.0 * len(panels), 4.4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        outcomes = [outcome for outcome in run.outcomes if outcome.part.panel == panel]
        series = {
            label: [_seen(run, outcome, label, measure, is_ratio) for outcome in outcomes]
            for label in outcomes[0].values
        }
        interval_lines(axis, [outcome.part.x for outcome in outcomes], series)
        if is_ratio:
            axis.axhline(1.0, **_EQUAL)
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
        other = f" / {run.baseline(outcomes[0], measure)}'s" if is_ratio else ""
        tidy(axis, (x, measure.heading + other), panel)
    write_picture(figure, path)


def interval_lines(axis: Any, x: Sequence[float], series: Mapping[str, Sequence[Estimate]]) -> None:
    """Draw lines through estimates, with their intervals where known."""
    for row, (name, estimates) in enumerate(series.items()):
        errors = [[e.mean - e.low for e in estimates], [e.high - e.mean for e in estimates]]
        axis.errorbar(
            x,
            [e.mean for e in estimates],
            np.nan_to_num(errors),
            color=policy_color(row),
            marker="o",
            markersize=4,
            label=in_legend(name),
            capsize=2,
        )


def dots(run: StudyRun, path: Path) -> None:
    """The ratios of the first measure, a row for each part."""
    measure = run.measures[0]
    figure = new_picture(8.0, 0.9 + 0.34 * len(run.outcomes))
    axis = figure.subplots()
    rows = np.arange(len(run.outcomes))
    for row, label in enumerate(run.outcomes[0].values):
        ratios = [run.ratio(outcome, label, measure).mean for outcome in run.outcomes]
        axis.plot(ratios, rows + 0.1 * row, "o", color=policy_color(row), label=in_legend(label))
    axis.axvline(1.0, **_EQUAL)
    axis.set_yticks(rows, [as_label(outcome.part.name) for outcome in run.outcomes], fontsize=8)
    axis.invert_yaxis()
    tidy(axis, (f"{measure.heading} / {' or '.join(measure.over or ())}", ""))
    write_picture(figure, path)


def cdf(run: StudyRun, path: Path) -> None:
    """The distribution over the runs of the first measure."""
    measure = run.measures[0]
    figure = new_picture(7.0, 4.0)
    samples = {label: one[measure.key] for label, one in run.outcomes[0].values.items()}
    cdf_panel(figure.subplots(), samples, (measure.heading, "share of the runs"))
    write_picture(figure, path)


def cdf_panel(axis: Any, samples: Mapping[str, npt.ArrayLike], labels: tuple[str, str]) -> None:
    """Draw cumulative distributions."""
    for row, (name, values) in enumerate(samples.items()):
        ordered = np.sort(np.asarray(values, np.float64))
        # The curve starts at a share of 0 at the smallest value.
        x = np.concatenate([ordered[:1], ordered])
        share = np.arange(len(ordered) + 1) / max(1, len(ordered))
        color = policy_color(row)
        axis.step(x, share[: len(x)], where="post", color=color, label=in_legend(name))
    axis.set_ylim(0, 1.02)
    tidy(axis, labels)


def gantt(run: StudyRun, path: Path) -> None:
    """The schedules of the first run of every part."""
    shown = {}
    for outcome in run.outcomes:
        assert outcome.replay is not None
        for label, trace in outcome.replay(run.request.first_seed)[1].items():
            shown[f"{outcome.part.name}: {label}" if outcome.part.name else label] = trace
    write_gantt(cluster_charts(shown), path)


def curves(
    run: StudyRun, path: Path, y: str = "average JCT / fair sharing's", by_iteration: bool = False
) -> None:
    """The curves of all trainings, and horizontal lines at the policies that are not trained.

    The time of a training begins with that of the rule it goes on from. The axis of the time is
    logarithmic.
    """
    figure = new_picture(8.0, 4.6)
    axis = figure.subplots()
    draw_curves(axis, run.made, by_iteration)
    measure = run.measures[0]
    for outcome in run.outcomes:
        names = outcome.part.policies
        fixed = [
            label
            for label in outcome.values
            if label in names and names[label].removesuffix(GREEDY) not in run.made
        ]
        for row, label in enumerate(fixed, len(run.made)):
            level = _seen(run, outcome, label, measure, measure.over is not None).mean
            axis.axhline(level, color=policy_color(row), linestyle=":", label=in_legend(label))
    tidy(axis, ("iteration" if by_iteration else "seconds of training", y))
    write_picture(figure, path)


def draw_curves(axis: Any, made: Mapping[str, Learned], by_iteration: bool = False) -> None:
    """Draw the curves of trainings; one that diverged before its first measurement has none."""
    ends = []
    for row, (key, learned) in enumerate(made.items()):
        points = learned.curve
        x = [point[0] if by_iteration else max(1.0, point[1]) for point in points]
        ends += [points[-1][2]] if points else []
        axis.plot(
            x,
            [point[2] for point in points],
            color=policy_color(row),
            label=in_legend(key),
            marker="." if len(points) < _MANY_POINTS else None,
        )
    if not by_iteration:
        axis.set_xscale("log")
    # What is far above at first is cut off; where each training ends is always shown.
    if ends:
        axis.set_ylim(0.9 * min(ends), max(1.2 * min(ends), 1.05 * max(ends)))


#: A panel: its axis labels, and the points of a run, from its jobs, its trace, that of the first
#: policy and the edges of the intervals of time.
_Points = Callable[[JobSequence, Trace, Trace, Any], tuple[Any, Any]]
_PANELS: dict[str, tuple[tuple[str, str], _Points]] = {
    "jobs": (
        ("time (s)", "jobs in the system"),
        lambda jobs, trace, first, edges: (
            edges[:-1] / MS_PER_S,
            mean_over_spans(*concurrency(trace), edges),
        ),
    ),
    "executors": (
        ("time (s)", "executors per job"),
        lambda jobs, trace, first, edges: (
            edges[:-1] / MS_PER_S,
            executors_per_job(trace, edges),
        ),
    ),
    "jct": (
        ("completion (s)", "JCT (s)"),
        lambda jobs, trace, first, edges: (
            trace.completion_ms / MS_PER_S,
            jct_ms(trace) / MS_PER_S,
        ),
    ),
    "size": (
        ("work of the job (s)", "JCT (s)"),
        lambda jobs, trace, first, edges: (_work_s(jobs), jct_ms(trace) / MS_PER_S),
    ),
    "share": (
        ("work of the job (s)", "executors"),
        lambda jobs, trace, first, edges: (_work_s(jobs), executor_share(trace)),
    ),
    "inflation": (
        ("executor time of a job under the first policy (s)", "under the other (s)"),
        lambda jobs, trace, first, edges: (
            first.executed_ms / MS_PER_S,
            trace.executed_ms / MS_PER_S,
        ),
    ),
}


def _work_s(jobs: JobSequence) -> Any:
    return np.array([job.work_ms for job in jobs.jobs]) / MS_PER_S


def over_time(run: StudyRun, path: Path, panels: Sequence[str] = ("jobs",)) -> None:
    """The first run of every part: a row of panels, with lines over time or a point a job."""
    figure = new_picture(1.5 + 4.0 * len(panels), 3.6 * len(run.outcomes))
    axes = figure.subplots(len(run.outcomes), len(panels), squeeze=False)
    for row, outcome in zip(axes, run.outcomes, strict=True):
        assert outcome.replay is not None
        jobs, traces = outcome.replay(run.request.first_seed)
        # Common intervals for all policies, up to the end of the slowest run.
        edges = np.linspace(0, max(1, *map(last_completion_ms, traces.values())), NUM_SPANS + 1)
        first = next(iter(traces.values()))
        for axis, panel in zip(row, panels, strict=True):
            labels, points = _PANELS[panel]
            for color, (label, trace) in enumerate(traces.items()):
                style = "-" if labels[0] == "time (s)" else "."
                x, y = points(jobs, trace, first, edges)
                axis.plot(x, y, style, color=policy_color(color), label=in_legend(label))
            if panel in ("size", "share"):
                axis.set_xscale("log")
            tidy(axis, labels, outcome.part.name, has_legend=panel == panels[0])
    write_picture(figure, path)
