"""`parcae bounds`: lower bounds on the completion times of a run, and its best order of jobs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.groups import with_groups
from parcae.cli.options import (
    ArrivalsOption,
    ClusterOptions,
    JobsOption,
    JsonOption,
    ModelOption,
    SizeOptions,
    WorkloadArgument,
)
from parcae.cli.progress import telling

if TYPE_CHECKING:
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.arrivals import JobSequence

#: Said of a workload whose jobs have a spread.
_HOLDS_FOR = (
    "these bounds hold for runs with --estimate-error 0; others deviate from their profiles, and "
    "may be shorter than anything measured"
)


@with_groups
def bounds_command(
    workload: WorkloadArgument,
    *,
    cluster: SizeOptions,
    jobs: JobsOption = 6,
    arrivals: ArrivalsOption = "batch",
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the arrivals and of the task durations.")
    ] = 0,
    orders: Annotated[
        bool,
        typer.Option("--orders", help="Also search for the best order of the jobs (at most 12)."),
    ] = False,
    parallelism_model: ModelOption = "none",
    as_json: JsonOption = False,
) -> None:
    """Compute lower bounds that no schedule can beat, given exact durations.

    With --orders, also find the best order of up to 12 jobs (Decima, Appendix H).
    The orders run in the setting of that appendix: the world of executors,
    without delays and waves.

    Example: parcae bounds tpch --jobs 6 --executors 20 --orders
    """
    from parcae.base.texts import s_from_ms
    from parcae.simulation.bounds import lower_bounds

    options = ClusterOptions(
        world=cluster.world,
        executors=cluster.executors,
        cores=cluster.cores,
        parallelism_model=parallelism_model,
        # The bounds follow from exact durations (see `_HOLDS_FOR`).
        estimate_error="0",
    )
    config = options.config({"--orders": orders})
    loaded = options.load(workload)
    sequence = loaded.draw(jobs, arrivals, config, seed=seed)
    bounds = lower_bounds(sequence, config.total_executors)
    holds_for = f"; {_HOLDS_FOR}" if loaded.has_spread else ""
    result: dict[str, Any] = {
        "average_jct_s": s_from_ms(bounds.average_jct_ms),
        "makespan_s": s_from_ms(bounds.makespan_ms),
        "explanation": bounds.explanation + holds_for,
    }
    if orders:
        result |= _best_order(sequence, config, seed)
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


def _best_order(sequence: JobSequence, config: SimulationConfig, seed: int) -> dict[str, Any]:
    """Search for the best order of the jobs, with a progress bar; the result as JSON."""
    from parcae.base.texts import s_from_ms
    from parcae.decima.bounds import best_job_order, simplified

    with telling("orders", is_often=True) as say:
        best = best_job_order(
            *simplified(sequence, config),
            seed,
            lambda _, best_ms: say(f"best order so far {s_from_ms(best_ms):,.2f} s"),
        )
    return {
        "best_order": list(best.order),
        "best_order_average_jct_s": s_from_ms(best.average_jct_ms),
    }
