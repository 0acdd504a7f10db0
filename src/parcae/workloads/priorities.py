"""Priorities of recurring jobs: a table `job,priority` (`parcae.workloads.job_table`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parcae.errors import ConfigError
from parcae.workloads.job_table import JobLine, listed, read_job_table, value_for

#: Spark's properties are read as 32-bit integers.
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Priorities:
    """The priorities of jobs by their names.

    Args:
        lines: the first one that matches a job's name is the job's. A job that no line matches has
            priority 0.
    """

    lines: tuple[JobLine[int], ...]

    def of_all(self, job_names: Sequence[str]) -> tuple[int, ...]:
        """The priority of every job.

        Raises:
            ConfigError: a line matches none of the jobs: it is most likely misspelt.
        """
        for line in self.lines:
            if not any(map(line.matches, job_names)):
                known = sorted(set(job_names))
                raise ConfigError(
                    f"{line.where}: no job is called {line.pattern!r}; jobs are {listed(known)}; "
                    "correct the pattern, or remove the line"
                )
        return tuple(value_for(self.lines, name) or 0 for name in job_names)


def read_priorities(path: Path | str) -> Priorities:
    """Read a table of priorities.

    Raises:
        FormatError: the file is no such table, or a priority is no whole number of 32 bits.
        OSError: the file cannot be read.
    """
    return Priorities(
        read_job_table(Path(path), "priority", _parse_priority, "`dashboard*,10` and `etl,-5`")
    )


def _parse_priority(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", text) or abs(int(text)) > _LARGEST:
        raise ConfigError(
            f"priority {text[:40]!r} is no whole number from {-_LARGEST:,} to {_LARGEST:,}"
        )
    return int(text)
