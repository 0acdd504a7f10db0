"""Reads logs of batch clusters in the Standard Workload Format (SWF) as rigid jobs.

It is the format of the Parallel Workloads Archive. A line is a job: 18 numbers separated by white
space, with -1 for unknown values. Lines that begin with `;` are comments; the first of them
describe the cluster as `; Key: value`.

Source: Standard Workload Format, version 2.2
(https://www.cs.huji.ac.il/labs/parallel/workload/swf.html).
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, FormatError
from parcae.base.loader import lines, whole_number
from parcae.rigid.jobs import RigidJobs
from parcae.workloads.formats import saying_what_reads
from parcae.workloads.import_report import BadRows, ImportReport

FloatArray = npt.NDArray[np.float64]


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
#: The value of a number that is not known.
MISSING = -1
# `float` also accepts "nan" and "1_000", which are not valid here: a line is checked first.
#: Characters of a line of numbers, and the syntax of one number.
_NUMERIC = re.compile(rb"[-+.\deE\s]+")
_NUMBER = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
#: Of a number in the header. Larger ones are out of range after the cut as well.
_MOST_DIGITS = 20
_HEADER_NUMBER = re.compile(r"\d{1,3}(,\d{3})+(?!\d)|\d+")
#: A key and its value. Without a space the value is a number, since text has addresses (http://...)
#: and times (10:30).
_HEADER_KEY = re.compile(r"(\w+):(?:\s+(.*)|(?<=[A-Za-z]:)(\d.*))?$")


@dataclass(frozen=True)
class SwfHeader:
    """The header comments as pairs (key, value) in the order of the file.

    A comment line without a key continues the value of the comment line right before it. After a
    line with a job it is no part of the header.

    Example: `header.number("MaxProcs")` of a log with the line `; MaxProcs: 1728` is 1728.
    """

    entries: tuple[tuple[str, str], ...] = ()

    def text(self, key: str) -> str | None:
        """The first value of a key; None if the header lacks the key."""
        return next((value for name, value in self.entries if name == key), None)

    def number(self, key: str) -> int | None:
        """The whole number >= 0 at the start of a key's value, also with commas as in 1,024.

        None if there is none, as in `; MaxNodes: -1`.
        """
        match = _HEADER_NUMBER.match(self.text(key) or "")
        # A number of thousands of digits takes Python long, or is refused; no reader needs it.
        return int(match[0].replace(",", "")[:_MOST_DIGITS]) if match else None


class Lines(NamedTuple):
    """The header of a log, and its lines with a job that have 18 numbers."""

    header: SwfHeader
    values: FloatArray  # [num_lines, NUM_FIELDS]
    number: npt.NDArray[np.int64]  # [num_lines], from 1
    truncated: str  # what is wrong with a last line without a newline, "" if nothing


def read_lines(path: Path, bad: BadRows) -> Lines:
    """Read a log, plain or compressed; lines that are no numbers are added to `bad`."""
    values = array("d")
    numbers = array("q")
    truncated = ""
    comments: list[str] = []
    # Whether a job's line stands between the last comment and this line.
    is_after_job = False
    for number, (line, is_whole) in enumerate(lines(path), 1):
        text = line.strip()
        if not text:
            continue
        if text.startswith(b";"):
            comment = text.decode(errors="replace").lstrip(";").strip()
            if not is_after_job or _HEADER_KEY.match(comment):
                comments.append(comment)
                is_after_job = False
            continue
        is_after_job = True
        try:
            values.extend(_numbers(text))
            numbers.append(number)
        except ValueError as error:
            if is_whole:
                bad.add(path, number, str(error))
            else:
                truncated = f"{path}:{number}: truncated: {error}"
    table = np.array(values, np.float64).reshape(-1, NUM_FIELDS)
    return Lines(_header(comments), table, np.array(numbers, np.int64), truncated)


def _numbers(line: bytes) -> list[float]:
    words = line.split()
    if len(words) != NUM_FIELDS:
        raise ValueError(f"{len(words)} fields, expected {NUM_FIELDS}")
    if _NUMERIC.fullmatch(line):
        with contextlib.suppress(ValueError):
            return list(map(float, words))
    # Slow path: the line does not parse as a whole, so find the field that is to blame.
    column = next(column for column, word in enumerate(words) if not _NUMBER.fullmatch(word))
    text = words[column][:40].decode(errors="replace")
    raise ValueError(f"{field_name(column)} is {text!r}, not a number")


def field_name(column: int) -> str:
    """The number of a field, from 1, and its name, for messages."""
    return f"field {column + 1} ({Field(column).name.lower().replace('_', ' ')})"


def _header(comments: list[str]) -> SwfHeader:
    entries: list[tuple[str, str]] = []
    for text in comments:
        match = _HEADER_KEY.match(text)
        if match:
            entries.append((match[1], (match[2] or match[3] or "").strip()))
        elif text and entries:
            key, value = entries[-1]
            entries[-1] = (key, f"{value} {text}".strip())
    return SwfHeader(tuple(entries))


BoolArray = npt.NDArray[np.bool_]


#: Fields that are counts or identifiers and must be whole numbers.
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
#: Statuses of the parts of a job that was swapped out; a separate line summarises such a job.
_PARTS = (2, 3, 4)
#: Above this bound a float cannot represent every whole number.
_LARGEST = 2.0**53


@dataclass(frozen=True)
class LogFinding:
    """A group of jobs of a log that were left out or changed for one reason."""

    what: str
    count: int
    first: str
    is_dropped: bool

    def __str__(self) -> str:
        return (
            f"{self.count:,} {'dropped' if self.is_dropped else 'kept'}: "
            f"{self.what} (first: {self.first})"
        )


@dataclass(frozen=True, eq=False)
class SwfLog:
    """A log: its jobs in seconds since the first submission, its header, and an import report.

    Every line with a job is accounted for: `report.num_rows` = number of jobs +
    `report.num_bad_rows` + the dropped jobs of `findings`.
    """

    jobs: RigidJobs
    header: SwfHeader
    report: ImportReport
    findings: tuple[LogFinding, ...]
    first_submit_s: int

    @property
    def start_unix_s(self) -> int | None:
        """Time of the first submission in seconds since 1970; None without UnixStartTime in the
        header.
        """
        start = self.header.number("UnixStartTime")
        return None if start is None else start + self.first_submit_s


class _LineFilter:
    """Selects the lines that are kept, and records the reasons for all others."""

    def __init__(self, path: Path, lines: Lines, bad: BadRows) -> None:
        self.path = path
        self.number = lines.number
        self.bad = bad
        self.is_kept = np.ones(len(lines.number), np.bool_)
        self.findings: list[LogFinding] = []

    def note(self, is_match: BoolArray, what: str, *, is_dropped: bool = False) -> None:
        """Record a finding for the kept lines that match, if there are any."""
        rows = np.flatnonzero(is_match & self.is_kept)
        if len(rows):
            self.findings.append(
                LogFinding(what, len(rows), f"{self.path}:{self.number[rows[0]]}", is_dropped)
            )

    def drop(self, is_match: BoolArray, what: str) -> None:
        """Leave out the kept lines that match, and record a finding."""
        self.note(is_match, what, is_dropped=True)
        self.is_kept &= ~is_match

    def refuse(self, is_match: BoolArray, values: FloatArray, what: str) -> None:
        """Count the kept lines that match as bad rows; `what` is formatted with the value."""
        for row in np.flatnonzero(is_match & self.is_kept):
            self.bad.add(self.path, int(self.number[row]), what.format(values[row]))
        self.is_kept &= ~is_match


@saying_what_reads("swf")
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
    """Read a log (plain, or compressed as `.gz`) as rigid jobs in whole seconds.

    A job holds its allocated processors for its run time; if they are not known, the requested
    ones. Schedulers see the requested time, or the run time if no time was requested. Memory is the
    requested KB per processor (else the used KB) times the number of processors.

    No line is left out silently:

    - *Bad* lines violate the format: a wrong number of fields, a word that is not a number, a
      negative number other than -1, no submit time, or more resources than the cluster has. A log
      with bad lines is refused, unless `max_bad_share` tolerates them.
    - A last line that lacks its newline and is incomplete is *truncated*: it counts as bad in the
      report, but is always tolerated.
    - *Dropped* lines are counted by reason: jobs that never ran (cancelled before they started, no
      run time, no processors), and the parts of a job that was swapped out (status 2, 3, 4), which
      a separate line summarises.
    - *Changed* lines are counted: a run time below 1 s becomes 1 s, fractions of seconds are
      rounded, unsorted lines are sorted.

    Args:
        path: the log.
        processors: processors of the cluster. Default: MaxProcs of the header, else MaxNodes, else
            the processors of the largest job.
        memory: memory of the whole cluster in KB. The format does not contain it, so memory is a
            resource only if it is given.
        estimates: whether schedulers see the "requested" time or the "actual" run time.
        cancelled: "keep" the jobs that were cancelled while they ran (status 5), since they
            occupied processors until then, or "drop" them.
        partitions: read only the jobs of these partitions. `processors` should then be given, since
            the header counts the processors of all partitions.
        max_bad_share: largest share of bad lines that is tolerated, 0..1.

    Raises:
        ConfigError: an option with an invalid value.
        FormatError: a truncated `.gz`, no job at all, or more bad lines than tolerated; the message
            gives the first bad line as path:line.
        FileNotFoundError: no such file.

    Example: `read_swf("lublin_256.swf").jobs.capacity` is [256].
    """
    _check_options(processors, memory, estimates, cancelled)
    path = Path(path)
    bad = BadRows(max_bad_share)
    lines = read_lines(path, bad)
    # All lines with a job: good, bad and truncated.
    num_rows = len(lines.number) + bad.count + bool(lines.truncated)
    line_filter = _LineFilter(path, lines, bad)
    _refuse_values(line_filter, lines.values)
    _drop_what_never_ran(line_filter, lines.values, cancelled, partitions)
    demand, capacity, notes = _resources(line_filter, lines, processors, memory)
    if partitions is not None and processors is None:
        notes[0] += "; a header counts the processors of all partitions: give --processors"
    # Too many bad lines are reported before a log without jobs: they explain it best.
    bad.finish(num_rows)
    if not line_filter.is_kept.any():
        what = (
            "; ".join(map(str, line_filter.findings))
            or lines.truncated
            or f"expected lines of {NUM_FIELDS} numbers"
        )
        raise FormatError(f"{path}: no job that ran; {what}")
    jobs, first_submit_s = _jobs(line_filter, lines.values, demand, capacity, estimates)
    samples = (*bad.samples, lines.truncated) if lines.truncated else bad.samples
    report = ImportReport(
        "Standard Workload Format log", 1, num_rows, bad.count + bool(lines.truncated), samples,
        (*notes, *map(str, line_filter.findings)), len(jobs),
    )  # fmt: skip
    return SwfLog(jobs, lines.header, report, tuple(line_filter.findings), first_submit_s)


def _check_options(
    processors: int | None, memory: int | None, estimates: str, cancelled: str
) -> None:
    for name, count in (("processors", processors), ("memory", memory)):
        if count is not None and not 1 <= count <= _LARGEST:
            raise ConfigError(f"{name} is {count}; give a number from 1 to {int(_LARGEST):,}")
    if estimates not in ("requested", "actual"):
        raise ConfigError(f"estimates {estimates!r} are not understood: write requested or actual")
    if cancelled not in ("keep", "drop"):
        raise ConfigError(f"cancelled {cancelled!r} is not understood: write keep or drop")


def _refuse_values(line_filter: _LineFilter, values: FloatArray) -> None:
    """Refuse lines with 18 numbers if one of them is out of range."""
    for field in Field:
        column = values[:, field]
        name = field_name(field)
        line_filter.refuse(
            ~(np.abs(column) <= _LARGEST), column, f"{name} is {{:g}}, which is out of range"
        )
        line_filter.refuse(
            (column < 0) & (column != MISSING),
            column,
            f"{name} is {{:g}}: negative, and only -1 stands for missing",
        )
        if field in _WHOLE:
            line_filter.refuse(
                column != np.floor(column), column, f"{name} is {{:g}}, not a whole number"
            )
    submit = values[:, Field.SUBMIT_TIME]
    line_filter.refuse(
        submit == MISSING,
        submit,
        f"{field_name(Field.SUBMIT_TIME)} is missing: when the job arrived is not known",
    )
    # Refused lines may hold NaN or huge numbers, which later comparisons must not meet.
    values[~line_filter.is_kept] = MISSING


def _drop_what_never_ran(
    line_filter: _LineFilter, values: FloatArray, cancelled: str, partitions: Collection[int] | None
) -> None:
    status = values[:, Field.STATUS]
    run_time = values[:, Field.RUN_TIME]
    has_no_processors = _processors(values) <= 0
    is_cancelled = status == _CANCELLED
    if partitions is not None:
        line_filter.drop(
            ~np.isin(values[:, Field.PARTITION], list(partitions)), "of other partitions"
        )
    line_filter.drop(
        np.isin(status, _PARTS),
        "parts of a job that was swapped out, which another line summarises (status 2, 3, 4)",
    )
    line_filter.drop(
        is_cancelled & ((run_time <= 0) | has_no_processors), "cancelled before they started"
    )
    line_filter.drop(run_time == MISSING, "no run time")
    line_filter.drop(has_no_processors, "no processors")
    if cancelled == "drop":
        line_filter.drop(is_cancelled, "cancelled while they ran")
    line_filter.note(
        is_cancelled, "cancelled while they ran, with the processors and the time that they took"
    )
    is_known = np.isin(status, (MISSING, _FAILED, _COMPLETED, _CANCELLED))
    line_filter.note(~is_known, "a status that the format does not have, taken as jobs that ran")


def _processors(values: FloatArray) -> FloatArray:
    """Allocated processors of each job, or the requested ones where the allocation is not known."""
    allocated = values[:, Field.ALLOCATED_PROCESSORS]
    return np.where(allocated > 0, allocated, values[:, Field.REQUESTED_PROCESSORS])


def _memory(values: FloatArray) -> FloatArray:
    """Memory of each job on all its processors in KB, 0 where it is not known."""
    requested = values[:, Field.REQUESTED_MEMORY]
    used = values[:, Field.USED_MEMORY]
    return np.ceil(np.where(requested > 0, requested, np.maximum(used, 0)) * _processors(values))


def _resources(
    line_filter: _LineFilter, lines: Lines, processors: int | None, memory: int | None
) -> tuple[FloatArray, list[int], list[str]]:
    """Demands [num_lines, num_resources], capacity and notes.

    Refuses jobs larger than the cluster.
    """
    used = _processors(lines.values)
    used_kb = _memory(lines.values)
    kept = used[line_filter.is_kept]
    size, source = _cluster_size(line_filter.path, lines.header, processors, kept)
    remedy = "give the true number of processors"
    line_filter.refuse(
        used > size,
        used,
        f"the job takes {{:,.0f}} processors, the cluster has {size:,} ({source}): {remedy}",
    )
    notes = [f"the cluster has {size:,} processors ({source})"]
    has_memory = bool((used_kb[line_filter.is_kept] > 0).any())
    if memory is None or not has_memory:
        if has_memory:
            notes.append(
                "the jobs' memory is not a resource: the log does not contain the cluster's "
                "memory; give it to make memory a resource"
            )
        elif memory is not None:
            notes.append("memory is not a resource: the log contains no job's memory")
        return used[:, None], [size], notes
    remedy = "give the true memory"
    line_filter.refuse(
        used_kb > memory,
        used_kb,
        f"the job takes {{:,.0f}} KB of memory, the cluster has {memory:,}: {remedy}",
    )
    line_filter.note(used_kb <= 0, "no memory given, taken as 0")
    return np.stack([used, used_kb], axis=1), [size, memory], notes


def _cluster_size(
    path: Path, header: SwfHeader, processors: int | None, used: FloatArray
) -> tuple[int, str]:
    """Processors of the cluster, and a text that says where the number is from."""
    if processors is not None:
        return processors, "given"
    for key in ("MaxProcs", "MaxNodes"):
        size = header.number(key)
        if size:
            what = f"{key} of the header"
            return whole_number(f"{path}: {what}", size, 1, int(_LARGEST)), what
    return max(
        1, int(used.max(initial=1))
    ), "the largest job's, as the header has neither MaxProcs nor MaxNodes"


def _jobs(
    line_filter: _LineFilter,
    values: FloatArray,
    demand: FloatArray,
    capacity: list[int],
    estimates: str,
) -> tuple[RigidJobs, int]:
    """The kept jobs in order of submission, and the first submission in seconds of the log's
    clock.
    """
    _note_changes(line_filter, values, estimates)
    # A stable sort keeps the file's order of jobs that were submitted at the same time.
    order = np.argsort(values[:, Field.SUBMIT_TIME], kind="stable")
    # Rows of the log are those of all its lines: they are the same whichever lines are kept.
    rows = np.flatnonzero(line_filter.is_kept[order])
    lines = order[rows]
    submit, run_time, requested = (
        values[lines, f] for f in (Field.SUBMIT_TIME, Field.RUN_TIME, Field.REQUESTED_TIME)
    )
    has_estimate = (requested > 0) & (estimates == "requested")
    arrival = np.rint(submit).astype(np.int64)
    jobs = RigidJobs(
        name=line_filter.path.name.removesuffix(".gz").removesuffix(".swf"),
        arrival=arrival - arrival[0],
        duration=_whole_s(run_time),
        estimate=_whole_s(np.where(has_estimate, requested, run_time)),
        demand=demand[lines].astype(np.int64),
        capacity=np.array(capacity, np.int64),
        resources=("processors", "memory")[: len(capacity)],
        step="s",
        ids=values[lines, Field.JOB_NUMBER].astype(np.int64),
        users=_users(values[lines, Field.USER]),
        rows=rows,
    )
    return jobs, int(arrival[0])


def _users(column: FloatArray) -> npt.NDArray[np.int64]:
    """The users of the jobs; empty if the log names at most one."""
    users = column.astype(np.int64)
    return users if len(np.unique(users)) > 1 else users[:0]


def _note_changes(line_filter: _LineFilter, values: FloatArray, estimates: str) -> None:
    """Record findings for all values that are changed or unusual."""
    submit, run_time, requested = (
        values[:, f] for f in (Field.SUBMIT_TIME, Field.RUN_TIME, Field.REQUESTED_TIME)
    )
    line_filter.note(run_time < 1, "ran less than 1 s, taken as 1 s")
    rounded = (submit, run_time, *([requested] if estimates == "requested" else []))
    has_fraction = np.any([column != np.floor(column) for column in rounded], axis=0)
    line_filter.note(has_fraction, "fractions of seconds, rounded")
    line_filter.note((requested > 0) & (run_time > requested), "ran longer than they asked for")
    if estimates == "requested":
        line_filter.note(requested <= 0, "no requested time: schedulers see the run time")
    # Running maximum of the submit times so far.
    last_submit = np.maximum.accumulate(np.where(line_filter.is_kept, submit, 0.0))
    line_filter.note(submit < last_submit, "submitted before a job listed above them, sorted")


def _whole_s(seconds: FloatArray) -> npt.NDArray[np.int64]:
    """Seconds rounded to whole numbers, at least 1."""
    return np.maximum(np.rint(seconds), 1).astype(np.int64)
