"""The table of a comparison of packing policies: title, column headings, rows and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from parcae.evaluation.packing.compare import NUM_BLOCKS, PackingComparison
from parcae.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from rich.table import Table


def headings(comparison: PackingComparison) -> tuple[str, ...]:
    """The column headings for `rows`."""
    main = "bounded slowdown" if comparison.is_log else "slowdown"
    other = "slowdown" if comparison.is_log else "completion"
    return (
        "policy",
        main,
        "ratio to first",
        "p95",
        other,
        "waiting",
        "busy",
        "withheld",
        "never started",
    )


def rows(comparison: PackingComparison) -> Iterator[tuple[str, ...]]:
    """The cells of the table, one row per policy."""
    for result in comparison.policies:
        main = result.estimates[comparison.measure]
        ratio = result.ratios[comparison.measure]
        other = result.estimates["slowdown" if comparison.is_log else "completion"].mean
        busy = " ".join(f"{share:.0%}" for share in result.utilization().values())
        lost = f"{result.unallocated + result.dropped:,}" if not result.is_complete else "–"
        yield (
            result.name, with_interval(main), with_interval(ratio),
            number(result.quantiles()["p95"]), number(other),
            number(result.estimates["waiting"].mean), busy,
            f"{result.mean('withheld_share'):.0%}", lost,
        )  # fmt: skip


def with_interval(estimate: Estimate) -> str:
    """An estimate as text, such as "3.12 [3.01, 3.24]"; without an interval if it is unknown."""
    if math.isnan(estimate.mean):
        return "–"
    ends = "" if estimate.is_unknown else f" [{number(estimate.low)}, {number(estimate.high)}]"
    return number(estimate.mean) + ends


def number(value: float) -> str:
    """A number as text, with fewer decimals the larger it is; a dash if unknown.

    Example: 3.1416 is "3.142", 1234.5 is "1,234".
    """
    if math.isnan(value):
        return "–"
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:,.{3 if abs(value) < 10 else 1 if abs(value) < 1_000 else 0}f}"


def packing_title(comparison: PackingComparison) -> str:
    """The setting of the comparison in one line."""
    s = comparison.settings
    jobs = comparison.policies[0].num_jobs
    if not comparison.is_log:
        label = f"{s['label']}, " if s["label"] else ""
        return (
            f"{label}{jobs:,} jobs on {s['seeds'][1] - s['seeds'][0] + 1} seeds "
            f"({s['seeds'][0]}-{s['seeds'][1]})"
        )
    pieces = f" in {s['pieces']} pieces of {s['piece_jobs']:,}" if s["piece_jobs"] else ""
    load = ", ".join(f"{name} {load:.0%}" for name, load in s["load"].items())
    return f"{s['label']}: {jobs:,} jobs{pieces}, load of {load}"


def notes(comparison: PackingComparison) -> list[str]:
    """Notes that a reader of the table needs."""
    lines = [
        f"times in {comparison.unit}; means over the jobs that started; "
        "[ ] are 95% confidence intervals"
    ]
    for result in comparison.policies:
        if not result.is_complete:
            lost = (
                f"{result.unallocated:,} jobs never started and {result.dropped:,} were lost to a "
                "full backlog"
            )
            lines.append(
                f"{result.name}: {lost}, of {result.num_jobs:,}; its means cover only the others"
            )
    known = [p.correlation for p in comparison.policies if not math.isnan(p.correlation)]
    if known and max(known) > 2 / math.sqrt(NUM_BLOCKS):
        lines.append(
            f"neighbouring blocks are correlated (up to {max(known):.2f}): "
            "the intervals are too narrow"
        )
    return lines


def packing_table(comparison: PackingComparison) -> Table:
    """The comparison as a table for the terminal."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(packing_title(comparison)))
    for column, heading in enumerate(headings(comparison)):
        table.add_column(heading, justify="right" if column else "left", no_wrap=column == 0)
    for cells in rows(comparison):
        table.add_row(*map(escape, cells))
    table.caption = escape("\n".join(notes(comparison)))
    return table
