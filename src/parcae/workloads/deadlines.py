"""Deadlines of recurring jobs: by name, from a file or a mapping.

A file is a CSV table with the columns `job` and `deadline`:

    job,deadline
    etl-*,5m
    q21,90
    *,1h

`job` is the name of a recurring job, or a pattern of names with `*`, `?` and `[...]`. Of the lines
that match a job, the first one counts. `deadline` is a time after the job's arrival: seconds, or a
number with one of the units of `UNITS_MS`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from parcae.errors import ConfigError, FormatError, suggestion
from parcae.files import read_file
from parcae.units import MS_PER_HOUR, MS_PER_S, UNITS_MS
from parcae.workloads.job import JobSpec, Workload

COLUMNS = ("job", "deadline")
#: A longer deadline is a mistake.
MAX_DEADLINE_MS = 365 * 24 * MS_PER_HOUR
_DEADLINE_HELP = (
    "write a time after the job's arrival, as in 90 (seconds), 90s, 5m or 1h; it is at least 1 ms "
    "and at most 365 days"
)
#: Messages name at most this many jobs.
_MOST_NAMES = 6


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


class DeadlineRule(NamedTuple):
    """The deadline of the jobs whose name matches.

    Args:
        pattern: a name, or a pattern of names.
        deadline_ms: time after arrival in ms.
        where: where the rule stands, for messages.
    """

    pattern: str
    deadline_ms: int
    where: str

    def matches(self, name: str) -> bool:
        """Whether the rule is about a job of this name."""
        return name == self.pattern or (self.is_pattern and fnmatchcase(name, self.pattern))

    @property
    def is_pattern(self) -> bool:
        """Whether it can match other names than its own text."""
        return any(sign in self.pattern for sign in "*?[")


@dataclass(frozen=True)
class Deadlines:
    """Deadlines by the names of recurring jobs.

    Args:
        rules: the first one that matches a job's name is the job's.
        source: where they come from, for messages.
    """

    rules: tuple[DeadlineRule, ...]
    source: str

    @cached_property
    def _row_of_text(self) -> dict[str, int]:
        """The first row of every name or pattern."""
        return {rule.pattern: row for row, rule in reversed(list(enumerate(self.rules)))}

    @cached_property
    def _patterns(self) -> list[tuple[int, DeadlineRule]]:
        """The rules that can match several names, with their rows."""
        return [(row, rule) for row, rule in enumerate(self.rules) if rule.is_pattern]

    def _row(self, name: str) -> int | None:
        """The row of the rule that counts for a job."""
        row = self._row_of_text.get(name)
        # A file may have thousands of names: only patterns before the name's own line are tried.
        earlier = (at for at, rule in self._patterns if row is None or at < row)
        return next((at for at in earlier if self.rules[at].matches(name)), row)

    def of(self, name: str) -> int | None:
        """The deadline of a job in ms after its arrival; None if no rule matches."""
        row = self._row(name)
        return None if row is None else self.rules[row].deadline_ms

    def applied(self, workload: Workload) -> Workload:
        """The workload's jobs with their deadlines.

        Raises:
            ConfigError: no rule matches any job.
        """
        jobs = tuple(replace(job, deadline_ms=self.of(job.name)) for job in workload.jobs)
        if all(job.deadline_ms is None for job in jobs):
            names = _listed([job.name for job in workload.jobs])
            raise ConfigError(
                f"{self.source}: no deadline matches a job of workload {workload.name!r}; "
                f"its jobs are {names} (add a line `*,1h` for all jobs)"
            )
        return replace(workload, jobs=jobs)

    def notes(self, workload: Workload) -> list[str]:
        """What a reader of the results should know, in sentences; `workload` has the deadlines.

        These are rules that are no job's, jobs without a deadline, and deadlines that no cluster
        can meet.
        """
        names = list(dict.fromkeys(job.name for job in workload.jobs))
        notes = self._unused(names)
        without = [job.name for job in workload.jobs if job.deadline_ms is None]
        if without:
            notes.append(
                f"{self.source}: {len(set(without))} of {len(names)} recurring jobs have no "
                f"deadline: {_listed(without)}"
            )
        hopeless = [
            job.name
            for job in workload.jobs
            if job.deadline_ms is not None and job.critical_path_ms > job.deadline_ms
        ]
        if hopeless:
            notes.append(
                f"{self.source}: no cluster is large enough for the deadlines of "
                f"{_listed(hopeless)}: their longest path of stages takes longer, at mean task "
                "durations"
            )
        return notes

    def _unused(self, names: Sequence[str]) -> list[str]:
        """Why rules are no job's, in sentences about the first of them."""
        used = {self._row(name) for name in names}
        unused = [rule for row, rule in enumerate(self.rules) if row not in used]
        notes = [_why_unused(rule, names) for rule in unused[:_MOST_NAMES]]
        if len(unused) > _MOST_NAMES:
            more = len(unused) - _MOST_NAMES
            notes.append(f"{self.source}: {more} more lines are no job's deadline")
        return notes


