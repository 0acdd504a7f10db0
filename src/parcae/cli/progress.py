"""What long commands say while they run, on standard error.

On a terminal it is a bar or one line, which is replaced. Elsewhere, for example in a log file, it
is plain lines.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from parcae.base.texts import printable
from parcae.cli.tables import new_console
from parcae.workloads.import_report import ImportReport

#: Time between two lines where standard error is not a terminal.
SECONDS_BETWEEN_LINES = 60.0


def print_reading(report: ImportReport, err: bool = True) -> None:
    """Print what a reader left out or changed."""
    for note in report.notes:
        typer.echo(printable(f"note: {note}"), err=err)
    for sample in report.bad_samples:
        typer.echo(printable(f"bad row: {sample}"), err=err)


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


class ProgressLine:
    """The progress of a search or training with a budget, and the time left."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self._lines = None if sys.stderr.isatty() else LogLines()

    def show(self, seconds: float, text: str) -> None:
        """Replace the line, or print another one in a log."""
        left = max(0.0, self.budget_s - seconds)
        line = f"{seconds / self.budget_s:4.0%}  {left:5.0f} s left  {text}"
        if self._lines is not None:
            self._lines.show(line)
            return
        # Return to the start of the line and erase it. That works only if it is no longer than the
        # terminal is wide: of two lines, only the second would be erased.
        most = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r\033[K{line[:most]}")
        sys.stderr.flush()

    def end(self) -> None:
        """End the line, so that further output begins on a new one."""
        if self._lines is None:
            sys.stderr.write("\n")


class _Counts:
    """Lines for a log about how much of a task is done, with the time left."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._lines = LogLines()
        self._begin_s = time.monotonic()
        #: What was done before, e.g. by a command that was stopped.
        self._known: int | None = None

    def show(self, done: int, total: int) -> None:
        """Print a line from time to time. A total of 0 is unknown."""
        if self._known is None:
            self._known = done
        if not total:
            self._lines.show(self._task)
            return
        text = f"{self._task}: {done / total:.0%}"
        if done > self._known:
            passed_s = time.monotonic() - self._begin_s
            left_s = passed_s * (total - done) / (done - self._known)
            text += f", about {left_s:,.0f} s left"
        self._lines.show(text)


class _EachCounts:
    """Lines for a log about several tasks; a task begins when it is first shown."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}

    def show(self, task: str, done: int, total: int) -> None:
        """Print a line about a task from time to time. A total of 0 is unknown."""
        if task not in self._counts:
            self._counts[task] = _Counts(task)
        self._counts[task].show(done, total)


@contextlib.contextmanager
def counting(task: str, has_counts: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how much of a task is done.

    The function takes what is done and the total, which is 0 if it is unknown.
    """
    with counting_each((task,), has_counts) as show:
        yield partial(show, task)


@contextlib.contextmanager
def counting_each(
    tasks: Sequence[str], has_counts: bool = False
) -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that shows how much of each task is done; see `counting`.

    The function takes the task, what is done of it and its total, which is 0 if it is unknown.
    """
    if not sys.stderr.isatty():
        yield _EachCounts().show
        return
    with _progress_bar(has_counts) as progress:
        bars = {task: progress.add_task(task, total=None) for task in tasks}
        yield lambda task, done, total: progress.update(
            bars[task], completed=done, total=total or None
        )


class _Say(Protocol):
    """Says what a command does next, and which share of its work is done, if that is known."""

    def __call__(self, step: str, share: float | None = None) -> None: ...


@contextlib.contextmanager
def telling(first: str = "", is_often: bool = False) -> Iterator[_Say]:
    """Show the step that a command is at, and for how long it has run; a log has every step."""
    if not sys.stderr.isatty():
        lines = LogLines()
        yield (lambda step, share=None: lines.show(step)) if is_often else _print_step
        return

    # Without markup: a name in a step is no style.
    text = TextColumn("{task.description}", markup=False)
    columns = (BarColumn(bar_width=20), TimeElapsedColumn(), text)
    with Progress(*columns, console=new_console(stderr=True), transient=True) as progress:
        bar = progress.add_task(first, total=None)

        def say(step: str, share: float | None = None) -> None:
            total = None if share is None else 1.0
            progress.update(bar, description=step, completed=share, total=total)

        yield say


def _print_step(step: str, share: float | None = None) -> None:
    typer.echo(step if share is None else f"{share:4.0%} {step}", err=True)


def _progress_bar(has_counts: bool = False) -> Progress:
    """A bar on standard error, which disappears at its end.

    It shows the task's description, what is done (in percent, or as counts) and the time left. A
    task without a total shows activity, but no share.
    """
    done = MofNCompleteColumn() if has_counts else TextColumn("{task.percentage:>3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    return Progress(*columns, console=new_console(stderr=True), transient=True)
