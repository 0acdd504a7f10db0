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
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import orjson
from pydantic import BaseModel, Field, ValidationError

from parcae.base.errors import FormatError, first_problem
from parcae.base.loader import read_file
from parcae.base.texts import __version__, ms_from_s
from parcae.service.learned import LearnedValues
from parcae.service.protocol import (
    ClientMessage,
    Events,
    ServerMessage,
    StateMessage,
    arriving,
    encode,
)
from parcae.service.session import Service, Session, Watcher
from parcae.service.turns import paced
from parcae.workloads.durations import MOST_EXECUTORS

_LOG = logging.getLogger(__name__)
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

    A failed write ends the file, never a session; another one begins with the next state.

    Raises:
        OSError: the folder cannot be created.
    """

    files_each = 1

    def __init__(self, folder: Path, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._max_bytes = max_file_bytes
        self._files = dict[str, _File]()
        self._has_failed = False

    @staticmethod
    def _key(session: Session) -> str:
        return session.application if session.service.sharing is None else "cluster"

    def received(self, session: Session, message: ClientMessage) -> None:
        """Write a message of a client; the first state begins the file."""
        if isinstance(message, StateMessage) and self._key(session) not in self._files:
            with self._failing(self._key(session)):
                self._begin(session, self._key(session))
                if self._has_failed:
                    self._has_failed = False
                    _LOG.warning("the recording in %s goes on", self._folder)
        if isinstance(message, StateMessage | Events):
            self._write_learned(session, message)
        self._write(session, b'"from":"client","message":' + encode(message))

    def sent(self, session: Session, message: ServerMessage) -> None:
        """Write a message of the service."""
        self._write(session, b'"from":"service","message":' + encode(message))

    def closed(self, session: Session) -> None:
        """End the file, unless other sessions still use it."""
        self._write(session, b'"from":"service","left":true')
        if session.service.sharing is None or not session.service.sessions:
            with self._failing(self._key(session)):
                self._end(self._key(session))

    def close(self) -> None:
        """End all files."""
        for key in list(self._files):
            with self._failing(key):
                self._end(key)

    @contextmanager
    def _failing(self, key: str) -> Iterator[None]:
        """End the file of a recording that cannot be written, and say so once."""
        try:
            yield
        except OSError as error:  # the disk is full, or the folder was removed, say
            file = self._files.pop(key, None)
            if file is not None:
                file.stream.close()
            if not self._has_failed:
                self._has_failed = True
                _LOG.error(
                    "the recording in %s has ended: %s; the next state of an application that can "
                    "be written begins another one",
                    self._folder,
                    error,
                )

    def _begin(self, session: Session, key: str, last: _File | None = None) -> None:
        """Open the part of a recording that follows `last`, or the first; write its head."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", key).lstrip(".")[:80] or "application"
        # All parts have the name of the first, by which they are found. A service that starts again
        # counts its sessions anew, so that only the time tells their recordings apart.
        began = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        stem = f"{began}-{name}-{session.name}"
        number = 1
        if last is not None:
            stem = _stem(last.path)
            number = last.num_parts + 1
        path = self._folder / f"{stem}-{number:03d}.jsonl"
        # Unbuffered: after a crash the file has everything but a part of the last line.
        stream = path.with_name(path.name + PART).open("wb", buffering=0)
        self._files[key] = _File(path, stream, number)
        _write_whole(stream, orjson.dumps(_head(session.service, key, number)) + b"\n")

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
        with self._failing(key):
            _write_whole(file.stream, whole)
            file.size += len(whole)
            if file.size > self._max_bytes:
                try:
                    self._begin(session, key, file)
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    return  # until there are file descriptors again, this part goes on
                self._finish(file)

    def _write_learned(self, session: Session, message: StateMessage | Events) -> None:
        """Write what was learned of the jobs of a message, unless the file has it."""
        file = self._files.get(self._key(session))
        if file is None:
            return
        model = session.service.duration_model
        new = dict[str, None]()
        for job in paced(arriving(message)):
            recurring = model.look_up(session.application, job.names, job.stages)
            if recurring.is_learned:
                new |= dict.fromkeys(key for key in recurring.keys if key not in file.known)
        file.known.update(new)
        learned = model.learned.dump(new)
        if learned["tasks"] or learned["runs"]:
            self._write(session, b'"from":"service","learned":' + orjson.dumps(learned))

    def _end(self, key: str) -> None:
        file = self._files.pop(key, None)
        if file is not None:
            self._finish(file)

    @staticmethod
    def _finish(file: _File) -> None:
        file.stream.close()
        file.path.with_name(file.path.name + PART).rename(file.path)


