"""Draw Gantt charts of simulated runs (as in Decima, Figure 3).

A chart shows executors against time. Every job has its colour, red lines are job completions, and
idle time is white. `gantt_figure` makes a plotly chart, `write_gantt` an HTML file, `write_png` a
picture.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import NOT_COMPLETED, TASK_RECORD, Trace
from parcae.errors import ConfigError
from parcae.evaluation.pictures import (
    COMPLETION_COLOR,
    TIME_MARGIN,
    draw_raster,
    line_opacity,
    new_picture,
    write_picture,
)
from parcae.files import write_text
from parcae.metrics.cluster import last_completion_ms
from parcae.metrics.jobs import arrived, jct_ms
from parcae.units import MS_PER_S

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Int64Array = npt.NDArray[np.int64]

#: Largest number of executors in a chart. Of larger clusters it shows this many, evenly spaced.
MAX_EXECUTORS = 100
#: A chart with more segments than this is drawn as a raster, so that the page stays small.
MAX_SEGMENTS = 2_000
#: Number of columns of such a raster.
NUM_COLUMNS = 1_200
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
#: Gaps shorter than this share of the time axis (about a pixel) are not drawn.
_RESOLUTION = 1 / 1_500
_GOLDEN_RATIO = 0.61803398875
_NUM_COLORS = 240
_PNG_COLUMNS = 2_400
#: Cell of a raster in which no job runs.
IDLE = -1


class Segment(NamedTuple):
    """Consecutive tasks of one job on one executor, drawn as one bar; times in ms."""

    job: int
    executor: int
    start_ms: int
    finish_ms: int


def job_rgb(job: int) -> tuple[int, int, int]:
    """The colour of a job as red, green and blue (0 to 255).

    Neighbouring jobs have clearly different colours. No job has the red of completions.
    """
    job %= _NUM_COLORS
    # Golden-ratio steps spread the hues evenly; the range leaves out red.
    hue = 0.09 + 0.82 * ((job * _GOLDEN_RATIO) % 1.0)
    lightness, saturation = ((0.66, 0.58), (0.52, 0.48), (0.76, 0.50))[job % 3]
    red, green, blue = (
        round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, saturation)
    )
    return red, green, blue


def job_color(job: int) -> str:
    """The colour of a job, the same in every chart.

    Example: `job_color(0)` is "#dbac76".
    """
    return "#{:02x}{:02x}{:02x}".format(*job_rgb(job))


def evenly_chosen(count: int) -> npt.NDArray[np.int64]:
    """Indices of the rows to draw: all of `count`, or MAX_EXECUTORS of them, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, MAX_EXECUTORS)).round().astype(np.int64))


def shown_executors(trace: Trace) -> npt.NDArray[np.int64]:
    """Executors that a chart shows: all of them, or MAX_EXECUTORS, evenly spaced."""
    return evenly_chosen(trace.num_executors)


def _tasks(trace: Trace) -> npt.NDArray[np.void]:
    """The recorded tasks of the shown executors, sorted by executor and start."""
    if trace.tasks is None:
        raise ConfigError("a Gantt chart needs recorded tasks: simulate with record=True")
    tasks = np.asarray(trace.tasks, TASK_RECORD)
    tasks = tasks[np.isin(tasks["executor"], shown_executors(trace))]
    return tasks[np.lexsort((tasks["start_ms"], tasks["executor"]))]


def segments(trace: Trace) -> list[Segment]:
    """The recorded tasks; tasks of one job on one executor without a visible gap are merged.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    tasks = _tasks(trace)
    if len(tasks) == 0:
        return []
    first = np.flatnonzero(_starts_segment(tasks))
    last = np.append(first[1:], len(tasks)) - 1
    columns = (
        tasks["job"][first],
        tasks["executor"][first],
        tasks["start_ms"][first],
        tasks["finish_ms"][last],
    )
    return [Segment(*(int(v) for v in row)) for row in zip(*columns, strict=True)]


def _starts_segment(tasks: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Whether a task starts a segment: executor or job change, or there is a visible gap."""
    gap_ms = _RESOLUTION * max(1, int(tasks["finish_ms"].max()))
    before = tasks[:-1]
    after = tasks[1:]
    same = (after["executor"] == before["executor"]) & (after["job"] == before["job"])
    is_near = after["start_ms"] - before["finish_ms"] <= gap_ms
    return np.concatenate([[True], ~(same & is_near)])


