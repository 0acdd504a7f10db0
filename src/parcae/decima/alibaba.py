"""Reads batch tasks of Alibaba's cluster-trace-v2018: DAG jobs with durations and resource demands.

A task of the trace becomes a stage, and its instances become the stage's tasks. The task's name
encodes its position in the DAG: J3_1_2 is task 3 of its job and runs after tasks 1 and 2. Tasks
with names without numbers ("task_Nzg3", "MergeTask") have no edges. The trace has only the first 50
characters of a name: the parents behind them are not known.

Source: Alibaba cluster-trace-v2018, batch_task; Decima, section 7.3.
"""

from __future__ import annotations

import csv
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from parcae.base.errors import ConfigError, FormatError, WorkloadError, suggestion
from parcae.base.loader import lines, number, parsed_json
from parcae.base.texts import MS_PER_S
from parcae.workloads.demands import Step, in_memory_units, with_cpu_at_most, without_largest
from parcae.workloads.durations import LARGEST_DURATION_MS, MOST_TASKS, TaskDurations
from parcae.workloads.import_report import BadRows, ImportReport, Progress, counted
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.readers import first_bytes
from parcae.workloads.workload import Workload

_TASK_COLUMNS = (
    "task_name",
    "instance_num",
    "job_name",
    "task_type",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
)
_INSTANCE_COLUMNS = (
    "instance_name",
    "task_name",
    "job_name",
    "task_type",
    "status",
    "start_time",
    "end_time",
    "machine_id",
    "seq_no",
    "total_seq_no",
    "cpu_avg",
    "cpu_max",
    "mem_avg",
    "mem_max",
)
#: The status of instances that completed. Failed ones ran again as further instances.
_COMPLETED = "Terminated"
#: The trace's times are whole seconds: a task that starts and ends in the same second is taken to
#: last half a second.
SHORTEST_TASK_MS = 500
#: Of any number of the trace: seconds of 30,000 years.
_LARGEST = 1e12
#: A plan_cpu of 100 is one core; plan_mem is a percentage of a machine's memory.
_DEMAND_UNIT = 100.0
#: The ways to take the duration of a task's instances.
DURATIONS = ("auto", "span", "mean")
#: Progress is reported every so many lines.
_LINES_A_REPORT = 10_000
#: Preparation of the trace for executors of 1 core and up to 1 unit of memory. The largest 1% of
#: the jobs have nearly all of the work, so they are left out. Memory is in units of the 0.999
#: quantile: with the 0.99 quantile, a cluster with a quarter of its executors in each class could
#: not serve a load above 0.52 (now 0.75).
DECIMA_STEPS: tuple[Step, ...] = (
    without_largest(0.99),
    in_memory_units(0.999),
    with_cpu_at_most(1.0),
)
_DAG_NAME = re.compile(r"[A-Za-z]+(\d{1,18})((?:_\d{1,18})*)(?:_Stg\d+)?(_?)$")
#: The trace cuts longer names.
_LONGEST_NAME = 50


class _Task(NamedTuple):
    instances: int
    start_s: float
    duration_s: float
    cpu: float
    memory: float


#: Tasks by the name of their job and their own.
_Tasks = dict[str, dict[str, _Task]]


def read_alibaba(
    path: Path,
    *,
    name: str = "alibaba-2018",
    duration: str = "auto",
    instances: str | None = None,
    max_bad_share: float = 0.01,
    progress: Progress | None = None,
) -> tuple[Workload, ImportReport]:
    """Read batch tasks: CSV as published (batch_task.csv, with or without a header), or JSON lines.

    A line of a JSON file is one job. A job arrives at the earliest start of its tasks, relative to
    the earliest job of the file. The file is read as a stream; the rows of a job need not be
    adjacent. A second row of a task is a bad row.

    Args:
        path: the file, plain or compressed; its first bytes say whether it is JSON.
        name: name of the workload.
        duration: how long each instance of a task takes. "span": from the task's start to its end,
            which includes the time that instances waited while others ran. "mean": the mean
            duration of the instances, which is in JSON lines with `duration_s`, or computed from
            `instances`. "auto": the mean where there is one, else the span.
        instances: the trace's batch_instance.csv, for the mean durations of a batch_task.csv. It is
            read as a stream. A task none of whose instances completed keeps its span.
        max_bad_share: largest share of bad rows that is tolerated, 0..1.
        progress: called with (bytes read, size of the file) every 10,000 lines.

    Returns:
        The workload, with jobs in order of arrival, and the import report.

    Raises:
        ConfigError: no such way to take durations, or instances that would not be used.
        FormatError: more bad rows than `max_bad_share`, a truncated file, no job at all, or no mean
            durations where they are asked for.
    """
    is_json = first_bytes(path).removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"["))
    _check_duration(duration, path, instances, is_json)
    bad = BadRows(max_bad_share)
    # Of a CSV file, the span is all that it has.
    tasks = _read_tasks(path, is_json, duration if is_json else "span", bad, progress)
    num_rows = sum(map(len, tasks.values())) + bad.count
    bad.finish(num_rows)
    if not tasks:
        raise FormatError(
            f"{path}: no usable task; expected rows of {', '.join(_TASK_COLUMNS)}, or JSON lines"
        )
    source = "Alibaba cluster-trace-v2018 batch_task"
    bad_of_instances = BadRows(max_bad_share)
    about_instances: list[str] = []
    if instances is not None:
        source += ", durations of batch_instance"
        num_instances, about_instances = _take_means(
            tasks, Path(instances), bad_of_instances, progress
        )
        num_rows += num_instances
    jobs, notes = _jobs(tasks)
    if not jobs:
        raise FormatError(f"{path}: none of its jobs is a DAG")
    report = ImportReport(
        "Alibaba batch tasks",
        1 if instances is None else 2,
        num_rows,
        bad.count + bad_of_instances.count,
        (*bad.samples, *bad_of_instances.samples),
        (*notes, *about_instances),
        len(jobs),
    )
    return Workload(name, tuple(jobs), provenance={"source": source}), report


