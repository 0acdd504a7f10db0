"""Gantt charts: executors x time, jobs coloured, completions as red lines, idle time left white (Decima, Figure 3)."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.errors import ConfigError
from parcae.metrics.cluster import last_completion_ms
from parcae.units import MS_PER_S

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: Executors that a chart shows; of larger clusters, the first ones.
MAX_EXECUTORS = 200
#: Gaps shorter than this share of the time axis are not drawn.
_RESOLUTION = 1 / 1_500
_GOLDEN_ANGLE = 0.61803398875


class Segment(NamedTuple):
    """Consecutive tasks of one job on one executor; times in ms."""

    job: int
    executor: int
    start_ms: int
    finish_ms: int


def job_color(job: int) -> str:
    """A colour that neighbouring jobs do not share, the same in every chart.

    Example: `job_color(0)` is "#d97b7b".
    """
    hue = (job * _GOLDEN_ANGLE) % 1.0
    lightness, saturation = (0.67, 0.55) if job % 2 == 0 else (0.55, 0.45)
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def segments(trace: Trace) -> list[Segment]:
    """The recorded tasks, merged where one executor goes on for one job without a visible gap.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    if trace.tasks is None:
        raise ConfigError("a Gantt chart needs recorded tasks: simulate with record=True")
    tasks = trace.tasks[trace.tasks["executor"] < MAX_EXECUTORS]
    tasks = tasks[np.lexsort((tasks["start_ms"], tasks["executor"]))]
    if len(tasks) == 0:
        return []
    gap_ms = _RESOLUTION * max(1, int(trace.tasks["finish_ms"].max()))
    new = np.ones(len(tasks), bool)
    same = (tasks["executor"][1:] == tasks["executor"][:-1]) & (tasks["job"][1:] == tasks["job"][:-1])
    new[1:] = ~(same & (tasks["start_ms"][1:] - tasks["finish_ms"][:-1] <= gap_ms))
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(tasks)) - 1
    columns = (tasks["job"][first], tasks["executor"][first], tasks["start_ms"][first], tasks["finish_ms"][last])
    return [Segment(*(int(v) for v in row)) for row in zip(*columns, strict=True)]


def gantt_figure(trace: Trace, end_s: float | None = None) -> Figure:
    """The chart of one run as a plotly figure; `end_s` sets a time axis that several charts share."""
    import plotly.graph_objects as go

    figure = go.Figure()
    by_job: dict[int, list[Segment]] = {}
    for segment in segments(trace):
        by_job.setdefault(segment.job, []).append(segment)
    for job, rows in sorted(by_job.items()):
        figure.add_bar(
            orientation="h",
            y=[row.executor for row in rows],
            base=[row.start_ms / MS_PER_S for row in rows],
            x=[(row.finish_ms - row.start_ms) / MS_PER_S for row in rows],
            width=1.0,
            marker={"color": job_color(job), "line": {"width": 0}},
            name=f"{job}: {trace.job_names[job]}",
            hovertemplate=f"{job}: {trace.job_names[job]}<br>executor %{{y}}<br>%{{base:.1f}} s, for %{{x:.1f}} s<extra></extra>",
        )
    done = trace.completion_ms[trace.completion_ms != NOT_COMPLETED] / MS_PER_S
    lines = [x for at in done for x in (at, at, None)]
    top = min(trace.num_executors, MAX_EXECUTORS) - 0.5
    figure.add_scatter(
        x=lines,
        y=[-0.5, top, None] * len(done),
        mode="lines",
        line={"color": "#c0392b", "width": 1},
        name="completions",
        hoverinfo="skip",
    )
    average = float((trace.completion_ms - trace.arrival_ms)[trace.completion_ms != NOT_COMPLETED].mean()) / MS_PER_S
    figure.update_layout(
        title=f"{trace.policy}: average JCT {average:,.1f} s, last completion {last_completion_ms(trace) / MS_PER_S:,.1f} s",
        barmode="overlay",
        bargap=0,
        showlegend=False,
        template="plotly_white",
        height=300,
        margin={"l": 60, "r": 20, "t": 45, "b": 40},
        xaxis={"title": "time (s)", "range": [0, end_s or last_completion_ms(trace) / MS_PER_S]},
        yaxis={"title": "executor", "range": [-0.5, top], "showgrid": False},
    )
    return figure


def write_gantt(trace: Trace, path: Path) -> None:
    """Write the chart of one run as one self-contained HTML file."""
    import plotly.io

    from parcae.evaluation.compare import write_text

    write_text(path, plotly.io.to_html(gantt_figure(trace), include_plotlyjs=True, full_html=True))


def write_png(traces: Mapping[str, Trace], path: Path, title: str = "") -> None:
    """Write the charts of several runs, one above the other on one time axis, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    end_s = max(last_completion_ms(trace) for trace in traces.values()) / MS_PER_S
    figure, axes = plt.subplots(len(traces), 1, figsize=(10, 1.75 * len(traces) + 0.4), sharex=True, squeeze=False)
    for axis, (name, trace) in zip(axes[:, 0], traces.items(), strict=True):
        _draw(axis, name, trace)
        axis.set_xlim(0, end_s)
    axes[-1, 0].set_xlabel("time (s)")
    if title:
        figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110, format="png")
    plt.close(figure)


def _draw(axis: Any, name: str, trace: Trace) -> None:
    by_job: dict[int, list[Segment]] = {}
    for segment in segments(trace):
        by_job.setdefault(segment.job, []).append(segment)
    for job, rows in by_job.items():
        axis.barh(
            [row.executor for row in rows],
            [(row.finish_ms - row.start_ms) / MS_PER_S for row in rows],
            left=[row.start_ms / MS_PER_S for row in rows],
            height=1.0,
            color=job_color(job),
            linewidth=0,
        )
    done = trace.completion_ms[trace.completion_ms != NOT_COMPLETED]
    for at in done / MS_PER_S:
        axis.axvline(at, color="#c0392b", linewidth=0.7)
    average = float((trace.completion_ms - trace.arrival_ms)[trace.completion_ms != NOT_COMPLETED].mean()) / MS_PER_S
    axis.set_title(f"{name}: average JCT {average:,.1f} s", fontsize=9, loc="left")
    axis.set_ylim(-0.5, min(trace.num_executors, MAX_EXECUTORS) - 0.5)
    axis.set_ylabel("executor", fontsize=8)
