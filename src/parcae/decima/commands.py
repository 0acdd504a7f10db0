"""Commands of Decima's world: `parcae bounds` and `parcae bench training`."""

from __future__ import annotations

import json
from typing import Any

import typer

from parcae.base.options import option
from parcae.base.texts import s_from_ms
from parcae.cli.bench import PROFILE, show
from parcae.cli.checks import names_in
from parcae.cli.commands import Only, command
from parcae.cli.options import (
    ARRIVALS,
    JSON,
    MODEL,
    MOST,
    SEED,
    WORKLOAD,
    ClusterOptions,
    SizeOptions,
)
from parcae.cli.progress import telling
from parcae.decima.bounds import best_job_order, simplified
from parcae.decima.graph.layout import DecimaSettings
from parcae.learning.config import override
from parcae.learning.scenario import Scenario
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import load_workload

#: Said of a workload whose jobs have a spread.
_HOLDS_FOR = (
    "these bounds hold for runs with --estimate-error 0; others deviate from their profiles, and "
    "may be shorter than anything measured"
)


@command()
def bounds(
    cluster: SizeOptions,
    workload: str = WORKLOAD,
    jobs: int = option(6, "Number of jobs in a run.", ge=1, le=MOST),
    arrivals: str = ARRIVALS,
    seed: int = SEED,
    orders: bool = option(False, "Also search for the best order of the jobs (at most 12)."),
    parallelism_model: str = MODEL,
    as_json: bool = JSON,
) -> None:
    """Compute lower bounds that no schedule can beat, given exact durations.

    With --orders, also find the best order of up to 12 jobs (Decima, Appendix H).
    The orders run in the setting of that appendix: the world of executors,
    without delays and waves.

    Example: parcae bounds tpch --jobs 6 --executors 20 --orders
    """
    options = ClusterOptions(
        **dict(cluster),
        parallelism_model=parallelism_model,
        # The bounds follow from exact durations (see `_HOLDS_FOR`).
        estimate_error="0",
    )
    config = options.config({"--orders": orders})
    loaded = options.load(workload)
    sequence = loaded.draw(jobs, arrivals, config, seed=seed)
    least = lower_bounds(sequence, config.total_executors)
    holds_for = f"; {_HOLDS_FOR}" if loaded.has_spread else ""
    result: dict[str, Any] = {
        "average_jct_s": s_from_ms(least.average_jct_ms),
        "makespan_s": s_from_ms(least.makespan_ms),
        "explanation": least.explanation + holds_for,
    }
    if orders:
        with telling("orders", is_often=True) as say:
            best = best_job_order(
                *simplified(sequence, config),
                seed,
                lambda _, best_ms: say(f"best order so far {s_from_ms(best_ms):,.2f} s"),
            )
        result["best_order"] = list(best.order)
        result["best_order_average_jct_s"] = s_from_ms(best.average_jct_ms)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    typer.echo(
        f"average JCT at least {result['average_jct_s']:,.2f} s, makespan at least "
        f"{result['makespan_s']:,.2f} s"
    )
    if loaded.has_spread:
        typer.echo(_HOLDS_FOR)
    if orders:
        order = "-".join(map(str, result["best_order"]))
        typer.echo(
            f"best order {order}: average JCT {result['best_order_average_jct_s']:,.2f} s (without "
            "delays and waves)"
        )


@command(
    Only(
        ("decima",), lambda given: "decima" in names_in(given["networks"]), "to the network decima"
    )
)
def bench_training(
    workload: str = PROFILE,
    networks: str = option("corrector,decima", "Networks, separated by commas."),
    recipe: str = option("fast", "fast | imitation | decima-2019"),
    iterations: int = option(5, "Number of timed iterations.", ge=1, le=MOST),
    decima: list[str] | None = option(None, "Change a setting of Decima's network: features=jobs."),
    device: str = option("cpu", "Where weights are updated: cpu | cuda"),
    as_json: bool = JSON,
) -> None:
    """Measure training decisions per CPU second, rollouts and updates together.

    The scenario is a batch of 20 jobs on 50 executors.

    Example: parcae bench training --json
    """
    # Importing PyTorch takes seconds, which `parcae bounds` need not spend.
    from parcae.decima.learning.benchmark import benchmark_training
    from parcae.decima.learning.recipes import parse_recipe

    scenario = Scenario(load_workload(workload), SimulationConfig(), "batch", 20)
    settings = override(DecimaSettings(), decima or [])
    rows = [
        benchmark_training(scenario, network, parse_recipe(recipe), iterations, settings, device)
        for network in names_in(networks)
    ]
    show(
        rows,
        as_json,
        lambda row: (
            f"{row.network:<8} {row.decisions_per_cpu_second:9,.0f} decisions/CPU-s  "
            f"{row.decisions_per_second:9,.0f} decisions/s  (rollouts {row.rollout_share:.0%} of "
            "the time)"
        ),
    )
