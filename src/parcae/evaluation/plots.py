"""Charts of the comparison report, among them those of Decima's Figures 9a and 10."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.evaluation.pictures import shortened
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
    from plotly.graph_objects import Figure

FloatArray = npt.NDArray[np.float64]
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
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
_DASHES = ("solid", "dash", "dot")
#: Most characters of a name beside a chart.
_LONGEST_NAME = 48
#: Number of intervals in which curves over time are averaged.
NUM_SPANS = 240


def policy_color(row: int) -> str:
    """The colour of the policy at position `row` of the comparison."""
    return PALETTE[row % len(PALETTE)]


def line_style(row: int) -> dict[str, Any]:
    """Plotly's line style of the policy at position `row` of the comparison."""
    return {
        "color": policy_color(row),
        "dash": _DASHES[row // len(PALETTE) % len(_DASHES)],
        "width": 2,
    }


def new_figure(title: str, x: str, y: str) -> Any:
    """An empty chart in the style of the reports."""
    # Imported here: only charts need it, and it belongs to the extra "report".
    import plotly.graph_objects as go

    figure = go.Figure()
    set_style(figure, title, 360)
    figure.update_layout(
        xaxis_title=x,
        yaxis_title=y,
        legend={"orientation": "h", "y": -0.22, "x": 0},
        hovermode="closest",
    )
    return figure


def set_style(figure: Figure, title: str, height_px: int) -> None:
    """Give a chart the style of the reports."""
    # A phone has room for lines of this length.
    lines = wrap(title, 50, break_long_words=False)
    figure.update_layout(
        title={"text": "<br>".join(lines), "font.size": 14, "x": 0, "xref": "container"},
        template="plotly_white",
        font={"family": _FONT, "color": "#1d232a"},
        height=height_px,
        margin={"l": 58, "r": 12, "t": 24 + 18 * len(lines), "b": 45},
    )


def interval_bars(
    title: str, axis: str, names: Sequence[str], estimates: Sequence[Estimate]
) -> Figure:
    """A bar chart of one number per policy with its interval; the first policy is on top."""
    figure = new_figure(title, axis, "")
    figure.add_bar(
        y=[chart_text(name) for name in names],
        **_intervals(estimates),
        marker_color=[policy_color(row) for row in range(len(names))],
        width=0.6,
        orientation="h",
    )
    figure.update_layout(
        height=110 + 38 * len(names), yaxis={"autorange": "reversed", "ticksuffix": "  "}
    )
    figure.update_xaxes(rangemode="tozero")
    return figure


def _intervals(estimates: Sequence[Estimate]) -> dict[str, Any]:
    """Means along the x axis, with their intervals."""
    means, below, above = with_distances(estimates)
    error = {"type": "data", "array": above, "arrayminus": below, "thickness": 1.5}
    return {"x": means.tolist(), "error_x": {**error, "color": "#1d232a"}}


def chart_text(name: str) -> str:
    """A name as plotly shows it unchanged: it would read <b> and the like as markup."""
    return html.escape(name, quote=False)


def ratio_dots(
    title: str,
    names: Sequence[str],
    ratios: Sequence[Estimate],
    colors: Sequence[str] | None = None,
) -> Figure:
    """Ratios with their intervals, below each other, and a line at 1.

    The axis has the intervals up to three times the largest distance of a ratio from 1.
    """
    figure = new_figure(title, "ratio, with 95% interval", "")
    figure.add_scatter(
        **_intervals(ratios),
        y=list(range(len(names))),
        mode="markers",
        marker={"color": colors or policy_color(0), "size": 8},
        text=[chart_text(name) for name in names],
        hovertemplate="%{text}<br>%{x:.3f}<extra></extra>",
    )
    figure.add_vline(x=1, line_width=1, line_color="#5b6670")
    # The interval of two seeds can be a thousand times wider than their distance: cut it off.
    known = [(one.mean, one.low, one.high) for one in ratios if math.isfinite(one.mean)]
    distances = np.abs(np.array(known).reshape(-1, 3) - 1)
    farthest = max(0.05, float(distances[:, 0].max(initial=0.0)))
    below, above = (
        min(3 * farthest, max(1.2 * farthest, 1.05 * float(np.nanmax([0.0, *distances[:, end]]))))
        for end in (1, 2)
    )
    figure.update_xaxes(range=[max(0.0, 1 - below), 1 + above])
    figure.update_layout(
        height=130 + 22 * len(names),
        yaxis={
            "autorange": "reversed",
            "automargin": True,
            "tickvals": list(range(len(names))),
            "ticktext": [chart_text(shortened(name, _LONGEST_NAME)) for name in names],
        },
    )
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


def line_chart(
    title: str,
    axes: tuple[str, str],
    curves: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]] | None],
    *,
    is_stepped: bool = False,
) -> Figure:
    """A chart with one curve per policy."""
    figure = new_figure(title, *axes)
    shape = {"shape": "hv"} if is_stepped else {}
    for row, (name, curve) in enumerate(curves.items()):
        if curve is not None:
            line = {**line_style(row), **shape}
            name = chart_text(name)
            figure.add_scatter(x=curve[0], y=curve[1], name=name, mode="lines", line=line)
    return figure