def _check_duration(duration: str, path: Path, instances: str | None, is_json: bool) -> None:
    if duration not in DURATIONS:
        raise ConfigError(f"no --duration {duration!r}; {suggestion(duration, DURATIONS)}")
    if instances is not None and (duration == "span" or is_json):
        why = "--duration span" if duration == "span" else "JSON lines"
        raise ConfigError(
            f"--instances {instances}: {why} would not use it; it gives the mean durations for "
            "batch_task.csv"
        )
    if duration == "mean" and instances is None and not is_json:
        raise FormatError(
            f"{path}: batch_task.csv has no durations of instances, only the start and the end of "
            "each task; give --instances batch_instance.csv or JSON lines with duration_s, or "
            "leave out --duration mean"
        )


def _texts(path: Path, progress: Progress | None) -> Iterator[str]:
    """The lines of a file with their ends."""
    num_bytes = 0

    def count(more: int) -> None:
        nonlocal num_bytes
        num_bytes += more

    for line_number, (line, is_whole) in enumerate(lines(path, count), 1):
        if progress is not None and line_number % _LINES_A_REPORT == 0:
            progress(num_bytes, path.stat().st_size)
        yield line.decode("utf-8", "replace") + ("\n" if is_whole else "")


def _csv_rows(
    path: Path, columns: tuple[str, ...], bad: BadRows, progress: Progress | None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file with the numbers of their lines, without blank lines and a header."""
    reader = csv.reader(_texts(path, progress))
    next_number = 1
    try:
        for row in reader:
            # A cell between quotes may have line breaks: a row has the number of its first line.
            row_number, next_number = next_number, reader.line_num + 1
            if not row or (row_number == 1 and row[0] == columns[0]):
                continue
            if len(row) == len(columns):
                yield row_number, row
            else:
                what = f"{len(row)} columns, expected {len(columns)}: {', '.join(columns)}"
                bad.add(path, row_number, what)
    except csv.Error as error:
        raise FormatError(f"{path}: not CSV ({error}); expected {', '.join(columns)}") from None


def _json_rows(
    path: Path, bad: BadRows, progress: Progress | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The tasks of all jobs of JSON lines, each with the name of its job."""
    for line_number, line in enumerate(_texts(path, progress), 1):
        if not line.strip():
            continue
        try:
            job = parsed_json(path, line.encode(), "a job")
            rows = [{**row, "job_name": str(job["job_name"])} for row in job["tasks"]]
        except (FormatError, ValueError, KeyError, TypeError) as error:
            bad.add(path, line_number, f"not a job with tasks ({type(error).__name__})")
            continue
        for row in rows:
            yield line_number, row


def _read_tasks(
    path: Path, is_json: bool, duration: str, bad: BadRows, progress: Progress | None
) -> _Tasks:
    rows = (
        _json_rows(path, bad, progress)
        if is_json
        else (
            (line_number, dict(zip(_TASK_COLUMNS, row, strict=True)))
            for line_number, row in _csv_rows(path, _TASK_COLUMNS, bad, progress)
        )
    )
    tasks: _Tasks = {}
    for line_number, row in rows:
        job = row["job_name"]
        try:
            name = str(row["task_name"])
            task = _task(row, duration)
            if name in tasks.get(job, ()):
                raise ValueError(f"its task {name} is in an earlier row")
        except (FormatError, ValueError, KeyError, TypeError) as error:
            bad.add(path, line_number, f"job {job}: {error}")
        else:
            tasks.setdefault(job, {})[name] = task
    return tasks


def _task(row: dict[str, Any], duration: str) -> _Task:
    instances = number("instance_num", row["instance_num"], 1, MOST_TASKS)
    if instances % 1:
        raise ValueError(f"instance_num is {instances:g}, not a whole number")
    start_s = number("start_time", row["start_time"], -_LARGEST, _LARGEST)
    if start_s <= 0:
        raise ValueError(f"start_time is {start_s:g}: the task never started")
    mean_s = None if duration == "span" else row.get("duration_s")
    if mean_s is None and duration == "mean":
        raise ValueError(f"task {row['task_name']} has no duration_s")
    # The trace leaves unknown demands empty.
    cpu, memory = (
        number(name, row.get(name) or 0, 0, _LARGEST) / _DEMAND_UNIT
        for name in ("plan_cpu", "plan_mem")
    )
    duration_s = _span_s(start_s, row["end_time"]) if mean_s is None else _duration_s(mean_s)
    return _Task(int(instances), start_s, duration_s, cpu, memory)


def _span_s(start_s: float, end: Any) -> float:
    return _duration_s(number("end_time", end, -_LARGEST, _LARGEST) - start_s)


def _duration_s(value: Any) -> float:
    return number("the duration in s", value, 0, LARGEST_DURATION_MS / MS_PER_S)


def _take_means(
    tasks: _Tasks, path: Path, bad: BadRows, progress: Progress | None
) -> tuple[int, list[str]]:
    """Give every task the mean duration of its completed instances. Returns the number of rows of
    their file, and notes on the tasks without any.
    """
    # Of every task: completed instances, and the sum of their durations in s.
    sums = {(job, name): [0, 0.0] for job, rows in tasks.items() for name in rows}
    num_good = 0
    for row_number, row in _csv_rows(path, _INSTANCE_COLUMNS, bad, progress):
        _, name, job, _, status, start, end, *_ = row
        try:
            if (job, name) in sums and status == _COMPLETED:
                duration_s = _span_s(number("start_time", start, 0, _LARGEST), end)
                sums[job, name][0] += 1
                sums[job, name][1] += max(SHORTEST_TASK_MS / MS_PER_S, duration_s)
        except FormatError as error:
            bad.add(path, row_number, str(error))
        else:
            num_good += 1
    num_rows = num_good + bad.count
    bad.finish(num_rows)
    for (job, name), (count, sum_s) in sums.items():
        if count:
            tasks[job][name] = tasks[job][name]._replace(duration_s=sum_s / count)
    num_spans = sum(count == 0 for count, _ in sums.values())
    if num_spans == len(sums):
        raise FormatError(
            f"{path}: no completed instance of any task of the other file; give the "
            "batch_instance.csv of the same trace"
        )
    note = (
        f"{num_spans:,} of {len(sums):,} tasks have no completed instance in {path.name}; "
        "their spans (end - start) are taken"
    )
    return num_rows, [note] if num_spans else []


def _jobs(tasks: _Tasks) -> tuple[list[JobSpec], list[str]]:
    """The jobs that are DAGs, by arrival, and notes on what is missing."""
    first_s = min(task.start_s for rows in tasks.values() for task in rows.values())
    constant = cache(TaskDurations.constant)  # stages of equal duration share a table
    jobs = []
    num_incomplete = num_cut = 0
    for job_name, rows in tasks.items():
        numbers, parents_of, is_cut = zip(*map(_parsed, rows), strict=True)
        row_of = {number: row for row, number in enumerate(numbers) if number is not None}
        num_cut += sum(is_cut)
        start_s = min(task.start_s for task in rows.values())
        try:
            stages = tuple(
                StageSpec(
                    num_tasks=task.instances,
                    durations=constant(max(SHORTEST_TASK_MS, round(task.duration_s * MS_PER_S))),
                    parents=tuple(row_of[parent] for parent in parents if parent in row_of),
                    cpu=task.cpu,
                    memory=task.memory,
                    name=name,
                )
                for (name, task), parents in zip(rows.items(), parents_of, strict=True)
            )
            jobs.append(JobSpec(job_name, stages, round((start_s - first_s) * MS_PER_S)))
        except WorkloadError:
            continue  # the parents in the task names form a cycle
        num_incomplete += any(parent not in row_of for parents in parents_of for parent in parents)
    # `or 0` is only for the type checker: every job has an arrival.
    jobs.sort(key=lambda job: job.arrival_ms or 0)
    num_cyclic = len(tasks) - len(jobs)
    notes = (
        (
            num_incomplete,
            f"{counted(num_incomplete, 'job')} with parents whose rows are not in the file: "
            "those edges were left out",
        ),
        (
            num_cut,
            f"{counted(num_cut, 'name')} of tasks, which the trace cut after {_LONGEST_NAME} "
            "characters: the parents behind them are not known",
        ),
        (num_cyclic, f"left out {counted(num_cyclic, 'job')} with a cycle in the names of tasks"),
    )
    return jobs, [note for count, note in notes if count]


def _parsed(name: str) -> tuple[int | None, list[int], bool]:
    """The number in a task's name, its parents' numbers, and whether the trace cut the name.

    Parents ascend: if the last one of a name of full length does not, digits of it are missing, and
    it is left out.
    """
    match = _DAG_NAME.match(name)
    if match is None:
        return None, [], False
    parents = [int(p) for p in match[2].split("_")[1:]]
    is_full = len(name) == _LONGEST_NAME
    is_torn = is_full and len(parents) > 1 and parents[-1] < parents[-2]
    if is_torn:
        parents.pop()
    return int(match[1]), parents, is_torn or (is_full and match[3] == "_")
