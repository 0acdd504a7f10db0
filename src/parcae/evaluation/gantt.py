"""Draw Gantt charts: bars on rows (executors, cores, units of a resource) against time.

A chart shows one run. Every job has its colour; white is idle. `gantt` and `cluster_chart` make
charts of runs. `write_gantt` writes several as a page or a picture.
"""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S, s_from_ms, seconds_text
from parcae.cluster.trace import NOT_COMPLETED, TASK_RECORD, Trace
from parcae.evaluation.pictures import (
    as_label,
    chart_format,
    in_legend,
    new_picture,
    note_on,
    shortened,
    svg_text,
    write_picture,
)
from parcae.simulation.metrics import arrived, jct_ms, last_completion_ms
from parcae.workloads.import_report import counted
from parcae.workloads.recorded_run import NO_JOB, JobKey, JobOutcome, RecordedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Int64Array = npt.NDArray[np.int64]

#: Largest number of rows in a panel. Of more rows it shows this many, evenly spaced.
MAX_ROWS = 100
#: More bars than this are drawn as one image, so that the page stays small.
MAX_BARS = 1_000
#: Colour of the lines that mark completed jobs.
COMPLETION_COLOR = "#d62728"
#: Stands for a job of bars that belong to no job of the run; they are grey.
OTHER = -2
#: The legend names the jobs only if there are at most this many.
MAX_NAMED = 32
#: Gaps shorter than this share of the time axis (about a pixel) are not drawn.
_RESOLUTION = 1 / 1_500
#: With more completions than this, their lines are drawn more transparent.
_MANY_LINES = 60
_MOST_TRANSPARENT = 0.25
_GOLDEN_RATIO = 0.61803398875
_NUM_COLORS = 240
_GREY = (205, 209, 216)
#: Sizes of a picture in inches: its width, a panel's if there are several in a row, what a chart
#: needs around its panels, what the picture needs around its charts, and a row of the legend.
_WIDTH_IN = 10.0
_PANEL_IN = 5.2
_AROUND_CHART_IN = 0.45
_AROUND_IN = 0.5
_LEGEND_ROW_IN = 0.2
_LEGEND_COLUMNS = 4


class Bars(NamedTuple):
    """Bars of a panel, as columns. Times are in the unit of the time axis.

    Args:
        row: int64[num_bars], the row.
        start, finish: numbers[num_bars].
        job: int64[num_bars], gives the colour and the name; or OTHER.
        height: int64[num_bars], number of rows from `row` upwards. None: one each.
    """

    row: Int64Array
    start: npt.NDArray[Any]
    finish: npt.NDArray[Any]
    job: Int64Array
    height: Int64Array | None = None

    def take(self, which: npt.NDArray[Any]) -> Bars:
        """The bars of these indices, or of this mask."""
        columns: list[Any] = [None if column is None else column[which] for column in self]
        return Bars(*columns)


@dataclass(frozen=True)
class Panel:
    """Rows against time.

    Args:
        label: what the rows are, for the axis.
        num_rows: number of rows.
        bars: who uses the rows.
        names: by job, what is shown on a page when the mouse is over its bars.
        low: where the first row begins on the axis: -0.5 if ticks name rows, 0 if they count them.
        completions: numbers[num_completed], when jobs completed; None for no lines.
        has_lines: whether white lines set the rows apart.
    """

    label: str
    num_rows: int
    bars: Bars
    names: Sequence[str]
    low: float = -0.5
    completions: npt.NDArray[Any] | None = None
    has_lines: bool = False

    @property
    def span(self) -> tuple[float, float]:
        """Where the axis of the rows begins and ends."""
        return self.low, self.low + self.num_rows

    def shown_rows(self) -> Int64Array:
        """The rows that are drawn: all, or MAX_ROWS of them, evenly spaced."""
        if self.bars.height is not None:
            return np.arange(self.num_rows)
        count = min(self.num_rows, MAX_ROWS)
        return np.unique(np.linspace(0, self.num_rows - 1, count).round().astype(np.int64))

    def shown_bars(self) -> Bars:
        """The bars of the shown rows, by row and start."""
        bars = self.bars.take(np.isin(self.bars.row, self.shown_rows()))
        return bars.take(np.lexsort((bars.start, bars.row)))


