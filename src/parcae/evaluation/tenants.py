"""What the policies of a comparison do to each tenant: the jobs of a pool, under every policy.

A tenant's jobs are grouped as the occurrences of a recurring job are, so that times, ratios and
their intervals mean the same.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parcae.base.texts import seconds_text
from parcae.evaluation.report import cell, html_table
from parcae.evaluation.statistics import DEFAULT_METHOD, Method, with_interval
from parcae.evaluation.who_pays import LATER, PairedRuns, RecurringJob, recurring_jobs

if TYPE_CHECKING:
    from rich.table import Table

    from parcae.evaluation.compare import Comparison


def by_pool(
    runs: Sequence[PairedRuns],
    pools: Sequence[Sequence[str]],
    method: Method = DEFAULT_METHOD,
) -> list[RecurringJob]:
    """The completion times of every pool's jobs, sorted by the pool's name.

    Example: two jobs of the pool `etl` in each of three seeds are six occurrences of `etl`.
    """
    named = [replace(run, names=tuple(of)) for run, of in zip(runs, pools, strict=True)]
    return sorted(recurring_jobs(named, 0, method), key=lambda pool: pool.name)


def pools_json(pools: Sequence[RecurringJob], policy: int) -> dict[str, Any]:
    """The results of every pool under a policy (its position in the comparison), by name."""
    return {
        pool.name: {
            "jobs": pool.num_runs,
            "average_jct_s": pool.mean_jct_s[policy],
            "p99_jct_s": pool.percentile_s(policy, 99),
            "ratio_to_first": pool.ratio(policy).to_json(),
            "later_than_first_share": later_share(pool, policy),
        }
        for pool in pools
    }


def later_share(pool: RecurringJob, policy: int) -> float:
    """Share of a pool's jobs that take more than LATER times their time under the first policy."""
    return float(np.mean(pool.jct_ms[policy] / pool.jct_ms[0] > LATER))


def pools_table(comparison: Comparison) -> Table:
    """For the terminal: every pool's ratio to the first policy, a row for each policy."""
    from rich.markup import escape
    from rich.table import Table

    pools = comparison.by_pool
    table = Table(title="Who pays, by pool: mean JCT / that under the first policy")
    table.add_column("policy", no_wrap=True)
    for pool in pools:
        table.add_column(escape(pool.name), justify="right", no_wrap=True)
    for column, result in enumerate(comparison.policies):
        ratios = (with_interval(pool.ratio(column)) for pool in pools)
        table.add_row(escape(result.name), *(escape(text) for text in ratios))
    table.caption = "[ ] are 95% confidence intervals over the seeds"
    return table


def pools_section(comparison: Comparison) -> list[str]:
    """The page's section on pools, as HTML; nothing if no policy has pools."""
    pools = comparison.by_pool
    if not pools:
        return []
    head = ["policy"]
    for pool in pools:
        head.append(f"{html.escape(pool.name)}<small>ratio, 95% interval</small>")
        head.append("mean JCT<small>s</small>")
        head.append("later<small>of its jobs</small>")
    rows = []
    for column, result in enumerate(comparison.policies):
        cells = [html.escape(result.name)]
        for pool in pools:
            cells.append(cell(pool.ratio(column)))
            cells.append(seconds_text(pool.mean_jct_s[column]))
            cells.append(f"{later_share(pool, column):.1%}")
        rows.append(cells)
    sizes = ", ".join(f"{pool.name} {pool.num_runs:,}" for pool in pools)
    first = comparison.policies[0].name
    note = (
        f"Ratio: mean completion time of the pool's jobs / that under {first}, paired by seed. "
        f"Later: jobs that end more than {LATER - 1:.0%} later than under {first}. "
        f"Jobs over all seeds: {sizes}."
    )
    return ["<h2>Tenants: who pays, by pool</h2>", html_table(head, rows, notes=[note])]
