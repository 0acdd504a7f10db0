"""Opens and reads the files that users name: every reader goes through this module.

A file may be anything: a pipe that never ends, a few kilobytes that decompress to terabytes, a
list that is nested a million times, a number of 5,000 digits. What is read here is a regular file
(never a pipe, except for secrets), decompressed by its first bytes (`parcae.base.codecs`), and
bounded: `MAX_FILE_BYTES` for what is read as a whole, `MAX_LINE_BYTES` for one line of what is read
as a stream. Every error is one line that names the file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import tarfile
import zipfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from parcae.base.codecs import GZIP_MAGIC, ByteStream, decompressed_chunks
from parcae.base.errors import FormatError
from parcae.base.files import check_regular
from parcae.base.texts import BYTES_PER_MIB

#: What is read as a whole has at most this many bytes, decompressed.
MAX_FILE_BYTES = 1024 * BYTES_PER_MIB
#: A line of what is read line by line has at most this many bytes.
MAX_LINE_BYTES = 256 * BYTES_PER_MIB
#: What is read as a stream unpacks to at most so many times its size, or to so many bytes.
_MOST_TIMES = 1_000
_MUCH_UNPACKED = 256 * BYTES_PER_MIB
#: A secret has at most this many bytes; a pipe that it comes through is waited for this long.
_SHORT_BYTES = 64 * 1024
_WRITER_S = 10.0
#: An archive has at most this many members.
MAX_MEMBERS = 100_000
_TAR_MAGIC = slice(257, 262)
#: The header of a member of a tar archive has at most this many bytes.
_HEADER_BYTES = BYTES_PER_MIB
#: What libraries raise on damaged archives and members of archives.
_DAMAGED_ARCHIVE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,  # encrypted, or compressed in a way that this Python lacks
    NotImplementedError,
    KeyError,
    ValueError,
)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file."""
    check_regular(path)
    return Path(path).open("rb")


def chunks(path: Path, progress: Callable[[int], None] | None = None) -> Iterator[bytes]:
    """Yield the content of a file in pieces, decompressed by its first bytes."""
    with open_file(path) as stream:
        if Path(path).suffix == ".gz" and stream.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            raise FormatError(f"{path}: truncated or not gzip data; download the file again")
        stream.seek(0)
        yield from unpacked(Counting(stream, progress), str(path), may_be_cut=False)


def read_file(path: Path, max_bytes: int | None = None) -> bytes:
    """Read a whole file, decompressed by its first bytes.

    It may have at most `max_bytes` decompressed (default: `MAX_FILE_BYTES`).
    """
    read = []
    num_bytes = 0
    most = MAX_FILE_BYTES if max_bytes is None else max_bytes
    for chunk in chunks(path):
        read.append(chunk)
        num_bytes += len(chunk)
        if num_bytes > most:
            raise FormatError(f"{path}: more than {_size(most)} of data; give a smaller file")
    return b"".join(read)


def read_short(path: Path) -> bytes:
    """Read a secret, from a file or a pipe: a shell's `<(command)` keeps it off the disk."""
    path = Path(path)
    check_regular(path, may_be_pipe=True)
    if path.is_dir():  # `os.fdopen` would name the number of the file
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    content = b""
    # Opening a pipe that nobody writes to would wait; with this flag, only reading waits.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as stream:
        while len(content) <= _SHORT_BYTES:
            if not select.select([stream], [], [], _WRITER_S)[0]:
                raise FormatError(f"{path}: nothing comes through this pipe; write to it")
            piece = stream.read(_SHORT_BYTES + 1)
            if not piece:
                return content
            content += piece
    raise FormatError(f"{path}: more than 64 KiB; this is no secret")


def lines(
    path: Path, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[bytes, bool]]:
    """Yield the lines of a file as `split_lines` does; the file may be larger than the memory.

    Editors of some systems begin a text with a byte order mark; it is left out.
    """
    found = split_lines(chunks(path, progress), str(path))
    for line, is_whole in islice(found, 1):
        yield line.removeprefix(BOM_UTF8), is_whole
    yield from found


