"""Services in the main thread of the tests that end when a condition holds, not after a time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def stop_service() -> None:
    """Stop the service that runs in the main thread of this process, as a shell would."""
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def stopped_when(condition: Callable[[], object]) -> Iterator[None]:
    """Stop the service that the block runs as soon as the condition holds.

    The condition must not hold before the service has answered a client: the service listens to
    signals from then on.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            if condition():
                stop_service()
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()
