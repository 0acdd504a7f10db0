"""`parcae explain`: the queries of a log that a policy changes most, and why."""

from __future__ import annotations

from pathlib import Path

import typer

from parcae.base.options import argument, option
from parcae.base.texts import printable, seconds_text
from parcae.cli.commands import command
from parcae.cli.options import JSON, LOG, CheckedEventOptions
from parcae.cli.progress import read_logs
from parcae.cli.tables import print_json, print_rows
from parcae.evaluation.explain import Asked, Explanation
from parcae.evaluation.explain import explain as explain_log
from parcae.evaluation.gantt import write_gantt


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
        _print(found)
    if plot is not None and found.queries:
        charts, names = found.charts()
        write_gantt(charts, plot, legend=names)
        typer.echo(f"picture: {plot}", err=as_json)


def _print(found: Explanation) -> None:
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