@dataclass(frozen=True)
class Chart:
    """The chart of one run.

    Args:
        title: the run in words.
        panels: at least one, with a common time axis.
        end: end of the time axis.
        time_label: label of the time axis.
        height_in: height of a panel in a picture, in inches.
    """

    title: str
    panels: Sequence[Panel]
    end: float
    time_label: str
    height_in: float = 1.3

    @property
    def margin(self) -> float:
        """By how much the time axis is longer than the run, so that the last line is visible."""
        return 1.0 if self.panels[0].completions is None else 1.005


def job_rgb(job: int) -> tuple[int, int, int]:
    """The colour of a job as red, green and blue (0 to 255), the same in every chart.

    Neighbouring jobs have clearly different colours. No job has the red of completions.
    """
    if job == OTHER:
        return _GREY
    job %= _NUM_COLORS
    # Golden-ratio steps spread the hues evenly; the range leaves out red.
    hue = 0.09 + 0.82 * ((job * _GOLDEN_RATIO) % 1.0)
    lightness, saturation = ((0.66, 0.58), (0.52, 0.48), (0.76, 0.50))[job % 3]
    red, green, blue = (
        round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, saturation)
    )
    return red, green, blue


def job_color(job: int) -> str:
    """The colour of a job, as text.

    Example: `job_color(0)` is "#dbac76".
    """
    return f"#{bytes(job_rgb(job)).hex()}"


def merged(bars: Bars) -> Bars:
    """The bars, where those of one job on one row without a visible gap are one."""
    if bars.height is not None or not len(bars.row):
        return bars
    gap = bars.start[1:] - bars.finish[:-1]
    is_same = (bars.row[1:] == bars.row[:-1]) & (bars.job[1:] == bars.job[:-1])
    is_near = gap <= _RESOLUTION * bars.finish.max()
    first = np.flatnonzero(np.concatenate([[True], ~(is_same & is_near)]))
    last = np.append(first[1:], len(bars.row)) - 1
    return bars.take(first)._replace(finish=bars.finish[last])


def _line_opacity(num_lines: int) -> float:
    """The opacity of that many lines: many lines would hide the chart."""
    return min(1.0, max(_MOST_TRANSPARENT, _MANY_LINES / max(1, num_lines)))


def write_gantt(
    charts: Sequence[Chart], path: Path, title: str = "", legend: Sequence[str] = ()
) -> None:
    """Write charts, one below the other on a common time axis; in a picture, panels side by side.

    The file appears only when it is complete.
    """
    ending = chart_format(path)
    picture = gantt_picture(charts, legend)
    if ending == "html":
        write_text(path, f"<!doctype html><meta charset=utf-8>\n{svg_text(picture)}\n")
    else:
        write_picture(picture, path, title, ending)


