"""The HTML report of a comparison: one self-contained file that works offline.

`write_report` writes the page. `summary_sentence` states its result in plain words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parcae.evaluation.page import how_made, how_sure, html_table, named, write_page
from parcae.evaluation.statistics import Estimate
from parcae.evaluation.world import PairedComparison

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
    """Write the HTML report. Its charts show the first run in detail.

    Args:
        comparison: the comparison.
        path: the HTML file to write.
        command: the command line that repeats the comparison.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
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
