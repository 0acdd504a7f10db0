"""HTML pages of one self-contained file that work offline: what is on them, and writing them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from parcae.base.files import write_text
from parcae.evaluation.statistics import UNKNOWN_TEXT, Estimate

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_CHART_SETTINGS = {"displayModeBar": False, "responsive": True}


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
    parts: Sequence[Table | Text | Charts | Folded]


def estimate_cell(estimate: Estimate, number: Callable[[float], str] = "{:.3f}".format) -> Cell:
    """The cell of an estimate: the mean, if it is known, and the interval, if it is."""
    if math.isnan(estimate.mean):
        return Cell(UNKNOWN_TEXT)
    if estimate.is_unknown:
        return Cell(number(estimate.mean))
    return Cell(number(estimate.mean), f"{number(estimate.low)} – {number(estimate.high)}")


def write_page(path: Path, template: str, **values: Any) -> None:
    """Fill in a template of this package. The file appears only when it is complete."""
    write_text(path, _templates().get_template(template).render(values))


@functools.cache
def _templates() -> Any:
    # Imported here: only pages need it, and it belongs to the extra "report".
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["chart"] = functools.partial(
        chart_html, include_plotlyjs=False, config=_CHART_SETTINGS
    )
    return environment


def chart_library() -> str:
    """The script that draws a page's charts."""
    # Imported here: only pages need it, and it belongs to the extra "report".
    import plotly.offline

    return str(plotly.offline.get_plotlyjs())


def chart_html(figure: Figure, **options: Any) -> str:
    """The part of a page that draws a chart."""
    # Imported here: only pages need it, and it belongs to the extra "report".
    import plotly.io

    return str(plotly.io.to_html(figure, full_html=False, **options))