def gantt_picture(
    charts: Sequence[Chart], legend: Sequence[str] = (), end: float | None = None
) -> Figure:
    """Charts as one picture, whose time axis ends with the longest run, or at `end`."""
    # Imported where a picture is drawn: matplotlib belongs to the extra "report".
    from matplotlib.patches import Patch

    shown = legend if len(legend) <= MAX_NAMED else ()
    heights = [chart.height_in for chart in charts]
    columns = len(charts[0].panels)
    legend_in = _LEGEND_ROW_IN * -(-len(shown) // _LEGEND_COLUMNS)
    figure = new_picture(
        max(_WIDTH_IN, _PANEL_IN * columns),
        sum(heights) + _AROUND_CHART_IN * len(charts) + legend_in + _AROUND_IN,
    )
    axes: Any = figure.subplots(
        len(charts), columns, sharex=True, squeeze=False, height_ratios=heights
    )
    end = end or max(chart.end for chart in charts)
    for row, chart in zip(axes, charts, strict=True):
        for axis, panel in zip(row, chart.panels, strict=True):
            _draw(axis, panel, chart, end)
        row[0].set_title(as_label(chart.title), fontsize=9, loc="left")
    for axis in axes[-1]:
        axis.set_xlabel(charts[0].time_label)
    if shown:
        figure.legend(
            handles=[
                Patch(color=job_color(job), label=in_legend(as_label(name)))
                for job, name in enumerate(shown)
            ],
            loc="outside lower center",
            ncols=_LEGEND_COLUMNS,
            fontsize=7,
            frameon=False,
        )
    return figure


def _draw(axis: Any, panel: Panel, chart: Chart, end: float) -> None:
    """Draw a panel of a picture on matplotlib axes whose time ends at `end`."""
    # Imported where a picture is drawn: matplotlib belongs to the extra "report".
    from matplotlib.collections import PolyCollection

    bars = panel.bars if panel.bars.height is not None else merged(panel.shown_bars())
    units = np.ones(len(bars.row)) if bars.height is None else bars.height
    # If only some rows are shown, their bars are higher and fill the chart.
    height = units * panel.num_rows / len(panel.shown_rows())
    middle = panel.low + bars.row + units / 2
    jobs, place = np.unique(bars.job, return_inverse=True)
    colors = np.array([job_color(job) for job in jobs.tolist()], "U7")[place]
    if len(bars.row) > MAX_BARS:
        x, y = [bars.start, bars.finish], [middle - height / 2, middle + height / 2]
        corners = [[x[0], y[0]], [x[1], y[0]], [x[1], y[1]], [x[0], y[1]]]
        shapes = list(np.array(corners).transpose(2, 0, 1))
        # An image inside the picture: so many shapes would make it large.
        axis.add_collection(
            PolyCollection(shapes, facecolors=colors, linewidths=0, rasterized=True)
        )
    else:
        drawn = axis.barh(
            middle,
            bars.finish - bars.start,
            height,
            bars.start,
            color=colors,
            edgecolor="white",
            linewidth=0.5 * (bars.height is not None),
        )
        columns = (bars.row, bars.start, bars.finish, bars.job)
        for bar, row, start, finish, job in zip(drawn, *columns, strict=True):
            name = "other work" if job == OTHER else panel.names[job]
            where = f", {panel.label} {row}, {start:,.1f} to {finish:,.1f} s"
            note_on(bar, f"{name}{where if bars.height is None else ''}")
    if panel.has_lines:
        axis.hlines(panel.low + np.arange(1, panel.num_rows), 0, end, color="white", linewidth=1)
    if panel.completions is not None:
        axis.vlines(
            panel.completions,
            *panel.span,
            color=COMPLETION_COLOR,
            linewidth=0.7,
            alpha=_line_opacity(len(panel.completions)),
        )
    axis.set(xlim=(0, chart.margin * end), ylim=panel.span)
    axis.set_ylabel(as_label(panel.label), fontsize=8)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)


#: Heights in inches of a chart with few cores, and of one with many.
_LOW_IN = 1.3
_HIGH_IN = 2.4
_MANY_CORES = 24
#: Most characters of a job's name in the legend, and of a run's name before its figures.
_LONGEST_NAME = 34
_LONGEST_TITLE = 80


def gantt(charts: Sequence[tuple[str, RecordedRun]], path: Path, *, title: str = "") -> None:
    """Write which job every core worked for over time, one chart per log.

    The same job (by name and order within the name) has the same colour in all charts. Red lines
    are completions. Grey is work for jobs that are not part of the run because they lack its key.
    The time axis begins at each run's first submission. The file appears only when it is complete.

    Example: `gantt([("fair", before), ("parcae", after)], Path("gantt.png"))`.
    """
    if not charts:
        raise ConfigError("a picture of Gantt charts needs at least one run")
    jobs = sorted((job for _, run in charts for job in run.jobs), key=lambda one: one.submission_ms)
    # By first submission over all runs, which determines their colours.
    keys = list(dict.fromkeys(job.key for job in jobs))
    repeated = {name for name, order in keys if order > 1}
    # With numbers where a name is repeated.
    names = [
        shortened(name, _LONGEST_NAME) + (f" #{order}" if name in repeated else "")
        for name, order in keys
    ]
    write_gantt([_chart(name, run, keys, names) for name, run in charts], path, title, names)


def _chart(name: str, run: RecordedRun, keys: Sequence[JobKey], names: Sequence[str]) -> Chart:
    tasks = run.tasks
    place = {key: row for row, key in enumerate(keys)}
    # The last entry stands for tasks of no job.
    job_of = np.array([*(place[job.key] for job in run.jobs), OTHER], np.int64)
    job = job_of[np.where(tasks["job"] == NO_JOB, len(run.jobs), tasks["job"])]
    done = [job.completion_ms for job in run.jobs if job.outcome is JobOutcome.COMPLETED]
    panel = Panel(
        "core",
        # A run without any task has no core: its chart is an empty row.
        max(1, run.num_cores),
        Bars(tasks["core"], tasks["start_ms"] / MS_PER_S, tasks["finish_ms"] / MS_PER_S, job),
        names,
        completions=np.array(done) / MS_PER_S,
        has_lines=run.num_cores <= _MANY_CORES,
    )
    return Chart(
        _heading(name, run),
        [panel],
        max(1, run.makespan_ms) / MS_PER_S,
        "time since the first submission (s)",
        _HIGH_IN if run.num_cores >= _MANY_CORES else _LOW_IN,
    )


