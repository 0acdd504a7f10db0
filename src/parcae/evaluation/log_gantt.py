"""Gantt charts of event logs from real clusters: which job every core worked for over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parcae.errors import ConfigError
from parcae.evaluation.gantt import OTHER, Bars, Chart, Panel, write_gantt
from parcae.evaluation.pictures import shortened
from parcae.units import MS_PER_S, s_from_ms
from parcae.workloads.recorded_run import NO_JOB, JobKey, JobOutcome, RecordedRun

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

    Args:
        charts: a title and a run (`parcae.workloads.spark_run.read_spark_run`) for each chart, from
            top to bottom.
        path: the file; its ending determines the format (see `parcae.evaluation.gantt.FORMATS`).
        title: title of the whole picture.

    Raises:
        ConfigError: there is no chart, or the ending is not in FORMATS.
        OSError: the file cannot be written.

    Example: `gantt([("fair", before), ("parcae", after)], Path("gantt.png"))`.
    """
    if not charts:
        raise ConfigError("a picture of Gantt charts needs at least one run")
    keys = _keys(charts)
    names = _names(keys)
    write_gantt([_chart(name, run, keys, names) for name, run in charts], path, title, names)


def _keys(charts: Sequence[tuple[str, RecordedRun]]) -> list[JobKey]:
    """The jobs of all runs in order of first submission, which determines their colours."""
    first_ms: dict[JobKey, int] = {}
    for _, run in charts:
        for job in run.jobs:
            first_ms[job.key] = min(job.submission_ms, first_ms.get(job.key, job.submission_ms))
    return sorted(first_ms, key=lambda key: first_ms[key])


def _names(keys: Sequence[JobKey]) -> list[str]:
    """Short names of the jobs, with numbers where a name is repeated."""
    repeated_names = {name for name, order in keys if order > 1}
    return [
        shortened(name, _LONGEST_NAME) + (f" #{order}" if name in repeated_names else "")
        for name, order in keys
    ]


def _chart(name: str, run: RecordedRun, keys: Sequence[JobKey], names: Sequence[str]) -> Chart:
    """The chart of one run, with the jobs of all runs and their names."""
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
        Bars(tasks["core"], tasks["start_ms"], tasks["finish_ms"], job),
        names,
        completions=np.array(done, np.int64),
        has_lines=run.num_cores <= _MANY_CORES,
    )
    return Chart(
        _heading(name, run),
        [panel],
        max(1, run.makespan_ms),
        "time since the first submission (s)",
        MS_PER_S,
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
