"""The process of a command: its signals and its standard streams."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType
from typing import Any


def leave(number: int, frame: FrameType | None) -> None:
    """End the process at once, with the exit code that shells report for the signal."""
    del frame
    os._exit(128 + number)


def interruptions_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again: a command begins to run."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_closed_streams() -> None:
    """Let standard streams that the caller closed (`2>&-`) lead nowhere.

    Python has None in their place, and the next files that are opened would get their numbers.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # It gets the smallest number that is free.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            raw = io.FileIO(number, "wb", closefd=False)
            setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), "utf-8"))


class _Unread(io.FileIO):
    """A stream that drops what is not read any more."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Go on where the output is not read any more (`| head`): the command has files to write."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        # With PYTHONUNBUFFERED it has no buffer.
        has_buffer = hasattr(stream.buffer, "raw")
        if type(stream.buffer.raw if has_buffer else stream.buffer) is not io.FileIO:
            continue
        stream.flush()
        unread: Any = _Unread(stream.fileno(), "wb", closefd=False)
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(unread) if has_buffer else unread,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, wrapped)
