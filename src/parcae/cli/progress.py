"""What long commands say while they run, on standard error.

On a terminal it is a bar. Elsewhere, for example in a log file, it is plain lines.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from parcae.base.texts import printable
from parcae.cli.options import EventOptions
from parcae.cli.tables import new_console
from parcae.workloads.import_report import ImportReport
from parcae.workloads.spark_log.event_log import LoggedRuns, read_runs

#: Time between two lines where standard error is not a terminal.
SECONDS_BETWEEN_LINES = 60.0


def print_reading(report: ImportReport, err: bool = True) -> None:
    """Print what a reader left out or changed."""
    for note in report.notes:
        typer.echo(printable(f"note: {note}"), err=err)
    for sample in report.bad_samples:
        typer.echo(printable(f"bad row: {sample}"), err=err)


@contextlib.contextmanager
def naming_kept(path: Path | None, said: str) -> Iterator[None]:
    """Say what an interrupted command has kept in a file, if it is there, and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if path is not None and path.exists():
            typer.echo(said, err=True)
        raise


class LogLines:
    """Plain lines on standard error, at most one in `SECONDS_BETWEEN_LINES`."""

    def __init__(self) -> None:
        self._last_s = time.monotonic()

    def show(self, text: str) -> None:
        """Print a line, unless the last one was printed a short time ago."""
        now_s = time.monotonic()
        if now_s - self._last_s >= SECONDS_BETWEEN_LINES:
            self._last_s = now_s
            typer.echo(text, err=True)


@contextlib.contextmanager
def counting(task: str, has_counts: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how much of a task is done, in percent or as counts.

    The function takes what is done and the total, which is 0 if it is unknown. On a terminal it
    shows a bar, which disappears at its end.
    """
    if sys.stderr.isatty():
        done = MofNCompleteColumn() if has_counts else TextColumn("{task.percentage:>3.0f}%")
        with _bar(
            TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn()
        ) as bar:
            number = bar.add_task(task, total=None)
            yield lambda done, total: bar.update(number, completed=done, total=total or None)
        return
    lines = LogLines()
    begin_s = time.monotonic()
    # What was done before, e.g. by a command that was stopped.
    known: list[int] = []

    def show(done: int, total: int) -> None:
        known.append(done)
        text = task
        if total:
            text += f": {done / total:.0%}"
        if total and done > known[0]:
            left_s = (time.monotonic() - begin_s) * (total - done) / (done - known[0])
            text += f", about {left_s:,.0f} s left"
        lines.show(text)

    yield show


def read_logs(paths: Sequence[str], wanted: EventOptions) -> LoggedRuns:
    """Read event logs, and show how much of them is read."""
    with counting("reading") as progress:
        return read_runs(paths, **dict(wanted), progress=progress)


@contextlib.contextmanager
def telling(first: str = "", is_often: bool = False) -> Iterator[Callable[..., None]]:
    """Show the step that a command is at, and for how long it has run; a log has every step.

    Yields a function of the next step, and of the share of the work that is done, if it is known.
    """
    lines = LogLines()

    def log(step: str, share: float | None = None) -> None:
        if is_often:
            lines.show(step)
        else:
            typer.echo(step if share is None else f"{share:4.0%} {step}", err=True)

    if not sys.stderr.isatty():
        yield log
        return
    # Without markup: a name in a step is no style.
    text = TextColumn("{task.description}", markup=False)
    with _bar(BarColumn(bar_width=20), TimeElapsedColumn(), text) as bar:
        number = bar.add_task(first, total=None)
        yield lambda step, share=None: bar.update(
            number, description=step, completed=share, total=None if share is None else 1.0
        )


@contextlib.contextmanager
def budgeted(budget_s: float) -> Iterator[Callable[[float, str], None]]:
    """Show how much of a search's or training's time is used, and what it says."""
    with telling(is_often=True) as tell:

        def show(seconds: float, text: str) -> None:
            share, left_s = min(1.0, seconds / budget_s), max(0.0, budget_s - seconds)
            tell(f"{share:4.0%}  {left_s:5.0f} s left  {text}", share)

        yield show


def _bar(*columns: ProgressColumn) -> Progress:
    return Progress(*columns, console=new_console(stderr=True), transient=True)
