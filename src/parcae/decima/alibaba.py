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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError, FormatError, WorkloadError, suggestion
from parcae.base.loader import lines, number, parsed_json
from parcae.base.texts import MS_PER_S
from parcae.workloads.demands import Step, in_memory_units, with_cpu_at_most, without_largest
from parcae.workloads.durations import LARGEST_DURATION_MS, MOST_TASKS, TaskDurations
from parcae.workloads.formats import first_bytes
from parcae.workloads.import_report import BadRows, ImportReport, counted
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload

#: Name of a job, name of one of its tasks.
TaskName = tuple[str, str]
COLUMNS = (
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
_TASK, _JOB, _STATUS, _START, _END = (
    COLUMNS.index(name) for name in ("task_name", "job_name", "status", "start_time", "end_time")
)
#: The status of instances that completed. Failed ones ran again as further instances.
_COMPLETED = "Terminated"
#: An instance that starts and ends in the same second is taken to last half a second.
_SHORTEST_S = 0.5
#: Progress is reported every so many rows.
_ROWS_A_REPORT = 100_000


class InstanceDurations:
    """The number of completed instances of tasks, and the sum of their durations."""

    def __init__(self, tasks: Iterable[TaskName]) -> None:
        self._count_and_sum_s = {task: [0.0, 0.0] for task in tasks}

    def add(self, cells: list[str]) -> None:
        """Count a row of the file."""
        if len(cells) != len(COLUMNS):
            raise ValueError(f"{len(cells)} columns, expected {len(COLUMNS)}: {', '.join(COLUMNS)}")
        task = self._count_and_sum_s.get((cells[_JOB], cells[_TASK]))
        if task is None or cells[_STATUS] != _COMPLETED:
            return
        start_s = number("start_time", cells[_START], 0, _LARGEST)
        duration_s = number("end_time", cells[_END], 0, _LARGEST) - start_s
        if duration_s < 0:
            raise ValueError(f"it ends {-duration_s:g} s before it starts")
        task[0] += 1
        task[1] += max(_SHORTEST_S, duration_s)

    def means_s(self) -> dict[TaskName, float]:
        """The mean duration of the tasks that have completed instances, in s."""
        return {
            task: total_s / count
            for task, (count, total_s) in self._count_and_sum_s.items()
            if count
        }


def mean_durations_s(
    path: Path,
    tasks: Iterable[TaskName],
    bad: BadRows,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[TaskName, float], int]:
    """The mean duration of the completed instances of tasks, and the number of rows of the file."""
    durations = InstanceDurations(tasks)
    num_rows = 0
    for line_number, cells in _rows(path, progress):
        num_rows += 1
        try:
            durations.add(cells)
        except (FormatError, ValueError) as error:
            bad.add(path, line_number, str(error))
    bad.finish(num_rows)
    means_s = durations.means_s()
    if not means_s:
        raise FormatError(
            f"{path}: no completed instance of any task of the other file; give the "
            "batch_instance.csv of the same trace"
        )
    return means_s, num_rows


def _rows(
    path: Path, progress: Callable[[int, int], None] | None
) -> Iterator[tuple[int, list[str]]]:
    """The rows of the file with the numbers of their lines, without blank lines and a header."""
    num_bytes = 0

    def count(more: int) -> None:
        nonlocal num_bytes
        num_bytes += more

    for line_number, (line, _) in enumerate(lines(path, count), 1):
        if progress is not None and line_number % _ROWS_A_REPORT == 0:
            progress(num_bytes, path.stat().st_size)
        cells = line.decode("utf-8", "replace").rstrip("\r").split(",")
        is_header = line_number == 1 and cells[0] == COLUMNS[0]
        if cells != [""] and not is_header:
            yield line_number, cells


#: A plan_cpu of 100 is one core; plan_mem is a percentage of a machine's memory.
_CPU_UNIT = _MEMORY_UNIT = 100.0
#: The trace's times are whole seconds: a task that starts and ends in the same second is taken to
#: last half a second.
SHORTEST_TASK_MS = 500
#: The ways to take the duration of a task's instances.
DURATIONS = ("auto", "span", "mean")
_COLUMNS = (
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


@dataclass(frozen=True)
class _Task:
    name: str
    instances: int
    start_s: float
    duration_s: float
    cpu: float
    memory: float


#: Of any number of the trace: seconds of 30,000 years.
_LARGEST = 1e12


def read_alibaba(
    path: Path,
    *,
    name: str = "alibaba-2018",
    duration: str = "auto",
    instances: str | None = None,
    max_bad_share: float = 0.01,
    progress: Callable[[int, int], None] | None = None,
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
        progress: called with (bytes read, size of the file) every 10,000 rows.

    Returns:
        The workload, with jobs in order of arrival, and the import report.

    Raises:
        ConfigError: no such way to take durations, or instances that would not be used.
        FormatError: more bad rows than `max_bad_share`, a truncated file, no job at all, or no mean
            durations where they are asked for.
    """
    _check_duration(duration, path, instances)
    bad = BadRows(max_bad_share)
    reading = _Reading(path, progress)
    texts = reading.texts()
    is_json = _is_json(path)
    rows = _json_rows(texts, path, bad, duration) if is_json else _csv_rows(texts, path, bad)
    tasks = _tasks_by_job(rows, path, bad, reading)
    num_rows = sum(map(len, tasks.values())) + bad.count
    bad.finish(num_rows)
    workload, report = _workload(path, name, tasks, bad, num_rows)
    if instances is None:
        return workload, report
    return _with_instances(workload, report, Path(instances), max_bad_share, progress)


def _tasks_by_job(
    rows: Iterable[tuple[int, str, _Task]], path: Path, bad: BadRows, reading: _Reading
) -> dict[str, dict[str, _Task]]:
    tasks: dict[str, dict[str, _Task]] = {}
    num_rows = 0
    try:
        for line_number, job, task in rows:
            of_job = tasks.setdefault(job, {})
            if task.name in of_job:
                bad.add(path, line_number, f"job {job} has a task {task.name} in an earlier row")
                continue
            of_job[task.name] = task
            num_rows += 1
            if num_rows % 10_000 == 0:
                reading.report()
    except csv.Error as error:
        raise FormatError(f"{path}: not CSV ({error}); expected {', '.join(_COLUMNS)}") from None
    return tasks


def _with_instances(
    workload: Workload,
    report: ImportReport,
    path: Path,
    max_bad_share: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[Workload, ImportReport]:
    """The workload with the mean durations of its tasks' instances, and the report on both
    files.
    """
    bad = BadRows(max_bad_share)
    names = [(job.name, stage.name) for job in workload.jobs for stage in job.stages]
    means_s, num_rows = mean_durations_s(path, names, bad, progress)
    notes = list(report.notes)
    if num_spans := sum(name not in means_s for name in names):
        notes.append(
            f"{num_spans:,} of {len(names):,} tasks have no completed instance in {path.name}; "
            "their spans (end - start) are taken"
        )
    on_both = replace(
        report,
        num_files=2,
        num_rows=report.num_rows + num_rows,
        num_bad_rows=report.num_bad_rows + bad.count,
        bad_samples=(*report.bad_samples, *bad.samples),
        notes=tuple(notes),
    )
    return _with_means(workload, means_s), on_both


def _with_means(workload: Workload, means_s: Mapping[TaskName, float]) -> Workload:
    """The workload with these durations of tasks, in s; other tasks keep theirs."""
    tables: dict[int, TaskDurations] = {}

    def stage_of(job: JobSpec, stage: StageSpec) -> StageSpec:
        mean_s = means_s.get((job.name, stage.name))
        if mean_s is None:
            return stage
        return replace(stage, durations=_constant_durations(mean_s, tables), mean_task_ms=-1.0)

    jobs = tuple(
        replace(job, stages=tuple(stage_of(job, stage) for stage in job.stages))
        for job in workload.jobs
    )
    source = f"{workload.provenance['source']}, durations of batch_instance"
    return replace(workload, jobs=jobs, provenance={**workload.provenance, "source": source})


class _Reading:
    """The lines of a file as text, and how much of it has been read."""

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None) -> None:
        self._path = path
        self._progress = progress
        self._num_bytes = 0

    def texts(self) -> Iterator[str]:
        """The lines of the file with their ends."""
        for line, is_whole in lines(self._path, self._add):
            yield line.decode("utf-8", "replace") + ("\n" if is_whole else "")

    def _add(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes

    def report(self) -> None:
        """Call `progress` with (bytes read, size of the file)."""
        if self._progress is not None:
            self._progress(self._num_bytes, self._path.stat().st_size)


def _check_duration(duration: str, path: Path, instances: str | None) -> None:
    if duration not in DURATIONS:
        raise ConfigError(f"no --duration {duration!r}; {suggestion(duration, DURATIONS)}")
    if instances is not None and (duration == "span" or _is_json(path)):
        why = "--duration span" if duration == "span" else "JSON lines"
        raise ConfigError(
            f"--instances {instances}: {why} would not use it; it gives the mean durations for "
            "batch_task.csv"
        )
    if duration == "mean" and instances is None and not _is_json(path):
        raise FormatError(
            f"{path}: batch_task.csv has no durations of instances, only the start and the end of "
            "each task; give --instances batch_instance.csv or JSON lines with duration_s, or "
            "leave out --duration mean"
        )


def _duration(row: Any, duration: str) -> Any:
    """The mean duration of a task's instances in s; None stands for the task's span."""
    if duration == "span":
        return None
    mean_s = row.get("duration_s")
    if mean_s is None and duration == "mean":
        raise ValueError(f"task {row['task_name']} has no duration_s")
    return mean_s


def _is_json(path: Path) -> bool:
    return first_bytes(path).removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"["))


def _task(
    name: str, instances: Any, start: Any, end: Any, duration: Any, cpu: Any, memory: Any
) -> _Task:
    count = number("instance_num", instances, -_LARGEST, _LARGEST)
    start_s = number("start_time", start, -_LARGEST, _LARGEST)
    end_s = number("end_time", end, -_LARGEST, _LARGEST)
    if count < 1 or count != int(count):
        raise ValueError(f"instance_num is {instances}, not a whole number >= 1")
    if count > MOST_TASKS:
        raise ValueError(f"instance_num is {instances}; a stage has at most {MOST_TASKS:,} tasks")
    if start_s <= 0:
        raise ValueError(f"start_time is {start}: the task never started")
    duration_s = end_s - start_s if duration is None else _mean(duration)
    if duration_s < 0:
        raise ValueError(f"it ends {-duration_s:g} s before it starts")
    if duration_s * MS_PER_S > LARGEST_DURATION_MS:
        raise ValueError(f"a duration of {duration_s:g} s; at most 35 years is one")
    return _Task(
        name,
        int(count),
        start_s,
        duration_s,
        _optional(cpu) / _CPU_UNIT,
        _optional(memory) / _MEMORY_UNIT,
    )


def _optional(value: Any) -> float:
    """The number, or 0 where the trace leaves the field empty."""
    if value in ("", None):
        return 0.0
    return number("a demand", value, 0, _LARGEST)


def _mean(duration: Any) -> float:
    return number("duration_s", duration, -_LARGEST, _LARGEST)


def _json_rows(
    texts: Iterable[str], path: Path, bad: BadRows, duration: str
) -> Iterator[tuple[int, str, _Task]]:
    for row_number, line in enumerate(texts, 1):
        if not line.strip():
            continue
        try:
            entry = parsed_json(path, line.encode(), "a job")
            job = str(entry["job_name"])
            rows = list(entry["tasks"])
        except (FormatError, ValueError, KeyError, TypeError) as error:
            bad.add(path, row_number, f"not a job with tasks ({type(error).__name__})")
            continue
        for row in rows:
            try:
                yield (
                    row_number,
                    job,
                    _task(
                        str(row["task_name"]),
                        row["instance_num"],
                        row["start_time"],
                        row["end_time"],
                        _duration(row, duration),
                        row.get("plan_cpu"),
                        row.get("plan_mem"),
                    ),
                )
            except (FormatError, ValueError, KeyError, TypeError, AttributeError) as error:
                bad.add(path, row_number, f"job {job}: {error}")


def _csv_rows(texts: Iterable[str], path: Path, bad: BadRows) -> Iterator[tuple[int, str, _Task]]:
    reader = csv.reader(texts)
    next_number = 1
    for row in reader:
        # A cell between quotes may have line breaks: a row has the number of its first line.
        row_number, next_number = next_number, reader.line_num + 1
        # Blank lines and a header are skipped.
        if not row or (row_number == 1 and row[0] == "task_name"):
            continue
        if len(row) != len(_COLUMNS):
            what = f"{len(row)} columns, expected {len(_COLUMNS)}: {', '.join(_COLUMNS)}"
            bad.add(path, row_number, what)
            continue
        name, instances, job, _, _, start, end, cpu, memory = row
        try:
            yield row_number, job, _task(name, instances, start, end, None, cpu, memory)
        except (FormatError, ValueError) as error:
            bad.add(path, row_number, str(error))


def _workload(
    path: Path, name: str, tasks: dict[str, dict[str, _Task]], bad: BadRows, num_rows: int
) -> tuple[Workload, ImportReport]:
    if not tasks:
        raise FormatError(
            f"{path}: no usable task; expected rows of {', '.join(_COLUMNS)}, or JSON lines"
        )
    jobs, num_incomplete = _jobs(tasks)
    num_cut = sum(_parsed(task)[2] for rows in tasks.values() for task in rows)
    if not jobs:
        raise FormatError(f"{path}: none of its jobs is a DAG")
    num_dropped = len(tasks) - len(jobs)
    notes = []
    if num_incomplete:
        notes.append(
            f"{counted(num_incomplete, 'job')} with parents whose rows are not in the file: "
            "those edges were left out"
        )
    if num_cut:
        notes.append(
            f"{counted(num_cut, 'name')} of tasks, which the trace cut after {_LONGEST_NAME} "
            "characters: the parents behind them are not known"
        )
    if num_dropped:
        notes.append(f"left out {counted(num_dropped, 'job')} with a cycle in the names of tasks")
    workload = Workload(
        name, tuple(jobs), provenance={"source": "Alibaba cluster-trace-v2018 batch_task"}
    )
    return workload, ImportReport(
        "Alibaba batch tasks", 1, num_rows, bad.count, bad.samples, tuple(notes), len(jobs)
    )


def _jobs(tasks: dict[str, dict[str, _Task]]) -> tuple[list[JobSpec], int]:
    """The jobs that are DAGs, by arrival, and how many of them lack the rows of some parents."""
    first_s = min(task.start_s for rows in tasks.values() for task in rows.values())
    jobs = []
    num_incomplete = 0
    tables: dict[int, TaskDurations] = {}
    for job_name, rows in tasks.items():
        try:
            job, missing = _job(job_name, list(rows.values()), first_s, tables)
        except WorkloadError:
            continue  # the parents in the task names form a cycle
        num_incomplete += missing > 0
        jobs.append(job)
    # `or 0` is only for the type checker: every job has an arrival.
    jobs.sort(key=lambda job: job.arrival_ms or 0)
    return jobs, num_incomplete


def _job(
    job_name: str, rows: list[_Task], first_s: float, tables: dict[int, TaskDurations]
) -> tuple[JobSpec, int]:
    """The job, and the number of parents that its tasks name but that are missing in the file.

    `tables` caches the duration tables, so that stages of equal duration share one.
    """
    number_of, parents_of = _numbers_and_parents(rows)
    missing = sum(parent not in number_of for parents in parents_of for parent in parents)
    stages = tuple(
        StageSpec(
            num_tasks=task.instances,
            durations=_constant_durations(task.duration_s, tables),
            parents=tuple(number_of[p] for p in parents if p in number_of),
            cpu=task.cpu,
            memory=task.memory,
            name=task.name,
        )
        for task, parents in zip(rows, parents_of, strict=True)
    )
    arrival_ms = round((min(task.start_s for task in rows) - first_s) * MS_PER_S)
    return JobSpec(job_name, stages, arrival_ms), missing


def _numbers_and_parents(rows: list[_Task]) -> tuple[dict[int, int], list[list[int]]]:
    """What the task names say: the row of each task number, and the parents' numbers by row."""
    number_of: dict[int, int] = {}
    parents_of: list[list[int]] = []
    for index, task in enumerate(rows):
        number, parents, _ = _parsed(task.name)
        parents_of.append(parents)
        if number is not None:
            number_of[number] = index
    return number_of, parents_of


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


def _constant_durations(duration_s: float, tables: dict[int, TaskDurations]) -> TaskDurations:
    duration_ms = max(SHORTEST_TASK_MS, round(duration_s * MS_PER_S))
    if duration_ms not in tables:
        tables[duration_ms] = TaskDurations.constant(duration_ms)
    return tables[duration_ms]
