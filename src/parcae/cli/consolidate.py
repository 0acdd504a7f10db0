"""`parcae consolidate`: what if the applications of event logs were one shared Spark?"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import polars as pl
import typer

from parcae.base.files import write_text
from parcae.base.options import argument, option
from parcae.base.texts import plain, printable
from parcae.cli.commands import command
from parcae.cli.options import JSON, CheckedEventOptions
from parcae.cli.progress import counting
from parcae.cli.tables import print_fitted, print_json
from parcae.evaluation.comparison import in_terminal
from parcae.evaluation.consolidate import (
    NEXT,
    UNSEEN,
    Consolidation,
    read_applications,
    write_consolidation,
)
from parcae.evaluation.consolidate import consolidate as consolidate_logs
from parcae.workloads.durations import MOST_EXECUTORS


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
        _print(found)
    rows = pl.DataFrame(plain(found.parties), infer_schema_length=None)
    words = shlex.join(["parcae", *sys.argv[1:]])
    if csv is not None:
        write_text(csv, rows.write_csv())
        typer.echo(f"CSV: {csv}", err=as_json)
    if report is not None:
        write_consolidation(found, report, words)
        typer.echo(f"report: {report}", err=as_json)


def _print(found: Consolidation) -> None:
    for heading, table in found.tables().items():
        print_fitted(in_terminal(table, heading))
    typer.echo(f"\n{printable(found.headline)}\n{found.savings}")
    for note in found.notes:
        typer.echo(printable(f"note: {note}"))
    typer.echo(f"Logs cannot say: {'; '.join(UNSEEN)}.")
    typer.echo(f"\n{NEXT}\n\n    {found.next_command}")
