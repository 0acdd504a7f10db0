"""Reads tables of stages into a workload: CSV, Parquet or JSON, one row for each stage of a run.

Runs of one recurring name become one job with the spread of its runs, as with Spark event logs.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
from codecs import BOM_UTF8
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from parcae.base.arrays import Float64Array, Int64Array
from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import parsed_json, read_file
from parcae.base.texts import MS_PER_S
from parcae.workloads.durations import MOST_TASKS
from parcae.workloads.import_report import BadRows, ImportReport, Progress, counted
from parcae.workloads.job import topological_order
from parcae.workloads.recorded_run import workload_of_jobs, workload_of_runs
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.durations import StageSamples
from parcae.workloads.workload import Workload

#: The name of the column of line numbers, which no file has.
_LINE = "\0line"
#: What polars adds to a name that the table has already.
_REPEATED = re.compile(r"_duplicated_\d+$")
#: A small Parquet file can have any number of rows.
_MOST_ROWS = 20_000_000
_JSON_LAYOUT = '[{"job": "a", "stage": 0, ...}, ...] or one such object a line'


@dataclass(frozen=True)
class StageTable:
    """A table of a file: its columns, of which several may have one name, and its rows' numbers."""

    path: Path
    columns: list[tuple[str, list[Any]]]
    numbers: Sequence[int]
    has_decimal_commas: bool = False


def open_csv(path: Path) -> StageTable:
    """Open a CSV table with a header; columns are separated by commas, semicolons or tabs."""
    import polars as pl

    # Polars opens no file whose name is not UTF-8, and bounds no decompressed size.
    content = read_file(path)
    header = content.partition(b"\n")[0]
    separator = max((",", ";", "\t"), key=lambda one: header.count(one.encode()))
    try:
        # All cells as text: a type that is guessed from the first rows may not fit the others.
        frame = pl.read_csv(content, separator=separator, infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).strip().partition("\n")[0][:120]
        message = f"{path}: no CSV table with a header, or a damaged one ({reason})"
        raise FormatError(message) from None
    # Blank lines are no rows. A line break in quotes is not counted, so that numbers are then less.
    is_row = pl.any_horizontal(pl.exclude(_LINE).is_not_null())
    lines = frame.with_row_index(_LINE, 2).filter(is_row)
    columns = []
    for name in frame.columns:
        # Polars gives the second column of a name another one.
        first = _REPEATED.sub("", name)
        columns.append((first if first in frame.columns else name, lines[name].to_list()))
    return StageTable(path, columns, lines[_LINE].to_list(), has_decimal_commas=separator == ";")


def open_parquet(path: Path) -> StageTable:
    """Open a Parquet file, in a process of its own.

    A damaged file can make polars ask for more memory than there is, which ends its process.
    """
    import polars as pl

    path.stat()  # the error of a missing file is the usual one
    # The child finds its modules where this process found them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RUST_BACKTRACE": "0"}
    with tempfile.TemporaryDirectory(prefix="parcae-parquet-") as folder:
        copy = Path(folder) / "table.arrow"
        command = [sys.executable, "-c", _COPY, str(path), str(copy)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, check=False
        )
        if done.returncode != 0:
            reason = done.stderr.strip().partition("\n")[0][:120]
            reason = reason or f"exit status {done.returncode}"
            raise FormatError(f"{path}: no Parquet file, or a damaged one ({reason})")
        # In memory, because the file is deleted now.
        frame = pl.read_ipc(copy.read_bytes())
    if frame.height > _MOST_ROWS:
        raise FormatError(f"{path}: more than {_MOST_ROWS:,} rows")
    # Impala and old versions of Hive write text as bytes.
    texts = pl.col(pl.Binary).map_elements(
        lambda cell: cell.decode(errors="backslashreplace"), return_dtype=pl.String
    )
    columns = [(one.name, one.to_list()) for one in frame.with_columns(texts)]
    return StageTable(path, columns, range(1, frame.height + 1))


