"""Reads the priorities of recurring jobs from a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from parcae.errors import ConfigError, FormatError
from parcae.loader import read_file

COLUMNS = ("name", "priority")
_LAYOUT = "name,priority and below it lines such as dashboard*,10"
#: Spark's properties are read as 32-bit integers.
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Priorities:
    """The priorities of jobs, by pattern of their names.

    Args:
        patterns: pairs (glob pattern of job names, priority); the first that matches applies. A job
            that no pattern matches has priority 0.
        source: path of the file, for messages.
    """

    patterns: tuple[tuple[str, int], ...] = ()
    source: str = "priorities"

    def of(self, job_name: str) -> int:
        """The priority of a job; patterns are case-sensitive."""
        for pattern, priority in self.patterns:
            if fnmatchcase(job_name, pattern):
                return priority
        return 0

    def of_all(self, job_names: Sequence[str]) -> tuple[int, ...]:
        """The priority of every job.

        Raises:
            ConfigError: a pattern matches none of the jobs: it is most likely misspelt.
        """
        for pattern, _ in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in job_names):
                known = sorted(set(job_names))
                names = ", ".join(known[:6]) + (", ..." if len(known) > 6 else "")
                raise ConfigError(
                    f"{self.source}: no job is called {pattern!r}; jobs are {names}; "
                    "correct the pattern, or remove the line"
                )
        return tuple(self.of(name) for name in job_names)


def read_priorities(path: Path | str) -> Priorities:
    """Read priorities: a CSV file with the columns `name` (a glob pattern) and `priority`.

    Raises:
        FormatError: other columns, or a line without a pattern and a whole number of 32 bits.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        text = read_file(path).decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path}: not CSV ({error}); expected {_LAYOUT}") from None
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        raise FormatError(f"{path}:1: the columns are not name,priority; expected {_LAYOUT}")
    lines = [(number, row) for number, row in enumerate(rows[1:], 2) if row]
    return Priorities(tuple(_pair(f"{path}:{number}", row) for number, row in lines), str(path))


def _pair(where: str, row: list[str]) -> tuple[str, int]:
    """A line of the file, which has to be a pattern and a number."""
    cells = [cell.strip() for cell in row]
    digits = cells[1].removeprefix("-") if len(cells) == len(COLUMNS) else ""
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 10
    if not is_number or not cells[0] or int(digits) > _LARGEST:
        raise FormatError(
            f"{where}: {','.join(row)[:60]!r} is no pattern and whole number; expected {_LAYOUT}"
        )
    return cells[0], int(cells[1])
