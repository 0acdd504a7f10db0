"""The HTML report of a comparison: one self-contained file that works offline.

`write_report` writes the page. `summary_sentence` states its result in plain words.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcae.base.files import write_text
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import UNKNOWN_TEXT, Estimate
from parcae.evaluation.world import PairedComparison

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
    """Write a page."""
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
    """An HTML table with notes below it."""
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


#: Ratios closer to 1 than this are reported as "the same".
_SAME = 1e-9
#: A ratio from here on is stated as "times", a smaller one as a percentage.
_TIMES = 2.0
#: The smallest share that the headline states in whole percent; the largest is as far from 1.
_LEAST_SHOWN = 0.01


def summary_sentence(comparison: PairedComparison[Any]) -> str:
    """State the best policy, its gain, whether that is significant, and the world's remark."""
    best = comparison.best()
    if best is None:
        return comparison.remark(None)
    first = comparison.policies[0]
    mean = comparison.main(best)
    value = comparison.value_text(mean.mean)
    if len(comparison.policies) == 1:
        return f"With {first.name} the {comparison.measure} is {value}{_ends(comparison, mean)}."
    won = f"{best.name} has the lowest {comparison.measure}: {value}"
    result = _against_next(comparison, won) if best is first else _against_first(comparison, won)
    return " ".join(part for part in (result, comparison.remark(best)) if part)


def headline(comparison: PairedComparison[Any]) -> str:
    """The result in plain words, for readers who do not know the measures.

    Example: "srpt is better than fair: its average job completion time is 18% lower."
    """
    best = comparison.best()
    if best is None or len(comparison.policies) == 1:
        return ""
    first = comparison.policies[0].name
    ratio = comparison.ratio(best)
    # The first policy may be as good without being ranked.
    if best is comparison.policies[0] or abs(ratio.mean - 1) < _SAME:
        said = f"None of the other {_kind(comparison)} does better than {first}."
    elif ratio.mean > 1:
        said = f"{best.name} does best of the {_kind(comparison)}; {first} is not one of them."
    elif ratio.is_unknown:
        said = f"One run of each policy is too little to tell whether {best.name} beats {first}."
    elif ratio.high < 1:
        saved = 1 - ratio.mean
        # Rounded, a smaller share would be none, and a larger one all.
        shown = "less than 1%" if saved < _LEAST_SHOWN else f"{saved:.0%}"
        shown = "more than 99%" if saved > 1 - _LEAST_SHOWN else shown
        said = f"{best.name} is better than {first}: its {comparison.measure} is {shown} lower."
    else:
        said = f"It may be chance that {best.name} does better than {first}: run more to know."
    return " ".join(part for part in (said, comparison.winners()) if part)


def _kind(comparison: PairedComparison[Any]) -> str:
    """The policies that may be the best, in words."""
    are_all = len(comparison.ranked()) == len(comparison.policies)
    return "policies" if are_all else "policies that are ranked"


def _against_first(comparison: PairedComparison[Any], won: str) -> str:
    """What the best policy gains over the first, or loses against one that is not ranked."""
    name = comparison.policies[0].name
    ratio = comparison.ratio(comparison.best())
    if ratio.mean > 1 + _SAME:
        how_much = f"{_more(comparison, ratio)} than {name}, which is not ranked"
        return f"{won}, {how_much}. {how_sure(ratio, comparison.sampled)}"
    # The saving is 1 - ratio, so the ends of the interval change places.
    saved = Estimate(1 - ratio.mean, 1 - ratio.high, 1 - ratio.low)
    if saved.mean < _SAME:
        return f"{won}, the same as {name}."
    less = f"{saved.mean:.1%} less than {name}{_percent_ends(comparison, saved)}"
    return f"{won}, {less}. {how_sure(ratio, comparison.sampled)}"


def _against_next(comparison: PairedComparison[Any], won: str) -> str:
    """What the next best policy loses against the first, which is the best."""
    others = [result for result in comparison.ranked() if result is not comparison.policies[0]]
    if not others:
        return f"{won}{_ends(comparison, comparison.main(comparison.policies[0]))}."
    second = min(others, key=lambda result: comparison.main(result).mean)
    ratio = comparison.ratio(second)
    if abs(ratio.mean - 1) < _SAME:
        return f"{won}. {second.name} has the same average."
    return (
        f"{won}. The next best, {second.name}, has {_more(comparison, ratio)}. "
        f"{how_sure(ratio, comparison.sampled)}"
    )


def _more(comparison: PairedComparison[Any], ratio: Estimate) -> str:
    """By how much a ratio is above 1, with its interval."""
    if ratio.mean >= _TIMES:
        ends = f"{ratio.low:,.2f} to {ratio.high:,.2f} times"
        shown = "" if ratio.is_unknown else f" (95% interval {ends})"
        return f"{ratio.mean:,.2f} times as much{shown}"
    excess = Estimate(ratio.mean - 1, ratio.low - 1, ratio.high - 1)
    return f"{excess.mean:.1%} more{_percent_ends(comparison, excess)}"


def _ends(comparison: PairedComparison[Any], estimate: Estimate) -> str:
    """The interval of a value of the main measure, in parentheses."""
    low, high = (comparison.value_text(end) for end in (estimate.low, estimate.high))
    return _in_parentheses(comparison, estimate, low, high)


def _percent_ends(comparison: PairedComparison[Any], estimate: Estimate) -> str:
    """The interval of a share, in parentheses."""
    return _in_parentheses(comparison, estimate, f"{estimate.low:.1%}", f"{estimate.high:.1%}")


def _in_parentheses(
    comparison: PairedComparison[Any], estimate: Estimate, low: str, high: str
) -> str:
    if estimate.is_unknown:
        return f" (one {comparison.sampled.removesuffix('s')}: no interval)"
    return f" (95% interval {low} to {high})"


def write_report(comparison: PairedComparison[Any], path: Path, *, command: str = "") -> None:
    """Write the HTML report. Its charts show the first run in detail."""
    parts = [
        policies_table(comparison),
        *comparison.sections(),
        how_made(comparison.settings, command),
    ]
    write_page(
        path,
        comparison.title(),
        f"Scheduling {comparison.subject}",
        comparison.title(),
        summary_sentence(comparison),
        parts,
        headline(comparison),
    )


def policies_table(comparison: PairedComparison[Any]) -> str:
    """The table of policies as HTML, with the best one highlighted."""
    columns = comparison.columns()
    head = ["policy", *(column.page_heading() for column in columns)]
    rows = [
        (named(row, result.name), *(column.page_cell(result) for column in columns))
        for row, result in enumerate(comparison.policies)
    ]
    best = comparison.best()
    position = None if best is None else comparison.policies.index(best)
    return html_table(head, rows, position, comparison.notes())
