"""The HTML report of a comparison, and its result in plain words.

`write_report` writes the page. `headline` states the result.
"""

from __future__ import annotations

import json
from pathlib import Path

from parcae.evaluation.comparison import Comparison, policies_table
from parcae.evaluation.page import write_page
from parcae.evaluation.statistics import is_no_matter

#: Ratios closer to 1 than this are reported as "the same".
_SAME = 1e-9
#: The smallest share that the headline states in whole percent; the largest is as far from 1.
_LEAST_SHOWN = 0.01


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


def write_report(comparison: Comparison, path: Path, *, command: str = "") -> None:
    """Write the HTML report. Its charts show the first run in detail."""
    write_page(
        path,
        title=comparison.title(),
        question=_question(comparison),
        headline=headline(comparison),
        summary=comparison.world.remark(comparison, comparison.best()),
        policies=policies_table(comparison),
        sections=comparison.world.sections(comparison),
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
