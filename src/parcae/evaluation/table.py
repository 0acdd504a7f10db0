"""The table of a comparison: for the terminal and, as HTML, for the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parcae.evaluation.world import PairedComparison

if TYPE_CHECKING:
    from rich.table import Table


def comparison_table(comparison: PairedComparison[Any]) -> Table:
    """The comparison as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(comparison.title()))
    table.add_column("policy", no_wrap=True)
    texts = [(column.heading, column.text) for column in comparison.columns()]
    shown = [(heading, text) for heading, text in texts if text is not None]
    for heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for result in comparison.policies:
        table.add_row(escape(result.name), *(escape(text(result)) for _, text in shown))
    table.caption = escape("\n".join(comparison.notes()))
    return table
