"""Pictures: an empty one, its labels, and writing it (PNG, SVG, PDF) or putting it on a page."""

from __future__ import annotations

import io
import logging
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from parcae.base.errors import ConfigError
from parcae.base.files import replacing
from parcae.base.texts import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Supported formats, by the ending of the file's name.
FORMATS = ("html", "png", "svg", "pdf")
_DPI = 110
_LOG = logging.getLogger(__name__)
#: matplotlib's warning about a character that its font lacks, and the character's number.
_LACKS = re.compile(r"Glyph (\d+) .*missing from font")


def chart_format(path: Path) -> str:
    """The format of a chart by the ending of the file's name: one of FORMATS."""
    ending = path.suffix.lstrip(".").lower()
    if ending not in FORMATS:
        raise ConfigError(
            f"{path}: charts are written as {', '.join('.' + name for name in FORMATS)}; "
            "choose a file name with one of these endings"
        )
    return ending


def new_picture(width_in: float, height_in: float) -> Figure:
    """An empty picture of this size in inches."""
    # Imported where a picture is drawn: it belongs to the extra "report".
    from matplotlib.figure import Figure

    # Without pyplot, which would look for a screen.
    return Figure(figsize=(width_in, height_in), layout="constrained")


def as_label(text: str) -> str:
    """A name as matplotlib shows it unchanged: it would read what is between "$" as mathematics.

    What cannot be shown is replaced (`printable`): matplotlib writes labels into SVG files, which
    would be no XML.

    Example: `as_label("$a$")` is a label that reads "$a$".
    """
    return printable(text).replace("$", r"\$")


def in_legend(name: str) -> str:
    """A name as the label of an item: matplotlib lists no label that begins with "_".

    Example: `in_legend("_mine.safetensors")` begins with a space, which hardly shows.
    """
    return f" {name}" if name.startswith("_") else name


def shortened(name: str, most: int) -> str:
    """A name of at most `most` characters: of a longer one, its beginning and its end.

    Example: `shortened("abcdefgh", 6)` is "abc…gh".
    """
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end]}…{name[-end:]}"


def write_picture(picture: Figure, path: Path, title: str = "", file_format: str = "png") -> None:
    """Write a picture. The file appears only when it is complete."""
    if title:
        picture.suptitle(as_label(title))
    with replacing(path) as stream:
        save_picture(picture, stream, file_format)


def save_picture(picture: Figure, stream: BinaryIO, file_format: str) -> None:
    """Write a picture to a stream; log one warning if its font lacks characters of the labels."""
    with warnings.catch_warnings(record=True) as found:
        # matplotlib repeats its warning for every drawing of a character.
        warnings.filterwarnings("always", _LACKS.pattern)
        picture.savefig(stream, dpi=_DPI, format=file_format)
    lacks = set()
    for warning in found:
        if match := _LACKS.match(str(warning.message)):
            lacks.add(chr(int(match[1])))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if lacks:
        _LOG.warning(
            "warning: the font of pictures lacks characters of the labels (%d, such as %s): the "
            "picture has boxes in their place",
            len(lacks),
            min(lacks),
        )


#: What begins the id of an artist with a note.
_NOTE = "note: "


def note_on(artist: Any, text: str) -> None:
    """Let a page show a text where the mouse is over an artist of its picture."""
    artist.set_gid(f"{_NOTE}{printable(text)}")


def svg_text(picture: Figure) -> str:
    """A picture as a part of a page."""
    # Imported where a picture is drawn: it belongs to the extra "report".
    from matplotlib import rc_context

    drawn = io.BytesIO()
    # Letters stay letters, in the font of the page.
    with rc_context({"svg.fonttype": "none"}):
        save_picture(picture, drawn, "svg")
    _, tag, rest = drawn.getvalue().decode().partition("<svg ")
    return re.sub(rf'<g id="{_NOTE}([^"]*)">', r"<g><title>\1</title>", tag + rest)


def tidy(axis: Any, labels: tuple[str, str], title: str = "", has_legend: bool = True) -> None:
    """Give a panel axis labels, a light grid and, if it has labelled items, a legend."""
    axis.set(xlabel=as_label(labels[0]), ylabel=as_label(labels[1]))
    if title:
        axis.set_title(as_label(title), fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)
    items, names = axis.get_legend_handles_labels()
    if has_legend and items:
        axis.legend(items, [as_label(name) for name in names], frameon=False, fontsize=8)
