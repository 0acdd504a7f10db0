"""Priorities of recurring jobs: a table `job,priority` (`parcae.workloads.job_table`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from parcae.errors import ConfigError
from parcae.workloads.job_table import JobTable, listed, read_job_table

#: Spark's properties are read as 32-bit integers.
_LARGEST = (1 << 31) - 1


def priorities_of(table: JobTable[int], job_names: Sequence[str]) -> tuple[int, ...]:
    """The priority of every job; 0 for a job that no line matches.

    Raises:
        ConfigError: a line matches none of the jobs: it is most likely misspelt.
    """
    for line in table.lines:
        if not any(map(line.matches, job_names)):
            known = sorted(set(job_names))
            raise ConfigError(
                f"{line.where}: no job is called {line.pattern!r}; jobs are {listed(known)}; "
                "correct the pattern, or remove the line"
            )
    return tuple(table.of(name) or 0 for name in job_names)


def read_priorities(path: Path | str) -> JobTable[int]:
    """Read a table of priorities.

    Raises:
        FormatError: the file is no such table, or a priority is no whole number of 32 bits.
        OSError: the file cannot be read.
    """
    return read_job_table(Path(path), "priority", _parse_priority, "`dashboard*,10` and `etl,-5`")


def _parse_priority(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or abs(int(text)) > _LARGEST:
        raise ConfigError(
            f"priority {text[:40]!r} is no whole number from {-_LARGEST:,} to {_LARGEST:,}"
        )
    return int(text)