_COPY = "from parcae.workloads.stage_table import copy_parquet; copy_parquet()"


def copy_parquet() -> None:
    """Copy the Parquet file of the command line's first word to a file of polars, the second."""
    import polars as pl

    source, copy = map(Path, sys.argv[1:])
    try:
        # Opened here: polars opens no file whose name is not UTF-8, and takes stars for a pattern.
        with source.open("rb") as stream:
            pl.read_parquet(stream, n_rows=_MOST_ROWS + 1).write_ipc(copy)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        sys.exit(str(error))


def open_json(path: Path) -> StageTable:
    """Open a JSON array of objects, or JSON lines; also compressed (gzip, zstd)."""
    content = read_file(path).removeprefix(BOM_UTF8)
    if content.lstrip()[:1] == b"[":
        rows = dict(enumerate(parsed_json(path, content, _JSON_LAYOUT), 1))
    else:
        rows = {
            number: parsed_json(f"{path}:{number}", line, _JSON_LAYOUT)
            for number, line in enumerate(content.split(b"\n"), 1)
            if line.strip()
        }
    for number, row in rows.items():
        if not isinstance(row, dict):
            raise FormatError(f"{path}:{number}: not an object; expected {_JSON_LAYOUT}")
    names = dict.fromkeys(name for row in rows.values() for name in row)
    columns = [(name, [row.get(name) for row in rows.values()]) for name in names]
    return StageTable(path, columns, list(rows))


#: By the end of a column's name, or the text of the option: the unit in ms.
UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": float(MS_PER_S), "min": 60.0 * MS_PER_S}
#: Larger durations (31 years) and times are mistakes; sums of them would overflow.
MAX_DURATION_MS = 10**12
MAX_TIME_MS = 10**15
#: Number of samples that stand for a mean with a spread.
NUM_DRAWN = 100
#: Largest spread / mean that so few samples can have.
MAX_RELATIVE_SPREAD = 5.0
_NUMBER = re.compile(r"\s*[-+]?[\d.]+([eE][-+]?\d+)?\s*$")
#: What separates the entries of a list in a text, the first ones first.
_SEPARATORS = (re.compile(r";"), re.compile(r"[;,]"), re.compile(r"[;,\s]+"))
#: The same for numbers where a comma is a decimal comma.
_NO_COMMAS = re.compile(r"[;\s]+")
#: The brackets of a list in a text.
_ENCLOSED = re.compile(r"^[\[({](.*)[\])}]$", re.DOTALL)
_DECIMAL_COMMA = re.compile(r"\s*[-+]?\d+,\d+\s*$")


def is_empty(cell: Any) -> bool:
    """Whether a cell has no content; databases write \\N for that."""
    return cell is None or (isinstance(cell, str) and cell.strip() in ("", r"\N"))


