"""What notebooks show of results: the tables of the terminal, and one picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table
from rich.text import Text

from parcae.base.extensions import missing_extra
from parcae.base.texts import printable
from parcae.evaluation.pictures import as_label, new_picture, save_picture, shortened, tidy
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, with_distances

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Most characters of a name beside a picture.
_LONGEST_NAME = 32


def as_html(table: Table, draw: Callable[[], Figure] | None = None) -> str:
    """A table of the terminal as a part of a page, and a picture below it.

    Without the libraries of the extra "report" a sentence stands in the picture's place.
    """
    head = "".join(f"<th>{_plain(one.header)}</th>" for one in table.columns)
    columns = [[_plain(cell) for cell in one.cells] for one in table.columns]
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for row in zip(*columns, strict=True)
    )
    head = f"<tr>{head}</tr>" if table.show_header else ""
    return (
        f"<p><b>{_plain(table.title)}</b></p><table>{head}{rows}</table>"
        f"<p>{_plain(table.caption)}</p>{_image(draw)}"
    )


def _plain(text: object) -> str:
    """A text with the terminal's markup as HTML, without markup of its own."""
    plain = Text.from_markup(str(text or ""), emoji=False).plain
    return html.escape(printable(plain.replace("\n", " ")))


def _image(draw: Callable[[], Figure] | None) -> str:
    if draw is None:
        return ""
    drawn = io.BytesIO()
    try:
        save_picture(draw(), drawn, "svg")
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        return f"<p>{html.escape(f'No picture: {missing}.')}</p>"
    image = base64.b64encode(drawn.getvalue()).decode()
    return f'<img style="max-width:100%" src="data:image/svg+xml;base64,{image}">'


def interval_picture(
    label: str, names: Sequence[str], estimates: Sequence[Estimate], ratio_to: float | None = None
) -> Figure:
    """Policies' numbers with their intervals, below each other, and a line at what they are
    relative to.
    """
    picture = new_picture(8, 0.9 + 0.3 * len(names))
    axis = picture.subplots()
    means, below, above = with_distances(estimates)
    rows = np.arange(len(names))
    colors = [policy_color(row) for row in range(len(names))]
    # Rounding can leave the mean of equal numbers outside its interval by 1e-16.
    ends = np.maximum(0.0, [below, above])
    axis.errorbar(means, rows, xerr=ends, fmt="none", ecolor="#1d232a", capsize=3)
    axis.scatter(means, rows, c=colors, zorder=3)
    axis.set_yticks(rows, [as_label(shortened(name, _LONGEST_NAME)) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)
    if ratio_to is not None:
        axis.axvline(ratio_to, color="grey", linewidth=1)
    tidy(axis, (label, ""))
    return picture
