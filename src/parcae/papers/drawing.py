"""The pictures of the studies. Each function draws one kind of picture of any study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.arrays import Float64Array
from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import Trace
from parcae.evaluation.gantt import cluster_charts, write_gantt
from parcae.evaluation.pictures import as_label, in_legend, new_picture, tidy, write_picture
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, with_distances
from parcae.papers.contenders import GREEDY, Learned
from parcae.papers.runner import Measure, PartOutcome, StudyRun, mark_paper
from parcae.simulation.metrics import (
    concurrency,
    executor_share,
    executors_per_job,
    jct_ms,
    last_completion_ms,
    mean_over_spans,
)

#: Lines with more points than this have no markers.
_MANY_POINTS = 40
#: Number of intervals in which time series are averaged.
_NUM_SPANS = 100
_EQUAL: dict[str, Any] = {"color": "#7f7f7f", "linewidth": 0.8}


def _seen(
    run: StudyRun, outcome: PartOutcome, label: str, measure: Measure, is_ratio: bool
) -> Estimate:
    """What a picture shows of a measure: its ratio or its value."""
    if is_ratio:
        return run.ratio(outcome, label, measure)
    return outcome.estimate(label, measure.key)


def _printed(
    run: StudyRun, outcome: PartOutcome, label: str, measure: Measure, is_ratio: bool
) -> float:
    """What the paper prints of what a picture shows; NaN where it prints nothing."""
    value = run.printed(outcome, label, measure.key)
    if is_ratio and np.isfinite(value):
        value /= outcome.estimate(run.baseline(outcome, measure), measure.key).mean
    return value


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
            labels = list(outcome.values)
            means, *reach = with_distances(
                [_seen(run, outcome, label, one, is_ratio) for label in labels]
            )
            rows = range(len(labels))
            axis.barh(
                rows,
                np.nan_to_num(means),
                xerr=reach,
                color=[policy_color(place) for place in rows],
                height=0.6,
                error_kw={"elinewidth": 1},
            )
            axis.set_yticks(rows, [as_label(label) for label in labels], fontsize=8)
            axis.invert_yaxis()
            papers = [_printed(run, outcome, label, one, is_ratio) for label in labels]
            is_marked = mark_paper(axis, papers, rows)
            heading = f"{one.heading} / {run.baseline(outcome, one)}" if is_ratio else one.heading
            tidy(axis, (heading, ""), outcome.part.name, has_legend=is_marked)
    write_picture(figure, path)


def lines(run: StudyRun, path: Path, x: str = "load", is_ratio: bool = False) -> None:
    """A panel for each group of parts: the first measure over the parts' x, with intervals."""
    measure = run.measures[0]
    panels = list(dict.fromkeys(outcome.part.panel for outcome in run.outcomes))
    figure = new_picture(2.0 + 5.0 * len(panels), 4.4)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        outcomes = [outcome for outcome in run.outcomes if outcome.part.panel == panel]
        for row, label in enumerate(outcomes[0].values):
            means, *reach = with_distances(
                [_seen(run, outcome, label, measure, is_ratio) for outcome in outcomes]
            )
            axis.errorbar(
                [outcome.part.x for outcome in outcomes],
                means,
                reach,
                color=policy_color(row),
                marker="o",
                markersize=4,
                label=in_legend(label),
                capsize=2,
            )
        places = [(outcome, label) for outcome in outcomes for label in outcome.values]
        papers = [_printed(run, *place, measure, is_ratio) for place in places]
        mark_paper(axis, [outcome.part.x for outcome, _ in places], papers)
        other = ""
        if is_ratio:
            axis.axhline(1.0, **_EQUAL)
            axis.set_yscale("log")
            other = f" / {run.baseline(outcomes[0], measure)}'s"
        else:
            axis.set_ylim(bottom=0)
        tidy(axis, (x, measure.heading + other), panel)
    write_picture(figure, path)


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


def cdf(run: StudyRun, path: Path, scale: str = "linear") -> None:
    """The distribution over the runs of the first measure."""
    measure = run.measures[0]
    figure = new_picture(7.0, 4.0)
    axis = figure.subplots()
    for row, (label, one) in enumerate(run.outcomes[0].values.items()):
        axis.ecdf(one[measure.key], color=policy_color(row), label=in_legend(label))
    labels = list(run.outcomes[0].values)
    means = [_printed(run, run.outcomes[0], label, measure, is_ratio=False) for label in labels]
    # Means have no height: half of the runs is in the middle.
    mark_paper(axis, means, [0.5] * len(means), [*map(policy_color, range(len(means)))])
    axis.set_xscale(scale)
    axis.set_ylim(0, 1.02)
    tidy(axis, (measure.heading, "share of the runs"))
    write_picture(figure, path)


def gantt(run: StudyRun, path: Path) -> None:
    """The schedules of the first run of every part."""
    shown = {}
    for outcome in run.outcomes:
        for label, trace in run.first_run(outcome)[1].items():
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


#: The axes of each kind of panel.
_PANELS = {
    "jobs": ("time (s)", "jobs in the system"),
    "executors": ("time (s)", "executors per job"),
    "jct": ("completion (s)", "JCT (s)"),
    "size": ("work of the job (s)", "JCT (s)"),
    "share": ("work of the job (s)", "executors"),
    "inflation": ("executor time of a job under the first policy (s)", "under the other (s)"),
}


def time_edges(traces: Mapping[str, Trace]) -> Float64Array:
    """The edges of common intervals for all runs, up to the end of the slowest one, in ms."""
    return np.linspace(0, max(1, *map(last_completion_ms, traces.values())), _NUM_SPANS + 1)


def over_time(run: StudyRun, path: Path, panels: Sequence[str] = ("jobs",)) -> None:
    """The first run of every part: a row of panels, with lines over time or a point a job."""
    figure = new_picture(1.5 + 4.0 * len(panels), 3.6 * len(run.outcomes))
    axes = figure.subplots(len(run.outcomes), len(panels), squeeze=False)
    for row, outcome in zip(axes, run.outcomes, strict=True):
        jobs, traces = run.first_run(outcome)
        edges = time_edges(traces)
        first = next(iter(traces.values()))
        work_s = np.array([job.work_ms for job in jobs.jobs]) / MS_PER_S
        for color, (label, trace) in enumerate(traces.items()):
            jct_s = jct_ms(trace) / MS_PER_S
            edges_s = edges[:-1] / MS_PER_S
            points = {
                "jobs": (edges_s, mean_over_spans(*concurrency(trace), edges)),
                "executors": (edges_s, executors_per_job(trace, edges)),
                "jct": (trace.completion_ms / MS_PER_S, jct_s),
                "size": (work_s, jct_s),
                "share": (work_s, executor_share(trace)),
                "inflation": (first.executed_ms / MS_PER_S, trace.executed_ms / MS_PER_S),
            }
            for axis, panel in zip(row, panels, strict=True):
                style = "-" if panel in ("jobs", "executors") else "."
                axis.plot(*points[panel], style, color=policy_color(color), label=in_legend(label))
        for axis, panel in zip(row, panels, strict=True):
            if panel in ("size", "share"):
                axis.set_xscale("log")
            tidy(axis, _PANELS[panel], outcome.part.name, has_legend=panel == panels[0])
    write_picture(figure, path)
