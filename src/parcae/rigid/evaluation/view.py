"""How a comparison of packing policies is shown: table, notes, charts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from parcae.evaluation.gantt import gantt_figure
from parcae.evaluation.report import figure_html, pair
from parcae.evaluation.statistics import with_interval
from parcae.evaluation.world import Column
from parcae.rigid.evaluation.gantt import can_be_drawn, last_finish, packing_chart
from parcae.rigid.evaluation.plots import (
    busy_over_time,
    learning_curves,
    slowdown_bars,
    slowdown_by_size,
    slowdown_cdf,
    waiting_over_time,
)
from parcae.rigid.evaluation.samples import num_blocks
from parcae.rigid.evaluation.users import users_section
from parcae.workloads.import_report import counted

if TYPE_CHECKING:
    from parcae.rigid.evaluation.world import PackingComparison, PackingResult

#: Neighbouring blocks are called correlated above this many standard deviations of no correlation.
_NUM_DEVIATIONS = 2


def title(comparison: PackingComparison) -> str:
    """The setting of the comparison in one line."""
    s = comparison.settings
    jobs = comparison.policies[0].num_jobs
    if "pieces" not in s:
        label = f"{s['label']}, " if s["label"] else ""
        return (
            f"{label}{counted(jobs, 'job')} on "
            f"{counted(s['seeds'][1] - s['seeds'][0] + 1, 'seed')} "
            f"({s['seeds'][0]}-{s['seeds'][1]})"
        )
    pieces = f" in {s['pieces']} pieces of {s['piece_jobs']:,}" if s["piece_jobs"] else ""
    start = f"{s['label']}: {counted(jobs, 'job')}{pieces}"
    if None in s["load"].values():
        return f"{start}; all arrive at once"
    load = ", ".join(f"{name} {load:.0%}" for name, load in s["load"].items())
    return f"{start}, load of {load}"


def columns(comparison: PackingComparison) -> list[Column[PackingResult]]:
    """The columns of the table of policies."""
    other = "slowdown" if comparison.is_log else "completion"
    return [
        Column(comparison.measure_words, lambda p: with_interval(comparison.main(p), number)),
        Column("ratio to first", lambda p: with_interval(comparison.ratio(p), number)),
        Column("p95", lambda p: number(p.quantiles()["p95"])),
        Column(other, lambda p: number(p.estimates[other].mean)),
        Column("waiting", lambda p: number(p.estimates["waiting"].mean)),
        Column("makespan (ratio)", _makespan_text),
        Column("busy", lambda p: " ".join(f"{share:.0%}" for share in p.utilization().values())),
        Column("withheld", lambda p: f"{p.mean('withheld_share'):.0%}"),
        Column("never started", _lost_text),
    ]


def _makespan_text(result: PackingResult) -> str:
    return f"{number(result.mean('makespan'))} ({result.makespan_ratio:.2f})"


def _lost_text(result: PackingResult) -> str:
    return "–" if result.is_complete else f"{result.unallocated + result.dropped:,}"


def number(value: float) -> str:
    """A number as text, with fewer decimals the larger it is; a dash if unknown.

    Example: 3.1416 is "3.142", 1234.5 is "1,234".
    """
    if math.isnan(value):
        return "–"
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{3 if abs(value) < 10 else 1 if abs(value) < 1_000 else 0}f}"


def notes(comparison: PackingComparison) -> list[str]:
    """Notes that a reader of the table needs."""
    lines = [
        f"times in {comparison.unit}; means over the jobs that started; "
        "[ ] are 95% confidence intervals"
    ]
    first = comparison.policies[0]
    num_empty = len(first.runs) - len(first.busy_runs)
    if num_empty:
        lines.append(
            f"no job arrives on {num_empty:,} of {len(first.runs):,} seeds: makespan, busy and "
            "withheld are means over the others"
        )
    for result in comparison.policies:
        if not result.is_complete:
            lost = (
                f"{counted(result.unallocated, 'job')} never started and "
                f"{counted(result.dropped, 'job')} lost to a full backlog"
            )
            lines.append(
                f"{result.name}: {lost}, of {result.num_jobs:,}; its means cover only the others"
            )
    known = [p.correlation for p in comparison.policies if not math.isnan(p.correlation)]
    if known and max(known) > _NUM_DEVIATIONS / math.sqrt(num_blocks(first.num_jobs)):
        lines.append(
            f"neighbouring blocks are correlated (up to {max(known):.2f}): "
            "the intervals are too narrow"
        )
    lines.extend(f"Warning: {text}." for text in comparison.warnings())
    return lines


def sections(comparison: PackingComparison) -> list[str]:
    """The page's sections after the table, as HTML: charts over all runs, and of the first run."""
    has_many = len(comparison.policies[0].runs) > 1
    return [
        "<h2>Over all runs</h2>" if has_many else "<h2>Over the run</h2>",
        figure_html(slowdown_bars(comparison), with_library=True),
        *pair(slowdown_cdf(comparison), slowdown_by_size(comparison)),
        *([figure_html(learning_curves(comparison))] if comparison.curves else []),
        *users_section(comparison),
        *_one_run(comparison),
    ]


def _one_run(comparison: PackingComparison) -> list[str]:
    outcomes = comparison.outcomes
    first = next(iter(outcomes.values()))
    over_time = [figure_html(waiting_over_time(outcomes))]
    if all(can_be_drawn(outcome.jobs) for outcome in outcomes.values()):
        end = last_finish(outcomes)
        note = (
            "Each box is a job and the units that it holds. A job has the same colour in every "
            "chart. White is free."
        )
        charts = [
            figure_html(gantt_figure(packing_chart(name, outcome), end))
            for name, outcome in outcomes.items()
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
    if "pieces" in comparison.settings:
        return "The first piece" if comparison.settings["piece_jobs"] else "The run"
    return f"One run (seed {comparison.settings['seeds'][0]})"
