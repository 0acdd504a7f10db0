"""HTML: pages of one self-contained file that work offline, and what notebooks show of results."""

from __future__ import annotations

import base64
import functools
import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import rich.table
import rich.text

from parcae.base.extensions import missing_extra
from parcae.base.files import write_text
from parcae.base.texts import printable
from parcae.evaluation.pictures import svg_text
from parcae.evaluation.statistics import Estimate, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and a second one in a quieter voice.

    Args:
        text: the first text.
        small: the second one; below the first in a heading.
        color: colour of a dot before the text.
        is_name: whether a long text is broken into lines.
    """

    text: str
    small: str = ""
    color: str = ""
    is_name: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.small}".rstrip()


@dataclass(frozen=True)
class Table:
    """A table with notes below it; `best` is the row that stands out."""

    head: Sequence[Cell]
    rows: Sequence[Sequence[Cell | str]]
    notes: Sequence[str] = ()
    best: int | None = None
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    is_quiet: bool = False
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Charts:
    """Charts side by side."""

    figures: Sequence[Figure]
    kind: ClassVar[str] = "charts"


@dataclass(frozen=True)
class Folded:
    """Charts that open with a click on a line."""

    summary: str
    charts: Sequence[Charts]
    kind: ClassVar[str] = "folded"


@dataclass(frozen=True)
class Section:
    """A part of a page with its heading."""

    heading: str
    parts: Sequence[Any]


def estimate_cell(estimate: Estimate, number: Callable[[float], str] = "{:.3f}".format) -> Cell:
    """The cell of an estimate: the mean, if it is known, and the interval, if it is."""
    mean, _, interval = with_interval(estimate, number).partition(" ")
    return Cell(mean, interval)


def write_page(path: Path, **values: Any) -> None:
    """Fill in the page's template. The file appears only when it is complete."""
    write_text(path, _template().render(values))


@functools.cache
def _template() -> Any:
    # Imported here: only pages need it, and it belongs to the extra "report".
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["chart"] = svg_text
    return environment.get_template("report.html.j2")


def as_html(table: rich.table.Table, draw: Callable[[], Figure] | None = None) -> str:
    """A table of the terminal as notebooks show it, and a picture below it.

    Without the libraries of the extra "report" a sentence stands in the picture's place.
    """
    head = "".join(f"<th>{_plain(one.header)}</th>" for one in table.columns)
    columns = [[_plain(cell) for cell in one.cells] for one in table.columns]
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for row in zip(*columns, strict=True)
    )
    head = f"<tr>{head}</tr>" if table.show_header else ""
    try:
        picture = "" if draw is None else _image(svg_text(draw()))
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is None:
            raise
        picture = f"<p>{html.escape(f'No picture: {missing}.')}</p>"
    return (
        f"<p><b>{_plain(table.title)}</b></p><table>{head}{rows}</table>"
        f"<p>{_plain(table.caption)}</p>{picture}"
    )


def _image(svg: str) -> str:
    # Notebooks of others are shown without inline SVG.
    data = base64.b64encode(svg.encode()).decode()
    return f'<img style="max-width:100%" src="data:image/svg+xml;base64,{data}">'


def _plain(text: object) -> str:
    """A text with the terminal's markup as HTML, without markup of its own."""
    plain = rich.text.Text.from_markup(str(text or ""), emoji=False).plain
    return html.escape(printable(plain.replace("\n", " ")))