def as_name(cell: Any) -> str:
    """The text that identifies a job or a stage; 3, 3.0 and "3" are the same."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)
    if isinstance(cell, bool | list | dict) or (isinstance(cell, float) and math.isnan(cell)):
        raise ValueError(f"{_shown(cell)} is not a name")
    name = str(cell).strip()
    # JSON can escape half of a surrogate pair, which cannot be written to any file.
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(cell)} is not a name: half a character is missing") from None
    return name


def as_name_lists(cell: Any) -> list[tuple[str, ...]]:
    """The names in a cell, in every way to read it; the likeliest one is the first that fits.

    Example: "Stage 1; Stage 2" is one name, or "Stage 1" and "Stage 2", or four names.
    """
    if not isinstance(cell, str):
        return [tuple(map(as_name, _entries(cell, _SEPARATORS[-1])))]
    # Brackets are those of names or, if no name fits, those of the list.
    texts = (cell, _ENCLOSED.sub(r"\1", cell.strip()))
    readings = [tuple(map(as_name, _entries(text, one))) for one in _SEPARATORS for text in texts]
    return [(as_name(cell),), *readings]


def _entries(cell: Any, separators: re.Pattern[str]) -> list[Any]:
    """The entries of a list, or of a text."""
    if isinstance(cell, str):
        texts = separators.split(cell)
        return [entry for text in texts if (entry := text.strip().strip("\"'"))]
    entries = cell if isinstance(cell, list | tuple) else [cell]
    return [entry for entry in entries if not is_empty(entry)]


def as_number(cell: Any) -> float:
    """A finite number >= 0."""
    try:
        if isinstance(cell, bool):
            raise TypeError
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        is_decimal = isinstance(cell, str) and _DECIMAL_COMMA.match(cell)
        hint = "; write a decimal point" if is_decimal else ""
        raise ValueError(f"{_shown(cell)} is not a number{hint}") from None
    if not math.isfinite(number):
        raise ValueError(f"{_shown(cell)} is not a finite number")
    if number < 0:
        raise ValueError(f"{_shown(cell)} is negative")
    return number


def as_count(cell: Any) -> int:
    """A number of tasks."""
    number = as_number(cell)
    if number != int(number) or not 1 <= number <= MOST_TASKS:
        raise ValueError(f"{_shown(cell)} tasks: expected a whole number from 1 to {MOST_TASKS:,}")
    return int(number)


def as_duration(cell: Any, unit_ms: Callable[[], float]) -> float:
    """A duration in ms."""
    if isinstance(cell, timedelta):
        ms = as_number(cell / timedelta(milliseconds=1))
    else:
        ms = as_number(cell) * unit_ms()
    if ms > MAX_DURATION_MS:
        raise ValueError(f"{_shown(cell)} is a duration of more than 31 years")
    return ms


def as_time(cell: Any, unit_ms: Callable[[], float]) -> int:
    """A point in time in ms; only differences between times count."""
    # Digits alone are a number, also where they could be a date.
    if isinstance(cell, str) and not _NUMBER.match(cell):
        with suppress(ValueError):
            cell = datetime.fromisoformat(cell.strip())
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime.combine(cell, time())
    if isinstance(cell, datetime):
        moment = cell if cell.tzinfo is not None else cell.replace(tzinfo=UTC)
        ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    else:
        ms = as_number(cell) * unit_ms()
    if not 0 <= ms <= MAX_TIME_MS:
        raise ValueError(f"{_shown(cell)} is out of range for a time")
    return round(ms)


def samples_of_spread(mean_ms: float, spread_ms: float) -> Int64Array:
    """Durations with a mean and a standard deviation, as quantiles of a lognormal distribution.

    Example: `samples_of_spread(2_000, 0)` is one duration of 2,000 ms.
    """
    if spread_ms == 0:
        return np.array([round(mean_ms)], np.int64)
    if mean_ms == 0 or spread_ms / mean_ms > MAX_RELATIVE_SPREAD:
        raise ValueError(
            f"a spread of {spread_ms:g} ms around {mean_ms:g} ms; it may be at most "
            f"{MAX_RELATIVE_SPREAD:g} times the mean (give the durations themselves)"
        )
    # Rounded sums keep the mean correct to a fraction of a ms.
    ends = np.rint(np.cumsum(mean_ms * _shape(spread_ms / mean_ms))).astype(np.int64)
    return np.asarray(np.diff(ends, prepend=0), np.int64)


#: Quantiles of the normal distribution.
_SCORES = ndtri((np.arange(NUM_DRAWN) + 0.5) / NUM_DRAWN)


@lru_cache(maxsize=1_024)
def _shape(relative_spread: float) -> Float64Array:
    """Lognormal quantiles of mean 1 whose standard deviation is `relative_spread`."""

    def quantiles(sigma: float) -> Float64Array:
        values = np.exp(sigma * _SCORES)
        return np.asarray(values / values.mean())

    # The spread of finitely many quantiles grows with sigma.
    return quantiles(brentq(lambda sigma: quantiles(sigma).std() - relative_spread, 0.0, 20.0))


def _shown(cell: Any) -> str:
    """A cell in a message, cut to 40 characters."""
    text = repr(cell) if isinstance(cell, str) else str(cell)[:60]
    return text if len(text) <= 40 else f"{text[:37]}..."


@dataclass(frozen=True)
class StageColumn:
    """A column of the table: its name in the file, its cells, and the unit of its numbers."""

    table: StageTable
    name: str
    cells: list[Any]
    unit: str | None
    parse: Callable[[Any, StageColumn], Any]

    def value(self, row: int) -> Any:
        """The value of a cell; None for an empty one."""
        cell = self.cells[row]
        return None if is_empty(cell) else self.parse(cell, self)

    def unit_ms(self) -> float:
        """The unit of the numbers in ms."""
        if self.unit is None:
            raise FormatError(
                f"{self.table.path}: the column {self.name!r} does not say its unit: call it "
                f"{self.name}_ms or {self.name}_s, or give --unit ms, s or min"
            )
        return UNITS[self.unit]


def _durations(cell: Any, column: StageColumn) -> list[float]:
    """The durations in a list, or in a text in which `;`, `,` or spaces separate them."""
    inner = cell.strip().strip("[](){}") if isinstance(cell, str) else cell
    # A comma may be a decimal comma where semicolons separate the columns.
    separators = _NO_COMMAS if column.table.has_decimal_commas else _SEPARATORS[-1]
    return [as_duration(one, column.unit_ms) for one in _entries(inner, separators)]


def in_ms(cell: Any, column: StageColumn) -> float:
    """The duration of a cell, by its column's unit."""
    return as_duration(cell, column.unit_ms)


