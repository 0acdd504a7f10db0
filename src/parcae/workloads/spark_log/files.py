"""Finds Spark event logs: files, logs in parts, folders, and zip and tar archives of them.

Spark's rolling logs have numbered parts, and logs of Databricks a part for every hour.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath

from parcae.base.codecs import ByteStream
from parcae.base.errors import FormatError
from parcae.base.loader import (
    Counting,
    archive_errors,
    is_tar,
    members,
    open_file,
    open_member,
    open_tar_member,
    split_lines,
    tar_members,
    unpacked,
)
from parcae.base.urls import shown
from parcae.workloads.readers import first_of
from parcae.workloads.spark_log.application import ApplicationLog, ApplicationStart
from parcae.workloads.spark_log.events import add_event

ROLLING_FILE = re.compile(r"^events_(\d+)_")
#: On Databricks the newest events are in `eventlog`, those before in `eventlog-DATE--HH-MM.gz`.
HOURLY_FILE = re.compile(r"^eventlog(?:-(\d{4}-\d\d-\d\d--\d\d-\d\d))?(?:\.[a-z0-9]{1,8})?$")
EVENT_START = re.compile(rb'^\s*\{\s*"Event"\s*:')
#: An event as the text of a field, as log shippers write it.
_WRAPPED_EVENT = re.compile(rb'"([\w.@-]{1,40})"\s*:\s*"\s*\{\s*\\"Event\\"')
# As many missing parts are named in a message.
_SHOWN_MISSING = 5
#: Folders below so many others are not searched; as many characters of their paths are shown.
_MOST_LEVELS = 200
_SHOWN_PATH = 100
ZIP_MAGIC = b"PK\x03\x04"
_APPLICATION_START = b"SparkListenerApplicationStart"
#: Spark writes the start of an application among the first events; only these are searched.
_HEAD_LINES = 1_000
#: As many bytes of a file say whether it begins like an event log.
_HEAD_BYTES = 2_000


@dataclass(frozen=True)
class LogPart:
    """One file of a log: a path, or a member of a zip archive; `size` is the stored size in
    bytes.
    """

    path: Path
    size: int
    member: str | None = None

    @property
    def label(self) -> str:
        """The name of the part in messages."""
        return shown(f"{self.path}!{self.member}" if self.member else self.path)

    @property
    def name(self) -> str:
        """The file name without folders."""
        return PurePosixPath(self.member).name if self.member else self.path.name


@dataclass(frozen=True)
class LogSource:
    """The event log of one application; its parts are in order."""

    name: str
    parts: tuple[LogPart, ...]

    @property
    def label(self) -> str:
        """The log in messages: the file, or the folder of a rolling log."""
        first = self.parts[0]
        if first.name == self.name:
            return first.label
        return first.label.removesuffix(first.name).rstrip("/!")


@dataclass(frozen=True)
class FoundLogs:
    """The logs found, and sentences about files that were left out."""

    sources: tuple[LogSource, ...]
    notes: tuple[str, ...]


def find_logs(paths: Sequence[Path]) -> FoundLogs:
    """Find all event logs: files, rolling directories, zip archives, or folders that contain them.

    Parts of a rolling log that are given one by one make one log. Of several copies of one
    application's log only one is given; notes name the others.
    """
    if not paths:
        raise FormatError("no event log was given: name a log, or a folder of logs")
    sources: list[LogSource] = []
    notes: list[str] = []
    for path, parts in _by_log(paths).items():
        if not path.exists():
            raise FormatError(
                f"{path}: no such file or directory; expected a Spark event log or a folder of them"
            )
        try:
            if parts:
                sources.append(_log_in_parts(path.name, str(path), map(_part, parts), notes))
            else:
                sources += _logs_at(path, notes)
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error}); check its permissions") from error
    if not sources:
        where = ", ".join(str(path) for path in paths)
        left_out = f" ({' '.join(notes)})" if notes else ""
        raise FormatError(
            f"{where}: no Spark event log found{left_out}; logs begin with a line {{'Event': ...}}"
        )
    distinct = list({_resolved_parts(source): source for source in reversed(sources)}.values())
    return FoundLogs(_one_copy_each(distinct[::-1], notes), tuple(map(shown, notes)))


def _by_log(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The paths, each with the parts of its log if it is the first part of a log in parts.

    Further parts are no paths of their own.
    """
    by_log: dict[Path, list[Path]] = {}
    first_of: dict[tuple[Path, str], Path] = {}
    # Shells list part 10 before part 2.
    for path in sorted(dict.fromkeys(paths), key=lambda path: _place(path.name)):
        log = _log_of(path.name)
        if log and path.is_file():
            by_log.setdefault(first_of.setdefault((path.parent, log), path), []).append(path)
        else:
            by_log[path] = []
    return by_log


