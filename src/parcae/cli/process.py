"""The process of a command: its signals and its standard streams."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from functools import cache
from types import FrameType
from typing import Any

#: A command has so much time to hear a signal, and to clean up before a second one ends it.
_GRACE_S = 3.0


def leave(number: int, frame: FrameType | None) -> None:
    """End the process at once, with the exit code that shells report for the signal."""
    del frame
    os._exit(128 + number)


def end_on_sigterm() -> None:
    """End the process on SIGTERM as after Ctrl-C, so that what it started ends, too.

    By default Python ends without cleaning up. `parcae serve` has a handler of its own.
    """
    _heard_s.append([])
    signal.signal(signal.SIGTERM, _terminate)
    signal.set_wakeup_fd(_watched_pipe(), warn_on_full_buffer=False)


#: For every command of the process, when it heard its first SIGTERM (nothing: it heard none).
_heard_s: list[list[float]] = []


def _terminate(number: int, frame: FrameType | None) -> None:
    heard_s = _heard_s[-1]
    if not heard_s:
        heard_s.append(time.monotonic())
        raise SystemExit(128 + number)
    # `timeout` sends two signals at once: only a later one stops the cleaning up.
    if time.monotonic() - heard_s[0] > _GRACE_S:
        leave(number, frame)


@cache
def _watched_pipe() -> int:
    """A pipe to which the system writes the number of each signal at once.

    Python hears a signal only between two steps of its own, and not while it compiles a function,
    which may take a minute: then a thread ends the process.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def watch() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGTERM:
                # The next command of this process hears nothing of this signal.
                heard_s = _heard_s[-1]
                time.sleep(_GRACE_S)
                # Whoever writes a file handles signals afterwards. A command that has heard the
                # signal waits for its threads.
                is_same = _heard_s[-1] is heard_s
                has_to = is_same and (not heard_s or _is_compiling())
                if has_to and signal.getsignal(signal.SIGTERM) is _terminate:
                    os.write(2, b"parcae: interrupted\n")
                    leave(number[0], None)

    threading.Thread(target=watch, daemon=True).start()
    return writing


def _is_compiling() -> bool:
    """Whether another thread compiles a function."""
    # Importing Numba takes a second; who compiles has done so.
    module = sys.modules.get("numba.core.compiler_lock")
    lock = module.global_compiler_lock._lock if module else threading.Lock()
    if is_free := lock.acquire(blocking=False):
        lock.release()
    return not is_free


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


class _Output(io.FileIO):
    """A standard stream. It names itself in errors, such as a full disk; if the command goes on
    without readers, it drops what is not read any more.
    """

    outlives_readers = False

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            if not self.outlives_readers:
                raise
            return memoryview(data).nbytes
        except OSError as error:
            error.filename = STREAMS[self.fileno()]
            raise


#: The names of standard streams by their numbers.
STREAMS = {1: "standard output", 2: "standard error"}


def outlive_readers() -> None:
    """Go on where the output is not read any more (`| head`): the command has files to write."""
    _Output.outlives_readers = True


def name_streams() -> None:
    """Let standard streams name themselves in errors."""
    _Output.outlives_readers = False
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        # With PYTHONUNBUFFERED it has no buffer.
        has_buffer = hasattr(stream.buffer, "raw")
        if type(stream.buffer.raw if has_buffer else stream.buffer) is not io.FileIO:
            continue
        stream.flush()
        raw: Any = _Output(stream.fileno(), "wb", closefd=False)
        wrapped = io.TextIOWrapper(
            io.BufferedWriter(raw) if has_buffer else raw,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, wrapped)
