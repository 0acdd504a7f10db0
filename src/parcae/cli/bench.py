"""`parcae bench`: measured speed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.options import CoresOption, ExecutorsOption, WorldOption, one_size, world_of

if TYPE_CHECKING:
    from parcae.evaluation.benchmark import CoresBenchmark

app = typer.Typer(help="Measure speed.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command("simulator")
def simulator_command(
    workload: Annotated[
        str, typer.Option("--workload", help="A built-in workload or a workload file.")
    ] = "tpch",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Policies, separated by commas; one with --world executors. [default: fair,srpt,tuned]",
        ),
    ] = None,
    arrivals: Annotated[str, typer.Option("--arrivals", help="How jobs arrive.")] = "poisson:25s",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a run.")] = 200,
    world: WorldOption = None,
    executors: ExecutorsOption = None,
    cores: CoresOption = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Timed runs.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tasks a second on one core, planning included, and the same with 1,000 jobs, under every policy.

    With --world executors: tasks, events and decisions a second, and the ratio to the plain-Python oracle of the same run.

    Example: parcae bench simulator --json
    """
    from parcae.evaluation.benchmark import benchmark_cores, benchmark_simulator
    from parcae.workloads.catalog import load_workload

    size = one_size(executors, cores) or 50
    if world_of(world, {}).value == "cores":
        names = (policy or "fair,srpt,tuned").split(",")
        found = benchmark_cores(
            load_workload(workload),
            names,
            arrivals=arrivals,
            num_jobs=jobs,
            num_cores=size,
            runs=runs,
        )
        _print_cores(found, as_json)
        return
    result = benchmark_simulator(
        load_workload(workload),
        policy=policy or "fair",
        arrivals=arrivals,
        num_jobs=jobs,
        num_executors=size,
        runs=runs,
    )
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    typer.echo(
        f"{result.tasks_per_second / 1e6:.1f} million tasks/s (median of {result.runs}; best "
        f"{result.best_tasks_per_second / 1e6:.1f}), {result.decisions_per_second / 1e3:.0f} thousand decisions/s, "
        f"{result.ratio_to_oracle:,.0f} times the plain-Python oracle"
    )


def _print_cores(found: CoresBenchmark, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
        return
    for speed in found.policies:
        typer.echo(
            f"{speed.policy:<12} {speed.tasks_per_second / 1e6:5.1f} million tasks/s (median of {found.runs}; best "
            f"{speed.best_tasks_per_second / 1e6:.1f}); with {found.num_long_jobs:,} jobs "
            f"{speed.long_tasks_per_second / 1e6:.1f} ({speed.linearity:.2f} times)"
        )


@app.command("decision")
def decision_command(
    workload: Annotated[
        str, typer.Option("--workload", help="A built-in workload or a workload file.")
    ] = "tpch",
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies, separated by commas. [default: srpt,psbs,tuned,parcae; executors: tuned,parcae,decima]",
        ),
    ] = None,
    world: WorldOption = None,
    decisions: Annotated[int, typer.Option("--decisions", min=10, help="Timed decisions.")] = 2000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Milliseconds from looking at the state to the plan (with --world executors: the decision), on small and large clusters.

    Small are 20 jobs on 50 cores, large 1,000 jobs with 10,000 stages on 200; with --world executors, wide is the same on 30,000
    executors in four classes.

    Example: parcae bench decision --json
    """
    from parcae.evaluation.decision_benchmark import benchmark_decisions
    from parcae.workloads.catalog import load_workload

    chosen = world_of(world, {})
    names = policies or (
        "srpt,psbs,tuned,parcae" if chosen.value == "cores" else "tuned,parcae,decima"
    )
    rows = benchmark_decisions(
        load_workload(workload), names.split(","), num_decisions=decisions, world=chosen
    )
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
        return
    for row in rows:
        typer.echo(
            f"{row.case:<6} {row.policy:<12} p50 {row.p50_ms:7.3f} ms  p99 {row.p99_ms:7.3f} ms  "
            f"({row.jobs} jobs, {row.stages} stages, {row.executors} {chosen.value})"
        )


@app.command("training")
def training_command(
    workload: Annotated[
        str, typer.Option("--workload", help="A built-in workload or a workload file.")
    ] = "tpch",
    networks: Annotated[
        str, typer.Option("--networks", help="Networks, separated by commas.")
    ] = "parcae,decima",
    recipe: Annotated[str, typer.Option("--recipe", help="fast | decima-2019")] = "fast",
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Timed iterations.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Training decisions a CPU-second, rollout and update together, on batches of 20 jobs and 50 executors.

    Example: parcae bench training --json
    """
    from parcae.learning.benchmark import benchmark_training
    from parcae.learning.recipes import parse_recipe
    from parcae.learning.scenario import Scenario
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.catalog import load_workload

    scenario = Scenario(load_workload(workload), SimulationConfig(), "batch", 20)
    rows = [
        benchmark_training(scenario, network, parse_recipe(recipe), iterations)
        for network in networks.split(",")
    ]
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
        return
    for row in rows:
        typer.echo(
            f"{row.network:<8} {row.decisions_per_cpu_second:9,.0f} decisions/CPU-s  "
            f"{row.decisions_per_second:9,.0f} decisions/s  (rollouts {row.rollout_share:.0%} of the time)"
        )


@app.command("service")
def service_command(
    workload: Annotated[
        str, typer.Option("--workload", help="A built-in workload or a workload file.")
    ] = "tpch",
    policies: Annotated[
        str, typer.Option("--policies", help="Policies, separated by commas.")
    ] = "fair,tuned,parcae,decima",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Jobs of a run.")] = 20,
    cores: Annotated[int, typer.Option("--cores", min=1, help="Cores of the cluster.")] = 50,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of each policy.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Milliseconds from an event to the orders that answer it, through the wire: a client over loopback TCP.

    Example: parcae bench service --json
    """
    from parcae.service.benchmark import benchmark_service
    from parcae.workloads.catalog import load_workload

    rows = benchmark_service(
        load_workload(workload),
        workload,
        policies.split(","),
        num_jobs=jobs,
        num_cores=cores,
        runs=runs,
    )
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
        return
    for row in rows:
        typer.echo(
            f"{row.policy:<12} p50 {row.p50_ms:7.3f} ms  p99 {row.p99_ms:7.3f} ms  "
            f"({row.plans} plans; all {row.messages} messages: p50 {row.message_p50_ms:.3f} ms; "
            f"a ping: p50 {row.ping_p50_ms:.3f} ms, p99 {row.ping_p99_ms:.3f} ms)"
        )


@app.command("packing")
def packing_command(
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, max=1.0, help="Jobs that arrive a step.")
    ] = 0.7,
    clusters: Annotated[
        int, typer.Option("--clusters", min=1, help="Clusters side by side.")
    ] = 500,
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=1, help="Timed repetitions.")
    ] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Packing rigid jobs on one core: steps a second, decisions of SJF and of DeepRM, seconds of a full training iteration.

    Example: parcae bench packing --json
    """
    from parcae.learning.packing.benchmark import benchmark_packing

    result = benchmark_packing(rate, clusters, repetitions)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    typer.echo(
        f"{result.steps_per_second / 1e6:.1f} million steps/s; {result.sjf_decisions_per_second / 1e6:.1f} million decisions/s "
        f"of SJF, {result.deeprm_decisions_per_second / 1e6:.2f} million of DeepRM (1 / {result.deeprm_to_sjf:.1f}); a training "
        f"iteration takes {result.iteration_seconds:.2f} s ({result.iteration_decisions / 1e3:,.0f} thousand decisions)"
    )