#: What a column can mean, by its name: in words, and how its cells are read.
Meanings = Mapping[str, tuple[str, Callable[[Any, StageColumn], Any]]]
_MEANINGS: Meanings = {
    "job": ("the run that the stage belongs to", lambda cell, _: as_name(cell)),
    "name": ("name of the recurring job", lambda cell, _: as_name(cell)),
    "stage": ("the stage, unique within its job", lambda cell, _: as_name(cell)),
    "parents": ("the stages that must end first", lambda cell, _: as_name_lists(cell)),
    "tasks": ("number of tasks", lambda cell, _: as_count(cell)),
    "durations": ("durations of tasks", _durations),
    "duration_mean": ("their mean", in_ms),
    "duration_sd": ("their standard deviation", in_ms),
    "arrival": ("when the job arrived", lambda cell, of: as_time(cell, of.unit_ms)),
    "pool": ("Spark's scheduler pool", lambda cell, _: as_name(cell)),
    "user": ("the person who ran the job", lambda cell, _: as_name(cell)),
}
_TIMES = ("durations", "duration_mean", "duration_sd", "arrival")


def find_columns(
    table: StageTable,
    columns: str | None,
    unit: str | None,
    meanings: Meanings,
    times: Sequence[str],
    recognised: Mapping[str, str],
) -> tuple[dict[str, StageColumn], list[str]]:
    """The columns of a table by their meaning, and the names of those that mean nothing.

    Names in lower case that are `recognised` mean what others of the table's own names say.
    """
    called = _parsed_names(columns, meanings)
    if unit and unit not in UNITS:
        raise ConfigError(f"no unit {unit!r}; {suggestion(unit, UNITS)}")
    names = [name for name, _ in table.columns]
    for meaning, name in called.items():
        if name not in names:
            hint = suggestion(name, names, "the table has")
            raise ConfigError(
                f"--columns {meaning}={name}: {table.path} has no such column; {hint}"
            )
    found: dict[str, StageColumn] = {}
    ignored = []
    needs_unit = False
    given = {name: meaning for meaning, name in called.items()}
    for name, cells in table.columns:
        word = name.strip().lower()
        word = recognised.get(word, word)
        base, _, end = word.rpartition("_")
        own_unit = end if "_" in word and end in UNITS else None
        means = given.get(name, base if own_unit and base in times else word)
        if means not in meanings or (means in called and name not in given):
            ignored.append(name)
            continue
        words, parse = meanings[means]
        if means in found:
            raise FormatError(
                f"{table.path}: the columns {found[means].name!r} and {name!r} both give "
                f"{means} ({words}); remove one of them"
            )
        found[means] = StageColumn(table, name, cells, own_unit or unit, parse)
        needs_unit |= own_unit is None and means in times
    if unit and not needs_unit:
        raise ConfigError(
            f"--unit {unit} has no effect: the names of all columns of times in {table.path} "
            "end in their units; leave it out"
        )
    return found, ignored


