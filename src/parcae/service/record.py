"""Recordings of sessions: files of JSON lines with all messages of clients and of the service.

A file has a temporary name (`.part`) until it is full or its session ends; then it is renamed.
After a crash the `.part` file is still readable, except for an incomplete last line. Each
application has its own file; applications that share a cluster share one. What the service has
learned of a job's names is written before the first message with them in a file.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from parcae.base.errors import FormatError
from parcae.base.loader import read_file, whole_number
from parcae.base.texts import __version__, ms_from_s
from parcae.service.pieces import make_way
from parcae.service.protocol import (
    ClientMessage,
    Events,
    JobArrived,
    ServerMessage,
    StateMessage,
    encode,
)
from parcae.service.session import Scope, Service, Session, Watcher
from parcae.workloads.durations import MOST_EXECUTORS

_LOG = logging.getLogger(__name__)
FORMAT_VERSION = 3
#: Version 2 has everything that was learned in the first line, which is read alike.
_READABLE_VERSIONS = (2, FORMAT_VERSION)
PART = ".part"
#: A file that is larger than this is full.
MAX_FILE_BYTES = 64 << 20


@dataclass
class _File:
    """An open file of a recording."""

    path: Path  # its final name, without `.part`
    stream: BinaryIO
    num_parts: int
    size: int = 0
    #: The keys of learned durations that were written, or were unknown when a job came with them.
    known: set[str] = field(default_factory=set)


class Recorder(Watcher):
    """Writes every session to files in a folder.

    A failed write ends the recording, never a session.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self, folder: Path, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._max_bytes = max_file_bytes
        self._files = dict[str, _File]()
        self._is_broken = False

    @staticmethod
    def _key(session: Session) -> str:
        return "cluster" if session.service.scope is Scope.CLUSTER else session.application

    def opened(self, session: Session) -> None:
        """Begin a file for the session, if it needs one."""
        if self._key(session) not in self._files:
            self._begin(session, self._key(session))

    def received(self, session: Session, message: ClientMessage) -> None:
        """Write a message of a client."""
        if isinstance(message, StateMessage | Events):
            self._write_learned(session, message)
        self._write(session, b'"from":"client","message":' + encode(message))

    def sent(self, session: Session, message: ServerMessage) -> None:
        """Write a message of the service."""
        if self._key(session) in self._files:
            self._write(session, b'"from":"service","message":' + encode(message))

    def closed(self, session: Session) -> None:
        """End the file, unless other sessions still use it."""
        self._write(session, b'"from":"service","left":true')
        if session.service.scope is not Scope.CLUSTER or not session.service.sessions:
            self._end(self._key(session))

    def close(self) -> None:
        """End all files."""
        for key in list(self._files):
            self._end(key)

    def _begin(self, session: Session, key: str, last: _File | None = None) -> None:
        """Open the part of a recording that follows `last`, or the first; write its head."""
        if self._is_broken:
            return
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", key).lstrip(".")[:80] or "application"
        # All parts have the name of the first, by which they are found. A service that starts again
        # counts its sessions anew, so that only the time tells their recordings apart.
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        stem = f"{began}-{name}-{session.name}"
        number = 1
        if last is not None:
            stem = last.path.name.rpartition("-")[0]
            number = last.num_parts + 1
        path = self._folder / f"{stem}-{number:03d}.jsonl"
        head = _head(session.service, key, number)
        try:
            # Unbuffered: after a crash the file has everything but a part of the last line.
            stream = path.with_name(path.name + PART).open("wb", buffering=0)
            _write_whole(stream, orjson.dumps(head) + b"\n")
        except OSError as error:
            self._give_up(error)
            return
        self._files[key] = _File(path, stream, number)

    def _write(self, session: Session, line: bytes) -> None:
        key = self._key(session)
        file = self._files.get(key)
        if file is None:
            return
        whole = b'{"wall_ms":%d,"application":%s,%s}\n' % (
            ms_from_s(time.time()),
            orjson.dumps(session.application),
            line,
        )
        try:
            _write_whole(file.stream, whole)
        except OSError as error:
            self._give_up(error)
            return
        file.size += len(whole)
        if file.size > self._max_bytes:
            self._end(key)
            self._begin(session, key, file)

    def _write_learned(self, session: Session, message: StateMessage | Events) -> None:
        """Write what was learned of the jobs of a message, unless the file has it."""
        file = self._files.get(self._key(session))
        if file is None:
            return
        jobs = (
            message.jobs
            if isinstance(message, StateMessage)
            else [event.job for event in message.events if isinstance(event, JobArrived)]
        )
        model = session.service.duration_model
        new = dict[str, None]()
        for job in jobs:
            make_way()
            recurring = model.look_up(job.names, job.stages)
            if recurring.is_learned:
                new |= dict.fromkeys(key for key in recurring.keys if key not in file.known)
        file.known.update(new)
        learned = model.learned.dump_of(new)
        if learned["tasks"] or learned["runs"]:
            self._write(session, b'"from":"service","learned":' + orjson.dumps(learned))

    def _end(self, key: str) -> None:
        file = self._files.pop(key, None)
        if file is None:
            return
        try:
            file.stream.close()
            file.path.with_name(file.path.name + PART).rename(file.path)
        except OSError as error:  # the folder was removed, say
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _LOG.error("the recording in %s stops after an error: %s", self._folder, error)
        self._is_broken = True
        for file in self._files.values():
            file.stream.close()
        self._files.clear()


