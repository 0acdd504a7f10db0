"""The progress bar of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def progress_bar(has_counts: bool = False) -> Progress:
    """A bar on standard error, which disappears at its end.

    It shows the task's description, what is done (in percent, or as counts) and the time left. A
    task without a total shows activity, but no share.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    done = MofNCompleteColumn() if has_counts else TextColumn("{task.percentage:>3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), done, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
