"""`parcae compare-logs`: compares the event logs of two runs of a workload, job by job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from parcae.base.options import argument, option
from parcae.base.texts import printable, s_from_ms
from parcae.cli.commands import command
from parcae.cli.options import JSON, KEY, MAX_BAD_SHARE
from parcae.cli.progress import counting_each
from parcae.cli.tables import print_fitted
from parcae.evaluation.compare_logs import LogComparison, LogSummary
from parcae.evaluation.compare_logs import compare_logs as compared
from parcae.evaluation.gantt import gantt
from parcae.evaluation.statistics import with_interval
from parcae.workloads.import_report import counted

#: Width of the tables in characters, and number of jobs without a counterpart that are listed.
_WIDTH = 100
_NUM_LISTED = 20
_UNKNOWN = "–"


@command()
def compare_logs(
    a: Path = argument(
        "Event log of the first run: a file, rolling log folder, zip, or folder of them.",
        "A",
        "read",
    ),
    b: Path = argument("Event log of the second run. Ratios are B / A.", "B", "read"),
    key: str | None = KEY,
    plot: Path | None = option(
        None,
        "Draw the cores over time of both runs (*.html, *.png, *.svg or *.pdf).",
        check="chart",
    ),
    as_json: bool = JSON,
    max_bad_share: float = MAX_BAD_SHARE,
) -> None:
    """Compare two runs of a workload on Spark, job by job, by their event logs.

    Example: parcae compare-logs before.zstd after.zstd --plot gantt.png
    """
    with counting_each(("reading A", "reading B")) as show:
        comparison = compared(
            a,
            b,
            key=key,
            max_bad_share=max_bad_share,
            progress=lambda label, done, total: show(f"reading {label}", done, total),
        )
    if as_json:
        typer.echo(json.dumps(comparison.to_json(), indent=2))
    else:
        _print(comparison)
    # The picture comes last: one that cannot be written loses no result.
    if plot is not None:
        labelled = zip("AB", comparison.runs, strict=True)
        gantt([(f"{label}: {run.label}", run) for label, run in labelled], plot)
        typer.echo(f"cores over time: {plot}", err=as_json)


def _print(comparison: LogComparison) -> None:
    """Print the tables and the notes."""
    for table in _tables(comparison):
        # In a narrow terminal, wide tables are better than cut cells.
        print_fitted(table, _WIDTH)
    for note in comparison.notes:
        typer.echo(printable(f"note: {note}"))


def _tables(comparison: LogComparison) -> Iterator[Table]:
    yield _summary_table(comparison)
    yield _name_table(comparison)
    if any(comparison.unmatched):
        yield _unmatched_table(comparison)


def _summary_table(comparison: LogComparison) -> Table:

    a, b = comparison.summaries
    table = Table(title="Two runs on a real cluster")
    table.add_column("", no_wrap=True)
    table.add_column(f"A: {escape(a.path)}", justify="right", overflow="fold")
    table.add_column(f"B: {escape(b.path)}", justify="right", overflow="fold")
    for heading, cell in _SUMMARY_ROWS:
        table.add_row(heading, cell(a), cell(b))
    if comparison.ratio is not None:
        pairs = counted(comparison.num_pairs, "matched job")
        remarks = [] if comparison.ratio.is_unknown else ["95% bootstrap interval over jobs"]
        if comparison.not_compared:
            left_out = counted(len(comparison.not_compared), "pair")
            remarks.append(f"without {left_out} that did not complete in both")
        remark = f" ({', '.join(remarks)})" if remarks else ""
        table.caption = escape(
            f"mean JCT B / A over {pairs}: {with_interval(comparison.ratio)}{remark}"
        )
    return table


def _name_table(comparison: LogComparison) -> Table:

    table = Table(title="By recurring job")
    table.add_column("job", overflow="fold")
    for heading in ("in A", "in B", "pairs", "mean JCT A", "mean JCT B", "B / A"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in comparison.names:
        counts = (*map(str, row.num_jobs), str(row.num_pairs))
        ratio = _UNKNOWN if row.ratio is None else escape(with_interval(row.ratio))
        table.add_row(escape(row.name), *counts, *map(_seconds, row.average_jct_s), ratio)
    table.caption = (
        "means and ratios are over pairs: jobs of the same name, in order of submission, that "
        "completed in both runs"
    )
    return table


def _unmatched_table(comparison: LogComparison) -> Table:

    table = Table("only in", "job", "number", "submitted", "outcome", title="Without a counterpart")
    # One row per job, those of A first.
    rows = [
        (label, job) for label, jobs in zip("AB", comparison.unmatched, strict=True) for job in jobs
    ]
    for label, job in rows[:_NUM_LISTED]:
        table.add_row(
            label,
            escape(job.name),
            str(job.order),
            _seconds(s_from_ms(job.submission_ms)),
            job.outcome.value,
        )
    if len(rows) > _NUM_LISTED:
        table.caption = f"and {len(rows) - _NUM_LISTED} more; --json lists all"
    return table


def _seconds(value: float) -> str:
    return _UNKNOWN if value != value else f"{value:,.2f} s"  # NaN is not equal to itself


def _share(value: float | None) -> str:
    return "busy share unknown" if value is None else f"{value:.0%}"


#: The rows of the summary: heading, and the cell of a run.
_SUMMARY_ROWS: tuple[tuple[str, Callable[[LogSummary], str]], ...] = (
    ("jobs completed", lambda run: str(run.completed)),
    ("failed, unfinished", lambda run: f"{run.failed}, {run.unfinished}"),
    ("average JCT", lambda run: _seconds(run.average_jct_s)),
    ("median JCT", lambda run: _seconds(run.median_jct_s)),
    ("p95 JCT", lambda run: _seconds(run.p95_jct_s)),
    ("makespan", lambda run: _seconds(run.makespan_s)),
    ("task attempts", lambda run: f"{run.num_tasks:,}"),
    ("task time", lambda run: _seconds(run.task_s)),
    ("all executors' cores, busy", lambda run: f"{run.num_cores}, {_share(run.core_utilization)}"),
)
