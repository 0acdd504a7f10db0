"""Commands in the process of the tests: exit code and both outputs, as a shell would see them."""

from __future__ import annotations

import contextlib
import io
import shlex
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from parcae.cli.main import main


@dataclass(frozen=True)
class Done:
    """What a command that ended leaves behind."""

    returncode: int
    stdout: str
    stderr: str


def run(command: str, folder: Path) -> Done:
    """Run `parcae WORDS` with the given folder as working directory.

    An exception that `main` does not turn into an exit code propagates to the test.
    """
    program, *words = shlex.split(command)
    assert program == "parcae"
    stdout = io.StringIO()
    stderr = io.StringIO()
    arguments = sys.argv
    handler = signal.getsignal(signal.SIGTERM)  # `main` sets one of its own
    sys.argv = [program, *words]
    code: object = 0
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = arguments
        signal.signal(signal.SIGTERM, handler)
    return Done(_exit_status(code), stdout.getvalue(), stderr.getvalue())


def ran(command: str, folder: Path) -> Done:
    """Run a command that must succeed."""
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    return done


def refused(command: str, folder: Path, *words: str) -> Done:
    """Run a command that must end as after bad input, and say these words."""
    done = run(command, folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr
    return done


def _exit_status(code: object) -> int:
    """Return the exit status of `sys.exit(code)`."""
    if code is None:
        return 0
    return code if isinstance(code, int) else 1
