"""What every long training needs: a way to stop it, and a log to watch it."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


class Stop:
    """Whether the user asked to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.is_asked = False

    def __call__(self, *_: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True


@contextmanager
def stopping() -> Iterator[Stop]:
    """Ctrl-C asks to stop, once; the training then ends after its iteration."""
    stop = Stop()
    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # not in the main thread
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


class ScalarLog:
    """TensorBoard's log of a training, in its folder; nothing where there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._writer: Any = None

    def __enter__(self) -> ScalarLog:
        if self._folder is not None:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._writer = SummaryWriter(str(self._folder / "tensorboard"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        """One iteration's numbers; what was not measured (NaN) is left out."""
        if self._writer is None:
            return
        for name, value in values.items():
            if np.isfinite(value):
                self._writer.add_scalar(name, value, iteration)
