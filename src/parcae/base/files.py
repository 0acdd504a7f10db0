"""Writing files completely or not at all, and checks of places before long work."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from parcae.base.errors import ConfigError, FormatError
from parcae.base.extensions import require
from parcae.base.urls import address_of, written


@contextlib.contextmanager
def interruptions_wait() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM only after the block; Python handles signals in its main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[tuple[int, Any]] = []
    handlers: dict[int, Callable[[int, Any], Any]] = {}
    interruptions: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    for number in interruptions:
        handler = signal.getsignal(number)
        if callable(handler):  # the others are not written in Python, so they raise nothing
            handlers[number] = handler
            signal.signal(number, lambda *came: arrived.append(came))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number, frame in arrived:
        handlers[number](number, frame)


try:
    import fcntl
except ImportError:  # Windows: folders are not locked
    fcntl = None  # type: ignore[assignment]

#: The names of open files.
_OPEN_FILE = re.compile(r"/dev/(stdout|stderr)|(?:/dev|/proc/self)/fd/(\d{1,9})")
#: As many characters of a file's name are in that of its temporary file.
_MOST_OF_NAME = 40
_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def user_caches() -> Path:
    """The folder of the user's caches: $XDG_CACHE_HOME if it is set and not empty, else
    ~/.cache.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise ConfigError(
            "this account has no home folder, in which compiled code is kept: set HOME or "
            "XDG_CACHE_HOME to a folder"
        ) from None


def check_place(path: Path) -> None:
    """Check that a file can be written at `path`. Long commands call it before they start."""
    if address_of(path):
        require("fsspec")
        return
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(
            errno.EISDIR, "this is a folder; give the name of a file", str(path)
        )
    if is_written_to(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, "this is not writable", str(path))
        return
    folder = _resolved(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "the folder of this file does not exist; create it first", str(path)
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the folder of this file is not writable", str(path))


def check_folder(path: Path) -> None:
    """Check that files can be written in the folder `path`, which may have to be made first."""
    folder = _resolved(Path(path))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, f"{folder} is not a folder", str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, f"the folder {folder} is not writable", str(path))


def _resolved(path: Path) -> Path:
    """The path without links."""
    try:
        return path.resolve()
    except RuntimeError:
        why = "a link in this path leads back to itself; remove it, or give another path"
        raise OSError(errno.ELOOP, why, str(path)) from None


def is_written_to(path: Path) -> bool:
    """Whether `path` is a device, a pipe or a socket: these are written to, never replaced.

    So is the name of an open file: `/dev/stdout` may be a file to which a shell directs the output.
    `/dev/shm` has files as any folder does.
    """
    if str(path).startswith(("/dev/", "/proc/")) and not str(path).startswith("/dev/shm/"):
        return True
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def check_regular(path: Path, *, may_be_pipe: bool = False) -> None:
    """Check that `path` is no pipe or device: reading one may never end.

    A path that does not exist passes: opening it says so. A pipe passes with `may_be_pipe`.
    """
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return
    for is_kind, kind in _KINDS:
        if is_kind(mode) and not (may_be_pipe and kind == "a pipe"):
            raise FormatError(f"{path}: this is {kind}, not a file; copy its content to a file")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream to a temporary file that replaces `path` at the end of the context.

    After an exception the temporary file is deleted and `path` is unchanged. Where `path` is a
    link, its target is replaced. A device or a pipe (`/dev/stdout`) is written to, and what belongs
    to an address is put there.
    """
    check_place(path)
    if address := address_of(path):
        with written(address) as stream:
            yield stream
        return
    # `/dev/stdout` is a link to a pipe or a terminal that has no path of its own.
    if is_written_to(Path(path)):
        with named_in_errors(path), _opened_for_writing(Path(path)) as stream:
            yield cast("BinaryIO", stream)
        return
    path = Path(path).resolve()
    # In the same folder, since a file can be replaced atomically only within one file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path))
    try:
        with named_in_errors(path), os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            # Otherwise a loss of power after the rename can leave an empty file.
            os.fsync(stream.fileno())
        # `mkstemp` creates files that only their owner can read.
        Path(temporary).chmod(_new_mode(path))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _prefix(path: Path) -> str:
    """How names of temporary files begin; that of `path` may be as long as files may be called."""
    return f".{path.name[:_MOST_OF_NAME]}."


def remove_unfinished(path: Path) -> None:
    """Remove temporary files that processes left which were killed while they wrote `path`.

    No other process may be writing it.
    """
    path = _resolved(Path(path))
    # `mkstemp` adds eight characters.
    for left in path.parent.glob(f"{glob.escape(_prefix(path))}????????"):
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Name the file in errors of its stream, which do not, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def _opened_for_writing(path: Path) -> Any:
    """Open a device or a pipe; a pipe that no program reads would be waited for without end."""
    if found := _OPEN_FILE.fullmatch(str(path)):
        # Opened anew, a file would not know how much this process has written to it.
        sys.stdout.flush()
        number = {"stdout": 1, "stderr": 2}.get(found[1]) or int(found[2])
        return os.fdopen(os.dup(number), "wb", buffering=0)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError as error:
        why = "no program reads this pipe" if error.errno == errno.ENXIO else error.strerror
        raise OSError(error.errno, why, str(path)) from None
    os.set_blocking(handle, True)
    return os.fdopen(handle, "ab", buffering=0)


def _new_mode(path: Path) -> int:
    """The permissions of the file that is replaced, or those that the umask gives a new one."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        # The umask can only be read by setting it.
        mask = os.umask(0o077)
        os.umask(mask)
        return 0o666 & ~mask


def _lock(handle: int, refusal: str) -> None:
    """Lock an open file or folder; the system releases it however the process ends."""
    if hasattr(fcntl, "flock"):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(refusal) from None


@contextlib.contextmanager
def locked_folder(folder: Path, use: str) -> Iterator[None]:
    """Hold the lock of a folder."""
    if not hasattr(fcntl, "flock"):  # Windows opens no folder
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        why = f"another process is {use} this folder; wait for its end, or give another folder"
        _lock(handle, f"{folder}: {why}")
        yield
    finally:
        os.close(handle)


def lock_beside(path: Path, use: str) -> BinaryIO:
    """The lock of a file that is replaced as a whole, held until the returned file is closed.

    The lock is a file beside it, since the file itself is another one after each write.
    """
    lock = path.with_name(path.name + ".lock").open("ab")
    _lock(lock.fileno(), f"{path}: another process {use}; give each a file of its own")
    return lock


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 completely or not at all.

    Parts of file names in another encoding are written as question marks.
    """
    write_bytes(path, text.encode(errors="replace"))
