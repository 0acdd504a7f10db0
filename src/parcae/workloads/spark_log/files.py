"""Finds Spark event logs: files, rolling v2 directories, folders, zip files of the history
server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from parcae.base.codecs import decompressed_chunks
from parcae.base.errors import FormatError
from parcae.base.loader import (
    Counting,
    archive_errors,
    members,
    open_file,
    open_member,
    split_lines,
)
from parcae.workloads.readers import first_of
from parcae.workloads.spark_log.events import ApplicationStart, parse_event

ROLLING_FILE = re.compile(r"^events_(\d+)_")
EVENT_START = re.compile(rb'^\s*\{\s*"Event"\s*:')
# As many missing parts are named in a message.
_SHOWN_MISSING = 5
ZIP_MAGIC = b"PK\x03\x04"
_APPLICATION_START = b"SparkListenerApplicationStart"
#: Spark writes the start of an application among the first events; only these are searched.
_HEAD_LINES = 1_000
#: As many bytes of a file say whether it begins like an event log.
_HEAD_BYTES = 200


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
        return f"{self.path}!{self.member}" if self.member else str(self.path)

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
                sources.append(_rolling_log(path.name, str(path), map(_part, parts)))
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
    return FoundLogs(_one_copy_each(distinct[::-1], notes), tuple(notes))


def _by_log(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    """The paths, each with the parts of its log if it is the first part of a rolling log.

    Further parts are no paths of their own.
    """
    by_log: dict[Path, list[Path]] = {}
    first_of: dict[tuple[Path, str], Path] = {}
    # Shells list part 10 before part 2.
    for path in sorted(dict.fromkeys(paths), key=lambda path: _number(path.name)):
        if _number(path.name) > 0 and path.is_file():
            # Behind the application's id there may be the name of a codec, or "compact".
            log = path.parent, ROLLING_FILE.sub("", path.name).partition(".")[0]
            by_log.setdefault(first_of.setdefault(log, path), []).append(path)
        else:
            by_log[path] = []
    return by_log


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
        copies.setdefault(_application_start(source) or source, []).append(source)
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
        try:
            event = parse_event(line)
        except FormatError:
            return None
        if isinstance(event, ApplicationStart) and event.app_id:
            return event
    return None


def _logs_in_folder(folder: Path, notes: list[str]) -> list[LogSource]:
    """The logs in a folder and its subfolders; adds a note for each file that is not a log."""
    sources: list[LogSource] = []
    for path in sorted(folder.iterdir()):
        # Checksums, marker files and status files of rolling logs are no logs.
        if path.name.startswith((".", "_", "appstatus_")) or path.suffix == ".crc":
            continue
        # Such a link may lead back to this folder.
        if path.is_symlink() and path.is_dir():
            notes.append(f"Left out {path}: a link to a folder; give the folder itself.")
            continue
        try:
            sources += _logs_at(path, notes)
        # A folder may contain other files, and logs and folders of other users: they are reported,
        # but do not stop the import.
        except (FormatError, OSError) as error:
            notes.append(f"Left out {error}.")
    return sources


def _part(path: Path) -> LogPart:
    return LogPart(path, path.stat().st_size)


def _logs_at(path: Path, notes: list[str]) -> list[LogSource]:
    """The logs of a file, of a rolling directory, or of a folder and its subfolders."""
    if path.is_dir():
        parts = [_part(child) for child in path.iterdir() if ROLLING_FILE.match(child.name)]
        if parts:
            return [_rolling_log(path.name, str(path), parts)]
        return _logs_in_folder(path, notes)
    with open_file(path) as stream:
        if stream.read(4) == ZIP_MAGIC:
            return _logs_in_zip(path)
    part = _part(path)
    _check_is_log(part)
    return [LogSource(path.name, (part,))]


def _logs_in_zip(path: Path) -> list[LogSource]:
    """The logs of a zip archive from the history server (`/api/v1/applications/<id>/logs`)."""
    rolling: dict[str, list[LogPart]] = {}
    sources: list[LogSource] = []
    for info in members(path):
        part = LogPart(path, info.compress_size, info.filename)
        if ROLLING_FILE.match(part.name):
            rolling.setdefault(str(PurePosixPath(info.filename).parent), []).append(part)
        elif not part.name.startswith((".", "appstatus_")):
            _check_is_log(part)
            sources.append(LogSource(part.name, (part,)))
    sources += [
        _rolling_log(folder, f"{path}!{folder}", parts) for folder, parts in rolling.items()
    ]
    if not sources:
        raise FormatError(f"{path}: the zip archive contains no Spark event log")
    return sources


def _rolling_log(name: str, label: str, parts: Iterable[LogPart]) -> LogSource:
    """A rolling log with its parts in order of their numbers.

    Refuses an incomplete or compacted log, and one whose first part is no log or cannot be opened.
    """
    by_number = sorted(parts, key=lambda part: _number(part.name))
    compacted = [part.name for part in by_number if part.name.endswith(".compact")]
    if compacted:
        raise FormatError(
            f"{label}: the log was compacted ({compacted[0]}), "
            "which drops the events of finished jobs; import logs that were never compacted "
            "(spark.history.fs.eventLog.rolling.maxFilesToRetain high enough)"
        )
    numbers = [_number(part.name) for part in by_number]
    # A rolling log starts with part 1 and has no gaps.
    if numbers != list(range(1, len(numbers) + 1)):
        # Among this many numbers, one is missing; the last one may be as large as a name can say.
        candidates = range(1, min(numbers[-1], len(numbers) + _SHOWN_MISSING) + 1)
        missing = sorted(set(candidates) - set(numbers))[:_SHOWN_MISSING]
        what = (
            f"parts {missing} are missing" if missing else f"part numbers {numbers[:9]} occur twice"
        )
        raise FormatError(
            f"{label}: {what}; expected events_1_..., events_2_..., ... without gaps; "
            "copy the whole directory"
        )
    _check_is_log(by_number[0])
    return LogSource(name, tuple(by_number))


def _number(name: str) -> int:
    """The number of a part of a rolling log by its file name; 0 if it is none."""
    match = ROLLING_FILE.match(name)
    return int(match.group(1)) if match else 0


def _check_is_log(part: LogPart) -> None:
    with open_part(part) as stream:
        head = first_of(_pieces(Counting(stream, None), part.label), _HEAD_BYTES)
    if not EVENT_START.match(head):
        what = "is empty" if not head else "does not begin like a Spark event log"
        raise FormatError(
            f"{part.label} {what}; "
            "expected lines of JSON such as {'Event':'SparkListenerLogStart',...}"
        )


def open_part(part: LogPart) -> BinaryIO:
    """Open a part for reading its stored bytes."""
    try:
        if part.member is None:
            return open_file(part.path)
        return open_member(part.path, part.member)
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
    pieces = decompressed_chunks(stream, label)
    while True:
        try:
            with archive_errors(label):
                piece = next(pieces, b"")
        except OSError as error:
            raise FormatError(f"{label}: cannot be read ({error})") from error
        if not piece:
            return
        yield piece
