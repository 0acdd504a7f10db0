"""Draw Gantt charts of event logs from real clusters, one chart per log on a common time axis.

A chart shows cores against time; every job has its colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.evaluation.gantt import evenly_chosen, job_rgb, raster_of_tasks
from parcae.evaluation.pictures import draw_raster, new_picture, write_picture
from parcae.units import MS_PER_S, s_from_ms
from parcae.workloads.recorded_run import NO_JOB, JobKey, JobOutcome, RecordedRun

#: Supported picture formats, by the ending of the file's name.
FORMATS = ("png", "svg", "pdf")
#: The legend names the jobs only if there are at most this many.
MAX_NAMED = 32
_NUM_COLUMNS = 2_400
_WIDTH_IN = 11.0
#: Heights in inches: a chart with few cores, one with many cores, a row of the legend.
_LOW_IN = 1.3
_HIGH_IN = 2.4
_LEGEND_ROW_IN = 0.2
_MANY_CORES = 24
_LEGEND_COLUMNS = 4
_LONGEST_NAME = 34
_WHITE = (255, 255, 255)
_GREY = (205, 209, 216)


def picture_format(path: Path) -> str:
    """The picture format by the ending of the file's name: "png", "svg" or "pdf".

    Raises:
        ConfigError: the ending is not in FORMATS.
    """
    ending = Path(path).suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ConfigError(
            f"{path}: pictures are written as {', '.join('.' + name for name in FORMATS)}; "
            "choose a file name with one of these endings"
        )
    return ending


def gantt(charts: Sequence[tuple[str, RecordedRun]], path: Path, *, title: str = "") -> None:
    """Write a picture that shows which job every core worked for over time.

    The charts stand one below the other. The same job (by name and order within the name) has the
    same colour in all charts. Red lines are completions. Grey is work for jobs that are not part of
    the run because they lack its key. The time axis begins at each run's first submission. The file
    appears only when it is complete.

    Args:
        charts: a title and a run (`parcae.workloads.spark_run.read_spark_run`) for each chart, from
            top to bottom.
        path: the picture file; its ending determines the format (see FORMATS).
        title: title of the whole picture.

    Raises:
        ConfigError: there is no chart, or the ending is not in FORMATS.
        OSError: the file cannot be written.

    Example: `gantt([("fair", before), ("parcae", after)], Path("gantt.png"))`.
    """
    if not charts:
        raise ConfigError("a picture of Gantt charts needs at least one run")
    ending = picture_format(path)
    colors = _color_of_job(charts)
    heights = [_height_in(run) for _, run in charts]
    legend_rows = -(-len(colors) // _LEGEND_COLUMNS) if len(colors) <= MAX_NAMED else 0
    height_in = sum(heights) + 0.45 * len(charts) + _LEGEND_ROW_IN * legend_rows + 0.6
    figure = new_picture(_WIDTH_IN, height_in)
    axes = figure.subplots(len(charts), 1, sharex=True, squeeze=False, height_ratios=heights)
    end_ms = max(1, *(run.makespan_ms for _, run in charts))
    for axis, (name, run) in zip(axes[:, 0], charts, strict=True):
        _draw(axis, name, run, end_ms, colors)
    axes[-1, 0].set_xlabel("time since the first submission (s)")
    if legend_rows:
        _add_legend(figure, colors)
    write_picture(figure, path, title, ending)


def _height_in(run: RecordedRun) -> float:
    """Height of a run's chart, in inches."""
    return _HIGH_IN if run.num_cores >= _MANY_CORES else _LOW_IN


def _color_of_job(charts: Sequence[tuple[str, RecordedRun]]) -> dict[JobKey, tuple[int, int, int]]:
    """A colour for every job of all runs, assigned in order of first submission."""
    first_ms: dict[JobKey, int] = {}
    for _, run in charts:
        for job in run.jobs:
            first_ms[job.key] = min(job.submission_ms, first_ms.get(job.key, job.submission_ms))
    return {
        key: job_rgb(row) for row, key in enumerate(sorted(first_ms, key=lambda key: first_ms[key]))
    }


def _draw(
    axis: Any,
    name: str,
    run: RecordedRun,
    end_ms: int,
    colors: Mapping[JobKey, tuple[int, int, int]],
) -> None:
    grid = _raster(run, end_ms)
    # The jobs, then grey for other work, then white for idle cores (-1, the last row).
    palette = np.array([*(colors[job.key] for job in run.jobs), _GREY, _WHITE], np.uint8)
    done = [job.completion_ms for job in run.jobs if job.outcome is JobOutcome.COMPLETED]
    done_ms = np.array(done, np.int64)
    draw_raster(axis, palette[grid], run.num_cores, end_ms, done_ms, _heading(name, run))
    if run.num_cores <= _MANY_CORES:
        axis.hlines(
            np.arange(1, run.num_cores) - 0.5, 0, s_from_ms(end_ms), color="white", linewidth=1
        )
    axis.set_ylabel("core", fontsize=8)


def _raster(run: RecordedRun, end_ms: int) -> npt.NDArray[np.int64]:
    """Which job each shown core works for; len(run.jobs) for other work, -1 (IDLE) for none."""
    tasks = run.tasks
    job = np.where(tasks["job"] == NO_JOB, len(run.jobs), tasks["job"])
    start_ms = tasks["start_ms"]
    finish_ms = tasks["finish_ms"]
    shown = evenly_chosen(run.num_cores)
    return raster_of_tasks(tasks["core"], job, start_ms, finish_ms, shown, _NUM_COLUMNS, end_ms)


def _heading(name: str, run: RecordedRun) -> str:
    jct_ms = [job.jct_ms for job in run.jobs if job.outcome is JobOutcome.COMPLETED]
    lost = len(run.jobs) - len(jct_ms)
    average = f"average JCT {np.mean(jct_ms) / MS_PER_S:,.1f} s, " if jct_ms else ""
    return f"{name}: {average}makespan {s_from_ms(run.makespan_ms):,.1f} s" + (
        f", {lost} failed or unfinished" if lost else ""
    )


def _add_legend(figure: Any, colors: Mapping[JobKey, tuple[int, int, int]]) -> None:
    from matplotlib.patches import Patch

    repeated_names = {name for name, order in colors if order > 1}
    patches = []
    for (name, order), rgb in colors.items():
        short = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        label = f"{short} #{order}" if name in repeated_names else short
        # Matplotlib reads "$" as mathematics and hides labels that begin with "_".
        patches.append(
            Patch(color=f"#{bytes(rgb).hex()}", label=label.replace("$", r"\$").lstrip("_"))
        )
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=_LEGEND_COLUMNS,
        fontsize=7,
        frameon=False,
    )
