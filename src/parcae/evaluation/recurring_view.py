"""The report's section on recurring jobs: who gains, who loses, and how sure that is."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parcae.base.texts import seconds_text
from parcae.evaluation.plots import chart_text, ratio_dots
from parcae.evaluation.report import cell, figure_html, html_table
from parcae.evaluation.who_pays import RecurringJob, recurring_jobs, verdict

if TYPE_CHECKING:
    from parcae.evaluation.compare import Comparison, PolicyResult

#: The table shows this many recurring jobs that lose most, and this many that gain most.
_MOST = 15
#: The tables break a longer name into lines.
_LONG_NAME = 40


def rival(comparison: Comparison) -> PolicyResult | None:
    """The policy that recurring jobs are judged under: the best one, or the next best to the first.

    None if there is no policy beside the first.
    """
    first, *others = comparison.policies
    ranked = [result for result in comparison.ranked() if result is not first] or others
    return min(ranked, key=lambda result: result.average_jct_s.mean, default=None)


def gains_and_losses(comparison: Comparison) -> str:
    """How many recurring jobs gain and lose under the best policy, in one sentence; or no text.

    Example: "Of 44 recurring jobs, 30 gain and 2 lose under srpt; for the others the runs cannot
    tell."
    """
    best = rival(comparison)
    if best is None:
        return ""
    column = comparison.policies.index(best)
    jobs = recurring_jobs(comparison.runs, column, comparison.method)
    counts = Counter(verdict(job.ratio(column)) for job in jobs)
    rest = "; for the others the runs cannot tell" if counts["unclear"] else ""
    return (
        f"Of {len(jobs):,} recurring jobs, {counts['gains']:,} gain and {counts['loses']:,} lose "
        f"under {best.name}{rest}."
    )


def recurring_section(comparison: Comparison) -> list[str]:
    """The table and the chart of recurring jobs, as HTML; the page has the chart library already.

    They are about the best policy; if the first policy is the best, about the next best one.
    """
    best = rival(comparison)
    if best is None:
        return []
    column = comparison.policies.index(best)
    jobs = recurring_jobs(comparison.runs, column, comparison.method)
    if not jobs:
        return []
    left_out = jobs[_MOST:-_MOST]
    shown = [*jobs[:_MOST], *jobs[-_MOST:]] if left_out else jobs
    notes = [
        f"Sorted by the ratio: the jobs that lose most under {best.name} come first, "
        "those that gain most come last. A job gains or loses if the 95% interval of its ratio, "
        "paired by seed, does not contain 1; of twenty jobs without any difference, one on average "
        f"seems to have one. Spread, p99 and worst are those under {best.name}."
    ]
    if left_out:
        notes.append(_left_out_note([job.ratio_to_first(column) for job in left_out]))
    has_deadlines = comparison.policies[0].deadlines is not None
    head = _head([policy.name for policy in comparison.policies], best.name, has_deadlines)
    table = html_table(head, [_row(job, column, has_deadlines) for job in shown], notes=notes)
    chart = ratio_dots(
        chart_text(f"Completion time under {best.name} / under {comparison.policies[0].name}"),
        [job.name for job in shown],
        [job.ratio(column) for job in shown],
    )
    return [
        "<h2>Recurring jobs: gains and losses</h2>",
        f"<p>{html.escape(gains_and_losses(comparison))}</p>",
        table,
        figure_html(chart),
        "<h2>Recurring jobs: the longest waits</h2>",
        _worst_table(jobs, column, best.name),
    ]


def _worst_table(jobs: Sequence[RecurringJob], column: int, name: str) -> str:
    """The jobs with the longest completion times under a policy, as HTML."""
    worst = sorted(jobs, key=lambda job: (-job.worst_s(column), job.name))[:_MOST]
    rows = [
        (
            _name(job),
            seconds_text(job.worst_s(column)),
            seconds_text(job.worst_s(0)),
            seconds_text(job.percentile_s(column, 99)),
            seconds_text(job.percentile_s(0, 99)),
        )
        for job in worst
    ]
    kinds = [
        f"{what}<small>{who}, s</small>"
        for what in ("worst", "p99")
        for who in (html.escape(name), "first policy")
    ]
    notes = [f"The {len(worst)} recurring jobs with the longest completion times under {name}."]
    return html_table(["recurring job", *kinds], rows, notes=notes)


def _head(policies: Sequence[str], best: str, has_deadlines: bool) -> list[str]:
    """The headings of the table of recurring jobs, as HTML."""
    deadlines = ["deadline<small>s</small>", "missed<small>first policy</small>"]
    deadlines.append(f"missed<small>{html.escape(best)}</small>")
    names = [html.escape(name) for name in policies]
    times = [f"{name}<small>mean JCT, s</small>" for name in names]
    ratio = f"{html.escape(best)} / {names[0]}<small>95% interval</small>"
    spread = "spread<small>sd over seeds, s</small>"
    return [
        "recurring job", "runs", *times, ratio, "verdict", spread,
        "p99<small>JCT, s</small>", "worst<small>JCT, s</small>",
        *(deadlines if has_deadlines else ()),
    ]  # fmt: skip


def _left_out_note(ratios: list[float]) -> str:
    """Says which jobs the table of recurring jobs leaves out, given their ratios."""
    return (
        f"The table shows the {_MOST} jobs that lose most (or gain least) and the {_MOST} that "
        f"gain most. The other {len(ratios):,}, with ratios from {min(ratios):.3f} to "
        f"{max(ratios):.3f}, are left out."
    )


def _name(job: RecurringJob) -> str:
    """The table cell of a job: its name, on several lines if it is long."""
    shown = html.escape(job.name)
    return shown if len(job.name) <= _LONG_NAME else f"<div class=name>{shown}</div>"


def _row(job: RecurringJob, column: int, has_deadlines: bool) -> tuple[str, ...]:
    missed: tuple[str, ...] = ("–",) * 3
    if job.deadline_s is not None:
        shares = (f"{job.missed_share(policy):.1%}" for policy in (0, column))
        # All digits: a number of more than six would be rounded, and written with an exponent.
        missed = (f"{job.deadline_s:,.15g}", *shares)
    times = map(seconds_text, job.mean_jct_s)
    ratio = job.ratio(column)
    return (
        _name(job),
        f"{job.num_runs:,}",
        *times,
        cell(ratio),
        verdict(ratio),
        "–" if math.isnan(job.spread_s(column)) else seconds_text(job.spread_s(column)),
        seconds_text(job.percentile_s(column, 99)),
        seconds_text(job.worst_s(column)),
        *(missed if has_deadlines else ()),
    )
