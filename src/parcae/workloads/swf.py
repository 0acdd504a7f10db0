"""Logs of batch clusters in the Standard Workload Format of the Parallel Workloads Archive, as rigid jobs.

A line is a job: 18 numbers apart by white space, -1 where something is not known; lines that begin with `;` are comments, the
first of which describe the cluster as `; Key: value`.

Source: Standard Workload Format, version 2.2 (https://www.cs.huji.ac.il/labs/parallel/workload/swf.html).
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError, FormatError
from parcae.workloads.import_report import BadRows, ImportReport
from parcae.workloads.rigid import RigidJobs

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Field(IntEnum):
    """The 18 fields of a line, in order; times in seconds, memory in KB per processor."""

    JOB_NUMBER = 0
    SUBMIT_TIME = 1
    WAIT_TIME = 2
    RUN_TIME = 3
    ALLOCATED_PROCESSORS = 4
    CPU_TIME = 5
    USED_MEMORY = 6
    REQUESTED_PROCESSORS = 7
    REQUESTED_TIME = 8
    REQUESTED_MEMORY = 9
    STATUS = 10
    USER = 11
    GROUP = 12
    EXECUTABLE = 13
    QUEUE = 14
    PARTITION = 15
    PRECEDING_JOB = 16
    THINK_TIME = 17


NUM_FIELDS = len(Field)
#: What stands for a number that is not known.
MISSING = -1
#: Fields that count or name something: no fractions.
_WHOLE = (
    Field.JOB_NUMBER,
    Field.ALLOCATED_PROCESSORS,
    Field.REQUESTED_PROCESSORS,
    Field.STATUS,
    Field.PARTITION,
)
_FAILED = 0
_COMPLETED = 1
_CANCELLED = 5
#: Statuses of the parts of a job that was swapped out; a line of its own sums such a job up.
_PARTS = (2, 3, 4)
#: Beyond this not every whole number is one of the floating-point numbers.
_LARGEST = 2.0**53
#: What the lines of numbers are made of, as neither "nan" nor Python's 1_000 is; and one number.
_NUMERIC = re.compile(rb"[-+.\deE\s]+")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_HEADER_KEY = re.compile(r"(\w+):(?:\s+(.*))?$")


@dataclass(frozen=True)
class SwfHeader:
    """The header comments: (key, value) in the order of the file; lines that go on with a value are joined to it.

    Example: `header.number("MaxProcs")` of a log that says `; MaxProcs: 1728` is 1728.
    """

    entries: tuple[tuple[str, str], ...] = ()

    def text(self, key: str) -> str | None:
        """The first value of a key, None where the header lacks it."""
        return next((value for name, value in self.entries if name == key), None)

    def number(self, key: str) -> int | None:
        """The whole number >= 0 that a value begins with; None where it does not, as in `; MaxNodes: -1`."""
        match = re.match(r"\d+", self.text(key) or "")
        return int(match[0]) if match else None


@dataclass(frozen=True)
class Finding:
    """Jobs of a log that were left out or changed, and the first of them.

    Args:
        what: why or how, to be read after a number of jobs.
        count: how many jobs.
        first: "path:line" of the first one.
        is_dropped: they were left out.
    """

    what: str
    count: int
    first: str
    is_dropped: bool

    def __str__(self) -> str:
        return f"{self.count:,} {'dropped' if self.is_dropped else 'kept'}: {self.what} (first: {self.first})"


@dataclass(frozen=True, eq=False)
class SwfLog:
    """A log: its jobs in seconds since the first submission, what its header says, and what reading it met.

    Every line of a job is accounted for: `report.num_rows` = jobs + `report.num_bad_rows` + the dropped ones of `findings`.
    """

    jobs: RigidJobs
    header: SwfHeader
    report: ImportReport
    findings: tuple[Finding, ...]
    first_submit_s: int

    @property
    def start_unix_s(self) -> int | None:
        """When the first job was submitted, in seconds since 1970; None where the header lacks UnixStartTime."""
        start = self.header.number("UnixStartTime")
        return None if start is None else start + self.first_submit_s


class _Lines(NamedTuple):
    header: SwfHeader
    values: FloatArray  # [num_lines, NUM_FIELDS]
    number: npt.NDArray[np.int64]  # [num_lines], from 1
    torn: str  # what is wrong with a last line without a newline, "" if nothing


class _Sieve:
    """Which lines are kept, and an account of those that are not."""

    def __init__(self, path: Path, lines: _Lines, bad: BadRows) -> None:
        self.path = path
        self.number = lines.number
        self.bad = bad
        self.is_kept = np.ones(len(lines.number), np.bool_)
        self.findings: list[Finding] = []

    def note(self, is_hit: BoolArray, what: str, *, is_dropped: bool = False) -> None:
        """Count the kept lines that are hit, if there are any."""
        rows = np.flatnonzero(is_hit & self.is_kept)
        if len(rows):
            self.findings.append(
                Finding(what, len(rows), f"{self.path}:{self.number[rows[0]]}", is_dropped)
            )

    def drop(self, is_hit: BoolArray, what: str) -> None:
        """Leave out the kept lines that are hit, and count them."""
        self.note(is_hit, what, is_dropped=True)
        self.is_kept &= ~is_hit

    def refuse(self, is_hit: BoolArray, values: FloatArray, what: str) -> None:
        """Take the kept lines that are hit as bad rows; `what` is completed with the line's value."""
        for row in np.flatnonzero(is_hit & self.is_kept):
            self.bad.add(self.path, int(self.number[row]), what.format(values[row]))
        self.is_kept &= ~is_hit


