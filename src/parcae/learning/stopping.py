"""Support for long trainings: stopping them with Ctrl-C, and logging them for TensorBoard."""

from __future__ import annotations

import os
import platform
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from parcae.files import named_in_errors


class Stop:
    """Signal handler that remembers that the user asked to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.is_requested = False

    def __call__(self, *_: Any) -> None:
        # The second Ctrl-C: do not wait for the end of the iteration.
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True


@contextmanager
def stopping() -> Iterator[Stop]:
    """Within this context, the first Ctrl-C requests a stop after the current iteration."""
    stop = Stop()
    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # only the main thread may set signal handlers
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class ScalarLog:
    """TensorBoard log in the folder of a training; without a folder it does nothing.

    TensorBoard's own writer has a thread, which shows a traceback where the disk is full.

    Args:
        folder: the folder.
        first: number of the next iteration. What a training that crashed logged of this one and of
            later ones is not shown any more.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """

    def __init__(self, folder: Path | None, first: int) -> None:
        self._folder = folder
        self._first = first
        self._path = Path()
        self._stream: BinaryIO | None = None

    def __enter__(self) -> ScalarLog:
        if self._folder is not None:
            from tensorboard.compat.proto.event_pb2 import SessionLog

            place = self._folder / "tensorboard"
            place.mkdir(parents=True, exist_ok=True)
            # TensorBoard reads the files of a folder in the order of their names.
            began = "{:010d}.{:09d}".format(*divmod(time.time_ns(), 10**9))
            self._path = place / f"events.out.tfevents.{began}.{platform.node()}.{os.getpid()}"
            self._stream = self._path.open("xb")
            # The first event of a file has its version. The second hides what came after a crash.
            self._add(file_version="brain.Event:2")
            self._add(step=self._first, session_log=SessionLog(status=SessionLog.START))
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            with named_in_errors(self._path):
                self._stream.close()

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Write the numbers of one iteration; those that were not measured (NaN) are left out."""
        if self._stream is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        measured = [
            Summary.Value(tag=name, simple_value=value)
            for name, value in values.items()
            if np.isfinite(value)
        ]
        self._add(step=iteration, summary=Summary(value=measured))

    def _add(self, **event: Any) -> None:
        """Add an event to the file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._stream is not None
        with named_in_errors(self._path):
            whole = Event(wall_time=time.time(), **event).SerializeToString()
            RecordWriter(self._stream).write(whole)
            self._stream.flush()
