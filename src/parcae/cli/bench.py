"""`parcae bench`: measures the speed of simulation, decisions and service."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import typer

from parcae.base.options import option
from parcae.cli.checks import names_in
from parcae.cli.commands import command
from parcae.cli.options import JSON, MOST, WORLD, SizeOptions, world_of
from parcae.evaluation.benchmark import (
    benchmark_cores,
    benchmark_decisions,
    benchmark_simulator,
)
from parcae.service.benchmark import benchmark_service
from parcae.workloads.archive import load_workload
from parcae.workloads.durations import MOST_EXECUTORS

PROFILE = option("tpch", "A built-in workload or a workload file.", "--workload")


def show(rows: Any, as_json: bool, words: Callable[[Any], str]) -> None:
    """Print a measurement, or several, as JSON or a line for each."""
    several = isinstance(rows, Sequence)
    if as_json:
        shown = [row.to_json() for row in rows] if several else rows.to_json()
        typer.echo(json.dumps(shown, indent=2))
        return
    for row in rows if several else [rows]:
        typer.echo(words(row))


@command()
def simulator(
    cluster: SizeOptions,
    workload: str = PROFILE,
    policy: str | None = option(
        None,
        "Policies, separated by commas; only one with --world executors. (default: "
        "fair,srpt,tuned; executors: fair)",
    ),
    arrivals: str = option("poisson:25s", "Arrivals, as in `parcae simulate`."),
    jobs: int = option(200, "Number of jobs in a run.", ge=1, le=MOST),
    runs: int = option(15, "Number of timed runs.", ge=1, le=MOST),
    as_json: bool = JSON,
) -> None:
    """Measure simulated tasks per second on one core, including planning, also with 1,000 jobs.

    With --world executors: tasks, events and decisions per second.

    Example: parcae bench simulator --json
    """
    loaded = load_workload(workload)
    # The default of the other commands.
    size = cluster.size or 50
    # No option here implies the world of executors.
    if world_of(cluster.world, {}).value == "cores":
        measured = benchmark_cores(
            loaded,
            names_in("fair,srpt,tuned" if policy is None else policy),
            arrivals=arrivals,
            num_jobs=jobs,
            num_cores=size,
            runs=runs,
        )
        if as_json:
            typer.echo(json.dumps(measured.to_json(), indent=2))
            return
        for speed in measured.policies:
            typer.echo(
                f"{speed.policy:<12} {speed.tasks_per_second / 1e6:5.1f} million tasks/s (median "
                f"of {measured.runs}; best "
                f"{speed.best_tasks_per_second / 1e6:.1f}); with {measured.num_long_jobs:,} jobs "
                f"{speed.long_tasks_per_second / 1e6:.1f} ({speed.linearity:.2f} times)"
            )
        return
    result = benchmark_simulator(
        loaded,
        policy="fair" if policy is None else policy,
        arrivals=arrivals,
        num_jobs=jobs,
        num_executors=size,
        runs=runs,
    )
    show(
        result,
        as_json,
        lambda done: (
            f"{done.tasks_per_second / 1e6:.1f} million tasks/s (median of {done.runs}; best "
            f"{done.best_tasks_per_second / 1e6:.1f}), {done.decisions_per_second / 1e3:.0f} "
            "thousand decisions/s"
        ),
    )


@command()
def decision(
    workload: str = PROFILE,
    policies: str | None = option(
        None,
        "Policies, separated by commas. (default: srpt,psbs,tuned,parcae; executors: "
        "tuned,corrector,decima)",
    ),
    world: str | None = WORLD,
    decisions: int = option(2000, "Number of timed decisions.", ge=10),
    as_json: bool = JSON,
) -> None:
    """Measure how long policies need for a plan (with --world executors: for a decision).

    The case small has 20 jobs on 50 cores. The case large has 1,000 jobs with
    10,000 stages on 200 cores. With --world executors, the case wide is large
    with 30,000 executors in four classes.

    Example: parcae bench decision --json
    """
    chosen = world_of(world, {})
    default = "srpt,psbs,tuned,parcae" if chosen.value == "cores" else "tuned,corrector,decima"
    names = names_in(default if policies is None else policies)
    rows = benchmark_decisions(
        load_workload(workload), names, num_decisions=decisions, world=chosen
    )
    show(
        rows,
        as_json,
        lambda row: (
            f"{row.case:<6} {row.policy:<12} p50 {row.p50_ms:7.3f} ms  p99 {row.p99_ms:7.3f} ms  "
            f"({row.jobs} jobs, {row.stages} stages, {row.executors} {chosen.value})"
        ),
    )


@command()
def service(
    workload: str = PROFILE,
    policies: str = option("fair,tuned,parcae,decima", "Policies, separated by commas."),
    jobs: int = option(20, "Number of jobs in a run.", ge=1, le=MOST),
    cores: int = option(50, "Number of cores of the cluster.", ge=1, le=MOST_EXECUTORS),
    runs: int = option(2, "Number of runs per policy.", ge=1, le=MOST),
    as_json: bool = JSON,
) -> None:
    """Measure the time from sending an event to receiving the orders, over loopback TCP.

    Example: parcae bench service --json
    """
    rows = benchmark_service(
        load_workload(workload),
        workload,
        names_in(policies),
        num_jobs=jobs,
        num_cores=cores,
        runs=runs,
    )
    show(
        rows,
        as_json,
        lambda row: (
            f"{row.policy:<12} p50 {row.p50_ms:7.3f} ms  p99 {row.p99_ms:7.3f} ms  "
            f"({row.plans} plans; all {row.messages} messages: p50 {row.message_p50_ms:.3f} ms; "
            f"a ping: p50 {row.ping_p50_ms:.3f} ms, p99 {row.ping_p99_ms:.3f} ms)"
        ),
    )
