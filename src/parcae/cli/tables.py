"""Prints tables, of workloads, policies and results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from parcae.base.texts import plain, printable, seconds_text
from parcae.evaluation.comparison import text_table
from parcae.evaluation.log_check import ReplayedLog

#: Number of queries that are listed.
_LARGEST = 15
#: Terminal width, in characters, that is larger than any table needs.
_UNBOUNDED = 10_000
#: What a column of a table has beside its texts: a space on either side, and a line.
_FRAME = 3


def check_tables(checked: Sequence[ReplayedLog]) -> Iterator[Table]:
    """The tables of `parcae workload check`: a row an application, and those queries that differ
    most.
    """
    rows = [
        [
            one.application,
            str(len(one.queries)),
            *(f"{ratio:.3f}" for ratio in _ratios(one)),
        ]
        for one in checked
    ]
    caption = (
        "simulated / logged mean completion time: replayed with the log's own durations, order, "
        "cores over time and driver time; with drawn durations; at as many cores as there ever "
        "were; without the driver"
    )
    if len(rows) > 1:
        errors = np.abs(np.array([_ratios(one) for one in checked]) - 1).mean(axis=0)
        rows.append(["mean error", "", *(f"{error:.3f}" for error in errors)])
    headings = ("application", "queries", "replayed", "drawn", "constant cores", "without driver")
    yield text_table("The simulator beside the log", headings, rows, caption)
    queries = sorted(
        (query for one in checked for query in one.queries),
        key=lambda query: -abs(query.simulated_s - query.logged_s),
    )
    rows = [
        [
            query.name,
            seconds_text(query.logged_s),
            seconds_text(query.simulated_s),
            f"{query.simulated_s / query.logged_s:.3f}",
            f"{query.driver_s / query.logged_s:.0%}",
            query.why,
        ]
        for query in queries[:_LARGEST]
    ]
    headings = ("query", "log s", "simulated s", "ratio", "driver", "why they differ")
    caption = f"and {len(queries) - _LARGEST} more" if len(queries) > _LARGEST else ""
    yield text_table("Queries, the largest difference first", headings, rows, caption)


def _ratios(one: ReplayedLog) -> tuple[float, ...]:
    return one.ratio, one.drawn_durations, one.at_constant_cores, one.without_driver_time


def print_json(value: Any) -> None:
    """Print a result as JSON, objects by their fields."""
    typer.echo(json.dumps(plain(value), indent=2))


def print_catalog(
    title: str, entries: Iterable[tuple[str, ...]], as_json: bool, more: tuple[str, ...] = ()
) -> None:
    """Print a catalogue of policies as a table or as JSON."""

    if as_json:
        keys = ("usage", "summary", "source", *more)
        print_json([dict(zip(keys, entry, strict=True)) for entry in entries])
        return
    print_rows(title, ("policy", "what it does", "source", *more), list(entries))


def print_rows(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = ""
) -> None:
    """Print a table of texts; see `text_table`."""
    print_fitted(text_table(title, columns, rows, caption))


def print_fitted(table: Table) -> None:
    """Print a table in the terminal's width; columns that have no room follow in further tables.

    Where nothing says how wide the output is (a file, a pipe), it is as for 80 characters, but
    names stay whole.
    """
    console = new_console()
    folds = console.is_terminal or "COLUMNS" in os.environ
    # The console measures a table within its own width: measure with a very large one.
    unbounded = console.options.update(width=_UNBOUNDED)
    if Measurement.get(console, unbounded, table).maximum <= console.width:
        console.print(table)
        return
    most = console.width // 4
    widths = [
        _column_widths(column, most, most if folds else _UNBOUNDED) for column in table.columns
    ]
    title = table.title
    for numbers in _in_parts(table, [least for least, _ in widths], console.width):
        part = Table(title=title, show_header=table.show_header)
        title = None
        needed = sum(widths[number][0] + _FRAME for number in numbers) + 1
        spare = max(0, console.width - needed)
        for left, number in zip(range(len(numbers), 0, -1), numbers, strict=True):
            column, (least, whole) = table.columns[number], widths[number]
            more = min(-(-spare // left), whole - least)
            spare -= more
            part.add_column(
                column.header, justify=column.justify, overflow="fold", width=least + more
            )
        for cells in zip(*(table.columns[number].cells for number in numbers), strict=True):
            part.add_row(*cells)
        (console if console.width >= needed else new_console(width=needed)).print(part)
    if table.caption is not None:
        # Below a narrow table it would have few words a line.
        console.print(table.caption, style="table.caption")


def _column_widths(column: Column, most: int, most_of_name: int) -> tuple[int, int]:
    """The least characters of a column, in which headings and names have at most so many, and those
    in which nothing is folded.
    """
    texts = (column.header, *column.cells)
    head, *cells = (Text.from_markup(str(one), emoji=False).plain for one in texts)
    whole = max(map(cell_len, cells), default=0)
    longest = whole if column.no_wrap or whole <= most else min(most_of_name, _longest_word(*cells))
    least = max(longest, min(most, _longest_word(head)))
    return least, max(least, whole if column.no_wrap else max(whole, cell_len(head)))


def _longest_word(*texts: str) -> int:
    return max((cell_len(word) for text in texts for word in text.split()), default=1)


def _in_parts(table: Table, least: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns of the tables of one that is too wide, which all begin with its names."""
    num_names = 1 + next((n for n, one in enumerate(table.columns) if one.justify == "left"), 0)
    names = list(range(num_names))
    part = names
    for number in range(num_names, len(least)):
        if sum(least[one] + _FRAME for one in [*part, number]) + 1 > width and part != names:
            yield part
            part = names
        part = [*part, number]
    yield part


class _PlainConsole(Console):
    """Prints names as they are, but no control characters in them."""

    def render_str(self, text: str, **kwargs: Any) -> Text:
        """Replace control characters before texts are measured."""
        return super().render_str(printable(text), **kwargs)


def new_console(**options: Any) -> Console:
    """A console that prints names as they are."""
    # By default rich makes pictures of parts of names, such as a thumb of plan:weighted-fair:-1:50.
    return _PlainConsole(emoji=False, **options)
