"""Reads logs of batch clusters as rigid jobs: Standard Workload Format (SWF), or accounting.

SWF is the format of the Parallel Workloads Archive. A line is a job: 18 numbers separated by white
space, with -1 for unknown values. Lines that begin with `;` are comments; the first of them
describe the cluster as `; Key: value`. Lines of `parcae.rigid.accounting` become the same numbers.

Source: Standard Workload Format, version 2.2
(https://www.cs.huji.ac.il/labs/parallel/workload/swf.html).
"""

from __future__ import annotations

import contextlib
import re
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.base.loader import lines, whole_number
from parcae.base.texts import printable
from parcae.rigid.accounting import Accounting
from parcae.rigid.jobs import RigidJobs, most_in_use
from parcae.workloads.import_report import BadRows, ImportReport, counted
from parcae.workloads.readers import ACCOUNTING, guess_format, saying_what_reads

#: The 18 fields of a line, in order; times in seconds, memory in KB per processor.
FIELDS = (
    *("job_number", "submit_time", "wait_time", "run_time", "allocated_processors", "cpu_time"),
    *("used_memory", "requested_processors", "requested_time", "requested_memory", "status"),
    *("user", "group", "executable", "queue", "partition", "preceding_job", "think_time"),
)
#: Fields that are counts or identifiers and must be whole numbers.
_WHOLE = ("job_number", "allocated_processors", "requested_processors", "status", "partition")
#: Fields that are not read: a word in one of them (a list of jobs, "4&5") is taken as unknown.
_UNREAD = ("cpu_time", "group", "executable", "queue", "preceding_job", "think_time")
#: The value of a number that is not known.
MISSING = -1
# `float` also accepts "nan" and "1_000", which are not valid here: a line is checked first.
#: Characters of a line of numbers, and the syntax of one number.
_NUMERIC = re.compile(r"[-+.\deE\s]+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
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
class LogHeader:
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
class BatchLog:
    """A log: its jobs in seconds since the first submission, its header, and an import report.

    `partitions` has the names of partitions, by number. Every line with a job is accounted for:
    `report.num_rows` = number of jobs + `report.num_bad_rows` + the dropped jobs of `findings`.
    """

    jobs: RigidJobs
    header: LogHeader
    report: ImportReport
    findings: tuple[LogFinding, ...]
    first_submit_s: int
    partitions: dict[int, str]

    @property
    def start_unix_s(self) -> int | None:
        """Time of the first submission in seconds since 1970; None without UnixStartTime in the
        header.
        """
        start = self.header.number("UnixStartTime")
        return None if start is None else start + self.first_submit_s


class _Swf:
    """Turns the lines of a file in the Standard Workload Format into numbers."""

    kind = "Standard Workload Format log"
    has_header = False

    def __init__(self, first: str) -> None:
        # A line of column names, as simulators write it.
        self.has_header = first.split()[1:2] == ["submit"]
        self._width = 0
        self._num_words = 0

    def notes(self) -> Iterator[str]:
        """What the lines have beyond the format."""
        if self.has_header:
            yield "a line of column names, taken as the 18 fields of the format in their order"
        if self._width > len(FIELDS):
            further = counted(self._width - len(FIELDS), "further column")
            yield f"{further} behind the 18th, left out"
        if self._num_words:
            words = counted(self._num_words, "word")
            yield f"{words} in fields that are not read, taken as unknown"

    def numbers(self, line: str) -> list[float]:
        """The 18 numbers of a line; all lines have as many fields as the first."""
        words = line.split()
        width = self._width or max(len(words), len(FIELDS))
        if len(words) != width:
            raise ValueError(f"{len(words)} fields, expected {width}")
        self._width = width
        read = words[: len(FIELDS)]
        if _NUMERIC.fullmatch(line):
            with contextlib.suppress(ValueError):
                return list(map(float, read))
        # Slow path: the line does not parse as a whole, so find the field that is to blame.
        for column, word in enumerate(read):
            if not _NUMBER.fullmatch(word):
                if FIELDS[column] not in _UNREAD:
                    raise ValueError(f"{_in_words(column)} is {word[:40]!r}, not a number")
                self._num_words += 1
                read[column] = str(MISSING)
        return list(map(float, read))


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
        self.reader: _Swf | Accounting = _Swf("")
        kind = Accounting if guess_format(path) is ACCOUNTING else _Swf
        entries: list[tuple[str, str]] = []
        values = array("d")
        # Whether a line stands between the last comment and this line.
        is_after_line = is_begun = False
        for number, (line, is_whole) in enumerate(lines(path), 1):
            text = line.decode(errors="replace").strip()
            if text.startswith(";"):
                comment = text.lstrip(";").strip()
                if match := _HEADER_KEY.match(comment):
                    entries.append((match[1], (match[2] or match[3] or "").strip()))
                    is_after_line = False
                elif comment and entries and not is_after_line:
                    key, value = entries[-1]
                    entries[-1] = (key, f"{value} {comment}".strip())
            elif text:
                is_after_line = True
                if not is_begun:
                    is_begun = True
                    try:
                        self.reader = kind(text)
                    except ValueError as error:
                        raise FormatError(f"{path}:{number}: {error}") from None
                    if self.reader.has_header:
                        continue
                try:
                    numbers = self.reader.numbers(text)
                    if numbers is not None:
                        values.extend((number, *numbers))
                except ValueError as error:
                    if is_whole:
                        self.bad.add(path, number, str(error))
                    else:
                        self.truncated = f"{path}:{number}: truncated: {error}"
        self.header = LogHeader(tuple(entries))
        columns = np.array(values, np.float64).reshape(-1, 1 + len(FIELDS)).T
        self.kept = pl.DataFrame(dict(zip(("line", *FIELDS), columns, strict=True)))
        #: All lines with a job: good, bad and truncated.
        self.num_rows = len(self.kept) + self.bad.count + bool(self.truncated)

    @property
    def is_accounting(self) -> bool:
        """Whether the lines are those of a batch system's accounting."""
        return isinstance(self.reader, Accounting)

    @property
    def partitions(self) -> dict[int, str]:
        """The names of partitions, by number: of an accounting, or of the header."""
        if isinstance(self.reader, Accounting):
            return {number: printable(name) for name, number in self.reader.partitions.items()}
        named = (value for key, value in self.header.entries if key == "Partition")
        found = filter(None, (re.match(r"(\d{1,15})\s+(\S+)", value) for value in named))
        return {int(match[1]): printable(match[2]) for match in found}

    def numbers_of(self, partitions: Collection[int | str]) -> list[float]:
        """The numbers of partitions that are given by number or by name."""
        by_name = {name: number for number, name in self.partitions.items()}
        found = []
        for one in map(str, partitions):
            if one not in by_name and (self.is_accounting or not one.isdecimal()):
                raise ConfigError(
                    f"{self.path}: no partition {one!r}; {suggestion(one, list(by_name))}"
                )
            found.append(float(by_name.get(one, one)))
        return found

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


def _in_words(column: int) -> str:
    """The number of a field, from 1, and its name, for messages."""
    return f"field {column + 1} ({FIELDS[column].replace('_', ' ')})"


@saying_what_reads("swf")
def read_log(
    path: Path | str,
    *,
    processors: int | None = None,
    memory: int | None = None,
    estimates: Literal["requested", "actual"] = "requested",
    cancelled: Literal["keep", "drop"] = "keep",
    partitions: Collection[int | str] | None = None,
    max_bad_share: float = 0.0,
) -> BatchLog:
    """Read a log (SWF or accounting, plain or compressed) as rigid jobs in whole seconds.

    A job holds its allocated processors for its run time; if they are not known, the requested
    ones. Schedulers see the requested time, or the run time if no time was requested or with
    `estimates="actual"`. `cancelled` says whether jobs that were cancelled while they ran are kept.
    Memory is a resource only if that of the whole cluster is given, in KB.

    No line is left out silently: *bad* lines violate the format, and a log with more of them than
    `max_bad_share` is refused; an incomplete last line is *truncated*, which is always tolerated;
    *dropped* and *changed* lines are counted by reason.

    The cluster has the given processors. Default: MaxProcs of the header, else MaxNodes, else those
    of the largest job; of accounting, the most that were in use at once.

    Example: `read_log("lublin_256.swf").jobs.capacity` is [256].
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
    if partitions is not None and processors is None and not log.is_accounting:
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
        log.reader.kind, 1, log.num_rows, log.bad.count + bool(log.truncated),
        samples, (*notes, *log.reader.notes(), *map(str, log.findings)), len(jobs),
    )  # fmt: skip
    return BatchLog(jobs, log.header, report, tuple(log.findings), first_submit_s, log.partitions)


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
        # Accounting has the memory of the job: divided and multiplied it is not quite the same.
        .mul(pl.col("processors")).round(3).ceil()
    )  # fmt: skip


def _drop_what_never_ran(
    log: _Lines, cancelled: str, partitions: Collection[int | str] | None
) -> None:
    status = pl.col("status")
    run_time = pl.col("run_time")
    has_no_processors = pl.col("processors") <= 0
    is_cancelled = status == _CANCELLED
    if partitions is not None:
        log.drop(~pl.col("partition").is_in(log.numbers_of(partitions)), "of other partitions")
    log.drop(
        status.is_between(2, 4),
        "parts of a job that was swapped out, which another line summarises (status 2, 3, 4)",
    )
    log.drop(is_cancelled & ((run_time <= 0) | has_no_processors), "cancelled before they started")
    unfinished = "they still waited or ran" if log.is_accounting else "no run time"
    log.drop(run_time == MISSING, unfinished)
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
    if log.is_accounting and len(log.kept):
        times = log.kept["submit_time"] + log.kept["wait_time"].clip(0), log.kept["run_time"]
        most = most_in_use(*map(pl.Series.to_numpy, (*times, log.kept["processors"])))
        return int(most), "the most that were in use at once: give --processors if it has more"
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
    log.note(pl.col("preceding_job") > 0, "named a job to wait for, but do not wait for it")
    waits = log.kept["wait_time"]
    if (waits >= 0).any():
        log.note(pl.col("wait_time") < 0, 'no recorded wait, so there is no row "as recorded"')
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
    users, partitions, waits = whole["user"], whole["partition"], whole["wait_time"]
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
        waits=waits if (waits >= 0).all() else waits[:0],
        partitions=partitions if len(np.unique(partitions)) > 1 else partitions[:0],
        user_names=tuple(getattr(log.reader, "users", ())),
    )
    return jobs, int(whole["submit_time"][0])
