"""`make_way`: lets the event loop run while a second thread handles a heavy message.

A thread that calls compiled kernels over and over gives the interpreter back for moments that are
too short for another thread to wake up in, so the event loop would wait until the message is done.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: How long the second thread works before it lets the event loop run, in s.
_WORK_S = 2e-3
#: How long it waits for the event loop at most, in s.
_LONGEST_WAIT_S = 0.1


class _Turn(threading.local):
    """The event loop that this thread makes way for, and when; None: it never has to."""

    loop: asyncio.AbstractEventLoop | None = None
    next_s = 0.0


_turn = _Turn()


@contextmanager
def apart_from(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Within it, `make_way` in this thread lets the event loop run.

    Garbage is not collected: a large message is hundreds of thousands of objects, and to look for
    garbage among them would stop all threads. What is left of them is set aside for `tidy`.
    """
    _turn.loop = loop
    _turn.next_s = time.perf_counter() + _WORK_S
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        _turn.loop = None


def tidy() -> None:
    """Collect all garbage, and set aside what is left: the next collections do not look at it."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def make_way() -> None:
    """Wait for the event loop to run once, if this is the second thread and that is due."""
    loop = _turn.loop
    if loop is None or time.perf_counter() < _turn.next_s:
        return
    has_run = threading.Event()
    # What the event loop has to do now is done before a callback of its next round.
    loop.call_soon_threadsafe(loop.call_soon, has_run.set)
    has_run.wait(_LONGEST_WAIT_S)
    _turn.next_s = time.perf_counter() + _WORK_S