def unpacked(stream: Counting, label: str, *, may_be_cut: bool = True) -> Iterator[bytes]:
    """The decompressed content of a stream; refuses what unpacks to more than any log does."""
    num_bytes = 0
    for piece in decompressed_chunks(stream, label, may_be_cut=may_be_cut):
        num_bytes += len(piece)
        if num_bytes > max(_MUCH_UNPACKED, _MOST_TIMES * stream.num_bytes):
            raise FormatError(
                f"{label}: unpacks to more than {_MOST_TIMES:,} times its size; this is no log"
            )
        yield piece


def split_lines(pieces: Iterable[bytes], label: str) -> Iterator[tuple[bytes, bool]]:
    """Yield lines without their ends, each with whether its end was there.

    Only the last line can lack its end; it may be truncated. Where a whole piece is blank, its
    lines are one.
    """
    rest: list[bytes] = []
    num_bytes = 0
    for whole in pieces:
        piece = b"\n" if whole.isspace() and b"\n" in whole else whole
        # The first part ends the line that an earlier piece began; the last one begins a new line.
        first, *others = piece.split(b"\n")
        rest.append(first)
        num_bytes += len(first)
        if others:
            yield b"".join(rest), True
            for line in others[:-1]:
                yield line, True
            rest = [others[-1]]
            num_bytes = len(others[-1])
        elif num_bytes > MAX_LINE_BYTES:
            raise FormatError(
                f"{label}: a line is longer than {_size(MAX_LINE_BYTES)}; this is no text of lines"
            )
    if tail := b"".join(rest):
        yield tail, False


class Counting:
    """A stream that reports how many bytes are read from it; `progress` may be None."""

    def __init__(self, stream: ByteStream, progress: Callable[[int], None] | None) -> None:
        self._stream = stream
        self._progress = progress
        self.num_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes of the stream."""
        data = self._stream.read(size)
        self.num_bytes += len(data)
        if self._progress and data:
            self._progress(len(data))
        return data


@contextmanager
def archive_errors(label: str) -> Iterator[None]:
    """Turn what libraries raise on a damaged archive into errors of the file `label`."""
    try:
        yield
    except (OSError, *_DAMAGED_ARCHIVE) as error:
        # An error of the system about a file says which; one about a damaged offset does not.
        if isinstance(error, OSError) and error.filename is not None:
            raise
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise FormatError(f"{label}: damaged archive ({reason}); download it again") from None


def members(path: Path) -> list[zipfile.ZipInfo]:
    """The files of a zip archive."""
    check_regular(path)
    with archive_errors(str(path)), zipfile.ZipFile(path) as archive:
        found = [info for info in archive.infolist() if not info.is_dir()]
    if len(found) > MAX_MEMBERS:
        raise FormatError(f"{path}: {len(found):,} files; at most {MAX_MEMBERS:,} are read")
    return found


def open_member(path: Path, name: str) -> BinaryIO:
    """Open a file of a zip archive; errors in its content are those of `archive_errors`."""
    check_regular(path)
    with archive_errors(f"{path}!{name}"):
        return cast("BinaryIO", zipfile.ZipFile(path).open(name))


def is_tar(path: Path) -> bool:
    """Whether a file is a tar archive, compressed or not."""
    head = b""
    with open_file(path) as stream:
        for piece in decompressed_chunks(stream, str(path)):
            head += piece
            if len(head) >= _TAR_MAGIC.stop:
                break
    return head[_TAR_MAGIC] == b"ustar"


class TarMember(NamedTuple):
    """A file of a tar archive, with its size in bytes."""

    name: str
    size: int
    content: ByteStream


def tar_members(path: Path) -> Generator[TarMember, None, None]:
    """Yield the files of a tar archive, which is decompressed as it is read.

    The content of a file is there until the next one is asked for.
    """
    with open_file(path) as stream:
        content = _Unpacked(unpacked(Counting(stream, None), str(path)), path)
        reading = archive_errors(str(path))
        with reading, tarfile.open(fileobj=cast("Any", content), mode="r|") as archive:
            for _ in range(MAX_MEMBERS):
                info = archive.next()
                if info is None:
                    return
                # Its content is read or passed over, and then a header.
                content.left += info.size + _HEADER_BYTES
                if info.isreg():
                    member = cast("ByteStream", archive.extractfile(info))
                    yield TarMember(info.name, info.size, member)
    raise FormatError(f"{path}: more than {MAX_MEMBERS:,} files")


@contextmanager
def open_tar_member(path: Path, name: str) -> Iterator[ByteStream]:
    """Open a file of a tar archive, which is decompressed up to it."""
    with closing(tar_members(path)) as found:
        for member in found:
            if member.name == name:
                yield member.content
                return
    raise FormatError(f"{path}!{name}: this file is not in the archive; download it again")


class _Unpacked:
    """The content of a tar archive; no more than `left` bytes, since headers are kept in memory."""

    def __init__(self, pieces: Iterator[bytes], path: Path) -> None:
        self.left = 2 * _HEADER_BYTES
        self._pieces = pieces
        self._path = path
        self._piece = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        if self._at >= len(self._piece):
            self._piece = next(self._pieces, b"")
            self._at = 0
        found = self._piece[self._at : self._at + size]
        self._at += len(found)
        self.left -= len(found)
        if self.left < 0:
            raise FormatError(f"{self._path}: damaged archive (a header of more than 1 MiB)")
        return found


def read_member(path: Path, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a whole file of a zip archive."""
    with archive_errors(f"{path}!{name}"), open_member(path, name) as stream:
        content = stream.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise FormatError(f"{path}!{name}: more than {_size(max_bytes)} of data")
    return content