def _write_whole(stream: BinaryIO, line: bytes) -> None:
    if stream.write(line) < len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _head(service: Service, key: str, number: int) -> dict[str, Any]:
    """The first line of part `number` of a recording."""
    return {
        "parcae_recording": 3,
        "parcae": __version__,
        "policy": service.policy_name,
        "scope": service.scope.value,
        "application": key,
        "part": number,
        "wall_ms": ms_from_s(time.time()),
        "cores": service.sharing.num_cores if service.sharing is not None else None,
        # Of the jobs it is written as they come: in all, it may be many megabytes.
        "learned": service.duration_model.learned.dump(()),
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
    newest = max(map(_stem, files), key=_begun)
    parts = [path for path in files if _stem(path) == newest]
    # Beyond 999 parts, names are longer.
    return sorted(parts, key=lambda path: (len(path.name.removesuffix(PART)), path.name))


def _stem(path: Path) -> str:
    """The name of a recording: that of its parts without their numbers."""
    return path.name.rpartition("-")[0]


def _begun(stem: str) -> tuple[str, int, str]:
    """Sorts names of recordings by the time in them, then by the number of the session."""
    session = stem.rpartition("-")[2]
    return stem.partition("-")[0], len(session), session


class RecordedHead(BaseModel):
    """What is read of the first line of a file."""

    parcae_recording: Literal[3]
    policy: str
    application: str = ""
    part: int = 1
    wall_ms: int = 0
    cores: int | None = Field(None, ge=1, le=MOST_EXECUTORS)
    learned: LearnedValues = LearnedValues()


class RecordedLine(BaseModel):
    """A later line: a message, what was learned, or that the application left."""

    wall_ms: int = Field(0, ge=0, lt=1 << 53)
    application: str = ""
    sender: Literal["client", "service"] = Field("service", alias="from")
    message: dict[str, Any] = {}
    learned: LearnedValues | None = None
    left: bool = False


@dataclass(frozen=True)
class Recording:
    """A recording in memory: the head of its first file and the lines of all its files.

    `source` names the files in messages.
    """

    head: RecordedHead
    lines: list[RecordedLine]
    source: str = "recording"


def read_recording(*paths: Path) -> Recording:
    """Read a recording from its files, given in order; an incomplete last line is left out."""
    heads = []
    lines = []
    for path in paths:
        first, *later = _content(path).split(b"\n")
        heads.append(_parsed(RecordedHead, first, f"{path}:1"))
        # What follows the last end of a line is incomplete: the service was killed as it wrote.
        for number, line in enumerate(later[:-1], 2):
            lines.append(_parsed(RecordedLine, line, f"{path}:{number}"))
    if not heads:
        raise FormatError("no recording is given; give its files, or their folder")
    return Recording(heads[0], lines, ", ".join(map(str, paths[:3])))


def _content(path: Path) -> bytes:
    """The bytes of a file; a `.part` file may have been renamed since it was listed."""
    try:
        return read_file(path)
    except FileNotFoundError:
        if not path.name.endswith(PART):
            raise
        return read_file(path.with_name(path.name.removesuffix(PART)))


_Model = TypeVar("_Model", bound=BaseModel)


def _parsed(kind: type[_Model], line: bytes, where: str) -> _Model:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise FormatError(
            f"{where}: not a line of a recording of this version of `parcae serve --record` "
            f"({first_problem(error, 'the line')})"
        ) from None
