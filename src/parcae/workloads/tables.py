"""Tables that say something about recurring jobs by name, such as deadlines and priorities.

A file is a CSV table of two columns; the first is `job`:

    job,deadline
    etl-*,5m
    q21,90
    *,1h

`job` is the name of a recurring job, or a pattern of names with `*`, `?` and `[...]`. Of the lines
that match a job, the first one counts.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from parcae.base.errors import ConfigError, FormatError, problem, suggestion
from parcae.base.loader import parsed_json, read_file, shown
from parcae.base.texts import MS_PER_HOUR, MS_PER_S, ms_from_text
from parcae.workloads.job import JobSpec

Value = TypeVar("Value")
_JOB = "job"
#: Messages name at most this many jobs or lines.
MOST_NAMED = 6


@dataclass(frozen=True)
class JobLine(Generic[Value]):
    """What a table says about the jobs whose name matches."""

    pattern: str
    value: Value
    where: str

    def matches(self, name: str) -> bool:
        """Whether the line is about a job of this name."""
        return name == self.pattern or (self.is_pattern and fnmatchcase(name, self.pattern))

    @property
    def is_pattern(self) -> bool:
        """Whether it can match other names than its own text."""
        return any(sign in self.pattern for sign in "*?[")


@dataclass(frozen=True)
class JobTable(Generic[Value]):
    """What is said about jobs by their names."""

    lines: tuple[JobLine[Value], ...]
    source: str

    @cached_property
    def _row_of_text(self) -> dict[str, int]:
        """The first row of every name or pattern."""
        return {line.pattern: row for row, line in reversed(list(enumerate(self.lines)))}

    @cached_property
    def _patterns(self) -> list[tuple[int, JobLine[Value]]]:
        """The lines that can match several names, with their rows."""
        return [(row, line) for row, line in enumerate(self.lines) if line.is_pattern]

    def _row(self, name: str) -> int | None:
        """The row of the line that counts for a job."""
        row = self._row_of_text.get(name)
        # A file may have thousands of names: only patterns before the name's own line are tried.
        earlier = (at for at, line in self._patterns if row is None or at < row)
        return next((at for at in earlier if self.lines[at].matches(name)), row)

    def of(self, name: str) -> Value | None:
        """What is said about a job; None if no line matches."""
        row = self._row(name)
        return None if row is None else self.lines[row].value

    def unused(self, names: Sequence[str]) -> list[JobLine[Value]]:
        """The lines that count for none of the jobs."""
        used = {self._row(name) for name in names}
        return [line for row, line in enumerate(self.lines) if row not in used]


def listed(names: Sequence[str]) -> str:
    """The first of the names, each once, with dots if there are more."""
    names = list(dict.fromkeys(names))
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


def read_job_table(
    path: Path, column: str, parse: Callable[[str], Value], example: str, key: str = _JOB
) -> JobTable[Value]:
    """Read a table of two columns, `job` (or another key) and another."""
    layout = f"expected lines such as `{key},{column}` (the first), {example}"
    try:
        # Spreadsheets begin their files with a byte order mark.
        text = read_file(path).decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [(f"{path}:{reader.line_num}", [cell.strip() for cell in line]) for line in reader]
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; save the table as CSV in UTF-8") from None
    except csv.Error as error:
        raise FormatError(f"{path}: not a CSV table ({error}); {layout}") from None
    rows = [(where, cells) for where, cells in rows if any(cells)]
    if not rows or [cell.lower() for cell in rows[0][1]] != [key, column]:
        raise FormatError(f"{path}:1: the first line is not `{key},{column}`; {layout}")
    lines = []
    for where, cells in rows[1:]:
        if len(cells) != 2:
            raise FormatError(
                f"{where}: {len(cells)} cells instead of 2; put a name with a comma between double "
                f"quotes; {layout}"
            )
        name, value = cells
        if not name:
            raise FormatError(f"{where}: the name of the {key} is empty; write * for all {key}s")
        try:
            lines.append(JobLine(name, parse(value), where))
        except ConfigError as error:
            raise FormatError(f"{where}: {error}") from None
    if not lines:
        raise FormatError(f"{path}: there is no {column} below the first line; {layout}")
    return JobTable(tuple(lines), str(path))


_File = TypeVar("_File", bound=BaseModel)


def _not_text(value: Any) -> Any:
    if isinstance(value, str | bool):
        raise ValueError("Input should be a number")
    return value


#: Of a field of a model: a number in a file, not text; 5.0 is accepted as the whole number 5.
NOT_TEXT = BeforeValidator(_not_text)


def checked_model(path: Path, content: Any, model: type[_File], layout: str) -> _File:
    """The content of a file; the first thing that is wrong is refused with its place."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        given = "missing" if first["type"] == "missing" else shown(first["input"])
        raise FormatError(
            f"{path}: {where} is {given}: {problem(first)}; expected {layout}"
        ) from None


def read_model(path: Path, model: type[_File], layout: str) -> _File:
    """The content of a JSON file, as `checked_model`."""
    return checked_model(path, parsed_json(path, read_file(path), layout), model, layout)


#: Spark's properties are read as 32-bit integers.
_LARGEST = (1 << 31) - 1