def check_columns(table: StageTable, missing: Sequence[str]) -> None:
    """Refuse a table in which columns are missing."""
    if missing:
        names = ", ".join(name for name, _ in table.columns)
        raise FormatError(
            f"{table.path}: no column {', '.join(missing)}; the table has {names or 'no columns'}. "
            "Rename its columns, or name them by --columns, e.g. --columns user=run_by"
        )


def _check_stages(table: StageTable, found: Mapping[str, StageColumn]) -> None:
    missing = [meaning for meaning in ("job", "stage") if meaning not in found]
    if "durations" not in found:
        missing += [] if "duration_mean" in found else ["durations (or duration_mean)"]
        missing += [] if "tasks" in found else ["tasks"]
    if "duration_sd" in found and "duration_mean" not in found:
        missing.append("duration_mean (of duration_sd)")
    check_columns(table, missing)


def _parsed_names(text: str | None, meanings: Meanings) -> dict[str, str]:
    """The names of columns by meaning, from a text such as "job=run_id,name=query"."""
    called: dict[str, str] = {}
    for part in (text or "").split(",") if text else []:
        meaning, _, name = (word.strip() for word in part.partition("="))
        if not name:
            raise ConfigError(f"--columns {text}: expected MEANING=COLUMN, e.g. user=run_by")
        if meaning not in meanings:
            raise ConfigError(f"--columns {text}: {suggestion(meaning, meanings)}")
        if meaning in called or name in called.values():
            twice = meaning if meaning in called else name
            raise ConfigError(f"--columns {text}: {twice} is there twice; give each of them once")
        called[meaning] = name
    return called


SOURCE = "table of stages"
_NO_ARRIVAL = -1


class _Row(NamedTuple):
    """One stage of one run: the values of its cells by meaning, and what follows from them."""

    number: int
    values: dict[str, Any]
    num_tasks: int
    samples: Int64Array
    num_lost: int


class _RowError(Exception):
    """A row that contradicts the other rows of its job."""

    def __init__(self, row: _Row, what: str) -> None:
        super().__init__(what)
        self.row = row


