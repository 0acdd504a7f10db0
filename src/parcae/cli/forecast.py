"""`parcae forecast`: what a policy would have saved in the window of an event log."""

from __future__ import annotations

from parcae.base.options import option
from parcae.cli.commands import command
from parcae.cli.options import JSON, LOG, CheckedEventOptions
from parcae.cli.progress import read_logs
from parcae.cli.tables import print_json, print_rows
from parcae.evaluation.forecast import Forecast, Row
from parcae.evaluation.forecast import forecast as forecast_log
from parcae.evaluation.statistics import with_interval

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
    _print(found)


def _print(found: Forecast) -> None:
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
