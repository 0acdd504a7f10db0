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
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from parcae.base.errors import ConfigError, FormatError
from parcae.base.loader import lines, whole_number
from parcae.rigid.jobs import RigidJobs
from parcae.workloads.import_report import BadRows, ImportReport
from parcae.workloads.readers import saying_what_reads

#: The 18 fields of a line, in order; times in seconds, memory in KB per processor.
FIELDS = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "cpu_time"),
    *("used_memory", "requested_processors", "requested_time", "requested_memory", "status"),
    *("user", "group", "executable", "queue", "partition", "preceding_job", "think_time"),
)
#: Fields that are counts or identifiers and must be whole numbers.
_WHOLE = ("job_number", "allocated_processors", "requested_processors", "status", "partition")
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
#: The last status of the format: failed is 0, completed 1; 2 to 4 are parts of a job that was
#: swapped out, which a separate line summarises.
_CANCELLED = 5
#: Above this bound a float cannot represent every whole number.
_LARGEST = 2.0**53


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


class _Lines:
    """The lines of a log that are kept so far, and why others are not.

    `kept` has a row a line: its number, from 1, and its fields.
    """

    def __init__(self, path: Path, max_bad_share: float) -> None:
        self.path = path
        self.bad = BadRows(max_bad_share)
        self.findings: list[LogFinding] = []
        #: What is wrong with a last line without a newline; no text if nothing.
        self.truncated = ""
        entries: list[tuple[str, str]] = []
        values = array("d")
        # Whether a job's line stands between the last comment and this line.
        is_after_job = False
        for number, (line, is_whole) in enumerate(lines(path), 1):
            text = line.strip()
            if text.startswith(b";"):
                comment = text.decode(errors="replace").lstrip(";").strip()
                if match := _HEADER_KEY.match(comment):
                    entries.append((match[1], (match[2] or match[3] or "").strip()))
                    is_after_job = False
                elif comment and entries and not is_after_job:
                    key, value = entries[-1]
                    entries[-1] = (key, f"{value} {comment}".strip())
            elif text:
                is_after_job = True
                try:
                    values.extend((number, *_numbers(text)))
                except ValueError as error:
                    if is_whole:
                        self.bad.add(path, number, str(error))
                    else:
                        self.truncated = f"{path}:{number}: truncated: {error}"
        self.header = SwfHeader(tuple(entries))
        columns = np.array(values, np.float64).reshape(-1, 1 + len(FIELDS)).T
        self.kept = pl.DataFrame(dict(zip(("line", *FIELDS), columns, strict=True)))
        #: All lines with a job: good, bad and truncated.
        self.num_rows = len(self.kept) + self.bad.count + bool(self.truncated)

    def note(self, is_match: pl.Expr, what: str, *, is_dropped: bool = False) -> None:
        """Record a finding for the lines that match, if there are any."""
        found = self.kept.filter(is_match)["line"]
        if len(found):
            first = f"{self.path}:{found[0]:.0f}"
            self.findings.append(LogFinding(what, len(found), first, is_dropped))

    def drop(self, is_match: pl.Expr, what: str) -> None:
        """Leave out the lines that match, and record a finding."""
        self.note(is_match, what, is_dropped=True)
        self.kept = self.kept.filter(~is_match)

    def refuse(self, is_match: pl.Expr, field: str, what: str) -> None:
        """Count the lines that match as bad rows; `what` is formatted with a field's value."""
        for number, value in self.kept.filter(is_match).select("line", field).iter_rows():
            self.bad.add(self.path, int(number), what.format(value))
        self.kept = self.kept.filter(~is_match)


def _numbers(line: bytes) -> list[float]:
    """The numbers of a line."""
    words = line.split()
    if len(words) != len(FIELDS):
        raise ValueError(f"{len(words)} fields, expected {len(FIELDS)}")
    if _NUMERIC.fullmatch(line):
        with contextlib.suppress(ValueError):
            return list(map(float, words))
    # Slow path: the line does not parse as a whole, so find the field that is to blame.
    column = next(column for column, word in enumerate(words) if not _NUMBER.fullmatch(word))
    text = words[column][:40].decode(errors="replace")
    raise ValueError(f"{_in_words(column)} is {text!r}, not a number")


