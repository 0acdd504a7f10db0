"""The commands `parcae serve` (the live scheduler) and `parcae replay` (compare a recording)."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from parcae.base.options import argument, option
from parcae.base.texts import MS_PER_S
from parcae.cli.commands import Only, command
from parcae.cli.options import JSON, SOURCE_HELP
from parcae.cli.tables import print_fitted, print_json
from parcae.evaluation.comparison import text_table
from parcae.service.replay import Difference, Kind, Replay, ReplayedShare, Shares, replay_recording
from parcae.service.serve import ServeSettings
from parcae.service.serve import serve as serve_clients
from parcae.service.session import Scope
from parcae.workloads.archive import load_workload

PROFILE = option(
    "tpch", f"Profile of the recurring jobs. {SOURCE_HELP}", "--workload", check="read"
)

ONE_IS_FASTER = (
    "Moving executors between applications saves little; one shared Spark is faster where it is "
    "possible: parcae consolidate LOGS says by how much"
)


@command(
    Only(
        ("executor_cores",),
        lambda given: given["scope"] != "application",
        "with --scope cluster",
    )
)
def serve(
    settings: ServeSettings,
    workload: str = PROFILE,
    as_json: bool = option(False, "Print the ports as JSON.", "--json"),
) -> None:
    """Schedule live clusters: clients send events and get orders (protocol/README.md).

    Example: parcae serve --policy parcae --workload tpch --demo 50 --for 60
    """
    logging.basicConfig(level=logging.WARNING, format="parcae: %(message)s")
    policy = settings.policy

    def ready(port: int, admin_port: int | None) -> None:
        text = f"{policy} serves on {settings.host}:{port}"
        if admin_port is not None:
            text += f"; live page http://127.0.0.1:{admin_port}/"
        if settings.scope is Scope.CLUSTER:
            text += f"\n{ONE_IS_FASTER}"
        if as_json:
            text = json.dumps({"port": port, "admin_port": admin_port, "policy": policy})
        # Flushed: a program that started the service waits for this line.
        print(text, flush=True)

    serve_clients(settings, load_workload(workload), ready)


@command()
def replay(
    recording: list[Path] = argument(
        "The files of a recording in order, or a folder: its newest recording.", "FILE...|FOLDER"
    ),
    policy: str = option("fair", "The other policy (see `parcae policies`)."),
    workload: str = PROFILE,
    as_json: bool = JSON,
) -> None:
    """Compare the orders in a recording of `parcae serve --record` with those of another policy.

    Example: parcae replay recordings --policy fair --json
    """
    result = replay_recording(recording, policy, load_workload(workload))
    if as_json:
        print_json(result)
        return
    for table in replay_tables(result):
        print_fitted(table)


_IN_WORDS = {
    Kind.FIRST: "other jobs first",
    Kind.LATER: "another order of later jobs",
    Kind.SHARES: "other weights or limits",
    Kind.STAGES: "only stages differ",
}


def replay_tables(replay: Replay) -> Iterator[Table]:
    """The tables of `parcae replay`."""
    lines = []
    if replay.num_lost:
        lines.append(f"{replay.num_lost} recorded requests could not be followed")
    estimate = replay.estimate
    if estimate is not None:
        lines.append(
            f"simulated average JCT of {estimate.num_jobs} jobs: "
            f"{estimate.recorded_average_jct_ms / MS_PER_S:.2f} s under {replay.recorded_policy}, "
            f"{estimate.other_average_jct_ms / MS_PER_S:.2f} s under {replay.other_policy} "
            f"({estimate.num_left_out} jobs were not recorded completely)"
        )
    title = f"{replay.num_orders} orders of {replay.recorded_policy}"
    same = replay.num_orders - sum(replay.counts.values())
    counts = [("the same order", str(same))]
    counts += [(_IN_WORDS[kind], str(count)) for kind, count in replay.counts.items()]
    yield text_table(title, (f"under {replay.other_policy}", "orders"), counts, "\n".join(lines))
    if not replay.differences:
        return
    title = f"The first {len(replay.differences)} differences"
    headings = ("seconds", "difference", replay.recorded_policy, replay.other_policy)
    caption = (
        "since the first order; jobs from the first difference on, at most 5: "
        "{ } share, > is served before"
    )
    yield text_table(title, headings, [_cells(one) for one in replay.differences], caption)


def _cells(one: Difference) -> tuple[str, str, str, str]:
    with_shares = one.kind is Kind.SHARES
    return (
        f"{one.since_ms / MS_PER_S:,.1f}",
        _IN_WORDS[one.kind],
        _in_words(one.recorded, with_shares),
        _in_words(one.other, with_shares),
    )


def _in_words(order: Shares, with_shares: bool) -> str:
    groups = [[_job(share, with_shares) for share in group] for group in order]
    texts = (group[0] if len(group) == 1 else f"{{{', '.join(group)}}}" for group in groups)
    return " > ".join(texts)


def _job(share: ReplayedShare, with_shares: bool) -> str:
    if not with_shares:
        return share.job_id
    facts = [] if share.weight == 1 else [f"weight {share.weight:.3g}"]
    facts += [] if share.limit is None else [f"limit {share.limit}"]
    return f"{share.job_id} ({', '.join(facts)})" if facts else share.job_id
