"""The HTML report of a comparison, and its result in plain words.

`write_report` writes the page. `summary_sentence` states the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from parcae.evaluation.comparison import Comparison, PolicyResult
from parcae.evaluation.page import Cell, Table, chart_library, estimate_cell, write_page
from parcae.evaluation.plots import policy_color
from parcae.evaluation.statistics import Estimate, is_no_matter

#: Ratios closer to 1 than this are reported as "the same".
_SAME = 1e-9
#: A ratio from here on is stated as "times", a smaller one as a percentage.
_TIMES = 2.0
#: Longer names of policies, such as paths, are broken into lines.
_LONG_NAME = 24
#: The smallest share that the headline states in whole percent; the largest is as far from 1.
_LEAST_SHOWN = 0.01


def summary_sentence(comparison: Comparison) -> str:
    """State the best policy, its gain, whether that is significant, and the world's remark."""
    world = comparison.world
    best = comparison.best()
    remark: str = world.remark(comparison, best)
    if best is None:
        return remark
    first = comparison.policies[0]
    mean = comparison.main(best)
    alone = f"{world.value_text(mean.mean)}{_ends(comparison, mean, world.value_text)}."
    if len(comparison.simulated) == 1:
        return f"With {first.name} the {world.measure} is {alone}"
    won = f"{best.name} has the lowest {world.measure}: "
    others = [result for result in comparison.ranked() if result is not first]
    if best is first and not others:
        return f"{won}{alone} {remark}".rstrip()
    compared = (
        _against_next(comparison, min(others, key=lambda result: comparison.main(result).mean))
        if best is first
        else _against_first(comparison, best.ratio_to_first)
    )
    return f"{won}{world.value_text(mean.mean)}{compared} {remark}".rstrip()


def _against_first(comparison: Comparison, ratio: Estimate) -> str:
    """What the best policy gains over the first, or loses against one that is not ranked."""
    name = comparison.policies[0].name
    sure = how_sure(ratio, comparison.world.sampled(comparison))
    if ratio.mean > 1 + _SAME:
        return f", {_more(comparison, ratio)} than {name}, which is not ranked. {sure}"
    saved = ratio.complement()
    if saved.mean < _SAME:
        return f", the same as {name}."
    return f", {saved.mean:.1%} less than {name}{_ends(comparison, saved, _percent)}. {sure}"


def _against_next(comparison: Comparison, second: PolicyResult) -> str:
    """What the next best policy loses against the first, which is the best."""
    ratio = second.ratio_to_first
    if abs(ratio.mean - 1) < _SAME:
        return f". {second.name} has the same average."
    sure = how_sure(ratio, comparison.world.sampled(comparison))
    return f". The next best, {second.name}, has {_more(comparison, ratio)}. {sure}"


def _more(comparison: Comparison, ratio: Estimate) -> str:
    """By how much a ratio is above 1, with its interval."""
    if ratio.mean >= _TIMES:
        ends = f" (95% interval {ratio.low:,.2f} to {ratio.high:,.2f} times)"
        return f"{ratio.mean:,.2f} times as much{'' if ratio.is_unknown else ends}"
    excess = Estimate(ratio.mean - 1, ratio.low - 1, ratio.high - 1)
    return f"{excess.mean:.1%} more{_ends(comparison, excess, _percent)}"


_percent = "{:.1%}".format


def _ends(comparison: Comparison, estimate: Estimate, number: Callable[[float], str]) -> str:
    """The interval of a value, in parentheses."""
    if estimate.is_unknown:
        sample = comparison.world.sampled(comparison).removesuffix("s")
        return f" (one {sample}: no interval)"
    return f" (95% interval {number(estimate.low)} to {number(estimate.high)})"


def headline(comparison: Comparison) -> str:
    """The result in plain words, for readers who do not know the measures.

    Example: "srpt is better than fair: its average job completion time is 18% lower."
    """
    best = comparison.best()
    found = comparison.world.caveat(comparison)
    caveat = found and f"{found[0].upper()}{found[1:]}. "
    if best is None or len(comparison.simulated) == 1:
        return caveat.rstrip()
    first = comparison.policies[0].name
    measure = comparison.world.measure
    are_all = len(comparison.ranked()) == len(comparison.simulated)
    kind = "policies" if are_all else "policies that are ranked"
    ratio = best.ratio_to_first
    # The first policy may be as good without being ranked.
    if best is comparison.policies[0] or abs(ratio.mean - 1) < _SAME:
        said = f"None of the other {kind} does better than {first}."
    elif ratio.mean > 1:
        said = f"{best.name} does best of the {kind}; {first} is not one of them."
    elif ratio.is_unknown:
        said = f"One run of each policy is too little to tell whether {best.name} beats {first}."
    elif is_no_matter(ratio):
        said = f"{best.name} does best, but that is no difference worth having from {first}."
    elif ratio.high < 1:
        saved = 1 - ratio.mean
        # Rounded, a smaller share would be none, and a larger one all.
        shown = "less than 1%" if saved < _LEAST_SHOWN else f"{saved:.0%}"
        shown = "more than 99%" if saved > 1 - _LEAST_SHOWN else shown
        said = f"{best.name} is better than {first}: its {measure} is {shown} lower."
    else:
        said = f"It may be chance that {best.name} does better than {first}: run more to know."
    return f"{caveat}{said} {comparison.world.winners(comparison)}".rstrip()


def how_sure(ratio: Estimate, of: str = "seeds") -> str:
    """State whether a ratio of two policies differs from 1 significantly.

    `of` is what was sampled: "seeds", "pieces" of a log or "jobs".
    """
    if ratio.is_unknown:
        return f"Run more {of} to get a confidence interval."
    if ratio.low <= 1 <= ratio.high:
        return f"With this many {of} the difference is not significant at the 95% level."
    return "The difference is significant at the 95% level."


def write_report(comparison: Comparison, path: Path, *, command: str = "") -> None:
    """Write the HTML report. Its charts show the first run in detail."""
    write_page(
        path,
        "report.html.j2",
        title=comparison.title(),
        question=_question(comparison),
        headline=headline(comparison),
        summary=summary_sentence(comparison),
        policies=policies_table(comparison),
        sections=comparison.world.sections(comparison),
        library=chart_library(),
        command=command,
        settings=comparison.settings,
        settings_text=json.dumps(comparison.settings, indent=2),
    )


def _question(comparison: Comparison) -> str:
    """What was asked, as the page's title."""
    first, *others = (result.name for result in comparison.policies)
    subject = comparison.world.subject
    if not others:
        return f"How long do {subject} take under {first}?"
    asked = others[0] if len(others) == 1 else f"any of {len(others)} orders"
    return f"Is {asked} better than {first} for {subject}?"


def policies_table(comparison: Comparison) -> Table:
    """The table of policies, with the best one highlighted."""
    columns = comparison.columns()
    rows = []
    for result in comparison.rows:
        color = policy_color(comparison.policies.index(result))
        is_long = len(result.name) > _LONG_NAME
        cells: list[Cell | str] = [Cell(result.name, color=color, is_name=is_long)]
        for column in columns:
            value = column.value(result)
            cells.append(
                estimate_cell(value, column.number)
                if isinstance(value, Estimate)
                else column.text(result)
            )
        rows.append(cells)
    best = comparison.best()
    position = None if best is None else comparison.rows.index(best)
    head = [Cell("policy"), *(Cell(column.heading, column.small) for column in columns)]
    return Table(head, rows, comparison.notes(), position)