def read_stages(
    open_table: Callable[[Path], StageTable],
    path: Path,
    *,
    name: str = "stages",
    progress: Progress | None = None,
    unit: str | None = None,
    columns: str | None = None,
    recorded: bool = False,
    max_bad_share: float = 0.01,
) -> tuple[Workload, ImportReport]:
    """Make a workload of a table of stages. Returns the workload and the import report."""
    # A pipe would be waited for.
    if path.exists() and not path.is_file():
        raise FormatError(f"{path}: expected a file with a table of stages")
    table = open_table(path)
    found, ignored = find_columns(table, columns, unit, _MEANINGS, _TIMES, {})
    _check_stages(table, found)
    if recorded and "arrival" not in found:
        raise FormatError(f"{path}: no column arrival, which --recorded needs")
    bad = BadRows(max_bad_share)
    of_job, bad_jobs = _rows_by_job(table, found, bad, progress)
    runs = []
    for job, rows in of_job.items():
        if job not in bad_jobs:
            try:
                runs.append(_run(job, rows, needs_arrival=recorded))
            except _RowError as error:
                bad.add(path, error.row.number, f"job {job}: {error}")
                bad_jobs.add(job)
    num_rows = len(table.numbers)
    bad.finish(num_rows)
    if not runs:
        raise FormatError(f"{path}: no complete job in {num_rows} rows")
    # Without arrivals, runs have the order of the file.
    if any(run.submission_ms == _NO_ARRIVAL for run in runs):
        for index, run in enumerate(runs):
            run.submission_ms = index
    _forget_running_numbers(runs)
    provenance = {"source": SOURCE, "file": path.name}
    if recorded:
        workload, notes = workload_of_runs(name, runs, provenance)
    else:
        # A table does not say which runs were slow because they came first.
        workload, notes = workload_of_jobs(name, runs, provenance, keep_first_runs=True)
    if ignored:
        ignored = [f"Ignored the columns {', '.join(ignored)}."]
    notes = [*ignored, *_notes(found, bad_jobs, of_job), *notes]
    counts = (num_rows, bad.count, bad.samples)
    return workload, ImportReport(SOURCE, 1, *counts, tuple(notes), len(workload.jobs))


read_csv_stages = partial(read_stages, open_csv)
read_parquet_stages = partial(read_stages, open_parquet)
read_json_stages = partial(read_stages, open_json)


def _notes(
    found: Mapping[str, StageColumn], bad_jobs: set[str], of_job: dict[str, list[_Row]]
) -> list[str]:
    notes = []
    if "parents" not in found:
        notes.append("There is no column parents: the stages of a job run side by side.")
    if bad_jobs:
        num_rows = sum(len(of_job[job]) for job in bad_jobs)
        notes.append(
            f"Left out {counted(len(bad_jobs), 'job')} with bad rows, "
            f"and with them {counted(num_rows, 'readable row')}."
        )
    kept = (row for job, rows in of_job.items() if job not in bad_jobs for row in rows)
    if num_lost := sum(row.num_lost for row in kept):
        notes.append(
            f"{counted(num_lost, 'duration')} below 0.5 ms became 0 (durations are whole ms); is "
            "the unit right?"
        )
    return notes


def _rows_by_job(
    table: StageTable, found: Mapping[str, StageColumn], bad: BadRows, progress: Progress | None
) -> tuple[dict[str, list[_Row]], set[str]]:
    of_job: dict[str, list[_Row]] = defaultdict(list)
    bad_jobs: set[str] = set()
    for index, number in enumerate(table.numbers):
        if progress is not None and index % 10_000 == 0:
            progress(index, len(table.numbers))
        job = None
        try:
            job = _needed(found["job"].value(index), "job")
            of_job[job].append(_row(found, index, number))
        except ValueError as error:
            if job is not None:
                bad_jobs.add(job)
            bad.add(table.path, number, str(error) if job is None else f"job {job}: {error}")
    return of_job, bad_jobs


def _needed(value: Any, meaning: str) -> Any:
    if value is None:
        raise ValueError(f"the cell of {meaning} is empty")
    return value


def _row(found: Mapping[str, StageColumn], index: int, number: int) -> _Row:
    values = {meaning: column.value(index) for meaning, column in found.items()}
    _needed(values["stage"], "stage")
    durations = values.get("durations") or []
    mean_ms = values.get("duration_mean")
    num_tasks = values.get("tasks")
    if durations and mean_ms is not None:
        raise ValueError("both durations and duration_mean are given; leave one of them empty")
    if not durations and mean_ms is None:
        raise ValueError("neither durations nor duration_mean is given")
    if num_tasks is None and not durations:
        raise ValueError("the cell of tasks is empty, and there are no durations to count")
    if num_tasks is None:
        num_tasks = len(durations)
    if len(durations) > num_tasks:
        raise ValueError(f"{len(durations)} durations of {num_tasks} tasks")
    given_ms = np.array(durations or [mean_ms])
    whole_ms = np.rint(given_ms).astype(np.int64)
    num_lost = int(np.count_nonzero((whole_ms == 0) & (given_ms > 0)))
    if durations:
        return _Row(number, values, num_tasks, whole_ms, num_lost)
    samples = samples_of_spread(values["duration_mean"], values.get("duration_sd") or 0.0)
    return _Row(number, values, num_tasks, samples, num_lost)


