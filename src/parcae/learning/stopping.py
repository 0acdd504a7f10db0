"""Support for long trainings: stopping them with Ctrl-C, and logging them for TensorBoard."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


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

    Args:
        folder: the folder.
        first: number of the next iteration. What a training that crashed logged of this one and of
            later ones is not shown any more.
    """

    def __init__(self, folder: Path | None, first: int) -> None:
        self._folder = folder
        self._first = first
        self._writer: Any = None

    def __enter__(self) -> ScalarLog:
        if self._folder is not None:
            # TensorBoard takes seconds to import.
            from torch.utils.tensorboard.writer import SummaryWriter

            place = str(self._folder / "tensorboard")
            self._writer = SummaryWriter(place, purge_step=self._first)
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """Write the numbers of one iteration; those that were not measured (NaN) are left out."""
        if self._writer is None:
            return
        for name, value in values.items():
            if np.isfinite(value):
                self._writer.add_scalar(name, value, iteration)