def _why_unused(rule: DeadlineRule, names: Sequence[str]) -> str:
    """Why a rule is no job's deadline."""
    if any(rule.matches(name) for name in names):
        return (
            f"{rule.where}: every job that {rule.pattern!r} matches has its deadline from an "
            "earlier line; move this line up, or remove it"
        )
    hint = suggestion(rule.pattern, names, "")
    if not hint.startswith("did you mean"):
        hint = f"its jobs are {_listed(names)}"
    return f"{rule.where}: {rule.pattern!r} matches no job of the workload; {hint}"


def _listed(names: Sequence[str]) -> str:
    """The first of the names, each once, with dots if there are more."""
    names = list(dict.fromkeys(names))
    return ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


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
    rules = tuple(
        DeadlineRule(name, parse_deadline_ms(value), "deadlines")
        for name, value in deadlines.items()
    )
    return Deadlines(rules, "deadlines")


def read_deadlines(path: Path) -> Deadlines:
    """Read a table of deadlines; the module's description has an example.

    Raises:
        FormatError: the file is no such table; the message names the line.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        # Spreadsheets begin their files with a byte order mark.
        text = read_file(path).decode("utf-8-sig")
        rows = list(_rows(text))
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text; save the table as CSV in UTF-8") from None
    except csv.Error as error:
        raise FormatError(f"{path}: not a CSV table ({error}); {_layout()}") from None
    if not rows or tuple(cell.lower() for cell in rows[0][1]) != COLUMNS:
        raise FormatError(f"{path}:1: the first line is not `{','.join(COLUMNS)}`; {_layout()}")
    rules = tuple(_rule(f"{path}:{line}", cells) for line, cells in rows[1:])
    if not rules:
        raise FormatError(f"{path}: there is no deadline below the first line; {_layout()}")
    return Deadlines(rules, str(path))


def _rows(text: str) -> list[tuple[int, list[str]]]:
    """(line, cells) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    return [(line, cells) for line, cells in rows if any(cells)]


def _rule(where: str, cells: list[str]) -> DeadlineRule:
    if len(cells) != len(COLUMNS):
        raise FormatError(
            f"{where}: {len(cells)} cells instead of 2; put a name with a comma between double "
            f"quotes; {_layout()}"
        )
    name, deadline = cells
    if not name:
        raise FormatError(f"{where}: the name of the job is empty; write * for all jobs")
    try:
        return DeadlineRule(name, parse_deadline_ms(deadline), where)
    except ConfigError as error:
        raise FormatError(f"{where}: {error}") from None


def _layout() -> str:
    return "expected lines such as `job,deadline` (the first), `etl-*,5m` and `*,1h`"


def seconds_by_name(jobs: Sequence[JobSpec]) -> dict[str, float]:
    """The deadlines in seconds of those jobs that have one, by name."""
    return {job.name: job.deadline_ms / MS_PER_S for job in jobs if job.deadline_ms is not None}
