"""Reads tables of stages into a workload: CSV, Parquet or JSON, one row for each stage of a run.

Runs of one recurring name become one job with the spread of its runs, as with Spark event logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from parcae.errors import FormatError
from parcae.workloads.dag import topological_order
from parcae.workloads.import_report import BadRows, ImportReport, counted
from parcae.workloads.job import Workload
from parcae.workloads.recurring import workload_of_jobs, workload_of_runs
from parcae.workloads.spark.dag import JobRun, StageRun
from parcae.workloads.spark.durations import StageSamples
from parcae.workloads.stage_cells import (
    Samples,
    as_count,
    as_duration,
    as_list,
    as_name,
    as_name_lists,
    as_time,
    is_empty,
    samples_of_spread,
)
from parcae.workloads.stage_columns import Columns, parsed_names
from parcae.workloads.stage_files import Table, open_csv, open_json, open_parquet

Progress = Callable[[int, int], None]
SOURCE = "table of stages"
_NO_ARRIVAL = -1
_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class _Row:
    """One stage of one run.

    Args:
        number: the row in messages. None in the other fields stands for an empty cell.
        parents: the names of its parents, in every way to read them (`as_name_lists`).
        num_lost: number of durations above 0 that are 0 in whole ms.
    """

    number: int
    job: str
    stage: str
    parents: list[tuple[str, ...]]
    num_tasks: int
    samples: Samples
    num_lost: int
    name: str | None
    pool: str | None
    arrival_ms: int | None


class _RowError(Exception):
    """A row that contradicts the other rows of its job."""

    def __init__(self, row: _Row, what: str) -> None:
        super().__init__(what)
        self.row = row


def workload_of_table(
    table: Table,
    *,
    name: str,
    progress: Progress | None = None,
    unit: str | None = None,
    columns: str | None = None,
    recorded: bool = False,
    max_bad_share: float = 0.01,
) -> tuple[Workload, ImportReport]:
    """Make a workload of a table of stages.

    Args:
        table: one row for each stage of each run; `parcae.workloads.stage_columns.MEANINGS` has
            its columns.
        name: name of the workload.
        progress: called with (rows read, rows of the table).
        unit: ms, s or min: the unit of columns whose names do not end in one.
        columns: names of the columns, where they differ: "job=run_id,name=query".
        recorded: keep every run as a separate job with its arrival, instead of recurring jobs.
        max_bad_share: largest share of bad rows that is tolerated, 0..1. A job with a bad row is
            left out as a whole.

    Returns:
        The workload and the import report.

    Raises:
        ConfigError: a unit, or a name of a column, that does not exist.
        FormatError: columns that are missing, contradict each other or do not say their unit; too
            many bad rows; or no complete job.
    """
    found = Columns(table, parsed_names(columns), unit or "")
    if recorded and "arrival" not in found:
        raise FormatError(f"{table.path}: no column arrival, which --recorded needs")
    bad = BadRows(max_bad_share)
    of_job, bad_jobs = _rows_by_job(table, found, bad, progress)
    runs = _runs(of_job, bad_jobs, table.path, bad, needs_arrival=recorded)
    bad.finish(len(table.numbers))
    if not runs:
        raise FormatError(f"{table.path}: no complete job in {len(table.numbers)} rows")
    provenance = {"source": SOURCE, "file": table.path.name}
    make = workload_of_runs if recorded else _all_runs
    workload, notes = make(name, runs, provenance)
    notes = [*_notes(found, bad_jobs, of_job), *notes]
    counts = (len(table.numbers), bad.count, bad.samples)
    return workload, ImportReport(SOURCE, 1, *counts, tuple(notes), len(workload.jobs))


def _reader(open_table: Callable[[Path], Table]) -> Callable[..., tuple[Workload, ImportReport]]:
    """A function of a path that reads the table which `open_table` opens.

    Its options are those of `workload_of_table`.
    """

    def read(
        path: Path, *, name: str = "stages", progress: Progress | None = None, **options: Any
    ) -> tuple[Workload, ImportReport]:
        return workload_of_table(open_table(path), name=name, progress=progress, **options)

    return read


read_csv_stages = _reader(open_csv)
read_parquet_stages = _reader(open_parquet)
read_json_stages = _reader(open_json)


def _all_runs(
    name: str, runs: Sequence[JobRun], provenance: dict[str, str]
) -> tuple[Workload, list[str]]:
    """The recurring jobs; a table does not say which runs were slow because they came first."""
    return workload_of_jobs(name, runs, provenance, keep_first_runs=True)


def _notes(found: Columns, bad_jobs: set[str], of_job: dict[str, list[_Row]]) -> list[str]:
    notes = []
    if found.ignored:
        notes.append(f"Ignored the columns {', '.join(found.ignored)}.")
    if "parents" not in found:
        notes.append("There is no column parents: the stages of a job run side by side.")
    if bad_jobs:
        num_rows = sum(len(of_job.get(job, ())) for job in bad_jobs)
        notes.append(
            f"Left out {counted(len(bad_jobs), 'job')} with bad rows, "
            f"and with them {counted(num_rows, 'readable row')}."
        )
    kept = (row for job, rows in of_job.items() if job not in bad_jobs for row in rows)
    num_lost = sum(row.num_lost for row in kept)
    if num_lost:
        notes.append(
            f"{counted(num_lost, 'duration')} below 0.5 ms became 0 (durations are whole ms); is "
            "the unit right?"
        )
    return notes


def _rows_by_job(
    table: Table, found: Columns, bad: BadRows, progress: Progress | None
) -> tuple[dict[str, list[_Row]], set[str]]:
    """The rows of every job, and the jobs that have a bad row."""
    of_job: dict[str, list[_Row]] = defaultdict(list)
    bad_jobs: set[str] = set()
    for index, number in enumerate(table.numbers):
        if progress is not None and index % 10_000 == 0:
            progress(index, len(table.numbers))
        try:
            job = _name_in(found, "job", index)
        except ValueError as error:
            bad.add(table.path, number, str(error))
            continue
        try:
            of_job[job].append(_row(found, index, number, job))
        except ValueError as error:
            bad.add(table.path, number, f"job {job}: {error}")
            bad_jobs.add(job)
        except FormatError as error:
            raise FormatError(f"{table.path}: {error}") from None
    return of_job, bad_jobs


def _row(found: Columns, index: int, number: int, job: str) -> _Row:
    num_tasks, samples, num_lost = _tasks(found, index)
    arrival = found.cell("arrival", index)
    pool = found.cell("pool", index)
    return _Row(
        number,
        job,
        _name_in(found, "stage", index),
        as_name_lists(found.cell("parents", index)),
        num_tasks,
        samples,
        num_lost,
        None if is_empty(found.cell("name", index)) else _name_in(found, "name", index),
        None if is_empty(pool) else as_name(pool),
        None if is_empty(arrival) else as_time(arrival, lambda: found.unit_ms("arrival")),
    )


def _name_in(found: Columns, meaning: str, index: int) -> str:
    cell = found.cell(meaning, index)
    if is_empty(cell):
        raise ValueError(f"the cell of {meaning} is empty")
    return as_name(cell)


def _tasks(found: Columns, index: int) -> tuple[int, Samples, int]:
    """Number of tasks of a row, samples of their durations, and how many of these became 0."""
    durations = as_list(found.cell("durations", index), at_commas=not found.has_decimal_commas)
    mean = found.cell("duration_mean", index)
    tasks = found.cell("tasks", index)
    if durations and not is_empty(mean):
        raise ValueError("both durations and duration_mean are given; leave one of them empty")
    if not durations and is_empty(mean):
        raise ValueError("neither durations nor duration_mean is given")
    if is_empty(tasks) and not durations:
        raise ValueError("the cell of tasks is empty, and there are no durations to count")
    num_tasks = len(durations) if is_empty(tasks) else as_count(tasks)
    if len(durations) > num_tasks:
        raise ValueError(f"{len(durations)} durations of {num_tasks} tasks")
    if not durations:
        return num_tasks, *_drawn_samples(found, index)
    ms = np.array([as_duration(one, lambda: found.unit_ms("durations")) for one in durations])
    samples = np.rint(ms).astype(np.int64)
    return num_tasks, samples, int(np.count_nonzero((samples == 0) & (ms > 0)))


def _drawn_samples(found: Columns, index: int) -> tuple[Samples, int]:
    """Samples that have the mean and the spread that a row gives, and 1 if the mean became 0."""
    mean_ms = as_duration(
        found.cell("duration_mean", index), lambda: found.unit_ms("duration_mean")
    )
    spread = found.cell("duration_sd", index)
    spread_ms = 0.0
    if not is_empty(spread):
        spread_ms = as_duration(spread, lambda: found.unit_ms("duration_sd"))
    return samples_of_spread(mean_ms, spread_ms), int(mean_ms > 0 and round(mean_ms) == 0)


def _runs(
    of_job: dict[str, list[_Row]],
    bad_jobs: set[str],
    path: Path,
    bad: BadRows,
    *,
    needs_arrival: bool,
) -> list[JobRun]:
    """The runs of the jobs without bad rows; adds to `bad_jobs` those that contradict themselves.

    Runs are in the order of the file, which is their order in time where no arrivals are known.
    """
    runs = []
    for job, rows in of_job.items():
        if job in bad_jobs or not rows:
            continue
        try:
            runs.append(_run(job, rows, needs_arrival=needs_arrival))
        except _RowError as error:
            bad.add(path, error.row.number, f"job {job}: {error}")
            bad_jobs.add(job)
    if any(run.submission_ms == _NO_ARRIVAL for run in runs):
        for index, run in enumerate(runs):
            run.submission_ms = index
    _forget_running_numbers(runs)
    return runs


def _run(job: str, rows: list[_Row], *, needs_arrival: bool) -> JobRun:
    """The run of a job's rows."""
    parents = _parents_of(rows)
    arrival_ms = _agreed(rows, "arrival", [row.arrival_ms for row in rows])
    if needs_arrival and arrival_ms is None:
        raise _RowError(rows[0], "its arrival is missing, which --recorded needs")
    name = _agreed(rows, "name", [row.name for row in rows])
    pool = _agreed(rows, "pool", [row.pool for row in rows])
    stages = [_stage(row, of_row) for row, of_row in zip(rows, parents, strict=True)]
    submission_ms = _NO_ARRIVAL if arrival_ms is None else arrival_ms
    return JobRun(name or job, submission_ms, stages, pool=pool or "")


