"""Charts of the comparison report, among them those of Decima's Figures 9a and 10."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.evaluation.pictures import as_label, in_legend, new_picture, shortened, tidy
from parcae.evaluation.statistics import Estimate, with_distances
from parcae.simulation.metrics import (
    arrived,
    busy_executors,
    concurrency,
    executor_share,
    jct_ms,
    last_completion_ms,
    mean_over_spans,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]
#: One colour per policy; the first nine are distinguishable in print and for colour-blind readers
#: (Okabe and Ito). Commands compare up to a dozen.
PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
    "#8c6d31",
    "#7f7f7f",
    "#6a3d9a",
    "#b2df8a",
    "#e31a1c",
    "#a6cee3",
    "#1b4332",
    "#f781bf",
    "#bcbd22",
)
#: Line styles for the first, second and third use of each colour.
_DASHES = ("solid", "dashed", "dotted")
#: Most characters of a name beside a chart, and of a line of its title.
_LONGEST_NAME = 40
_LONGEST_LINE = 70
#: Number of intervals in which curves over time are averaged.
NUM_SPANS = 240
_INK = "#1d232a"
#: How curves are drawn: as lines, as steps, or as dots of single jobs.
_KINDS: Mapping[str, dict[str, Any]] = {
    "lines": {},
    "steps": {"drawstyle": "steps-post"},
    "dots": {"linestyle": "none", "marker": "o", "markersize": 4, "alpha": 0.75},
}


def policy_color(row: int) -> str:
    """The colour of the policy at position `row` of the comparison."""
    return PALETTE[row % len(PALETTE)]


def new_chart(width_in: float = 6.2, height_in: float = 3.4) -> Any:
    """The axes of an empty chart."""
    return new_picture(width_in, height_in).subplots()


def label_of(name: str) -> str:
    """A name as the label of what is drawn of it."""
    return in_legend(as_label(shortened(name, _LONGEST_NAME)))


def finished(axis: Any, title: str, axes: tuple[str, str]) -> Figure:
    """A chart with its title, its labels, and below it a legend of what is drawn."""
    tidy(axis, axes, "\n".join(wrap(title, _LONGEST_LINE)), has_legend=False)
    figure: Figure = axis.figure
    if axis.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower left", ncols=3, fontsize=8, frameon=False)
    return figure


def interval_dots(
    title: str,
    label: str,
    names: Sequence[str],
    estimates: Sequence[Estimate],
    colors: Sequence[str] = PALETTE,
) -> Figure:
    """Numbers with their intervals, below each other."""
    axis = new_chart(8, 0.9 + 0.26 * len(names))
    means, below, above = with_distances(estimates)
    rows = np.arange(len(names))
    # Rounding can leave the mean of equal numbers outside its interval by 1e-16.
    ends = np.maximum(0.0, [below, above])
    axis.errorbar(means, rows, xerr=ends, fmt="none", ecolor=_INK, elinewidth=1.2, capsize=3)
    axis.scatter(means, rows, c=[colors[row % len(colors)] for row in range(len(names))], zorder=3)
    axis.set_yticks(rows, [as_label(shortened(name, _LONGEST_NAME)) for name in names])
    axis.set(xlim=(0, None), ylim=(len(names) - 0.5, -0.5))
    return finished(axis, title, (label, ""))


def ratio_dots(
    title: str, names: Sequence[str], ratios: Sequence[Estimate], colors: Sequence[str] = PALETTE
) -> Figure:
    """Ratios with their intervals, below each other, and a line at 1.

    The axis has the intervals up to three times the largest distance of a ratio from 1.
    """
    figure = interval_dots(title, "ratio, with 95% interval", names, ratios, colors)
    axis = figure.axes[0]
    axis.axvline(1, color="grey", linewidth=1)
    # The interval of two seeds can be a thousand times wider than their distance: cut it off.
    known = [(one.mean, one.low, one.high) for one in ratios if math.isfinite(one.mean)]
    distances = np.abs(np.array(known).reshape(-1, 3) - 1)
    farthest = max(0.05, float(distances[:, 0].max(initial=0.0)))
    below, above = (
        min(3 * farthest, max(1.2 * farthest, 1.05 * float(np.nanmax([0.0, *distances[:, end]]))))
        for end in (1, 2)
    )
    axis.set_xlim(max(0.0, 1 - below), 1 + above)
    return figure


def cdf(trace: Trace) -> tuple[FloatArray, FloatArray]:
    """The distribution of JCTs over all jobs that arrived. Returns JCTs in seconds, ascending from
    0, and for each the share of jobs that took at most as long.

    Example: for two jobs, one of 3 s and one unfinished at the end: ([0, 3], [0, 0.5]).
    """
    done = trace.completion_ms != NOT_COMPLETED
    jct_s = np.sort(jct_ms(trace)[done]) / MS_PER_S
    # Unfinished jobs count in the total, so the curve may end below 1.
    share = np.arange(len(jct_s) + 1) / max(1, int(arrived(trace).sum()))
    return np.concatenate([[0.0], jct_s]), share


def curve_chart(
    title: str,
    axes: tuple[str, str],
    curves: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]] | None],
    kind: str = "lines",
    **limits: Any,
) -> Figure:
    """A chart with one curve a policy (of a kind in _KINDS); `limits` are of matplotlib's axes."""
    axis = new_chart()
    for row, (name, curve) in enumerate(curves.items()):
        if curve is not None:
            dashes = {"linestyle": _DASHES[row // len(PALETTE) % len(_DASHES)]}
            style = {"color": policy_color(row), "label": label_of(name), **dashes, **_KINDS[kind]}
            axis.plot(*curve, **style)
    axis.set(**limits)
    return finished(axis, title, axes)


def share_axis(figure: Figure) -> Figure:
    """The chart with a y axis from 0 to 100%."""
    axis = figure.axes[0]
    axis.set_ylim(0, 1.02)
    axis.yaxis.set_major_formatter("{x:.0%}")
    return figure


def jct_cdf(traces: Mapping[str, Trace]) -> Figure:
    """Share of jobs that completed within a time (Decima, Figure 9a)."""
    curves = {name: cdf(trace) for name, trace in traces.items()}
    axes = ("JCT (s)", "share of jobs")
    return share_axis(curve_chart("Share of jobs done within a time", axes, curves, "steps"))


def concurrency_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Jobs in the system over time (Decima, Figure 10a)."""
    curves = {}
    for name, trace in traces.items():
        times_ms, count = concurrency(trace)
        curves[name] = (times_ms / MS_PER_S, count)
    axes = ("time (s)", "jobs in the system")
    return curve_chart("Jobs in the system", axes, curves, "steps", ylim=(0, None))


def busy_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Busy executors or cores over time, as means over 240 intervals."""
    end_ms = max(last_completion_ms(trace) for trace in traces.values())
    edges = np.linspace(0, max(1, end_ms), NUM_SPANS + 1)
    curves = {}
    for name, trace in traces.items():
        shown = edges[:-1] < last_completion_ms(trace)
        busy = mean_over_spans(*busy_executors(trace), edges)
        curves[name] = (edges[:-1][shown] / MS_PER_S, busy[shown])
    unit = _unit(traces)
    title = f"{unit.capitalize()}s that run tasks"
    return curve_chart(title, ("time (s)", f"busy {unit}s"), curves, ylim=(0, None))


def jct_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Each completed job's JCT against its time of completion (Decima, Figure 10b)."""
    done = {name: trace.completion_ms != NOT_COMPLETED for name, trace in traces.items()}
    return curve_chart(
        "Job completion times, by when the job completed",
        ("time of completion (s)", "JCT (s)"),
        {
            name: (trace.completion_ms[done[name]] / MS_PER_S, jct_ms(trace)[done[name]] / MS_PER_S)
            for name, trace in traces.items()
        },
        "dots",
        ylim=(0, None),
    )


def share_by_work(traces: Mapping[str, Trace]) -> Figure:
    """Average number of executors or cores that ran a job's tasks (Decima, Figure 10d).

    The average is over the time that the job was in the system.
    """
    unit = _unit(traces)
    ran = {name: arrived(trace) & (trace.executed_ms > 0) for name, trace in traces.items()}
    return curve_chart(
        f"{unit.capitalize()}s a job had on average, by its size",
        (f"{unit} time of the job (s)", f"{unit}s"),
        {
            name: (trace.executed_ms[ran[name]] / MS_PER_S, executor_share(trace)[ran[name]])
            for name, trace in traces.items()
        },
        "dots",
        xscale="log",
    )


def _unit(traces: Mapping[str, Trace]) -> str:
    """What runs a task in all runs: "executor" or "core"."""
    return next(iter(traces.values())).unit
