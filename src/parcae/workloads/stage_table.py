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
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from parcae.base.codecs import GZIP_MAGIC, LZ4_BLOCK_MAGIC, ZSTD_MAGIC
from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import open_file, parsed_json, read_file
from parcae.base.texts import MS_PER_S
from parcae.workloads.dag import topological_order
from parcae.workloads.durations import MOST_TASKS
from parcae.workloads.formats import first_bytes
from parcae.workloads.import_report import BadRows, ImportReport, counted
from parcae.workloads.recorded_run import workload_of_jobs, workload_of_runs
from parcae.workloads.spark_log.dag import JobRun, StageRun
from parcae.workloads.spark_log.durations import StageSamples
from parcae.workloads.workload import Workload

#: The name of the column of line numbers, which no file has.
_LINE = "\0line"
#: A small Parquet file can have any number of rows.
_MOST_ROWS = 20_000_000
_JSON_LAYOUT = '[{"job": "a", "stage": 0, ...}, ...] or one such object a line'


@dataclass(frozen=True)
class StageTable:
    """A table of a file."""

    path: Path
    columns: dict[str, list[Any]]
    numbers: Sequence[int]
    repeated: frozenset[str] = frozenset()
    has_decimal_commas: bool = False


def open_csv(path: Path) -> StageTable:
    """Open a CSV table with a header; columns are separated by commas, semicolons or tabs."""
    import polars as pl

    _check_is_file(path)
    header = first_bytes(path).partition(b"\n")[0]
    separator = max((",", ";", "\t"), key=lambda one: header.count(one.encode()))
    with open_file(path) as stream:
        is_compressed = stream.read(8).startswith((GZIP_MAGIC, ZSTD_MAGIC, LZ4_BLOCK_MAGIC))
    # Decompressed here, where the size is bounded. Polars opens no file whose name is not UTF-8.
    source = read_file(path) if is_compressed else path.read_bytes()
    try:
        # All cells as text: a type that is guessed from the first rows may not fit the others.
        frame = pl.read_csv(source, separator=separator, infer_schema=False)
        names = pl.read_csv(
            source, separator=separator, infer_schema=False, has_header=False, n_rows=1
        ).row(0)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).strip().partition("\n")[0][:120]
        message = f"{path}: no CSV table with a header, or a damaged one ({reason})"
        raise FormatError(message) from None
    # Polars gives the second column of a name another one.
    repeated = frozenset(name for name, count in Counter(names).items() if name and count > 1)
    # Blank lines are no rows. A line break in quotes is not counted, so that numbers are then less.
    is_row = pl.any_horizontal(pl.exclude(_LINE).is_not_null())
    lines = frame.with_row_index(_LINE, 2).filter(is_row)
    return replace(
        _of_frame(path, lines.drop(_LINE), 2),
        numbers=lines.get_column(_LINE).to_list(),
        repeated=repeated,
        has_decimal_commas=separator == ";",
    )


def open_parquet(path: Path) -> StageTable:
    """Open a Parquet file, in a process of its own.

    A damaged file can make polars ask for more memory than there is, which ends its process.
    """
    import polars as pl

    _check_is_file(path)
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
    texts = pl.col(pl.Binary).map_elements(_text, return_dtype=pl.String)
    return _of_frame(path, frame.with_columns(texts), 1)


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


def _text(cell: bytes) -> str:
    """Bytes as text; those that are none are shown as escapes."""
    return cell.decode(errors="backslashreplace")


def _check_is_file(path: Path) -> None:
    """Refuse a folder, and a pipe, which would be waited for."""
    if path.exists() and not path.is_file():
        raise FormatError(f"{path}: expected a file with a table of stages")


def _of_frame(path: Path, frame: Any, first: int) -> StageTable:
    """The table of a polars frame; `first` is the number of its first row."""
    columns = {name: frame.get_column(name).to_list() for name in frame.columns}
    return StageTable(path, columns, range(first, first + frame.height))


