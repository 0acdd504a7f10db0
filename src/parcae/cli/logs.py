"""Commands that say from event logs what another order, or one shared Spark, would change.

They are `parcae forecast`, `parcae explain` and `parcae consolidate`.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import polars as pl
import typer

from parcae.base.files import write_text
from parcae.base.options import argument, option
from parcae.base.texts import plain, printable, seconds_text
from parcae.cli.commands import command
from parcae.cli.options import JSON, LOG, CheckedEventOptions
from parcae.cli.progress import counting, read_logs
from parcae.cli.tables import print_fitted, print_json, print_rows
from parcae.evaluation.comparison import in_terminal
from parcae.evaluation.consolidate import (
    NEXT,
    UNSEEN,
    Consolidation,
    read_applications,
    write_consolidation,
)
from parcae.evaluation.consolidate import consolidate as consolidate_logs
from parcae.evaluation.explain import Asked, Explanation
from parcae.evaluation.explain import explain as explain_log
from parcae.evaluation.forecast import Forecast, Row
from parcae.evaluation.forecast import forecast as forecast_log
from parcae.evaluation.gantt import write_gantt
from parcae.evaluation.statistics import with_interval
from parcae.workloads.durations import MOST_EXECUTORS

#: Number of rows of a table.
_NUM_LISTED = 20


@command()
def forecast(
    wanted: CheckedEventOptions,
    log: str = LOG,
    policy: str = option("srpt", "The policy that would have ordered the jobs.", check="policy"),
    as_json: bool = JSON,
) -> None:
    """Replay an event log under its own order and under a policy: what is saved, and who pays.

    Example: parcae forecast eventlog.zstd --policy srpt
    """
    found = forecast_log(read_logs([log], wanted), policy)
    if as_json:
        print_json(found)
        return
    _print_forecast(found)


def _print_forecast(found: Forecast) -> None:
    off = (
        f"Replayed under its own order ({found.today}), the log's mean comes out at "
        f"{found.replayed:.3f} of what it was. 95% intervals over parts of the window; sizes are "
        f"known with an error of sigma {found.size_error:.2f}."
    )
    headings = ("", "jobs", "mean today", found.policy, "ratio", "over 5% later")
    rows = [_cells(found.all)]
    print_rows(f"{found.num_jobs:,} jobs under {found.policy}", headings, rows, off)
    tables = (("user", found.users), ("queue", found.queues), ("recurring job", found.names))
    for key, found_rows in tables:
        if found_rows:
            more = len(found_rows) - _NUM_LISTED
            caption = "those that lose most time first" + (f"; and {more} more" if more > 0 else "")
            rows = [_cells(row) for row in found_rows[:_NUM_LISTED]]
            print_rows(f"By {key}", headings, rows, caption)


def _cells(row: Row) -> list[str]:
    return [
        row["name"],
        f"{row['jobs']:,}",
        *(f"{row[of]:,.2f} s" for of in ("today_s", "policy_s")),
        with_interval(row["ratio"]),
        f"{row['later_share']:.0%}",
    ]


@command()
def explain(
    wanted: CheckedEventOptions,
    asked: Asked,
    policy: str = argument("The policy, such as srpt or a formula.", "POLICY", "policy"),
    log: str = LOG,
    plot: Path | None = option(
        None,
        "Draw when these queries ran and waited (*.html, *.png, *.svg or *.pdf).",
        check="chart",
    ),
    as_json: bool = JSON,
) -> None:
    """Explain the queries that a policy changes most: when they waited, for whom, and why.

    Example: parcae explain srpt eventlog.zstd --against fair --plot why.svg
    """
    found = explain_log(read_logs([log], wanted), policy, asked)
    if as_json:
        print_json(found)
    else:
        _print_explanation(found)
    if plot is not None and found.queries:
        charts, names = found.charts()
        write_gantt(charts, plot, legend=names)
        typer.echo(f"picture: {plot}", err=as_json)


def _print_explanation(found: Explanation) -> None:
    today_s, policy_s = map(seconds_text, found.mean_jct_s.values())
    title = f"{found.jobs:,} queries: mean {today_s} s under {found.against}, {policy_s} s "
    title += f"under {found.policy}"
    if not found.queries:
        typer.echo(printable(f"{title}; no query's time changes"))
        return
    numbered = list(enumerate(found.queries, 1))
    rows = [
        [
            f"{number}. {query.label(query.query)}",
            query.user,
            seconds_text(query.arrival_s),
            *(
                seconds_text(time_s)
                for one in (query.against, query.policy)
                for time_s in (one.jct_s, one.waited_s)
            ),
        ]
        for number, query in numbered
    ]
    headings = ["query", "user", "arrives (s)", f"{found.against} (s)", "waits (s)"]
    headings += [f"{found.policy} (s)", "waits (s)"]
    caption = "waits: a task could have started and had no core"
    print_rows(title, headings, rows, caption)
    rows = [[f"{number}.", one.when, one.for_whom, one.why] for number, one in numbered]
    headings = ["query", "waits longest", "who has the cores meanwhile", f"{found.policy}'s order"]
    caption = "where the query takes longer; of two queries the policy serves the least first"
    print_rows("When, for whom, and why", headings, rows, caption)


@command()
def consolidate(
    wanted: CheckedEventOptions,
    logs: list[str] = argument(
        "Event logs of several applications: files, rolling log folders, zips, or folders of them.",
        "LOGS...",
        "read",
    ),
    apps: str | None = option(None, "Only applications whose name or id fits this, as in etl-*."),
    cores: int | None = option(
        None,
        "Cores of the shared Spark. (default: as many core-hours as the applications held)",
        ge=1,
        le=MOST_EXECUTORS,
    ),
    align: bool = option(False, "Let all applications begin at one time.", "--align"),
    report: Path | None = option(
        None, "Write a report (*.html).", "-o", "--output", check="picture"
    ),
    csv: Path | None = option(None, "Write a row for each application and person.", check="write"),
    as_json: bool = JSON,
) -> None:
    """Say from event logs what one shared Spark would change for applications that have one each.

    Example: parcae consolidate event-logs -o report.html
    """
    with counting("reading") as progress:
        logged, held = read_applications(logs, apps, align, **dict(wanted), progress=progress)
    with counting("simulating", has_counts=True) as progress:
        found = consolidate_logs(logged, held, cores, progress)
    if as_json:
        print_json(found)
    else:
        _print_consolidation(found)
    rows = pl.DataFrame(plain(found.parties), infer_schema_length=None)
    words = shlex.join(["parcae", *sys.argv[1:]])
    if csv is not None:
        write_text(csv, rows.write_csv())
        typer.echo(f"CSV: {csv}", err=as_json)
    if report is not None:
        write_consolidation(found, report, words)
        typer.echo(f"report: {report}", err=as_json)


def _print_consolidation(found: Consolidation) -> None:
    for heading, table in found.tables().items():
        print_fitted(in_terminal(table, heading))
    typer.echo(f"\n{printable(found.headline)}\n{found.savings}")
    for note in found.notes:
        typer.echo(printable(f"note: {note}"))
    typer.echo(f"Logs cannot say: {'; '.join(UNSEEN)}.")
    typer.echo(f"\n{NEXT}\n\n    {found.next_command}")
