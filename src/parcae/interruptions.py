"""Lets Ctrl-C and SIGTERM wait where they would be lost, or leave something half done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


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