def _log_of(name: str) -> str:
    """What the names of a log's parts have in common; "" for the name of no part."""
    if ROLLING_FILE.match(name):
        # Behind the application's id there may be the name of a codec, or "compact".
        return ROLLING_FILE.sub("", name).partition(".")[0]
    return "eventlog" if HOURLY_FILE.match(name) else ""


def _place(name: str) -> tuple[int, bool, str]:
    """The place of a part in its log: its number and whether it was compacted, or its hour."""
    if rolling := ROLLING_FILE.match(name):
        # Spark compacts the parts up to a number into one file of this number.
        return int(rolling[1]), name.endswith(".compact"), ""
    hourly = HOURLY_FILE.match(name)
    return 0, False, "" if hourly is None else hourly[1] or "newest"


def _resolved_parts(source: LogSource) -> tuple[tuple[Path, str | None], ...]:
    """The files of a log, equal for all ways to write their paths."""
    return tuple((part.path.resolve(), part.member) for part in source.parts)


def _one_copy_each(sources: Sequence[LogSource], notes: list[str]) -> tuple[LogSource, ...]:
    """One log of every application; adds a note for each further copy."""
    # The heads are read only where there could be copies.
    if len(sources) < 2:
        return tuple(sources)
    copies: dict[ApplicationStart | LogSource, list[LogSource]] = {}
    for source in sources:
        start = None
        # Whoever reads the log says what is wrong with it.
        with suppress(FormatError):
            start = _application_start(source)
        copies.setdefault(start or source, []).append(source)
    kept = []
    for same in copies.values():
        # Only copies are read to their end to be compared.
        first, *others = sorted(same, key=_incompleteness) if len(same) > 1 else same
        kept.append(first)
        notes += [
            f"Left out {other.label}: the same application as {first.label}." for other in others
        ]
    return tuple(kept)


def _incompleteness(source: LogSource) -> tuple[bool, int, int]:
    """The key that orders the copies of a log, the most complete one first.

    A copy that was made while the application ran lacks its last events, and a rolling log its
    last parts.
    """
    num_bytes = sum(_content_size(part) for part in source.parts)
    return source.name.endswith(".inprogress"), -len(source.parts), -num_bytes


def _content_size(part: LogPart) -> int:
    """The bytes in the lines of a part, as far as they can be read."""
    size = 0
    with suppress(FormatError):
        for line, _ in read_lines(part):
            size += len(line)
    return size


def _application_start(source: LogSource) -> ApplicationStart | None:
    """The event that identifies the application of a log; None if its head has no such event."""
    for line, _ in islice(read_lines(source.parts[0]), _HEAD_LINES):
        if _APPLICATION_START not in line[:100]:
            continue
        log = ApplicationLog(source.name)
        try:
            add_event(log, line)
        except FormatError:
            return None
        if log.app_id:
            return log.start
    return None


def _logs_in_folder(folder: Path, notes: list[str]) -> list[LogSource]:
    """The logs in a folder and its subfolders; adds a note for each file that is not a log."""
    sources: list[LogSource] = []
    children = sorted(folder.iterdir())
    hourly = [path for path in children if HOURLY_FILE.match(path.name) and path.is_file()]
    if len(hourly) > 1:
        with _noting(notes):
            sources.append(_log_in_parts(folder.name, str(folder), map(_part, hourly), notes))
        children = [path for path in children if path not in hourly]
    for path in children:
        # Checksums, marker files and status files of rolling logs are no logs.
        if path.name.startswith((".", "_", "appstatus_")) or path.suffix == ".crc":
            continue
        # Such a link may lead back to this folder.
        if path.is_symlink() and path.is_dir():
            notes.append(f"Left out {path}: a link to a folder; give the folder itself.")
            continue
        with _noting(notes):
            sources += _logs_at(path, notes)
    return sources


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    """Make errors notes: a folder or an archive may contain other files, and damaged logs, and logs
    and folders of other users.
    """
    try:
        yield
    except (FormatError, OSError) as error:
        notes.append(f"Left out {error}.")


def _part(path: Path) -> LogPart:
    return LogPart(path, path.stat().st_size)


def _logs_at(path: Path, notes: list[str]) -> list[LogSource]:
    """The logs of a file, of a rolling directory, or of a folder and its subfolders."""
    if path.is_dir():
        parts = [_part(child) for child in path.iterdir() if ROLLING_FILE.match(child.name)]
        if parts:
            return [_log_in_parts(path.name, str(path), parts, notes)]
        if len(path.parts) > _MOST_LEVELS:
            raise FormatError(f"{str(path)[:_SHOWN_PATH]}...: a folder this deep has no logs")
        return _logs_in_folder(path, notes)
    if _is_zip(path):
        # The History Server gives logs so (`/api/v1/applications/<id>/logs`).
        found = [LogPart(path, info.compress_size, info.filename) for info in members(path)]
        return _logs_in_archive(path, found, notes)
    if is_tar(path):
        found = [LogPart(path, member.size, member.name) for member in tar_members(path)]
        return _logs_in_archive(path, found, notes)
    part = _part(path)
    _check_is_log(part)
    return [LogSource(path.name, (part,))]