def read_swf(
    path: Path | str,
    *,
    processors: int | None = None,
    memory: int | None = None,
    estimates: Literal["requested", "actual"] = "requested",
    cancelled: Literal["keep", "drop"] = "keep",
    partitions: Collection[int] | None = None,
    max_bad_share: float = 0.0,
) -> SwfLog:
    """Read a log (plain, or compressed as `.gz`) as rigid jobs in whole seconds; nothing is left out uncounted.

    A job holds its allocated processors (else those that it requested) for its run time; what a scheduler is told is the
    requested time, or the run time where none was requested. Memory is requested KB (else used KB) times processors.

    - *Bad* lines are not of the format, or cannot be: another number of fields, a word that is no number, a negative number
      other than -1, no submit time, more than the cluster has. They refuse the log, unless `max_bad_share` tolerates them.
    - A last line without a newline that is not whole is *torn*: it counts as bad in the report and is always tolerated.
    - *Dropped* with a reason: jobs that never ran (cancelled before they started, no run time, no processors), and the parts of
      a job that was swapped out (status 2, 3, 4), which a line of its own sums up.
    - *Changed* and counted: a run time below 1 s is 1 s; fractions of seconds are rounded; unsorted lines are sorted.

    Args:
        processors: of the cluster; unless given MaxProcs of the header, else MaxNodes, else what the largest job takes.
        memory: KB of the whole cluster. The format does not tell it, so that memory is a resource only if it is given.
        estimates: tell schedulers the "requested" time, or the "actual" one.
        cancelled: "keep" jobs that were cancelled (status 5) while they ran, as they took processors till then; or "drop" them.
        partitions: only the jobs of these partitions; `processors` should then be given, as the header's are of all partitions.
        max_bad_share: largest share of bad lines that is tolerated, 0..1.

    Raises:
        ConfigError: an option that cannot be.
        FormatError: a torn `.gz`, no job at all, or more bad lines than tolerated; the message has the first as path:line.
        FileNotFoundError: no such file.

    Example: `read_swf("lublin_256.swf").jobs.capacity` is [256].
    """
    _check_options(processors, memory, estimates, cancelled)
    path = Path(path)
    bad = BadRows(max_bad_share)
    lines = _read_lines(path, bad)
    num_rows = len(lines.number) + bad.count + bool(lines.torn)
    sieve = _Sieve(path, lines, bad)
    _refuse_values(sieve, lines.values)
    _drop_what_never_ran(sieve, lines.values, cancelled, partitions)
    demand, capacity, notes = _resources(sieve, lines, processors, memory)
    bad.finish(num_rows)
    if not sieve.is_kept.any():
        what = (
            "; ".join(map(str, sieve.findings))
            or lines.torn
            or f"expected lines of {NUM_FIELDS} numbers"
        )
        raise FormatError(f"{path}: no job that ran; {what}")
    jobs, first_submit_s = _jobs(sieve, lines.values, demand, capacity, estimates)
    samples = (*bad.samples, lines.torn) if lines.torn else bad.samples
    report = ImportReport(
        "Standard Workload Format log", 1, num_rows, bad.count + bool(lines.torn), samples,
        (*notes, *map(str, sieve.findings)), len(jobs),
    )  # fmt: skip
    return SwfLog(jobs, lines.header, report, tuple(sieve.findings), first_submit_s)


