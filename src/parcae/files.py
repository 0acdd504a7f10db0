"""Files that are written wholly or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def check_place(path: Path) -> None:
    """Refuse a path at which no file can be written.

    Raises:
        OSError: its folder does not exist or cannot be written, or `path` is a folder.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            errno.ENOENT, "the folder that it should be in is not there", str(path)
        )
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a folder; give the name of a file", str(path))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES, "the folder that it should be in cannot be written", str(path)
        )


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A stream to a temporary file beside `path`, which it replaces at the end; after an error nothing is left.

    Raises:
        OSError: the folder does not exist or cannot be written, or `path` is a folder.
    """
    path = Path(path)
    check_place(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, wholly or not at all."""
    with replacing(path) as stream:
        stream.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, wholly or not at all."""
    with replacing(path) as stream:
        stream.write(text.encode())
