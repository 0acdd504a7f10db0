"""Pictures (PNG, SVG, PDF) of the package's matplotlib charts: an empty one, and writing it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parcae.files import replacing
from parcae.units import MS_PER_S

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour of the lines that mark completed jobs.
COMPLETION_COLOR = "#d62728"
#: Time axes end a little after the last completion, so that its line is visible.
TIME_MARGIN = 1.005
_DPI = 110
#: With more completions than this, their lines are drawn more transparent.
_MANY_LINES = 60
_MOST_TRANSPARENT = 0.25


def new_picture(width_in: float, height_in: float) -> Figure:
    """An empty picture of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width_in, height_in), layout="constrained")
    # The canvas draws without a screen.
    FigureCanvasAgg(picture)
    return picture


def write_picture(picture: Figure, path: Path, title: str = "", file_format: str = "png") -> None:
    """Write a picture. The file appears only when it is complete.

    Args:
        picture: the picture.
        path: the file to write.
        title: title of the whole picture.
        file_format: "png", "svg" or "pdf".

    Raises:
        OSError: the file cannot be written.
    """
    if title:
        picture.suptitle(title)
    with replacing(path) as stream:
        picture.savefig(stream, dpi=_DPI, format=file_format)


def line_opacity(num_lines: int) -> float:
    """The opacity of lines of which there are this many: many lines would hide the chart."""
    return min(1.0, max(_MOST_TRANSPARENT, _MANY_LINES / max(1, num_lines)))


def draw_raster(
    axis: Any,
    colors: npt.NDArray[np.uint8],
    num_rows: int,
    end_ms: float,
    completion_ms: npt.NDArray[np.int64],
    heading: str,
) -> None:
    """Draw a Gantt chart: who works when, as a raster, and lines where jobs completed.

    Args:
        axis: the matplotlib axes.
        colors: uint8[shown rows, columns, 3], the colour of each cell.
        num_rows: number of executors (or cores), some of which may not be shown.
        end_ms: end of the raster, in ms; it starts at 0.
        completion_ms: int64[num_completed], when jobs completed.
        heading: the chart's title.
    """
    extent = (0, end_ms / MS_PER_S, -0.5, num_rows - 0.5)
    axis.imshow(colors, aspect="auto", interpolation="nearest", origin="lower", extent=extent)
    axis.vlines(
        completion_ms / MS_PER_S,
        -0.5,
        num_rows - 0.5,
        color=COMPLETION_COLOR,
        linewidth=0.7,
        alpha=line_opacity(len(completion_ms)),
    )
    axis.set_xlim(0, TIME_MARGIN * end_ms / MS_PER_S)
    axis.set_ylim(-0.5, num_rows - 0.5)
    axis.set_title(heading, fontsize=9, loc="left")
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)


def tidy(axis: Any, labels: tuple[str, str], title: str = "", has_legend: bool = True) -> None:
    """Give a panel axis labels, a light grid and, if it has labelled items, a legend.

    Args:
        axis: the matplotlib axes.
        labels: labels of the x and the y axis.
        title: title of the panel.
        has_legend: whether to draw a legend.
    """
    axis.set(xlabel=labels[0], ylabel=labels[1])
    if title:
        axis.set_title(title, fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    if has_legend and axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=8)