def open_json(path: Path) -> StageTable:
    """Open a JSON array of objects, or JSON lines; also compressed (gzip, zstd)."""
    _check_is_file(path)
    content = read_file(path).removeprefix(BOM_UTF8)
    if content.lstrip()[:1] == b"[":
        entries = parsed_json(path, content, _JSON_LAYOUT)
        rows = list(enumerate(entries, 1))
    else:
        lines = enumerate(content.split(b"\n"), 1)
        rows = [
            (number, parsed_json(f"{path}:{number}", line, _JSON_LAYOUT))
            for number, line in lines
            if line.strip()
        ]
    for number, row in rows:
        if not isinstance(row, dict):
            raise FormatError(f"{path}:{number}: not an object; expected {_JSON_LAYOUT}")
    names = dict.fromkeys(name for _, row in rows for name in row)
    columns = {name: [row.get(name) for _, row in rows] for name in names}
    return StageTable(path, columns, [number for number, _ in rows])


Samples = npt.NDArray[np.int64]

#: By the end of a column's name, or the text of the option: the unit in ms.
UNITS = {"ms": 1.0, "s": float(MS_PER_S), "min": 60.0 * MS_PER_S}
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
    """Whether a cell has no content."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


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


def as_list(cell: Any, *, at_commas: bool = True) -> list[Any]:
    """The entries of a list, or of a text in which `;`, `,` or spaces separate them."""
    inner = cell.strip().strip("[](){}") if isinstance(cell, str) else cell
    return _entries(inner, _SEPARATORS[-1] if at_commas else _NO_COMMAS)


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
    if is_empty(cell):
        return []
    if isinstance(cell, list | tuple):
        return [entry for entry in cell if not is_empty(entry)]
    if not isinstance(cell, str):
        return [cell]
    entries = separators.split(cell)
    return [entry for text in entries if (entry := text.strip().strip("\"'"))]


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


def samples_of_spread(mean_ms: float, spread_ms: float) -> Samples:
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


@lru_cache(maxsize=1_024)
def _shape(relative_spread: float) -> npt.NDArray[np.float64]:
    """Lognormal quantiles of mean 1 whose standard deviation is `relative_spread`."""
    normal = NormalDist()
    scores = np.array([normal.inv_cdf((i + 0.5) / NUM_DRAWN) for i in range(NUM_DRAWN)])
    low = 0.0
    high = 20.0
    # The spread of finitely many quantiles grows with sigma: bisection finds the sigma that fits.
    for _ in range(60):
        sigma = (low + high) / 2
        values = np.exp(sigma * scores)
        values /= values.mean()
        if values.std() < relative_spread:
            low = sigma
        else:
            high = sigma
    shape: npt.NDArray[np.float64] = values
    return shape


def _shown(cell: Any) -> str:
    """A cell in a message, cut to 40 characters."""
    text = repr(cell) if isinstance(cell, str) else str(cell)[:60]
    return text if len(text) <= 40 else f"{text[:37]}..."


#: What a column can mean, by its name.
MEANINGS = {
    "job": "the run that the stage belongs to",
    "name": "name of the recurring job",
    "stage": "the stage, unique within its job",
    "parents": "the stages that must end first",
    "tasks": "number of tasks",
    "durations": "durations of tasks",
    "duration_mean": "their mean",
    "duration_sd": "their standard deviation",
    "arrival": "when the job arrived",
    "pool": "Spark's scheduler pool",
}
_TIMES = ("durations", "duration_mean", "duration_sd", "arrival")


@dataclass(frozen=True)
class StageColumn:
    """A column of the table: its name in the file, its cells, and the unit of its numbers in ms."""

    name: str
    cells: list[Any]
    unit: float | None = None

    def unit_ms(self) -> float:
        """The unit of the numbers."""
        if self.unit is None:
            raise FormatError(
                f"the column {self.name!r} does not say its unit: call it {self.name}_ms or "
                f"{self.name}_s, or give --unit ms, s or min"
            )
        return self.unit


class Columns:
    """The columns of a table by their meaning.

    Raises:
        ConfigError: a meaning, a column or a unit that does not exist, or a unit that no column
            needs.
        FormatError: two columns of one meaning, or columns that are missing.
    """

    def __init__(self, table: StageTable, called: Mapping[str, str], unit: str) -> None:
        if unit and unit not in UNITS:
            raise ConfigError(f"no unit {unit!r}; {suggestion(unit, UNITS)}")
        _check_names(table, called)
        self.path: Path = table.path
        self.has_decimal_commas = table.has_decimal_commas
        self.ignored: list[str] = []
        self._of: dict[str, StageColumn] = {}
        needs_unit: list[str] = []
        meaning_of = {name: meaning for meaning, name in called.items()}
        for name, cells in table.columns.items():
            meaning, of_name = _meaning(meaning_of.get(name, name))
            of_name = _unit_at_end(name) or of_name
            if meaning is None or (meaning in called and name not in meaning_of):
                self.ignored.append(name)
                continue
            self._refuse_second(meaning, name)
            self._of[meaning] = StageColumn(name, cells, UNITS.get(of_name or unit))
            if name in table.repeated:
                self._refuse_second(meaning, name)
            if of_name is None and meaning in _TIMES:
                needs_unit.append(name)
        if unit and not needs_unit:
            raise ConfigError(
                f"--unit {unit} has no effect: the names of all columns of times in {table.path} "
                "end in their units; leave it out"
            )
        self._check_complete(table)

    def cell(self, meaning: str, row: int) -> Any:
        """A cell; None if there is no such column."""
        return self._of[meaning].cells[row] if meaning in self._of else None

    def unit_ms(self, meaning: str) -> float:
        """The unit of the numbers in a column of times, in ms."""
        return self._of[meaning].unit_ms()

    def __contains__(self, meaning: str) -> bool:
        return meaning in self._of

    def _refuse_second(self, meaning: str, name: str) -> None:
        if meaning in self._of:
            raise FormatError(
                f"{self.path}: the columns {self._of[meaning].name!r} and {name!r} both give "
                f"{meaning} ({MEANINGS[meaning]}); remove one of them"
            )

    def _check_complete(self, table: StageTable) -> None:
        missing = [meaning for meaning in ("job", "stage") if meaning not in self]
        if "durations" not in self:
            missing += [] if "duration_mean" in self else ["durations (or duration_mean)"]
            missing += [] if "tasks" in self else ["tasks"]
        if "duration_sd" in self and "duration_mean" not in self:
            missing.append("duration_mean (of duration_sd)")
        if missing:
            raise FormatError(
                f"{table.path}: no column {', '.join(missing)}; the table has "
                f"{', '.join(table.columns) or 'no columns'}. Rename its columns, or name them "
                "by --columns, e.g. --columns job=run_id,durations=times"
            )


def parsed_names(text: str | None) -> dict[str, str]:
    """The names of columns by meaning, from a text such as "job=run_id,name=query"."""
    called: dict[str, str] = {}
    for part in (text or "").split(",") if text else []:
        meaning, _, name = (word.strip() for word in part.partition("="))
        if not name:
            raise ConfigError(f"--columns {text}: expected MEANING=COLUMN, e.g. job=run_id")
        if meaning not in MEANINGS:
            raise ConfigError(f"--columns {text}: {suggestion(meaning, MEANINGS)}")
        if meaning in called or name in called.values():
            twice = meaning if meaning in called else name
            raise ConfigError(f"--columns {text}: {twice} is there twice; give each of them once")
        called[meaning] = name
    return called


def _check_names(table: StageTable, called: Mapping[str, str]) -> None:
    for meaning, name in called.items():
        if name not in table.columns:
            hint = suggestion(name, table.columns, "the table has")
            raise ConfigError(
                f"--columns {meaning}={name}: {table.path} has no such column; {hint}"
            )


def _meaning(name: str) -> tuple[str | None, str | None]:
    """What a column of this name means, and the unit that the name has; None for neither."""
    word = name.strip().lower()
    if word in MEANINGS:
        return word, None
    unit = _unit_at_end(word)
    meaning = word.removesuffix(f"_{unit}")
    return (meaning, unit) if unit and meaning in _TIMES else (None, None)


def _unit_at_end(name: str) -> str | None:
    end = name.strip().lower().rpartition("_")[2]
    return end if "_" in name and end in UNITS else None


Progress = Callable[[int, int], None]
SOURCE = "table of stages"
_NO_ARRIVAL = -1
_Value = TypeVar("_Value")


@dataclass(frozen=True, eq=False)
class _Row:
    """One stage of one run."""

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
    table: StageTable,
    *,
    name: str,
    progress: Progress | None = None,
    unit: str | None = None,
    columns: str | None = None,
    recorded: bool = False,
    max_bad_share: float = 0.01,
) -> tuple[Workload, ImportReport]:
    """Make a workload of a table of stages. Returns the workload and the import report."""
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


def _reader(
    open_table: Callable[[Path], StageTable],
) -> Callable[..., tuple[Workload, ImportReport]]:
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
    table: StageTable, found: Columns, bad: BadRows, progress: Progress | None
) -> tuple[dict[str, list[_Row]], set[str]]:
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