def _check_options(
    processors: int | None, memory: int | None, estimates: str, cancelled: str
) -> None:
    for name, count in (("processors", processors), ("memory", memory)):
        if count is not None and not 1 <= count <= _LARGEST:
            raise ConfigError(f"{name} is {count}; a cluster has at least 1")
    if estimates not in ("requested", "actual"):
        raise ConfigError(f"estimates {estimates!r} are not understood: write requested or actual")
    if cancelled not in ("keep", "drop"):
        raise ConfigError(f"cancelled {cancelled!r} is not understood: write keep or drop")


def _read_lines(path: Path, bad: BadRows) -> _Lines:
    values = array("d")
    numbers = array("q")
    torn = ""
    comments: list[str] = []
    try:
        with _opened(path) as stream:
            for number, line in enumerate(stream, 1):
                text = line.strip()
                if not text:
                    continue
                if text.startswith(b";"):
                    comments.append(text.decode(errors="replace"))
                    continue
                try:
                    values.extend(_numbers(text))
                    numbers.append(number)
                except ValueError as error:
                    if line.endswith(b"\n"):
                        bad.add(path, number, str(error))
                    else:
                        torn = f"{path}:{number}: torn: {error}"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"{path}: torn or not gzip data ({error}); fetch the log again") from None
    table = np.array(values, np.float64).reshape(-1, NUM_FIELDS)
    return _Lines(_header(comments), table, np.array(numbers, np.int64), torn)