def _is_zip(path: Path) -> bool:
    with open_file(path) as stream:
        return stream.read(len(ZIP_MAGIC)) == ZIP_MAGIC


def _logs_in_archive(path: Path, parts: Iterable[LogPart], notes: list[str]) -> list[LogSource]:
    """The logs of a zip or tar archive."""
    before = len(notes)
    in_parts: dict[str, list[LogPart]] = {}
    sources: list[LogSource] = []
    for part in parts:
        if _log_of(part.name):
            in_parts.setdefault(str(PurePosixPath(str(part.member)).parent), []).append(part)
        elif not part.name.startswith((".", "appstatus_")):
            with _noting(notes):
                _check_is_log(part)
                sources.append(LogSource(part.name, (part,)))
    for inside, found in in_parts.items():
        with _noting(notes):
            sources.append(_log_in_parts(inside, f"{path}!{inside}", found, notes))
    if not sources:
        why = f" ({notes.pop()})" if len(notes) > before else ""
        raise FormatError(f"{path}: the archive contains no Spark event log{why}")
    return sources


def _log_in_parts(name: str, label: str, parts: Iterable[LogPart], notes: list[str]) -> LogSource:
    """A log with its parts in order; adds a note on those that are absent.

    Refuses one that has a part twice, or whose first part is no log or cannot be opened.
    """
    in_order = sorted(parts, key=lambda part: _place(part.name))
    places = [_place(part.name) for part in in_order]
    twice = [
        part.name for part, a, b in zip(in_order[1:], places, places[1:], strict=False) if a == b
    ]
    if twice:
        raise FormatError(
            f"{label}: the part {twice[0]} is there twice; give the folder of one log"
        )
    # Like Spark, which deletes them later.
    first = max((at for at, (_, is_compact, _) in enumerate(places) if is_compact), default=0)
    numbers = [number for number, _, _ in places[first:]]
    if places[first][1]:
        notes.append(
            f"{label} was compacted up to part {numbers[0]}: the jobs that had ended by then are "
            "not in it (spark.history.fs.eventLog.rolling.maxFilesToRetain keeps more)."
        )
    elif numbers[0] > 1:
        notes.append(
            f"{label} begins with part {numbers[0]}: the parts before it are absent, and the jobs "
            "in them."
        )
    # The last number may be as large as a name can say.
    gaps = range(numbers[0], min(numbers[-1], numbers[0] + len(numbers) + _SHOWN_MISSING))
    if absent := sorted(set(gaps) - set(numbers))[:_SHOWN_MISSING]:
        notes.append(
            f"{label} lacks parts {absent}: Spark may skip a number (SPARK-45669); if the parts "
            "were lost, so were their events."
        )
    _check_is_log(in_order[first])
    return LogSource(name, tuple(in_order[first:]))


def _check_is_log(part: LogPart) -> None:
    with open_part(part) as stream:
        head = first_of(_pieces(Counting(stream, None), part.label), _HEAD_BYTES)
    if not EVENT_START.match(head):
        if wrapped := _WRAPPED_EVENT.search(head):
            field = wrapped[1].decode()
            raise FormatError(
                f"{part.label}: its lines hold the events as text in a field {field!r}, as log "
                f"shippers such as Fluent Bit write them; unwrap them first: "
                f"jq -r '.[\"{field}\"]' FILE > events"
            )
        what = "is empty" if not head else "does not begin like a Spark event log"
        raise FormatError(
            f"{part.label} {what}; "
            "expected lines of JSON such as {'Event':'SparkListenerLogStart',...}"
        )


def open_part(part: LogPart) -> AbstractContextManager[ByteStream]:
    """Open a part for reading its stored bytes."""
    try:
        if part.member is None:
            return open_file(part.path)
        if _is_zip(part.path):
            return open_member(part.path, part.member)
        return open_tar_member(part.path, part.member)
    except OSError as error:
        raise FormatError(f"{part.label}: cannot be opened ({error})") from error


def read_lines(
    part: LogPart, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a part without line ends, each with whether its line end was there.

    Only the last line can lack its end (False); it may be truncated. `progress` is called with
    the number of stored bytes read since the last call.
    """
    with open_part(part) as stream:
        counted = Counting(stream, progress)
        yield from split_lines(_pieces(counted, part.label), part.label)


def _pieces(stream: Counting, label: str) -> Iterator[bytes]:
    """The decompressed content of a part; only its own errors are caught, not its reader's."""
    pieces = unpacked(stream, label)
    while True:
        try:
            with archive_errors(label):
                piece = next(pieces, b"")
        except OSError as error:
            raise FormatError(f"{label}: cannot be read ({error})") from error
        if not piece:
            return
        yield piece
