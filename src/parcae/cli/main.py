"""The `parcae` command line.

Each command parses its options, builds a config, calls one library function and prints the result.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer

from parcae.base.errors import InputError, InvariantError, ParcaeError
from parcae.base.extensions import naming_extras
from parcae.base.texts import __version__, printable
from parcae.cli.process import (
    STREAMS,
    end_on_sigterm,
    interruptions_raise,
    name_streams,
    open_closed_streams,
)
from parcae.cli.table import LazyGroup

#: Exit codes for bad input, and for a command that the user interrupted.
BAD_INPUT = 2
# 128 + the number of the signal (SIGINT, SIGTERM), as shells report it.
INTERRUPTED = 130
TERMINATED = 143
# A Spark or a training that failed, a bug of Parcae, or too little memory.
FAILED = 1
#: Set to 1, this environment variable shows the traceback of an unexpected error.
TRACEBACK = "PARCAE_TRACEBACK"
# As many characters of a message: a damaged file may have very long names in it.
_MOST_SHOWN = 2_000
#: A terminal has at most so many columns.
_MOST_COLUMNS = 9_999


class _Commands(LazyGroup):
    """The commands. Typer would end one that is interrupted without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command of a command line."""
        interruptions_raise()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("parcae: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except SystemExit as end:
            if end.code == TERMINATED:
                typer.echo("parcae: interrupted", err=True)
            raise


app = typer.Typer(
    name="parcae",
    cls=_Commands,
    help="Parcae learns how to schedule the jobs of a data-processing cluster.",
    no_args_is_help=True,
    # `main` prints errors itself, in one line.
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"parcae {__version__}")
        # The callback runs before the command line is parsed further, so no command is needed.
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # Only the search for the current folder names no file.
    if isinstance(error, FileNotFoundError) and error.errno is not None:
        return "the current folder does not exist any more: change to another one"
    message = " ".join(str(error).split())
    return message if len(message) <= _MOST_SHOWN else f"{message[:_MOST_SHOWN]}..."


def _last_resort(error: Exception) -> str:
    """What to tell the user about an error that is none of the input."""
    if isinstance(error, ParcaeError) and not isinstance(error, InvariantError):
        return _one_line(error)
    if isinstance(error, MemoryError):
        return "the memory does not suffice for this; give smaller counts or a smaller input"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply; give one of fewer levels"
    message = _one_line(error)[:200]
    return (
        f"unexpected {type(error).__name__}: {message}; this is a bug of Parcae: please report it "
        f"with the command and the traceback, which {TRACEBACK}=1 shows"
    )


def _leave_closed_pipe() -> None:
    """Exit after the reader of a pipe has gone (`parcae ... | head`)."""
    _drop_output()
    sys.exit(FAILED)


def _drop_output() -> None:
    """Drop what is left to print: Python would report another error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_unknown_characters() -> None:
    """Print a question mark for each character that the encoding of the output lacks.

    By default Python raises an error, which would lose the result of a long command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _bound_columns() -> None:
    """Ignore a width of the terminal that no terminal has: tables would fill the memory."""
    columns = os.environ.get("COLUMNS", "")
    if len(columns) > len(str(_MOST_COLUMNS)):
        del os.environ["COLUMNS"]


def main() -> None:
    """Run the command line. It ends with one line and exit code 2 on bad input, else with 1."""
    open_closed_streams()
    name_streams()
    end_on_sigterm()
    _bound_columns()
    _replace_unknown_characters()
    # Read by the compilation of kernels; the name is repeated here, since importing that module
    # takes a second.
    os.environ.setdefault("PARCAE_ANNOUNCE_COMPILATION", "1")
    try:
        with naming_extras():
            try:
                app()
            finally:
                # At exit, Python would report an error in words of its own.
                sys.stdout.flush()
    except BrokenPipeError:
        _leave_closed_pipe()
    except (InputError, OSError) as error:
        if isinstance(error, OSError) and error.filename in STREAMS.values():
            _drop_output()
        typer.echo(printable(f"parcae: {_one_line(error)}"), err=True)
        sys.exit(BAD_INPUT)
    except Exception as error:
        # The last resort: no traceback reaches a user who did not ask for it.
        if os.environ.get(TRACEBACK) == "1":
            raise
        typer.echo(printable(f"parcae: {_last_resort(error)}"), err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
