"""`parcae compare-logs`: compares the event logs of two runs of a workload, job by job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from parcae.base.errors import ConfigError
from parcae.base.options import argument, option
from parcae.base.texts import duration_text, printable, s_from_ms
from parcae.cli.commands import command
from parcae.cli.options import JSON, CheckedEventOptions
from parcae.cli.progress import counting
from parcae.cli.tables import print_fitted, print_json
from parcae.evaluation.compare_logs import LABELS, LogComparison, LogSummary, compare_runs
from parcae.evaluation.comparison import text_table
from parcae.evaluation.experiment import Effect, ExperimentResult, evaluate_experiment
from parcae.evaluation.gantt import gantt
from parcae.evaluation.statistics import UNKNOWN_TEXT, with_interval
from parcae.workloads.import_report import counted
from parcae.workloads.spark_log.run import read_spark_run

#: Number of jobs without a counterpart that are listed.
_NUM_LISTED = 20
#: Busy shares up to this are shown as 100%: the times of the log are rounded to milliseconds.
_FULL = 1.005
#: Tables of groups of jobs: the title, the groups, and what one is.
_GROUPS = (
    ("By recurring job", "names", "job"),
    ("By user", "users", "user"),
    ("By queue", "queues", "queue"),
)


@command()
def compare_logs(
    wanted: CheckedEventOptions,
    a: str = argument(
        "Event log of the first run: a file, rolling log folder, zip, or folder of them.",
        "A",
        "read",
    ),
    b: str | None = argument("Event log of the second run. Ratios are B / A.", "B", "read", None),
    experiment: bool = option(
        False,
        "A (and B, if it is given) is the log of a randomised experiment of the plugin: compare "
        "its two orders.",
    ),
    plot: Path | None = option(
        None,
        "Draw the cores over time of both runs (*.html, *.png, *.svg or *.pdf).",
        check="chart",
    ),
    as_json: bool = JSON,
) -> None:
    """Compare two runs of a workload on Spark, job by job, or the orders of an experiment, by event
    logs.

    Example: parcae compare-logs before.zstd after.zstd --plot gantt.png
    """
    logs: list[str] = [log for log in (a, b) if log is not None]
    if len(logs) < 2 and not experiment:
        raise ConfigError(
            "there is one log: give the log of the second run, too, or, if this is the log of a "
            "randomised experiment, --experiment"
        )
    if experiment and plot is not None:
        raise ConfigError("--plot draws two runs, and an experiment is one: leave it out")
    runs = []
    for label, paths in zip(
        LABELS, [logs] if experiment else [[log] for log in logs], strict=False
    ):
        with counting(f"reading {label}") as show:
            runs.append(read_spark_run(paths, **dict(wanted), progress=show))
    result: Any = evaluate_experiment(*runs) if experiment else compare_runs(*runs)
    if as_json:
        print_json(result)
    else:
        is_experiment = isinstance(result, ExperimentResult)
        for table in _experiment_tables(result) if is_experiment else _tables(result):
            print_fitted(table)
        for note in result.notes:
            typer.echo(printable(f"note: {note}"))
    # The picture comes last: one that cannot be written loses no result.
    if plot is not None:
        labelled = zip(LABELS, runs, strict=True)
        gantt([(f"{label}: {run.label}", run) for label, run in labelled], plot)
        typer.echo(f"cores over time: {plot}", err=as_json)


def _tables(comparison: LogComparison) -> Iterator[Table]:
    a, b = comparison.summaries
    caption = ""
    if comparison.ratio is not None:
        pairs = counted(comparison.num_pairs, "matched job")
        remarks = [] if comparison.ratio.is_unknown else ["95% bootstrap interval over jobs"]
        if comparison.not_compared:
            left_out = counted(len(comparison.not_compared), "pair")
            remarks.append(f"without {left_out} that did not complete in both")
        remark = f" ({', '.join(remarks)})" if remarks else ""
        caption = f"mean JCT B / A over {pairs}: {with_interval(comparison.ratio)}{remark}"
    rows = [[heading, cell(a), cell(b)] for heading, cell in _SUMMARY_ROWS]
    headings = ["", f"A: {a.path}", f"B: {b.path}"]
    yield text_table("Two runs on a real cluster", headings, rows, caption)
    caption = (
        "means and ratios are over pairs: jobs of the same name, in order of submission, that "
        "completed in both runs"
    )
    for title, of, key in _GROUPS:
        rows = [
            [
                row.name,
                *map(str, (*row.jobs.values(), row.pairs)),
                *map(_seconds, row.average_jct_s.values()),
                UNKNOWN_TEXT if row.ratio is None else with_interval(row.ratio),
            ]
            for row in getattr(comparison, of)
        ]
        headings = [key, "in A", "in B", "pairs", "mean JCT A", "mean JCT B", "B / A"]
        if rows:
            yield text_table(title, headings, rows, caption)
    # One row per job, those of A first.
    rows = [
        [job.name, label, str(job.order), _seconds(s_from_ms(job.submission_ms)), job.outcome.value]
        for label, jobs in zip(LABELS, comparison.unmatched, strict=True)
        for job in jobs
    ]
    if rows:
        more = len(rows) - _NUM_LISTED
        caption = f"and {more} more; --json lists all" if more > 0 else ""
        headings = ["job", "only in", "number", "submitted", "outcome"]
        yield text_table("Without a counterpart", headings, rows[:_NUM_LISTED], caption)


def _experiment_tables(result: ExperimentResult) -> Iterator[Table]:
    def cells(effect: Effect) -> list[str]:
        return [*map(_seconds, effect[1:3]), with_interval(effect.ratio)]

    shown = duration_text(s_from_ms(result.block_ms)), duration_text(s_from_ms(result.washout_ms))
    title = "Randomised experiment, blocks of {} with a washout of {}".format(*shown)
    headings = ["completion time", "Spark's order", "policy", "policy / Spark's"]
    rows = [[name, *cells(effect)] for name, effect in result.effects.items()]
    counts = [
        [name, *map(str, pair)]
        for name, pair in (
            ("jobs", result.num_jobs),
            ("ended after their block", result.num_mixed),
            ("failed", result.num_failed),
        )
    ]
    caption = (
        f"{result.verdict} 95% intervals over {result.num_pairs} pairs of blocks; without "
        f"{counted(result.num_left_out, 'job')} of washouts and of the last "
        f"{duration_text(s_from_ms(result.lead_ms))} of blocks"
    )
    yield text_table(title, headings, [*rows, *([*row, ""] for row in counts)], caption)
    caption = "mean completion times, the most time first"
    for title, of, key in _GROUPS[:2]:  # an experiment is of one application, in one queue
        rows = [
            [name, *map(str, effect.num_jobs), *cells(effect)]
            for name, effect in getattr(result, of).items()
        ]
        headings = [key, "Spark's", "policy's", "Spark's order", "policy", "policy / Spark's"]
        if rows:
            yield text_table(title, headings, rows, caption)


def _seconds(value: float) -> str:
    return UNKNOWN_TEXT if value != value else f"{value:,.2f} s"  # NaN is not equal to itself


def _share(run: LogSummary) -> str:
    busy = run.core_utilization
    if busy is None:
        return "busy share unknown"
    if busy > _FULL:
        return f"{busy:.0%} (impossible: times or cores of the log are wrong)"
    return f"{busy:.0%}" + (" (too low: tasks are missing)" * bool(run.num_lost_ends))


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
    ("most cores at once, busy", lambda run: f"{run.num_cores}, {_share(run)}"),
)