def _opened(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _numbers(line: bytes) -> list[float]:
    """The fields of a line, once all are found to be numbers."""
    words = line.split()
    if len(words) != NUM_FIELDS:
        raise ValueError(f"{len(words)} fields, expected {NUM_FIELDS}")
    if _NUMERIC.fullmatch(line):
        with contextlib.suppress(ValueError):
            return list(map(float, words))
    column = next(column for column, word in enumerate(words) if not _NUMBER.fullmatch(word))
    text = words[column][:40].decode(errors="replace")
    raise ValueError(f"{_field(column)} is {text!r}, not a number")


def _field(column: int) -> str:
    return f"field {column + 1} ({Field(column).name.lower().replace('_', ' ')})"


def _header(comments: list[str]) -> SwfHeader:
    entries: list[tuple[str, str]] = []
    for comment in comments:
        text = comment.lstrip(";").strip()
        match = _HEADER_KEY.match(text)
        if match:
            entries.append((match[1], (match[2] or "").strip()))
        elif text and entries:
            key, value = entries[-1]
            entries[-1] = (key, f"{value} {text}".strip())
    return SwfHeader(tuple(entries))


def _refuse_values(sieve: _Sieve, values: FloatArray) -> None:
    """Lines with 18 numbers that cannot be."""
    for field in Field:
        column = values[:, field]
        name = _field(field)
        sieve.refuse(
            ~(np.abs(column) <= _LARGEST), column, f"{name} is {{:g}}, not a number that can be"
        )
        sieve.refuse(
            (column < 0) & (column != MISSING),
            column,
            f"{name} is {{:g}}: negative, and only -1 stands for missing",
        )
        if field in _WHOLE:
            sieve.refuse(
                column != np.floor(column), column, f"{name} is {{:g}}, not a whole number"
            )
    submit = values[:, Field.SUBMIT_TIME]
    sieve.refuse(
        submit == MISSING,
        submit,
        f"{_field(Field.SUBMIT_TIME)} is missing: when the job arrived is not known",
    )
    values[~sieve.is_kept] = MISSING


def _drop_what_never_ran(
    sieve: _Sieve, values: FloatArray, cancelled: str, partitions: Collection[int] | None
) -> None:
    status = values[:, Field.STATUS]
    run_time = values[:, Field.RUN_TIME]
    has_no_processors = _processors(values) <= 0
    is_cancelled = status == _CANCELLED
    if partitions is not None:
        sieve.drop(~np.isin(values[:, Field.PARTITION], list(partitions)), "of other partitions")
    sieve.drop(
        np.isin(status, _PARTS),
        "parts of a job that was swapped out, which another line sums up (status 2, 3, 4)",
    )
    sieve.drop(
        is_cancelled & ((run_time <= 0) | has_no_processors), "cancelled before they started"
    )
    sieve.drop(run_time == MISSING, "no run time")
    sieve.drop(has_no_processors, "no processors")
    if cancelled == "drop":
        sieve.drop(is_cancelled, "cancelled while they ran")
    sieve.note(
        is_cancelled, "cancelled while they ran, with the processors and the time that they took"
    )
    is_known = np.isin(status, (MISSING, _FAILED, _COMPLETED, _CANCELLED))
    sieve.note(~is_known, "a status that the format does not have, taken as jobs that ran")


def _processors(values: FloatArray) -> FloatArray:
    allocated = values[:, Field.ALLOCATED_PROCESSORS]
    return np.where(allocated > 0, allocated, values[:, Field.REQUESTED_PROCESSORS])


def _memory(values: FloatArray) -> FloatArray:
    """KB of each job on all its processors, 0 where nothing is known."""
    requested = values[:, Field.REQUESTED_MEMORY]
    used = values[:, Field.USED_MEMORY]
    return np.ceil(np.where(requested > 0, requested, np.maximum(used, 0)) * _processors(values))


def _resources(
    sieve: _Sieve, lines: _Lines, processors: int | None, memory: int | None
) -> tuple[FloatArray, list[int], list[str]]:
    """Demands [num_lines, num_resources], capacity and notes; jobs larger than the cluster are refused."""
    taken = _processors(lines.values)
    taken_kb = _memory(lines.values)
    size, source = _cluster_size(lines.header, processors, taken[sieve.is_kept])
    remedy = "give the true number of processors"
    sieve.refuse(
        taken > size,
        taken,
        f"the job takes {{:,.0f}} processors, the cluster has {size:,} ({source}): {remedy}",
    )
    notes = [f"the cluster has {size:,} processors ({source})"]
    has_memory = bool((taken_kb[sieve.is_kept] > 0).any())
    if memory is None or not has_memory:
        if has_memory:
            notes.append(
                "the jobs' memory is not a resource: the log does not tell the cluster's; give it to have it scheduled"
            )
        elif memory is not None:
            notes.append("the log tells no job's memory: it is not a resource")
        return taken[:, None], [size], notes
    remedy = "give the true memory"
    sieve.refuse(
        taken_kb > memory,
        taken_kb,
        f"the job takes {{:,.0f}} KB of memory, the cluster has {memory:,}: {remedy}",
    )
    sieve.note(taken_kb <= 0, "no memory told, taken as 0")
    return np.stack([taken, taken_kb], axis=1), [size, memory], notes


def _cluster_size(header: SwfHeader, processors: int | None, taken: FloatArray) -> tuple[int, str]:
    if processors is not None:
        return processors, "given"
    for key in ("MaxProcs", "MaxNodes"):
        size = header.number(key)
        if size:
            return size, f"{key} of the header"
    return max(
        1, int(taken.max(initial=1))
    ), "what the largest job takes, as the header has neither MaxProcs nor MaxNodes"


def _jobs(
    sieve: _Sieve, values: FloatArray, demand: FloatArray, capacity: list[int], estimates: str
) -> tuple[RigidJobs, int]:
    """The kept jobs in order of submission, and the first submission in whole seconds of the log."""
    _note_changes(sieve, values, estimates)
    rows = np.flatnonzero(sieve.is_kept)
    rows = rows[np.argsort(values[rows, Field.SUBMIT_TIME], kind="stable")]
    submit, run_time, requested = (
        values[rows, f] for f in (Field.SUBMIT_TIME, Field.RUN_TIME, Field.REQUESTED_TIME)
    )
    is_told = (requested > 0) & (estimates == "requested")
    arrival = np.rint(submit).astype(np.int64)
    jobs = RigidJobs(
        name=sieve.path.name.removesuffix(".gz").removesuffix(".swf"),
        arrival=arrival - arrival[0],
        duration=_whole_s(run_time),
        told=_whole_s(np.where(is_told, requested, run_time)),
        demand=demand[rows].astype(np.int64),
        capacity=np.array(capacity, np.int64),
        resources=("processors", "memory")[: len(capacity)],
        step="s",
        ids=values[rows, Field.JOB_NUMBER].astype(np.int64),
    )
    return jobs, int(arrival[0])


def _note_changes(sieve: _Sieve, values: FloatArray, estimates: str) -> None:
    submit, run_time, requested = (
        values[:, f] for f in (Field.SUBMIT_TIME, Field.RUN_TIME, Field.REQUESTED_TIME)
    )
    sieve.note(run_time < 1, "ran less than 1 s, taken as 1 s")
    sieve.note(
        (submit != np.floor(submit)) | (run_time != np.floor(run_time)),
        "fractions of seconds, rounded",
    )
    sieve.note((requested > 0) & (run_time > requested), "ran longer than they asked for")
    if estimates == "requested":
        sieve.note(requested <= 0, "no requested time: the run time is told")
    last_submit = np.maximum.accumulate(np.where(sieve.is_kept, submit, 0.0))
    sieve.note(submit < last_submit, "submitted before a job listed above them, sorted")


def _whole_s(seconds: FloatArray) -> npt.NDArray[np.int64]:
    return np.maximum(np.rint(seconds), 1).astype(np.int64)
