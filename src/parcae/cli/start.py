"""The entry point of the `parcae` command.

The imports of the commands take half a second. Ctrl-C ends the process quietly until a command
runs: nothing was begun that would have to be ended.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    """End the process at once, with the exit code that shells report for the signal."""
    del frame
    os._exit(128 + number)


def interruptions_raise() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again: a command begins to run."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Run the command line, see `parcae.cli.main`."""
    # A process in the background ignores Ctrl-C, and goes on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from parcae.cli.main import main as run

    run()