def raster(trace: Trace, num_columns: int, end_ms: float) -> npt.NDArray[np.int64]:
    """The raster of one run: which job each shown executor works for; see `raster_of_tasks`.

    Args:
        trace: the run.
        num_columns: number of columns.
        end_ms: end of the time axis, in ms.

    Returns:
        int64[shown executors, num_columns], the job, or IDLE.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    tasks = _tasks(trace)
    executor, job, start_ms, finish_ms = (
        tasks[name] for name in ("executor", "job", "start_ms", "finish_ms")
    )
    return raster_of_tasks(
        executor, job, start_ms, finish_ms, shown_executors(trace), num_columns, end_ms
    )


def raster_of_tasks(
    executor: Int64Array,
    job: Int64Array,
    start_ms: Int64Array,
    finish_ms: Int64Array,
    shown: Int64Array,
    num_columns: int,
    end_ms: float,
) -> Int64Array:
    """Sample which job each executor works for, once in each of `num_columns` equal intervals.

    The position of the sample within its interval follows a golden-ratio sequence. So idle time has
    its correct share of the raster, even if task lengths are a multiple of the interval.

    Args:
        executor: int64[num_tasks], the executor of each task, ascending.
        job: int64[num_tasks].
        start_ms: int64[num_tasks], ascending for each executor.
        finish_ms: int64[num_tasks].
        shown: int64[num_shown], the executors to sample.
        num_columns: number of intervals.
        end_ms: end of the last interval, in ms; the first one starts at 0.

    Returns:
        int64[num_shown, num_columns], the job, or IDLE.
    """
    columns = np.arange(num_columns)
    grid = np.full((len(shown), num_columns), IDLE, np.int64)
    first = np.searchsorted(executor, shown, side="left")
    last = np.searchsorted(executor, shown, side="right")
    for row, (begin, end) in enumerate(zip(first, last, strict=True)):
        moment_ms = (columns + (0.5 + (columns + row) * _GOLDEN_RATIO) % 1.0) * (
            end_ms / num_columns
        )
        # The latest task that started before the moment; the executor is busy if it still runs.
        latest = begin + np.searchsorted(start_ms[begin:end], moment_ms, side="right") - 1
        busy = np.flatnonzero(latest >= begin)
        busy = busy[finish_ms[latest[busy]] > moment_ms[busy]]
        grid[row, busy] = job[latest[busy]]
    return grid


def _end_ms(trace: Trace) -> int:
    return max(1, last_completion_ms(trace))


def _title(trace: Trace) -> str:
    here = arrived(trace)
    average = float(jct_ms(trace)[here].mean()) / MS_PER_S
    cut = int((trace.completion_ms[here] == NOT_COMPLETED).sum())
    unfinished = f", {cut} jobs unfinished" if cut else ""
    return (
        f"{trace.policy}: average JCT {average:,.1f} s, "
        f"last completion {_end_ms(trace) / MS_PER_S:,.1f} s{unfinished}"
    )


def gantt_figure(trace: Trace, end_s: float | None = None) -> Figure:
    """The chart of one run as a plotly figure.

    `end_s` is the end of the time axis, in seconds; several charts can share it.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    runs = segments(trace)
    if len(runs) <= MAX_SEGMENTS:
        _add_bars(figure, trace, runs)
    else:
        _add_picture(figure, trace)
    _add_completions(figure, trace)
    chart_layout(figure, _title(trace), 290)
    figure.update_layout(bargap=0)
    end = TIME_MARGIN * (end_s or _end_ms(trace) / MS_PER_S)
    figure.update_xaxes(title="time (s)", range=[0, end])
    figure.update_yaxes(title="executor", range=[-0.5, trace.num_executors - 0.5])
    return figure


def chart_layout(figure: Any, title: str, height: int) -> None:
    """Give a plotly Gantt chart the style of the reports.

    Args:
        figure: the chart.
        title: its title.
        height: its height in pixels.
    """
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "x": 0, "xref": "paper"},
        barmode="overlay",
        showlegend=False,
        template="plotly_white",
        font={"family": FONT, "color": "#1d232a"},
        height=height,
        margin={"l": 58, "r": 12, "t": 38, "b": 42},
    )
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showgrid=False, zeroline=False)


