"""`parcae bench`: measured speed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="Measure speed.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command("simulator")
def simulator_command(
    workload: Annotated[str, typer.Option("--workload", help="A built-in workload or a workload file.")] = "tpch",
    policy: Annotated[str, typer.Option("--policy", help="The policy that decides.")] = "fair",
    arrivals: Annotated[str, typer.Option("--arrivals", help="How jobs arrive.")] = "poisson:25s",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a run.")] = 200,
    executors: Annotated[int, typer.Option("--executors", min=1, help="Executors of the cluster.")] = 50,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tasks, events and decisions a second on one core, and the ratio to the plain-Python oracle of the same run.

    Example: parcae bench simulator --json
    """
    from parcae.evaluation.benchmark import benchmark_simulator
    from parcae.workloads.catalog import load_workload

    result = benchmark_simulator(
        load_workload(workload), policy=policy, arrivals=arrivals, num_jobs=jobs, num_executors=executors, runs=runs
    )
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    typer.echo(
        f"{result.tasks_per_second / 1e6:.1f} million tasks/s (median of {result.runs}; best "
        f"{result.best_tasks_per_second / 1e6:.1f}), {result.decisions_per_second / 1e3:.0f} thousand decisions/s, "
        f"{result.ratio_to_oracle:,.0f} times the plain-Python oracle"
    )
