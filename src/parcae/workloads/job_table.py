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
from pathlib import Path
from typing import Generic, TypeVar

from parcae.errors import ConfigError, FormatError
from parcae.files import read_file

Value = TypeVar("Value")
_JOB = "job"
#: Messages name at most this many jobs.
_MOST_NAMES = 6


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
        return name == self.pattern or fnmatchcase(name, self.pattern)


def value_for(lines: Sequence[JobLine[Value]], name: str) -> Value | None:
    """What the first line that matches says about a job; None if no line matches."""
    return next((line.value for line in lines if line.matches(name)), None)


def listed(names: Sequence[str]) -> str:
    """The first of the names, with dots if there are more."""
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def read_job_table(
    path: Path, column: str, parse: Callable[[str], Value], example: str
) -> tuple[JobLine[Value], ...]:
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
    return lines


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