def _run(job: str, rows: list[_Row], *, needs_arrival: bool) -> JobRun:
    parents = _parents_of(rows)
    arrival_ms = _agreed(rows, "arrival")
    if needs_arrival and arrival_ms is None:
        raise _RowError(rows[0], "its arrival is missing, which --recorded needs")
    name = _agreed(rows, "name")
    pool, user = _agreed(rows, "pool"), _agreed(rows, "user")
    none = np.zeros(0, np.int64)
    stages = []
    for row, of_row in zip(rows, parents, strict=True):
        stage = row.values["stage"]
        # Which tasks found a fresh executor, and how many executors there were, is not known.
        samples = StageSamples(1, (none, row.samples, none))
        stages.append(StageRun(stage, stage, row.num_tasks, of_row, frozenset(), samples))
    submission_ms = _NO_ARRIVAL if arrival_ms is None else arrival_ms
    return JobRun(name or job, submission_ms, stages, pool=pool or "", user=user or "")


def _parents_of(rows: list[_Row]) -> list[frozenset[int]]:
    """The parents of a job's rows, which are a DAG."""
    index_of: dict[str, int] = {}
    for index, row in enumerate(rows):
        stage = row.values["stage"]
        if stage in index_of:
            first = rows[index_of[stage]].number
            raise _RowError(row, f"stage {stage} is there twice (row {first})")
        index_of[stage] = index
    parents = [_parents(row, index_of) for row in rows]
    _, stuck = topological_order(parents)
    if stuck:
        names = ", ".join(rows[index].values["stage"] for index in stuck[:5])
        raise _RowError(rows[stuck[0]], f"a cycle through some of the stages {names}")
    return parents


def _parents(row: _Row, index_of: dict[str, int]) -> frozenset[int]:
    readings = row.values.get("parents") or [()]
    for names in readings:
        # A column of whole numbers with empty cells is written as 0.0, 1.0, ...
        stages = [name if name in index_of else name.removesuffix(".0") for name in names]
        if all(stage in index_of for stage in stages):
            return frozenset(index_of[stage] for stage in stages)
    unknown = next(name for name in readings[-1] if name not in index_of)
    raise _RowError(row, f"stage {row.values['stage']} has the unknown parent {unknown!r}")


def _agreed(rows: Sequence[_Row], what: str) -> Any:
    """The value that the rows of a job give; None if none gives one."""
    giving = [row for row in rows if row.values.get(what) is not None]
    for row in giving[1:]:
        if row.values[what] != giving[0].values[what]:
            raise _RowError(row, f"another {what} than in row {giving[0].number}")
    return giving[0].values[what] if giving else None


def _forget_running_numbers(runs: list[JobRun]) -> None:
    """Match stages by the DAG where their ids have numbers that go on from run to run.

    In such a table no stage of a recurring job has the same id in two of its runs. The words of an
    id that have no digit still count.
    """
    of_name: dict[str, list[JobRun]] = defaultdict(list)
    for run in runs:
        of_name[run.name].append(run)
    for same_name in of_name.values():
        stages = [stage for run in same_name for stage in run.stages]
        if len(same_name) > 1 and len({stage.kind for stage in stages}) == len(stages):
            for stage in stages:
                words = stage.kind.split()
                stage.kind = " ".join(w for w in words if not any(map(str.isdigit, w)))