def _add_bars(figure: Figure, trace: Trace, runs: list[Segment]) -> None:
    by_job: dict[int, list[Segment]] = {}
    for segment in runs:
        by_job.setdefault(segment.job, []).append(segment)
    # If only some executors are shown, their bars are wider and fill the chart.
    width = trace.num_executors / len(shown_executors(trace))
    for job, rows in sorted(by_job.items()):
        name = f"{job}: {trace.job_names[job]}"
        figure.add_bar(
            orientation="h",
            y=[row.executor for row in rows],
            base=[row.start_ms / MS_PER_S for row in rows],
            x=[(row.finish_ms - row.start_ms) / MS_PER_S for row in rows],
            width=width,
            marker={"color": job_color(job), "line": {"width": 0}},
            name=name,
            hovertemplate=f"{name}<br>executor %{{y}}<br>"
            "%{base:.1f} s, for %{x:.1f} s<extra></extra>",
        )


def _add_picture(figure: Figure, trace: Trace) -> None:
    grid = raster(trace, NUM_COLUMNS, _end_ms(trace))
    step_s = _end_ms(trace) / MS_PER_S / NUM_COLUMNS
    color = np.where(grid == IDLE, np.nan, grid % _NUM_COLORS).astype(np.float32)
    colors = min(len(trace.job_names), _NUM_COLORS)
    # With more jobs than colours, a colour does not identify a job: leave out the labels.
    has_labels = len(trace.job_names) <= _NUM_COLORS
    label = "job %{z}<br>executor %{y}<br>%{x:.1f} s<extra></extra>"
    figure.add_heatmap(
        z=color,
        x0=step_s / 2,
        dx=step_s,
        y=shown_executors(trace),
        zmin=-0.5,
        zmax=colors - 0.5,
        colorscale=_color_scale(colors),
        showscale=False,
        hoverongaps=False,
        hoverinfo=None if has_labels else "skip",
        hovertemplate=label if has_labels else None,
    )


def _color_scale(num_colors: int) -> list[list[Any]]:
    """Plotly's scale with one plain colour for each of the first jobs."""
    edges = np.arange(num_colors + 1) / num_colors
    scale: list[list[Any]] = []
    for job in range(num_colors):
        scale += [[float(edge), job_color(job)] for edge in (edges[job], edges[job + 1])]
    return scale


def _add_completions(figure: Figure, trace: Trace) -> None:
    done = trace.completion_ms[trace.completion_ms != NOT_COMPLETED] / MS_PER_S
    # One trace holds all lines; None separates them. Many lines are drawn more transparent.
    figure.add_scatter(
        x=[x for at in done.tolist() for x in (at, at, None)],
        y=[-0.5, trace.num_executors - 0.5, None] * len(done),
        mode="lines",
        line={"color": COMPLETION_COLOR, "width": 1},
        opacity=line_opacity(len(done)),
        name="completions",
        hoverinfo="skip",
    )


def write_gantt(trace: Trace, path: Path) -> None:
    """Write the chart of one run as a self-contained HTML file.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    import plotly.io

    write_text(path, plotly.io.to_html(gantt_figure(trace), include_plotlyjs=True, full_html=True))


def write_png(traces: Mapping[str, Trace], path: Path, title: str = "") -> None:
    """Write the charts of several runs as a PNG, one above the other on a common time axis.

    Args:
        traces: the runs by policy name.
        path: the picture file.
        title: title of the picture.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    end_ms = max(_end_ms(trace) for trace in traces.values())
    figure = new_picture(10, 1.75 * len(traces) + 0.4)
    axes = figure.subplots(len(traces), 1, sharex=True, squeeze=False)
    for axis, (name, trace) in zip(axes[:, 0], traces.items(), strict=True):
        _draw(axis, name, trace, end_ms)
    axes[-1, 0].set_xlabel("time (s)")
    write_picture(figure, path, title)


def _draw(axis: Any, name: str, trace: Trace, end_ms: int) -> None:
    grid = raster(trace, _PNG_COLUMNS, end_ms)
    palette = np.array([job_rgb(job) for job in range(_NUM_COLORS)], np.uint8)
    colors = np.where((grid == IDLE)[..., None], np.uint8(255), palette[grid % _NUM_COLORS])
    done_ms = trace.completion_ms[trace.completion_ms != NOT_COMPLETED]
    average = float(jct_ms(trace)[arrived(trace)].mean()) / MS_PER_S
    heading = f"{name}: average JCT {average:,.1f} s"
    draw_raster(axis, colors, trace.num_executors, end_ms, done_ms, heading)
    axis.set_ylabel("executor", fontsize=8)
