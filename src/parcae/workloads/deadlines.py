"""Deadlines of recurring jobs: by name, from a table or a mapping.

A table has the columns `job` and `deadline` (`parcae.workloads.job_table`). A deadline is a time
after the job's arrival: seconds, or a number with a unit (`parcae.units.UNITS_MS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from parcae.errors import ConfigError, suggestion
from parcae.units import MS_PER_HOUR, MS_PER_S, ms_from_text
from parcae.workloads.job import JobSpec, Workload
from parcae.workloads.job_table import MOST_NAMED, JobLine, JobTable, listed, read_job_table

#: A longer deadline is a mistake.
MAX_DEADLINE_MS = 365 * 24 * MS_PER_HOUR
_DEADLINE_HELP = (
    "write a time after the job's arrival, as in 90 (seconds), 90s, 5m or 1h; it is at least 1 ms "
    "and at most 8760h (365 days)"
)


def parse_deadline_ms(value: float | str) -> int:
    """A deadline in ms: seconds, or a text such as "90s", "5m", "1.5h" or "500ms".

    Raises:
        ConfigError: any other value, or one that is not from 1 ms to MAX_DEADLINE_MS.

    Example: `parse_deadline_ms("5m")` is 300000.
    """
    found_ms = ms_from_text(str(value), "s")
    if found_ms is None or not 1 <= found_ms <= MAX_DEADLINE_MS:
        raise ConfigError(f"deadline {str(value)[:40]!r} is not understood: {_DEADLINE_HELP}")
    return round(found_ms)


def with_deadlines(workload: Workload, deadlines: JobTable[int]) -> Workload:
    """The workload's jobs with their deadlines.

    Raises:
        ConfigError: no line matches any job.
    """
    jobs = tuple(replace(job, deadline_ms=deadlines.of(job.name)) for job in workload.jobs)
    if all(job.deadline_ms is None for job in jobs):
        names = listed([job.name for job in workload.jobs])
        raise ConfigError(
            f"{deadlines.source}: no deadline matches a job of workload {workload.name!r}; "
            f"its jobs are {names} (add a line `*,1h` for all jobs)"
        )
    return replace(workload, jobs=jobs)


def deadline_notes(workload: Workload, deadlines: JobTable[int]) -> list[str]:
    """What a reader of the results should know, in sentences.

    These are lines that are no job's, jobs without a deadline, and deadlines that no cluster can
    meet.

    Args:
        workload: the jobs, with the deadlines.
        deadlines: the table that they come from.
    """
    names = list(dict.fromkeys(job.name for job in workload.jobs))
    notes = _unused(deadlines, names)
    without = [job.name for job in workload.jobs if job.deadline_ms is None]
    if without:
        notes.append(
            f"{deadlines.source}: {len(set(without))} of {len(names)} recurring jobs have no "
            f"deadline: {listed(without)}"
        )
    hopeless = [
        job.name
        for job in workload.jobs
        if job.deadline_ms is not None and job.critical_path_ms > job.deadline_ms
    ]
    if hopeless:
        notes.append(
            f"{deadlines.source}: no cluster is large enough for the deadlines of "
            f"{listed(hopeless)}: their longest path of stages takes longer, at mean task durations"
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
    """Deadlines in ms from a file, or from a mapping of names and patterns to deadlines.

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
    return JobTable(lines, "deadlines")


def read_deadlines(path: Path) -> JobTable[int]:
    """Read a table of deadlines, in ms.

    Raises:
        FormatError: the file is no such table; the message names the line.
        OSError: the file cannot be read.
    """
    return read_job_table(path, "deadline", parse_deadline_ms, "`etl-*,5m` and `*,1h`")


def seconds_by_name(jobs: Sequence[JobSpec]) -> dict[str, float]:
    """The deadlines in seconds of those jobs that have one, by name."""
    return {job.name: job.deadline_ms / MS_PER_S for job in jobs if job.deadline_ms is not None}