def _parents_of(rows: list[_Row]) -> list[frozenset[int]]:
    """The parents of a job's rows, which are a DAG."""
    index_of: dict[str, int] = {}
    for index, row in enumerate(rows):
        if row.stage in index_of:
            first = rows[index_of[row.stage]].number
            raise _RowError(row, f"stage {row.stage} is there twice (row {first})")
        index_of[row.stage] = index
    parents = [_parents(row, index_of) for row in rows]
    _, stuck = topological_order(parents)
    if stuck:
        names = ", ".join(rows[index].stage for index in stuck[:5])
        raise _RowError(rows[stuck[0]], f"a cycle through some of the stages {names}")
    return parents


def _parents(row: _Row, index_of: dict[str, int]) -> frozenset[int]:
    """The indices of a row's parents."""
    for names in row.parents:
        # A column of whole numbers with empty cells is written as 0.0, 1.0, ...
        stages = [name if name in index_of else name.removesuffix(".0") for name in names]
        if all(stage in index_of for stage in stages):
            return frozenset(index_of[stage] for stage in stages)
    unknown = next(name for name in row.parents[-1] if name not in index_of)
    raise _RowError(row, f"stage {row.stage} has the unknown parent {unknown!r}")


def _stage(row: _Row, parents: frozenset[int]) -> StageRun:
    # Which tasks found a fresh executor, and how many executors there were, is not known.
    none = np.zeros(0, np.int64)
    samples = StageSamples(1, (none, row.samples, none))
    return StageRun(row.stage, row.stage, row.num_tasks, parents, frozenset(), samples)


def _agreed(rows: Sequence[_Row], what: str, values: Sequence[_Value | None]) -> _Value | None:
    """The value that the rows of a job give; None if none gives one."""
    agreed: tuple[_Row, _Value] | None = None
    for row, value in zip(rows, values, strict=True):
        if value is None:
            continue
        if agreed is not None and value != agreed[1]:
            raise _RowError(row, f"another {what} than in row {agreed[0].number}")
        agreed = agreed or (row, value)
    return agreed[1] if agreed else None


def _forget_running_numbers(runs: list[JobRun]) -> None:
    """Match stages by the DAG where their ids have numbers that go on from run to run.

    In such a table no stage of a recurring job has the same id in two of its runs. The words of an
    id that have no digit still count.
    """
    of_name: dict[str, list[JobRun]] = defaultdict(list)
    for run in runs:
        of_name[run.name].append(run)
    for same_name in of_name.values():
        ids = [stage.kind for run in same_name for stage in run.stages]
        if len(same_name) > 1 and len(set(ids)) == len(ids):
            for run in same_name:
                for stage in run.stages:
                    words = stage.kind.split()
                    stage.kind = " ".join(w for w in words if not any(map(str.isdigit, w)))