def _in_words(column: int) -> str:
    """The number of a field, from 1, and its name, for messages."""
    return f"field {column + 1} ({FIELDS[column].replace('_', ' ')})"


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
    for name, count in (("processors", processors), ("memory", memory)):
        if count is not None and not 1 <= count <= _LARGEST:
            raise ConfigError(f"{name} is {count}; give a number from 1 to {int(_LARGEST):,}")
    if estimates not in ("requested", "actual"):
        raise ConfigError(f"estimates {estimates!r} are not understood: write requested or actual")
    if cancelled not in ("keep", "drop"):
        raise ConfigError(f"cancelled {cancelled!r} is not understood: write keep or drop")
    log = _Lines(Path(path), max_bad_share)
    _refuse_values(log)
    _drop_what_never_ran(log, cancelled, partitions)
    capacity, notes = _resources(log, processors, memory)
    if partitions is not None and processors is None:
        notes[0] += "; a header counts the processors of all partitions: give --processors"
    # Too many bad lines are reported before a log without jobs: they explain it best.
    log.bad.finish(log.num_rows)
    if log.kept.is_empty():
        what = (
            "; ".join(map(str, log.findings))
            or log.truncated
            or f"expected lines of {len(FIELDS)} numbers"
        )
        raise FormatError(f"{path}: no job that ran; {what}")
    _note_changes(log, estimates)
    jobs, first_submit_s = _jobs(log, capacity, estimates)
    samples = (*log.bad.samples, log.truncated) if log.truncated else log.bad.samples
    report = ImportReport(
        "Standard Workload Format log", 1, log.num_rows, log.bad.count + bool(log.truncated),
        samples, (*notes, *map(str, log.findings)), len(jobs),
    )  # fmt: skip
    return SwfLog(jobs, log.header, report, tuple(log.findings), first_submit_s)


def _refuse_values(log: _Lines) -> None:
    """Refuse lines with 18 numbers if one of them is out of range; number and measure the others.

    A `row` is a line's place among all lines by time of submission, the refused ones first: so it
    is the same whichever lines are dropped. `memory` is that on all processors in KB, 0 where it is
    not known.
    """
    count = len(log.kept)
    for column, field in enumerate(FIELDS):
        value = pl.col(field)
        name = _in_words(column)
        log.refuse(~(value.abs() <= _LARGEST), field, f"{name} is {{:g}}, which is out of range")
        log.refuse(
            (value < 0) & (value != MISSING),
            field,
            f"{name} is {{:g}}: negative, and only -1 stands for missing",
        )
        if field in _WHOLE:
            log.refuse(value != value.floor(), field, f"{name} is {{:g}}, not a whole number")
    submit = pl.col("submit_time")
    name = _in_words(FIELDS.index("submit_time"))
    log.refuse(
        submit == MISSING, "submit_time", f"{name} is missing: when the job arrived is not known"
    )
    allocated, requested = pl.col("allocated_processors"), pl.col("requested_memory")
    log.kept = log.kept.with_columns(
        row=submit.rank("ordinal").cast(pl.Int64) - 1 + count - len(log.kept),
        # Where the allocation is not known, a job takes what it requested.
        processors=pl.when(allocated > 0).then(allocated).otherwise("requested_processors"),
    ).with_columns(
        memory=pl.when(requested > 0).then(requested).otherwise(pl.col("used_memory").clip(0))
        .mul(pl.col("processors")).ceil()
    )  # fmt: skip


def _drop_what_never_ran(log: _Lines, cancelled: str, partitions: Collection[int] | None) -> None:
    status = pl.col("status")
    run_time = pl.col("run_time")
    has_no_processors = pl.col("processors") <= 0
    is_cancelled = status == _CANCELLED
    if partitions is not None:
        log.drop(~pl.col("partition").is_in([*map(float, partitions)]), "of other partitions")
    log.drop(
        status.is_between(2, 4),
        "parts of a job that was swapped out, which another line summarises (status 2, 3, 4)",
    )
    log.drop(is_cancelled & ((run_time <= 0) | has_no_processors), "cancelled before they started")
    log.drop(run_time == MISSING, "no run time")
    log.drop(has_no_processors, "no processors")
    if cancelled == "drop":
        log.drop(is_cancelled, "cancelled while they ran")
    log.note(
        is_cancelled, "cancelled while they ran, with the processors and the time that they took"
    )
    log.note(status > _CANCELLED, "a status that the format does not have, taken as jobs that ran")