def share_axis(figure: Figure) -> Figure:
    """The chart with a y axis from 0 to 100%."""
    return figure.update_yaxes(tickformat=".0%", range=[0, 1.02])


def jct_cdf(traces: Mapping[str, Trace]) -> Figure:
    """Share of jobs that completed within a time (Decima, Figure 9a)."""
    curves = {name: cdf(trace) for name, trace in traces.items()}
    axes = ("JCT (s)", "share of jobs")
    return share_axis(line_chart("Share of jobs done within a time", axes, curves, is_stepped=True))


def concurrency_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Jobs in the system over time (Decima, Figure 10a)."""
    curves = {}
    for name, trace in traces.items():
        times_ms, count = concurrency(trace)
        curves[name] = (times_ms / MS_PER_S, count)
    axes = ("time (s)", "jobs in the system")
    figure = line_chart("Jobs in the system", axes, curves, is_stepped=True)
    return figure.update_yaxes(rangemode="tozero")


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
    figure = line_chart(title, ("time (s)", f"busy {unit}s"), curves)
    return figure.update_yaxes(rangemode="tozero")


def jct_over_time(traces: Mapping[str, Trace]) -> Figure:
    """Each completed job's JCT against its time of completion (Decima, Figure 10b)."""
    figure = new_figure(
        "Job completion times, by when the job completed", "time of completion (s)", "JCT (s)"
    )
    for row, (name, trace) in enumerate(traces.items()):
        done = np.flatnonzero(trace.completion_ms != NOT_COMPLETED)
        _add_dots(
            figure, row, name, trace, done, trace.completion_ms / MS_PER_S, jct_ms(trace) / MS_PER_S
        )
    figure.update_yaxes(rangemode="tozero")
    return figure


def share_by_work(traces: Mapping[str, Trace]) -> Figure:
    """Average number of executors or cores that ran a job's tasks (Decima, Figure 10d).

    The average is over the time that the job was in the system.
    """
    unit = _unit(traces)
    figure = new_figure(
        f"{unit.capitalize()}s a job had on average, by its size",
        f"{unit} time of the job (s)",
        f"{unit}s",
    )
    for row, (name, trace) in enumerate(traces.items()):
        jobs = np.flatnonzero(arrived(trace) & (trace.executed_ms > 0))
        _add_dots(
            figure, row, name, trace, jobs, trace.executed_ms / MS_PER_S, executor_share(trace)
        )
    figure.update_xaxes(type="log", dtick=1)
    return figure


def _unit(traces: Mapping[str, Trace]) -> str:
    """What runs a task in all runs: "executor" or "core"."""
    return next(iter(traces.values())).unit


def _add_dots(
    figure: Any,
    row: int,
    name: str,
    trace: Trace,
    jobs: npt.NDArray[np.intp],
    x: FloatArray,
    y: FloatArray,
) -> None:
    """Draw some jobs of a run as dots; x and y are those of all jobs."""
    figure.add_scatter(
        x=x[jobs],
        y=y[jobs],
        name=chart_text(name),
        mode="markers",
        marker={
            "color": policy_color(row),
            "size": 7,
            "opacity": 0.75,
            "symbol": row // len(PALETTE),
        },
        text=[chart_text(f"{job}: {trace.job_names[job]}") for job in jobs.tolist()],
        hovertemplate="%{text}<br>%{x:.1f}, %{y:.1f}",
    )
