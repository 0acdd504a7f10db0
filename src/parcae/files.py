"""Writing files completely or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def check_place(path: Path) -> None:
    """Check that a file can be written at `path`.

    Raises:
        OSError: its folder does not exist or is not writable, or `path` is a folder.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "the folder of this file does not exist; create it first", str(path)
        )
    if path.is_dir():
        raise IsADirectoryError(
            errno.EISDIR, "this is a folder; give the name of a file", str(path)
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "the folder of this file is not writable", str(path))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a stream to a temporary file that replaces `path` at the end of the context.

    After an exception the temporary file is deleted and `path` is unchanged.

    Raises:
        OSError: the folder does not exist or is not writable, or `path` is a folder.
    """
    path = Path(path)
    check_place(path)
    # In the same folder, since a file can be replaced atomically only within one file system.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        # `mkstemp` creates files that only their owner can read.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 completely or not at all."""
    with replacing(path) as stream:
        stream.write(text.encode())
