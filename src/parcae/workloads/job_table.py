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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from parcae.errors import ConfigError, FormatError
from parcae.loader import read_file

Value = TypeVar("Value")
_JOB = "job"
#: Messages name at most this many jobs or lines.
MOST_NAMED = 6


@dataclass(frozen=True)
class JobLine(Generic[Value]):
    """What a table says about the jobs whose name matches.

    Args:
        pattern: a name, or a pattern of names; patterns are case-sensitive.
        value: what is said.
        where: where the line stands, for messages.
    """

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
    """What is said about jobs by their names.

    Args:
        lines: the first one that matches a job's name counts.
        source: where they come from, for messages.
    """

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
    path: Path, column: str, parse: Callable[[str], Value], example: str
) -> JobTable[Value]:
    """Read a table of two columns, `job` and another.

    Args:
        path: the file.
        column: name of the second column.
        parse: reads a cell of that column; raises ConfigError.
        example: lines that the table may have, for messages.

    Raises:
        FormatError: the file is no such table; the message names the line.
        OSError: the file cannot be read.
    """
    layout = f"expected lines such as `{_JOB},{column}` (the first), {example}"
    try:
        # Spreadsheets begin their files with a byte order mark.
        rows = _rows(read_file(path).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; save the table as CSV in UTF-8") from None
    except csv.Error as error:
        raise FormatError(f"{path}: not a CSV table ({error}); {layout}") from None
    if not rows or [cell.lower() for cell in rows[0][1]] != [_JOB, column]:
        raise FormatError(f"{path}:1: the first line is not `{_JOB},{column}`; {layout}")
    lines = tuple(_line(f"{path}:{number}", cells, parse, layout) for number, cells in rows[1:])
    if not lines:
        raise FormatError(f"{path}: there is no {column} below the first line; {layout}")
    return JobTable(lines, str(path))


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """(line, cells) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    return [(number, cells) for number, cells in rows if any(cells)]


def _line(
    where: str, cells: list[str], parse: Callable[[str], Value], layout: str
) -> JobLine[Value]:
    if len(cells) != 2:
        raise FormatError(
            f"{where}: {len(cells)} cells instead of 2; put a name with a comma between double "
            f"quotes; {layout}"
        )
    name, value = cells
    if not name:
        raise FormatError(f"{where}: the name of the job is empty; write * for all jobs")
    try:
        return JobLine(name, parse(value), where)
    except ConfigError as error:
        raise FormatError(f"{where}: {error}") from None
