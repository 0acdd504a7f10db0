"""`parcae bench`: measures the speed of simulation, decisions and service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from parcae.base.options import option
from parcae.cli.checks import names_in
from parcae.cli.commands import command
from parcae.cli.options import JSON, MOST, WORLD, SizeOptions, world_of
from parcae.cli.tables import print_json
from parcae.evaluation.benchmark import LONG_JOBS, benchmark_decisions, benchmark_simulator
from parcae.service.benchmark import benchmark_service
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload
from parcae.workloads.durations import MOST_EXECUTORS

PROFILE = option("tpch", "A built-in workload or a workload file.", "--workload")


def show(rows: Any, as_json: bool, words: Callable[[Any], str]) -> None:
    """Print a measurement, or several, as JSON or a line for each."""
    if as_json:
        print_json(rows)
        return
    for row in rows if isinstance(rows, Sequence) else [rows]:
        typer.echo(words(row))


@command()
def simulator(
    cluster: SizeOptions,
    workload: str = PROFILE,
    policy: str | None = option(
        None,
        "Policies, separated by commas. (default: fair,srpt,tuned; executors: fair)",
    ),
    arrivals: str = option("poisson:25s", "Arrivals, as in `parcae simulate`."),
    jobs: int = option(200, "Number of jobs in a run.", ge=1, le=MOST),
    runs: int = option(15, "Number of timed runs.", ge=1, le=MOST),
    as_json: bool = JSON,
) -> None:
    """Measure simulated tasks per second on one core, including planning, also with 1,000 jobs.

    Example: parcae bench simulator --json
    """
    # No option here implies the world of executors.
    world = world_of(cluster.world, {})
    default = "fair,srpt,tuned" if world is WorldName.CORES else "fair"
    config = SimulationConfig(world=world, num_executors=cluster.size or 50)
    speeds = benchmark_simulator(
        load_workload(workload),
        names_in(default if policy is None else policy),
        config,
        arrivals=arrivals,
        num_jobs=jobs,
        runs=runs,
    )
    if as_json:
        rates = ("tasks_per_second", "events_per_second", "decisions_per_second")
        result = {
            # Those of the slowest policy.
            **{rate: min(getattr(speed, rate) for speed in speeds) for rate in rates},
            "workload": workload,
            "arrivals": arrivals,
            "num_jobs": jobs,
            "num_long_jobs": LONG_JOBS,
            "num_executors": config.num_executors,
            "runs": runs,
            "world": world.value,
            "policies": {speed.policy: speed for speed in speeds},
        }
        print_json(result)
        return
    for speed in speeds:
        typer.echo(
            f"{speed.policy:<12} {speed.tasks_per_second / 1e6:5.1f} million tasks/s (median of "
            f"{runs}; best {speed.best_tasks_per_second / 1e6:.1f}), "
            f"{speed.decisions_per_second / 1e3:.0f} thousand decisions/s; with {LONG_JOBS:,} jobs "
            f"{speed.long_tasks_per_second / 1e6:.1f} ({speed.linearity:.2f} times)"
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
