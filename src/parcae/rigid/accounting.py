"""Reads the accounting of batch systems: Slurm's sacct, PBS and Torque, LSF, or a table of jobs.

Each line becomes the numbers of a line in the Standard Workload Format, so that all logs of batch
clusters take one path to rigid jobs (`parcae.rigid.logs`).

Sources: the manual of sacct; the accounting records of PBS and Torque (type E); the record
JOB_FINISH of LSF's lsb.acct.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

from parcae.workloads.import_report import counted

Fields = Mapping[str, str]
_UNKNOWN = {"", "-", "unknown", "none", "n/a", "unlimited", "partition_limit", "invalid", "null"}
#: Times beside numbers (seconds since 1970) and ISO 8601; LSF adds how it knows an end: " L".
_LAYOUTS = ("%b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %Y", "%m/%d/%Y %H:%M:%S")
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+(?:\.\d+)?)( seconds?(\(s\))?)?")
_MEMORY = re.compile(r"(?:.*\bmem=)?(\d+(?:\.\d+)?)([KMGTP])(?:i?B)?([NC]?)(?:,.*)?", re.I)
_STEP = re.compile(r".*\.(\d+|batch|extern|interactive)")
#: States as numbers of the Standard Workload Format; others are 0.
_STATES = {"COMPLETED": 1, "CD": 1, "DONE": 1, "CANCELLED": 5, "CA": 5}
#: What a table must have: one of these sets.
_NEEDED = ({"submit", "processors", "run time"}, {"submit", "processors", "start", "end"})
_UNFINISHED = {
    *("PENDING", "RUNNING", "SUSPENDED", "PD", "R", "S", "CONFIGURING", "REQUEUE_HOLD"),
    *("PEND", "RUN", "PSUSP", "USUSP", "SSUSP"),
}


@lru_cache(1 << 16)
def _moment(text: str) -> float:
    """Seconds since 1970; a time without a zone is taken as UTC."""
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    text = re.sub(r" [A-Z]$", "", text)
    readers = [partial(datetime.strptime, text, layout) for layout in _LAYOUTS]
    for read in (partial(datetime.fromisoformat, text), *readers):
        with suppress(ValueError):
            found = read()
            return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    raise ValueError


def _clock(text: str) -> float:
    """Seconds of "[days-][[hours:]minutes:]seconds", such as 1-12:00:00."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups()[:4])
    return 86_400 * days + 3_600 * hours + 60 * minutes + seconds


def _minutes(text: str) -> float:
    return 60 * float(text)


def _count(text: str) -> float:
    """A number, or the sum of "2:ppn=8+n1:ppn=4", the nodes of Torque."""
    total = 0.0
    for part in text.split("+"):
        first, *words = part.split(":")
        is_name = bool(words) and not first.isdecimal()
        sizes = [float(word[4:]) for word in words if word.startswith("ppn=")]
        total += (1.0 if is_name else float(first)) * (sizes[0] if sizes else 1.0)
    return total


class _Column(NamedTuple):
    """A column, and how its cells are read."""

    name: str
    read: Callable[[str], Any] = str


#: What is read of a job, and the columns that have it: the first that is filled counts.
COLUMNS: dict[str, tuple[_Column, ...]] = {
    "job": tuple(map(_Column, ("jobidraw", "jobid", "job_id", "job", "id"))),
    "user": tuple(map(_Column, ("user", "username"))),
    "partition": tuple(map(_Column, ("partition", "queue"))),
    "state": tuple(map(_Column, ("state", "stat", "status"))),
    "submit": tuple(_Column(name, _moment) for name in ("submit", "submit_time", "ctime")),
    "start": tuple(_Column(name, _moment) for name in ("start", "start_time")),
    "end": tuple(_Column(name, _moment) for name in ("end", "end_time", "finish_time")),
    "run time": tuple(_Column(name, _clock) for name in ("elapsedraw", "elapsed", "run_time")),
    "limit": (
        _Column("timelimitraw", _minutes),
        *(_Column(n, _clock) for n in ("timelimit", "limit", "walltime", "resource_list.walltime")),
    ),
    "processors": tuple(
        _Column(name, _count)
        for name in (
            *("alloccpus", "ncpus", "processors", "cpus", "cores", "nalloc_slot", "slots"),
            *("total_execution_slots", "resource_list.ncpus", "resource_list.nodes", "reqcpus"),
        )
    ),
    "memory": tuple(map(_Column, ("alloctres", "reqmem", "memory", "resource_list.mem"))),
    "nodes": (_Column("nnodes", float),),
}
#: The first words of a record JOB_FINISH.
_LSF = (
    *("", "", "end", "jobid", "", "", "processors", "submit", "", "", "start", "user", "queue"),
)
_EXPORT = "sacct -a -P -o JobID,User,Partition,State,Submit,Start,End,Elapsed,Timelimit,AllocCPUS"