def _write_whole(stream: BinaryIO, line: bytes) -> None:
    if stream.write(line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _head(service: Service, key: str, number: int) -> dict[str, Any]:
    """The first line of part `number` of a recording."""
    return {
        "parcae_recording": FORMAT_VERSION,
        "parcae": __version__,
        "policy": service.policy_name,
        "scope": service.scope.value,
        "application": key,
        "part": number,
        "wall_ms": ms_from_s(time.time()),
        "cores": service.sharing.num_cores if service.sharing is not None else None,
        # Of the jobs it is written as they come: in all, it may be many megabytes.
        "learned": service.duration_model.learned.dump_of(()),
    }


def find_recordings(paths: Sequence[Path]) -> list[Path]:
    """The given files of a recording, or those of the newest recording in a folder, in order."""
    if len(paths) != 1 or not paths[0].is_dir():
        return list(paths)
    files = [path for path in paths[0].iterdir() if path.name.removesuffix(PART).endswith(".jsonl")]
    if not files:
        raise FormatError(
            f"{paths[0]}: no recording in this folder; make one with "
            f"`parcae serve --record {paths[0]}`"
        )
    stems = sorted(set(map(_stem, files)), key=_begun, reverse=True)
    # The doctor's visits leave recordings, too, but without any job.
    newest = next((stem for stem in stems if _has_state(files, stem)), stems[0])
    parts = [path for path in files if _stem(path) == newest]
    # Beyond 999 parts, names are longer.
    return sorted(parts, key=lambda path: (len(path.name.removesuffix(PART)), path.name))


def _has_state(files: Sequence[Path], stem: str) -> bool:
    """Whether a client of a recording sent its state."""
    first = min((path for path in files if _stem(path) == stem), key=lambda path: path.name)
    return b'"type":"state"' in _content(first)


def _stem(path: Path) -> str:
    """The name of a recording: that of its parts without their numbers."""
    return path.name.rpartition("-")[0]


def _begun(stem: str) -> tuple[str, int, str]:
    """Sorts names of recordings by the time in them, then by the number of the session."""
    session = stem.rpartition("-")[2]
    return stem.partition("-")[0], len(session), session


@dataclass(frozen=True)
class Recording:
    """A recording in memory: the head of its first file and the lines of all its files.

    `source` names the files in messages.
    """

    head: dict[str, Any]
    lines: list[dict[str, Any]]
    source: str = "recording"


def read_recording(*paths: Path) -> Recording:
    """Read a recording from its files, given in order; an incomplete last line is left out."""
    heads = []
    lines = []
    for path in paths:
        rows = list(_rows(path))
        if not rows or "parcae_recording" not in rows[0]:
            raise FormatError(f"{path}: not a recording of `parcae serve --record`")
        if rows[0]["parcae_recording"] not in _READABLE_VERSIONS:
            raise FormatError(
                f"{path}: recording version {rows[0]['parcae_recording']}; this Parcae reads "
                f"{' and '.join(map(str, _READABLE_VERSIONS))}: update Parcae"
            )
        heads.append(_checked_head(path, rows[0]))
        lines.extend(rows[1:])
    if not heads:
        raise FormatError("no recording is given; give its files, or their folder")
    return Recording(heads[0], lines, ", ".join(map(str, paths[:3])))


def _checked_head(path: Path, head: dict[str, Any]) -> dict[str, Any]:
    """The first line of a file, with the keys that are read."""
    if not isinstance(head.get("policy"), str) or not isinstance(head.get("learned", {}), dict):
        raise FormatError(f"{path}:1: no policy, or no learned durations; was the file edited?")
    if head.get("cores") is not None:
        whole_number(f"{path}:1: cores", head["cores"], 1, MOST_EXECUTORS)
    return head


def _content(path: Path) -> bytes:
    """The bytes of a file; a `.part` file may have been renamed since it was listed."""
    try:
        return read_file(path)
    except FileNotFoundError:
        if not path.name.endswith(PART):
            raise
        return read_file(path.with_name(path.name.removesuffix(PART)))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    parts = _content(path).split(b"\n")
    for number, part in enumerate(parts, 1):
        if not part:
            continue
        try:
            row = orjson.loads(part)
        except orjson.JSONDecodeError:
            if number == len(parts):
                return  # incomplete: the service was killed while it wrote
            raise FormatError(f"{path}:{number}: not a line of a recording") from None
        if not isinstance(row, dict) or not isinstance(row.get("message", {}), dict):
            raise FormatError(f"{path}:{number}: not a line of a recording")
        yield row