def _size(num_bytes: int) -> str:
    num_mib = num_bytes // BYTES_PER_MIB
    return f"{num_mib // 1024} GiB" if num_mib >= 1024 else f"{num_mib} MiB"


def parsed_json(
    path: object,
    data: bytes,
    layout: str,
    of_pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Parse the content of a JSON file."""
    try:
        return json.loads(data, object_pairs_hook=of_pairs)
    except json.JSONDecodeError as error:
        reason = f":{error.lineno}: not JSON ({error.msg})"
    except UnicodeDecodeError as error:
        reason = f": not text ({error})"
    except RecursionError:
        reason = ": nested too deeply"
    except ValueError as error:
        reason = f": not JSON ({str(error)[:80]})"
    raise FormatError(f"{path}{reason}; expected {layout}")


def shown(value: object) -> str:
    """A value as JSON, cut to 60 characters, for messages."""
    try:
        return json.dumps(value, default=repr)[:60]
    except (ValueError, TypeError, RecursionError):
        # An integer of thousands of digits has no text, and neither has a deep list.
        return f"a very long {type(value).__name__}"


def number(what: str, value: Any, least: float, most: float) -> float:
    """Check the range of a number.

    Example: `number("jobs.json: load", "0.5", 0, 1)` is 0.5.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found <= most:
        raise FormatError(
            f"{what} is {shown(value)}; it must be a number from {least:g} to {most:g}"
        )
    return found


def whole_number(what: str, value: Any, least: int, most: int) -> int:
    """Check the range of a whole number; 5.0 is accepted as 5.

    Example: `whole_number("sets.json: cores", 8, 1, 1_000_000)` is 8.
    """
    is_whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not is_whole or not least <= value <= most:
        raise FormatError(
            f"{what} is {shown(value)}; it must be a whole number from {least:,} to {most:,}"
        )
    return int(value)
