"""The entry point of the `parcae` command.

The imports of the commands take half a second. Ctrl-C ends the process quietly until a command
runs: nothing was begun that would have to be ended.
"""

from __future__ import annotations

import signal

from parcae.cli.process import leave


def main() -> None:
    """Run the command line, see `parcae.cli.main`."""
    # A process in the background ignores Ctrl-C, and goes on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from parcae.cli.main import main as run

    run()