def _resources(
    log: _Lines, processors: int | None, memory: int | None
) -> tuple[list[int], list[str]]:
    """The cluster's capacity, and notes about it. Refuses jobs larger than the cluster."""
    size, source = _cluster_size(log, processors)
    log.refuse(
        pl.col("processors") > size,
        "processors",
        f"the job takes {{:,.0f}} processors, the cluster has {size:,} ({source}): "
        "give the true number of processors",
    )
    notes = [f"the cluster has {size:,} processors ({source})"]
    has_memory = bool((log.kept["memory"] > 0).any())
    if memory is not None and has_memory:
        log.refuse(
            pl.col("memory") > memory,
            "memory",
            f"the job takes {{:,.0f}} KB of memory, the cluster has {memory:,}: "
            "give the true memory",
        )
        log.note(pl.col("memory") <= 0, "no memory given, taken as 0")
        return [size, memory], notes
    if has_memory:
        notes.append(
            "the jobs' memory is not a resource: the log does not contain the cluster's "
            "memory; give it to make memory a resource"
        )
    elif memory is not None:
        notes.append("memory is not a resource: the log contains no job's memory")
    return [size], notes


def _cluster_size(log: _Lines, processors: int | None) -> tuple[int, str]:
    """Processors of the cluster, and a text that says where the number is from."""
    if processors is not None:
        return processors, "given"
    for key in ("MaxProcs", "MaxNodes"):
        if size := log.header.number(key):
            what = f"{key} of the header"
            return whole_number(f"{log.path}: {what}", size, 1, int(_LARGEST)), what
    largest = max([1, *log.kept["processors"].cast(pl.Int64)])
    return largest, "the largest job's, as the header has neither MaxProcs nor MaxNodes"


def _note_changes(log: _Lines, estimates: str) -> None:
    """Record findings for all values that are changed or unusual."""
    submit, run_time, requested = map(pl.col, ("submit_time", "run_time", "requested_time"))
    log.note(run_time < 1, "ran less than 1 s, taken as 1 s")
    rounded = (submit, run_time, *([requested] if estimates == "requested" else []))
    has_fraction = pl.any_horizontal(column != column.floor() for column in rounded)
    log.note(has_fraction, "fractions of seconds, rounded")
    log.note((requested > 0) & (run_time > requested), "ran longer than they asked for")
    if estimates == "requested":
        log.note(requested <= 0, "no requested time: schedulers see the run time")
    log.note(submit < submit.cum_max(), "submitted before a job listed above them, sorted")


def _jobs(log: _Lines, capacity: list[int], estimates: str) -> tuple[RigidJobs, int]:
    """The kept jobs in order of submission, and the first submission in seconds of the log's
    clock.
    """
    requested = pl.col("requested_time")
    has_estimate = (requested > 0) & (estimates == "requested")
    kept = log.kept.sort("row").with_columns(
        estimate=pl.when(has_estimate).then(requested).otherwise("run_time")
    )
    resources = ("processors", "memory")[: len(capacity)]
    # NumPy rounds halves to even numbers.
    whole = {name: np.rint(kept[name].to_numpy()).astype(np.int64) for name in kept.columns}
    users = whole["user"]
    jobs = RigidJobs(
        name=log.path.name.removesuffix(".gz").removesuffix(".swf"),
        arrival=whole["submit_time"] - whole["submit_time"][0],
        duration=np.maximum(whole["run_time"], 1),
        estimate=np.maximum(whole["estimate"], 1),
        demand=np.stack([whole[name] for name in resources], axis=1),
        capacity=np.array(capacity, np.int64),
        resources=resources,
        step="s",
        ids=whole["job_number"],
        # A log that names at most one user names none.
        users=users if len(np.unique(users)) > 1 else users[:0],
        rows=whole["row"],
    )
    return jobs, int(whole["submit_time"][0])