def _heading(name: str, run: RecordedRun) -> str:
    jct_ms = [job.jct_ms for job in run.jobs if job.outcome is JobOutcome.COMPLETED]
    lost = len(run.jobs) - len(jct_ms)
    average = f"average JCT {np.mean(jct_ms) / MS_PER_S:,.1f} s, " if jct_ms else ""
    shown = shortened(name, _LONGEST_TITLE)
    return f"{shown}: {average}makespan {s_from_ms(run.makespan_ms):,.1f} s" + (
        f", {lost} failed or unfinished" if lost else ""
    )


def cluster_chart(trace: Trace, name: str = "") -> Chart:
    """The chart of one run: which job each executor or core ran. Red lines are job completions."""
    if trace.tasks is None:
        raise ConfigError("a Gantt chart needs recorded tasks: simulate with record=True")
    tasks = np.asarray(trace.tasks, TASK_RECORD)
    start_s, finish_s = (tasks[name] / MS_PER_S for name in ("start_ms", "finish_ms"))
    bars = Bars(tasks["executor"], start_s, finish_s, tasks["job"])
    panel = Panel(
        trace.unit,
        trace.num_executors,
        bars,
        [f"{job}: {text}" for job, text in enumerate(trace.job_names)],
        completions=trace.completion_ms[trace.completion_ms != NOT_COMPLETED] / MS_PER_S,
    )
    end_ms = max(1, last_completion_ms(trace))
    title = f"{name or trace.policy}: {_results(trace, end_ms)}"
    panels = [panel, _without_tasks(trace, tasks)] if trace.has_driver else [panel]
    return Chart(title, panels, end_ms / MS_PER_S, "time (s)")


def _without_tasks(trace: Trace, tasks: npt.NDArray[np.void]) -> Panel:
    """When jobs in the system ran no task: their driver worked, or they waited for a core. Each job
    that does so has a row, and leaves it to a later one.
    """
    spans: list[tuple[int, int, int]] = []
    for job in np.flatnonzero(trace.completion_ms != NOT_COMPLETED).tolist():
        own = np.sort(tasks[tasks["job"] == job], order="start_ms")
        # No task runs from the latest finish so far to the next start.
        from_ms = np.maximum.accumulate([trace.arrival_ms[job], *own["finish_ms"]])
        until_ms = [*own["start_ms"], trace.completion_ms[job]]
        pairs = zip(from_ms.tolist(), until_ms, strict=True)
        spans += [(start, int(end), job) for start, end in pairs if end > start]
    spans.sort()
    free_ms: list[int] = []
    rows = []
    for start, end, _ in spans:
        row = next((row for row, free in enumerate(free_ms) if free <= start), len(free_ms))
        free_ms[row : row + 1] = [end]
        rows.append(row)
    times = np.array(spans, np.int64).reshape(-1, 3)
    bars = Bars(
        np.array(rows, np.int64), times[:, 0] / MS_PER_S, times[:, 1] / MS_PER_S, times[:, 2]
    )
    names = [f"{job}: {text}" for job, text in enumerate(trace.job_names)]
    return Panel("no task", max(1, len(free_ms)), bars, names)


def _results(trace: Trace, end_ms: int) -> str:
    here = arrived(trace)
    average_s = float(jct_ms(trace)[here].mean()) / MS_PER_S
    cut = int((trace.completion_ms[here] == NOT_COMPLETED).sum())
    unfinished = f", {counted(cut, 'job')} unfinished" if cut else ""
    return (
        f"average JCT {seconds_text(average_s)} s, "
        f"last completion {seconds_text(end_ms / MS_PER_S)} s{unfinished}"
    )


def cluster_charts(traces: Mapping[str, Trace]) -> list[Chart]:
    """The charts of several runs, given by the policies' names; see `cluster_chart`."""
    return [cluster_chart(trace, name) for name, trace in traces.items()]
