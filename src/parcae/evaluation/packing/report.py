"""The HTML report of a comparison of packing policies: one self-contained file, usable offline.

`write_packing_report` writes the page. `packing_sentence` states its result in plain words.
"""

from __future__ import annotations

import html
from pathlib import Path

from parcae.evaluation.packing.compare import PackingComparison, PackingResult
from parcae.evaluation.packing.gantt import can_be_drawn, last_finish, packing_gantt
from parcae.evaluation.packing.plots import (
    busy_over_time,
    learning_curves,
    measure_words,
    slowdown_bars,
    slowdown_by_size,
    slowdown_cdf,
    waiting_over_time,
)
from parcae.evaluation.packing.table import (
    headings,
    notes,
    number,
    packing_title,
    rows,
    with_interval,
)
from parcae.evaluation.page import (
    figure_html,
    how_made,
    how_sure,
    html_table,
    named,
    pair,
    write_page,
)


def packing_sentence(comparison: PackingComparison) -> str:
    """State the best policy, its gain and whether that is significant."""
    words = measure_words(comparison)
    best = comparison.best()
    if best is None:
        return (
            "Under every policy some jobs never started, so no policy is called the best: "
            "the means cover only the jobs that started."
        )
    mean = best.estimates[comparison.measure]
    if len(comparison.policies) == 1:
        return f"With {best.name} the mean {words} is {with_interval(mean)}."
    won = f"{best.name} has the lowest mean {words}: {number(mean.mean)}"
    return f"{won}{_against(comparison, best)}{_left_out(comparison)}"


def _against(comparison: PackingComparison, best: PackingResult) -> str:
    first = comparison.policies[0]
    if best is first:
        others = [p for p in comparison.policies[1:] if p.is_complete]
        if not others:
            return "."
        second = min(others, key=lambda p: p.estimates[comparison.measure].mean)
        ratio = second.ratios[comparison.measure]
        return (
            f". The next best, {second.name}, has {with_interval(ratio)} times this value. "
            f"{how_sure(ratio, comparison.sampled)}"
        )
    ratio = best.ratios[comparison.measure]
    return (
        f", which is {with_interval(ratio)} times that of {first.name}. "
        f"{how_sure(ratio, comparison.sampled)}"
    )


def _left_out(comparison: PackingComparison) -> str:
    names = [p.name for p in comparison.policies if not p.is_complete]
    return (
        f" Not ranked, because some of their jobs never started: {', '.join(names)}."
        if names
        else ""
    )


def write_packing_report(comparison: PackingComparison, path: Path, *, command: str = "") -> None:
    """Write the HTML report. Its charts show the first run.

    Args:
        comparison: the comparison.
        path: the HTML file to write.
        command: the command line that repeats the comparison.

    Raises:
        OSError: the folder does not exist or cannot be written.
    """
    best = comparison.best()
    head = [f"<span>{html.escape(text)}</span>" for text in headings(comparison)]
    body = [
        (named(row, cells[0]), *map(html.escape, cells[1:]))
        for row, cells in enumerate(rows(comparison))
    ]
    parts = [
        html_table(
            head, body, None if best is None else comparison.policies.index(best), notes(comparison)
        ),
        "<h2>Over all runs</h2>"
        if len(comparison.policies[0].runs) > 1
        else "<h2>Over the run</h2>",
        figure_html(slowdown_bars(comparison), with_library=True),
        *pair(slowdown_cdf(comparison), slowdown_by_size(comparison)),
        *([figure_html(learning_curves(comparison))] if comparison.curves else []),
        *_one_run(comparison),
        how_made(comparison.settings, command),
    ]
    name = packing_title(comparison)
    write_page(path, name, "Packing rigid jobs", name, packing_sentence(comparison), parts)


def _one_run(comparison: PackingComparison) -> list[str]:
    outcomes = comparison.outcomes
    first = next(iter(outcomes.values()))
    over_time = [figure_html(waiting_over_time(outcomes))]
    if all(map(can_be_drawn, outcomes.values())):
        end = last_finish(outcomes)
        note = (
            "Each box is a job and the units that it holds. A job has the same colour in every "
            "chart. White is free."
        )
        charts = [
            figure_html(packing_gantt(name, outcome, end)) for name, outcome in outcomes.items()
        ]
        return [
            f"<h2>{_which(comparison)}: which job ran when</h2><p class=quiet>{note}</p>",
            *charts,
            *over_time,
        ]
    busy = [
        figure_html(busy_over_time(outcomes, resource))
        for resource in range(len(first.jobs.capacity))
    ]
    return [f"<h2>{_which(comparison)} over time</h2>", *busy, *over_time]


def _which(comparison: PackingComparison) -> str:
    if comparison.is_log:
        return "The first piece" if comparison.settings["piece_jobs"] else "The run"
    return f"One run (seed {comparison.settings['seeds'][0]})"
