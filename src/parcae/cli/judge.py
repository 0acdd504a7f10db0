"""`parcae judge`: one verdict for a policy of anybody's."""

from __future__ import annotations

from pathlib import Path

import typer

from parcae.base.options import argument, option
from parcae.cli.checks import names_in
from parcae.cli.commands import command
from parcae.cli.options import (
    DEADLINES,
    DRAWN_JOBS,
    JSON,
    MOST,
    SOURCE_HELP,
    number_of_jobs,
    usual_arrivals,
    with_deadlines,
)
from parcae.cli.progress import counting
from parcae.cli.tables import print_json, print_rows
from parcae.evaluation.apart import Allowance
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.judge import BASELINE, Judgement
from parcae.evaluation.judge import judge as judge_policies
from parcae.evaluation.statistics import UNKNOWN_TEXT, with_interval
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload

_ARRIVALS = "load:0.85"
_HEADINGS = (
    "policy", "verdict", f"ratio to {BASELINE}", "worst shift", "later", "worst user", "open",
    "decision ms",
)  # fmt: skip


@command()
def judge(
    policies: str = argument("Policies, separated by commas.", "POLICY,...", "policies"),
    workload: str = argument(SOURCE_HELP, "NAME|FILE", "read", default="tpch"),
    cores: int = option(50, "Number of cores.", ge=1, le=MOST),
    jobs: int | None = DRAWN_JOBS,
    arrivals: str | None = option(
        None, f"As in `parcae compare`. (default: sessions as in the log, else {_ARRIVALS})"
    ),
    deadlines: Path | None = DEADLINES,
    seeds: int = option(20, "Number of held-back seeds.", ge=2, le=MOST),
    seed_start: int | None = option(
        None, "First seed, to repeat a verdict. (default: drawn)", ge=0
    ),
    limit: float = option(
        60.0, "Seconds for all answers of a policy of your own.", ge=0.1, le=MOST
    ),
    memory: int = option(2_048, "MiB of memory for a policy of your own.", ge=1, le=MOST),
    as_json: bool = JSON,
) -> None:
    """Judge policies: formulas, MODULE:ATTRIBUTE, checkpoints or names.

    Each is played on held-back seeds, under another load, with larger jobs, wrong estimates and
    sessions, and once more for its time and its determinism. Code of your own runs in a process of
    its own, which sees what a scheduler sees.

    Example: parcae judge 'formula: rem,mymodule:MyPolicy' toy --cores 4 --seeds 8
    """
    loaded = with_deadlines(load_workload(workload), deadlines)
    config = SimulationConfig(world=WorldName.CORES, num_executors=cores, estimate_error="log")
    process = arrivals or (usual_arrivals(loaded) if loaded.num_sessions else _ARRIVALS)
    world = ClusterWorld(loaded, config, process, number_of_jobs(jobs, process, loaded))
    with counting("judging", has_counts=True) as progress:
        first, verdicts = judge_policies(
            world,
            names_in(policies),
            num_seeds=seeds,
            seed_start=seed_start,
            allowance=Allowance(limit, memory),
            progress=progress,
        )
    if as_json:
        setting = {
            "workload": loaded.name, "arrivals": process, "jobs": world.num_jobs, "cores": cores,
            "seeds": [first, first + seeds - 1], "baseline": BASELINE,
        }  # fmt: skip
        print_json({"settings": setting, "verdicts": verdicts})
        return
    title = f"{loaded.name}: {world.num_jobs} jobs, {process}, {cores} cores"
    rows = [_row(one) for one in verdicts]
    print_rows(title, _HEADINGS, rows, f"{seeds} seeds; repeat with --seed-start {first}")
    for one in verdicts:
        for objection in one.objections:
            typer.echo(f"{one.policy}: {objection}")


def _row(one: Judgement) -> list[str]:
    if one.refused:
        return [one.policy, one.word, *[UNKNOWN_TEXT] * (len(_HEADINGS) - 2)]
    shift = max(one.shifts, key=lambda what: one.shifts[what].mean)
    user, decision = one.worst_user, one.decision_ms
    return [
        one.policy,
        one.word,
        with_interval(one.ratio),
        f"{one.shifts[shift].mean:.3f} {shift}",
        f"{one.later_share:.0%}",
        UNKNOWN_TEXT if user is None else f"{user['ratio']:.2f} {user['user']}",
        f"{one.open_mean:.1f}, at most {one.open_most:.0f}",
        UNKNOWN_TEXT if decision is None else f"{decision['median']:.2f}",
    ]
