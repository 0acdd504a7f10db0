"""Building blocks of the HTML reports: one self-contained page, its tables and its charts.

The page loads nothing from the network: styles and the chart library are part of the file.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import UNKNOWN_TEXT, Estimate
from parcae.files import write_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_STYLE = """
body{font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
  color:#1d232a;background:#fff;
  max-width:1120px;margin:0 auto;padding:32px 24px 72px}
h1{font-size:1.75rem;letter-spacing:-.01em;margin:0 0 .15rem}
h2{font-size:1.22rem;margin:2.8rem 0 .5rem;border-bottom:1px solid #e3e6ea;padding-bottom:.3rem}
.lead{font-size:1.1rem;background:#f4f8fb;border-left:4px solid #0072b2;padding:.85rem 1.1rem;
  margin:1.1rem 0 1.4rem}
.headline{font-size:1.35rem;line-height:1.35;margin:1.1rem 0 .4rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.42rem .55rem;text-align:right;border-bottom:1px solid #eceff2;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
.name{white-space:normal;overflow-wrap:anywhere;min-width:9rem;max-width:24rem}
th{font-weight:600;color:#48525c;vertical-align:bottom}
th small{display:block;font-weight:400}
tr.best td{font-weight:600;background:#f1f8f4}
td span{font-weight:400;color:#5b6670}
i.dot{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.5em}
small,.quiet{color:#5b6670}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 20px}.pair>div{min-width:0}
@media(max-width:820px){.pair{grid-template-columns:1fr}}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;
  background:#f5f6f8;border-radius:4px}
pre{padding:.8rem 1rem;overflow-x:auto;white-space:pre-wrap;word-break:break-word}
"""
_CONFIG = {"displayModeBar": False, "responsive": True}


def write_page(
    path: Path,
    name: str,
    heading: str,
    setting: str,
    sentence: str,
    parts: Sequence[str],
    headline: str = "",
) -> None:
    """Write a page.

    Args:
        path: the HTML file to write.
        name: name of the page, for its title.
        heading: the heading, as text.
        setting: one line about the setting, as text.
        sentence: the result in a sentence, as text.
        parts: the rest of the page, each part as HTML.
        headline: the result in plain words, as text, above the sentence; or no text.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    # Texts are escaped here; parts are HTML already.
    first = f"<p class=headline>{html.escape(headline)}</p>" if headline else ""
    head = [
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>",
        f"<title>Parcae: {html.escape(name)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(heading)}</h1>",
        f"<p class=quiet>{html.escape(setting)}</p>{first}",
        f"<p class=lead>{html.escape(sentence)}</p>",
    ]
    write_text(path, "\n".join([*head, *parts]) + "\n")


def html_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: int | None = None,
    notes: Sequence[str] = (),
) -> str:
    """An HTML table with notes below it.

    Args:
        head: the column headings, as HTML.
        rows: the cells of every row, as HTML.
        best: the row to highlight, if any.
        notes: sentences below the table, as text.
    """
    lines = (
        f"<tr{' class=best' if row == best else ''}>"
        f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        for row, cells in enumerate(rows)
    )
    below = "".join(f"<p class=quiet>{html.escape(note, quote=False)}</p>" for note in notes)
    return (
        f"<div class=wide><table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>"
        f"{''.join(lines)}</table></div>{below}"
    )


def named(row: int, name: str) -> str:
    """The table cell of a policy: a dot in its colour, and its name."""
    return f"<i class=dot style='background:{policy_color(row)}'></i>{html.escape(name)}"


def cell(estimate: Estimate, number: Callable[[float], str] = "{:.3f}".format) -> str:
    """The table cell of an estimate: the mean, if it is known, and the interval, if it is.

    `number` writes a number.
    """
    if math.isnan(estimate.mean):
        return UNKNOWN_TEXT
    if estimate.is_unknown:
        return number(estimate.mean)
    return f"{number(estimate.mean)} <span>{number(estimate.low)} – {number(estimate.high)}</span>"


def how_sure(ratio: Estimate, of: str = "seeds") -> str:
    """State whether a ratio of two policies differs from 1 significantly.

    `of` is what was sampled: "seeds", "pieces" of a log or "jobs".
    """
    if ratio.is_unknown:
        return f"Run more {of} to get a confidence interval."
    if ratio.low <= 1 <= ratio.high:
        return f"With this many {of} the difference is not significant at the 95% level."
    return "The difference is significant at the 95% level."


def figure_html(figure: Figure, with_library: bool = False) -> str:
    """A chart as HTML. The first chart of a page must include the chart library."""
    import plotly.io

    return str(
        plotly.io.to_html(figure, include_plotlyjs=with_library, full_html=False, config=_CONFIG)
    )


def pair(left: Figure, right: Figure) -> list[str]:
    """Two charts side by side."""
    return ["<div class=pair>", figure_html(left), figure_html(right), "</div>"]


def how_made(settings: Mapping[str, Any], command: str) -> str:
    """The page's last section: command, method of the intervals, tuned parameters, settings."""
    run = f"<pre>{html.escape(command)}</pre>" if command else ""
    tuned = "".join(
        f"<li><b>{html.escape(k)}</b>: {html.escape(v)}</li>" for k, v in settings["tuned"].items()
    )
    notes = (
        f"<p>Tuned policies, on seeds that no comparison uses:</p><ul>{tuned}</ul>" if tuned else ""
    )
    return (
        f"<h2>How this was made</h2>{run}<p>{html.escape(settings['intervals'])}.</p>{notes}"
        "<details><summary>Settings</summary>"
        f"<pre>{html.escape(json.dumps(settings, indent=2))}</pre></details>"
    )