def _check_used(table: JobTable[Value], names: Iterable[str], key: str = _JOB) -> None:
    """Refuse a line that is about none of the jobs or users."""
    for line in table.lines:
        if not any(map(line.matches, names)):
            raise ConfigError(
                f"{line.where}: no {key} is called {line.pattern!r}; {key}s are "
                f"{listed(sorted(set(names)))}; correct the pattern, or remove the line"
            )


def priorities_of(table: JobTable[int], job_names: Sequence[str]) -> tuple[int, ...]:
    """The priority of every job; 0 for a job that no line matches."""
    _check_used(table, job_names)
    return tuple(table.of(name) or 0 for name in job_names)


def read_priorities(path: Path | str) -> JobTable[int]:
    """Read a table of priorities."""
    return read_job_table(Path(path), "priority", _parse_priority, "`dashboard*,10` and `etl,-5`")


def _parse_priority(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or abs(int(text)) > _LARGEST:
        raise ConfigError(
            f"priority {text[:40]!r} is no whole number from {-_LARGEST:,} to {_LARGEST:,}"
        )
    return int(text)


def read_user_weights(path: Path | str, users: Iterable[str]) -> JobTable[float]:
    """Read a table of the weights of users, `user,weight`."""
    table = read_job_table(Path(path), "weight", _parse_weight, "`etl,2` and `*,1`", "user")
    _check_used(table, users, "user")
    return table


def _parse_weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0.001 <= weight <= 1_000:
        raise ConfigError(f"weight {text[:40]!r} is no number from 0.001 to 1,000")
    return weight


#: A longer deadline is a mistake.
MAX_DEADLINE_MS = 365 * 24 * MS_PER_HOUR
_DEADLINE_HELP = (
    "write a time after the job's arrival, as in 90 (seconds), 90s, 5m or 1h; it is at least 1 ms "
    "and at most 8760h (365 days)"
)


def parse_deadline_ms(value: float | str) -> int:
    """A deadline in ms: seconds, or a text such as "90s", "5m", "1.5h" or "500ms".

    Example: `parse_deadline_ms("5m")` is 300000.
    """
    found_ms = ms_from_text(str(value), "s")
    if found_ms is None or not 1 <= found_ms <= MAX_DEADLINE_MS:
        raise ConfigError(f"deadline {str(value)[:40]!r} is not understood: {_DEADLINE_HELP}")
    return round(found_ms)


def deadline_notes(jobs: Sequence[JobSpec], deadlines: JobTable[int]) -> list[str]:
    """What a reader of the results should know, in sentences.

    These are lines that are no job's, jobs without a deadline, and deadlines that no cluster can
    meet.
    """
    names = list(dict.fromkeys(job.name for job in jobs))
    notes = _unused(deadlines, names)
    without = [job.name for job in jobs if job.deadline_ms is None]
    if without:
        notes.append(
            f"{deadlines.source}: {len(set(without))} of {len(names)} recurring jobs have no "
            f"deadline: {listed(without)}"
        )
    hopeless = [
        job.name
        for job in jobs
        if job.deadline_ms is not None and job.ideal_ms(math.inf) > job.deadline_ms
    ]
    if hopeless:
        notes.append(
            f"{deadlines.source}: no cluster is large enough for the deadlines of "
            f"{listed(hopeless)}: their longest path of stages takes longer, at mean durations"
        )
    return notes


def _unused(deadlines: JobTable[int], names: Sequence[str]) -> list[str]:
    """Why lines are no job's, in sentences about the first of them."""
    unused = deadlines.unused(names)
    notes = [_why_unused(line, names) for line in unused[:MOST_NAMED]]
    if len(unused) > MOST_NAMED:
        more = len(unused) - MOST_NAMED
        notes.append(f"{deadlines.source}: {more} more lines are no job's deadline")
    return notes


def _why_unused(line: JobLine[int], names: Sequence[str]) -> str:
    """Why a line is no job's deadline."""
    if any(map(line.matches, names)):
        return (
            f"{line.where}: every job that {line.pattern!r} matches has its deadline from an "
            "earlier line; move this line up, or remove it"
        )
    hint = suggestion(line.pattern, names, "")
    if not hint.startswith("did you mean"):
        hint = f"its jobs are {listed(names)}"
    return f"{line.where}: {line.pattern!r} matches no job of the workload; {hint}"


def as_deadlines(deadlines: str | Path | Mapping[str, float | str]) -> JobTable[int]:
    """Deadlines in ms from a file, or from a mapping of names and patterns to deadlines."""
    if not isinstance(deadlines, Mapping):
        return read_deadlines(Path(deadlines))
    if not deadlines:
        raise ConfigError('there are no deadlines: give some, as in {"etl-*": "5m", "*": "1h"}')
    lines = tuple(
        JobLine(name, parse_deadline_ms(value), "deadlines") for name, value in deadlines.items()
    )
    return JobTable(lines, "deadlines")


def read_deadlines(path: Path) -> JobTable[int]:
    """Read a table of deadlines, in ms."""
    return read_job_table(path, "deadline", parse_deadline_ms, "`etl-*,5m` and `*,1h`")


def seconds_by_name(jobs: Sequence[JobSpec]) -> dict[str, float]:
    """The deadlines in seconds of those jobs that have one, by name."""
    return {job.name: job.deadline_ms / MS_PER_S for job in jobs if job.deadline_ms is not None}
