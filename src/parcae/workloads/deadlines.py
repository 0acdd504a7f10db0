"""Deadlines of recurring jobs: by name, from a table or a mapping.

A table has the columns `job` and `deadline` (`parcae.workloads.job_table`). A deadline is a time
after the job's arrival: seconds, or a number with one of the units of `UNITS_MS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parcae.errors import ConfigError, suggestion
from parcae.units import MS_PER_HOUR, MS_PER_S, UNITS_MS
from parcae.workloads.job import JobSpec, Workload
from parcae.workloads.job_table import JobLine, listed, read_job_table, value_for

#: A longer deadline is a mistake.
MAX_DEADLINE_MS = 365 * 24 * MS_PER_HOUR
_DEADLINE_HELP = (
    "write a time after the job's arrival, as in 90 (seconds), 90s, 5m or 1h; it is at least 1 ms "
    "and at most 365 days"
)


def parse_deadline_ms(value: float | str) -> int:
    """A deadline in ms: seconds, or a text such as "90s", "5m", "1.5h" or "500ms".

    Raises:
        ConfigError: any other value, or one that is not from 1 ms to MAX_DEADLINE_MS.

    Example: `parse_deadline_ms("5m")` is 300000.
    """
    found = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,18})?)\s*([a-z]*)\s*", str(value))
    unit_ms = UNITS_MS.get(found[2] or "s") if found else None
    if found is None or unit_ms is None or not 1 <= float(found[1]) * unit_ms <= MAX_DEADLINE_MS:
        raise ConfigError(f"deadline {str(value)[:40]!r} is not understood: {_DEADLINE_HELP}")
    return round(float(found[1]) * unit_ms)


@dataclass(frozen=True)
class Deadlines:
    """Deadlines by the names of recurring jobs.

    Args:
        lines: the first one that matches a job's name is the job's.
        source: where they come from, for messages.
    """

    lines: tuple[JobLine[int], ...]
    source: str

    def of(self, name: str) -> int | None:
        """The deadline of a job in ms after its arrival; None if no line matches."""
        return value_for(self.lines, name)

    def applied(self, workload: Workload) -> Workload:
        """The workload's jobs with their deadlines.

        Raises:
            ConfigError: no line matches any job.
        """
        jobs = tuple(replace(job, deadline_ms=self.of(job.name)) for job in workload.jobs)
        if all(job.deadline_ms is None for job in jobs):
            names = listed([job.name for job in workload.jobs])
            raise ConfigError(
                f"{self.source}: no deadline matches a job of workload {workload.name!r}; "
                f"its jobs are {names} (add a line `*,1h` for all jobs)"
            )
        return replace(workload, jobs=jobs)

    def notes(self, jobs: Sequence[JobSpec]) -> list[str]:
        """What a reader of the results should know, in sentences; `jobs` are the workload's.

        These are lines that are no job's, jobs without a deadline, and deadlines that no cluster
        can meet.
        """
        names = list(dict.fromkeys(job.name for job in jobs))
        notes = [text for row in range(len(self.lines)) if (text := self._unused(row, names))]
        without = [name for name in names if self.of(name) is None]
        if without:
            notes.append(
                f"{self.source}: {len(without)} of {len(names)} recurring jobs have no deadline: "
                f"{listed(without)}"
            )
        hopeless = list(dict.fromkeys(job.name for job in jobs if self._is_hopeless(job)))
        if hopeless:
            notes.append(
                f"{self.source}: no cluster is large enough for the deadlines of "
                f"{listed(hopeless)}: their longest path of stages takes longer, at mean task "
                "durations"
            )
        return notes

    def _is_hopeless(self, job: JobSpec) -> bool:
        due_ms = self.of(job.name)
        return due_ms is not None and job.critical_path_ms > due_ms

    def _unused(self, row: int, names: Sequence[str]) -> str:
        """Why a line is no job's; no text if it is one's."""
        line = self.lines[row]
        matched = [name for name in names if line.matches(name)]
        if not matched:
            hint = suggestion(line.pattern, names, "")
            if not hint.startswith("did you mean"):
                hint = f"its jobs are {listed(names)}"
            return f"{line.where}: {line.pattern!r} matches no job of the workload; {hint}"
        earlier = self.lines[:row]
        if all(any(other.matches(name) for other in earlier) for name in matched):
            return (
                f"{line.where}: every job that {line.pattern!r} matches has its deadline from an "
                "earlier line; move this line up, or remove it"
            )
        return ""


def as_deadlines(deadlines: str | Path | Mapping[str, float | str]) -> Deadlines:
    """Deadlines from a file, or from a mapping of names and patterns to deadlines.

    Raises:
        ConfigError: a deadline is invalid, or there is none.
        FormatError, OSError: as in `read_deadlines`.
    """
    if not isinstance(deadlines, Mapping):
        return read_deadlines(Path(deadlines))
    if not deadlines:
        raise ConfigError('there are no deadlines: give some, as in {"etl-*": "5m", "*": "1h"}')
    lines = tuple(
        JobLine(name, parse_deadline_ms(value), "deadlines") for name, value in deadlines.items()
    )
    return Deadlines(lines, "deadlines")


def read_deadlines(path: Path) -> Deadlines:
    """Read a table of deadlines.

    Raises:
        FormatError: the file is no such table; the message names the line.
        OSError: the file cannot be read.
    """
    path = Path(path)
    lines = read_job_table(path, "deadline", parse_deadline_ms, "`etl-*,5m` and `*,1h`")
    return Deadlines(lines, str(path))


def seconds_by_name(jobs: Sequence[JobSpec]) -> dict[str, float]:
    """The deadlines in seconds of those jobs that have one, by name."""
    return {job.name: job.deadline_ms / MS_PER_S for job in jobs if job.deadline_ms is not None}