class Accounting:
    """Turns the lines of one file into numbers; `kind` is what its first line shows.

    Users and partitions get numbers by their first appearance.
    """

    def __init__(self, first: str) -> None:
        self.users: dict[str, int] = {}
        self.partitions: dict[str, int] = {}
        self.has_header = False
        self._left_out: Counter[str] = Counter()
        self._split: Callable[[str], Fields | None]
        if re.match(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;", first):
            self.kind, self._split = "PBS accounting log", self._pbs
        elif first.startswith('"'):
            self.kind, self._split = "LSF accounting log", self._lsf
        else:
            self.has_header = True
            self._separator = max("|,;\t", key=first.count)
            self._names = [name.strip().lower() for name in self._cells(first)]
            is_slurm = {"jobid", "jobidraw"} & {*self._names} and self._separator == "|"
            self.kind = "table of sacct" if is_slurm else "table of batch jobs"
            self._split = self._table
            self._check_header()

    def _check_header(self) -> None:
        found = {
            what for what, every in COLUMNS.items() if {c.name for c in every} & {*self._names}
        }
        lacks = min((needed - found for needed in _NEEDED), key=len)
        if lacks:
            known = "; ".join(
                f"{what}: {', '.join(column.name for column in COLUMNS[what])}" for what in lacks
            )
            raise ValueError(
                f"the table has no column for {' and '.join(sorted(lacks))} (known names: "
                f"{known}). Of Slurm, export it with: {_EXPORT}"
            )

    def notes(self) -> Iterator[str]:
        """What was left out because it is no job."""
        for what, count in self._left_out.items():
            yield f"{counted(count, 'line')} left out: {what}"

    def numbers(self, line: str) -> list[float] | None:
        """The numbers of a line in the order of the Standard Workload Format; None for no job."""
        fields = self._split(line)
        if fields is None:
            return None
        cells = {what: _cell(fields, columns) for what, columns in COLUMNS.items()}
        submit, start, end = cells["submit"], cells["start"], cells["end"]
        # "CANCELLED by 1000", or cut off: "CANCELLED+".
        state = (cells["state"] or "COMPLETED").split()[0].rstrip("+").upper()
        if submit is None:
            raise ValueError("no time of submission")
        for earlier, later, what in (
            (submit, start, "started before it was submitted"),
            (start, end, "ended before it started"),
        ):
            # An hour back in autumn is the usual reason.
            if None not in (earlier, later) and later < earlier:
                raise ValueError(f"it {what}; export times in seconds (SLURM_TIME_FORMAT=%s)")
        run = cells["run time"]
        if run is None and None not in (start, end):
            run = end - start
        lacks = any(
            cells[what] is None and any(column.name in fields for column in COLUMNS[what])
            for what in ("start", "end")
        )
        if run is None or lacks or state in _UNFINISHED:
            run = -1
        processors = cells["processors"] or -1
        memory = _memory(cells["memory"], processors, cells["nodes"] or 1)
        number = re.match(r"\d{1,15}", cells["job"] or "")
        partition = self._number(self.partitions, cells["partition"])
        return [
            *(float(number[0]) if number else -1, submit, -1 if start is None else start - submit),
            *(run, processors, -1, -1, -1, cells["limit"] or -1, memory, _STATES.get(state, 0)),
            *(self._number(self.users, cells["user"]), -1, -1, partition, partition, -1, -1),
        ]

    @staticmethod
    def _number(numbers: dict[str, int], name: str | None) -> int:
        return -1 if name is None else numbers.setdefault(name, len(numbers))

    def _cells(self, line: str) -> list[str]:
        # In sacct's output quotes are part of names.
        is_plain = self._separator == "|"
        return line.split("|") if is_plain else _words(line, self._separator)

    def _table(self, line: str) -> Fields | None:
        cells = self._cells(line)
        if len(cells) != len(self._names):
            raise ValueError(f"{len(cells)} cells, but the header has {len(self._names)}")
        fields = dict(zip(self._names, map(str.strip, cells), strict=True))
        if _STEP.fullmatch(fields.get("jobid") or fields.get("jobidraw") or ""):
            self._left_out["steps of jobs"] += 1
            return None
        return fields

    def _pbs(self, line: str) -> Fields | None:
        _, kind, job, rest = line.split(";", 3) if line.count(";") > 2 else ("", "", "", "")
        if not kind:
            raise ValueError("no record of the form time;type;job;values")
        # The tasks of an array have records of their own.
        if kind != "E" or "[]" in job:
            self._left_out["records of other events than the end of a job"] += 1
            return None
        pairs = (word.partition("=") for word in rest.split())
        return {"jobid": job} | {key.lower(): value for key, _, value in pairs}

    def _lsf(self, line: str) -> Fields | None:
        words = _words(line, " ")
        if words[0] != "JOB_FINISH":
            self._left_out["records of other events than the end of a job"] += 1
            return None
        if len(words) < len(_LSF):
            raise ValueError(f"{len(words)} words of a JOB_FINISH record")
        # In lsb.acct 0 stands for no time.
        return {name: "" if word == "0" else word for name, word in zip(_LSF, words, strict=False)}


def _words(line: str, separator: str) -> list[str]:
    """The words of a line, some of them in quotes."""
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error as error:
        raise ValueError(str(error)) from None


def _cell(fields: Fields, columns: tuple[_Column, ...]) -> Any:
    """What the first filled column says; None if there is none."""
    for name, read in columns:
        text = fields.get(name, "")
        if text.lower() not in _UNKNOWN:
            try:
                value = read(text)
            except (ValueError, OverflowError):
                raise ValueError(f"{name} is {text[:40]!r}, which is not understood") from None
            # A job that waits has 0 processors allocated, and some requested.
            if value != 0 or read is not _count:
                return value
    return None


def _memory(text: str | None, processors: float, nodes: float) -> float:
    """KB per processor, -1 if unknown; older versions of sacct give it per node or core."""
    match = _MEMORY.fullmatch(text or "")
    if match is None or processors <= 0:
        return -1
    total = float(match[1]) * 1024.0 ** "KMGTP".index(match[2].upper())
    return total * {"N": nodes / processors, "C": 1.0}.get(match[3].upper(), 1 / processors)
