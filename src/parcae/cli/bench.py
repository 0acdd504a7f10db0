"""`parcae bench`: measures the speed of simulation, decisions, training and service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.checks import Only, finite, refusing
from parcae.cli.groups import with_groups
from parcae.cli.options import MOST, JsonOption, SizeOptions, WorldOption, one_size, world_of
from parcae.cli.policy_names import names_in
from parcae.workloads.durations import MOST_EXECUTORS

if TYPE_CHECKING:
    from parcae.evaluation.benchmark import CoresBenchmark

WorkloadOption = Annotated[
    str, typer.Option("--workload", help="A built-in workload or a workload file.")
]

app = typer.Typer(help="Measure the speed of Parcae on this machine.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    pass


@app.command("simulator")
@with_groups
def simulator_command(
    *,
    cluster: SizeOptions,
    workload: WorkloadOption = "tpch",
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Policies, separated by commas; only one with --world executors. "
            "(default: fair,srpt,tuned; executors: fair)",
        ),
    ] = None,
    arrivals: Annotated[
        str, typer.Option("--arrivals", help="Arrivals, as in `parcae simulate`.")
    ] = "poisson:25s",
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=MOST, help="Number of jobs in a run.")
    ] = 200,
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=MOST, help="Number of timed runs.")
    ] = 15,
    as_json: JsonOption = False,
) -> None:
    """Measure simulated tasks per second on one core, including planning, also with 1,000 jobs.

    With --world executors: tasks, events and decisions per second.

    Example: parcae bench simulator --json
    """
    from parcae.evaluation.benchmark import benchmark_cores, benchmark_simulator
    from parcae.workloads.archive import load_workload

    # The default of the other commands.
    size = one_size(cluster.executors, cluster.cores) or 50
    # No option here implies the world of executors.
    if world_of(cluster.world, {}).value == "cores":
        names = names_in("fair,srpt,tuned" if policy is None else policy)
        result_of_cores = benchmark_cores(
            load_workload(workload),
            names,
            arrivals=arrivals,
            num_jobs=jobs,
            num_cores=size,
            runs=runs,
        )
        _print_cores(result_of_cores, as_json)
        return
    result = benchmark_simulator(
        load_workload(workload),
        policy="fair" if policy is None else policy,
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
        f"{result.best_tasks_per_second / 1e6:.1f}), {result.decisions_per_second / 1e3:.0f} "
        "thousand decisions/s"
    )


def _print_cores(result: CoresBenchmark, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    for speed in result.policies:
        typer.echo(
            f"{speed.policy:<12} {speed.tasks_per_second / 1e6:5.1f} million tasks/s (median of "
            f"{result.runs}; best "
            f"{speed.best_tasks_per_second / 1e6:.1f}); with {result.num_long_jobs:,} jobs "
            f"{speed.long_tasks_per_second / 1e6:.1f} ({speed.linearity:.2f} times)"
        )


@app.command("decision")
def decision_command(
    workload: WorkloadOption = "tpch",
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies, separated by commas. (default: srpt,psbs,tuned,parcae; executors: "
            "tuned,parcae,decima)",
        ),
    ] = None,
    world: WorldOption = None,
    decisions: Annotated[
        int, typer.Option("--decisions", min=10, help="Number of timed decisions.")
    ] = 2000,
    as_json: JsonOption = False,
) -> None:
    """Measure how long policies need for a plan (with --world executors: for a decision).

    The case small has 20 jobs on 50 cores. The case large has 1,000 jobs with
    10,000 stages on 200 cores. With --world executors, the case wide is large
    with 30,000 executors in four classes.

    Example: parcae bench decision --json
    """
    from parcae.evaluation.benchmark import benchmark_decisions
    from parcae.workloads.archive import load_workload

    chosen = world_of(world, {})
    default = "srpt,psbs,tuned,parcae" if chosen.value == "cores" else "tuned,corrector,decima"
    names = default if policies is None else policies
    rows = benchmark_decisions(
        load_workload(workload), names_in(names), num_decisions=decisions, world=chosen
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
@refusing(
    Only(
        ("decima",), lambda given: "decima" in names_in(given["networks"]), "to the network decima"
    )
)
@with_groups
def training_command(
    workload: WorkloadOption = "tpch",
    networks: Annotated[
        str, typer.Option("--networks", help="Networks, separated by commas.")
    ] = "corrector,decima",
    recipe: Annotated[
        str, typer.Option("--recipe", help="fast | imitation | decima-2019")
    ] = "fast",
    iterations: Annotated[
        int, typer.Option("--iterations", min=1, max=MOST, help="Number of timed iterations.")
    ] = 5,
    decima: Annotated[
        list[str] | None,
        typer.Option("--decima", help="Change a setting of Decima's network: features=jobs."),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Where weights are updated: cpu | cuda")
    ] = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Measure training decisions per CPU second, rollouts and updates together.

    The scenario is a batch of 20 jobs on 50 executors.

    Example: parcae bench training --json
    """
    from parcae.decima.graph.layout import DecimaSettings
    from parcae.decima.learning.benchmark import benchmark_training
    from parcae.decima.learning.recipes import parse_recipe
    from parcae.learning.config import override
    from parcae.learning.scenario import Scenario
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.archive import load_workload

    scenario = Scenario(load_workload(workload), SimulationConfig(), "batch", 20)
    settings = override(DecimaSettings(), decima or [])
    rows = [
        benchmark_training(scenario, network, parse_recipe(recipe), iterations, settings, device)
        for network in names_in(networks)
    ]
    if as_json:
        typer.echo(json.dumps([row.to_json() for row in rows], indent=2))
        return
    for row in rows:
        typer.echo(
            f"{row.network:<8} {row.decisions_per_cpu_second:9,.0f} decisions/CPU-s  "
            f"{row.decisions_per_second:9,.0f} decisions/s  (rollouts {row.rollout_share:.0%} of "
            "the time)"
        )


@app.command("service")
def service_command(
    workload: WorkloadOption = "tpch",
    policies: Annotated[
        str, typer.Option("--policies", help="Policies, separated by commas.")
    ] = "fair,tuned,parcae,decima",
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=MOST, help="Number of jobs in a run.")
    ] = 20,
    cores: Annotated[
        int,
        typer.Option("--cores", min=1, max=MOST_EXECUTORS, help="Number of cores of the cluster."),
    ] = 50,
    runs: Annotated[
        int, typer.Option("--runs", min=1, max=MOST, help="Number of runs per policy.")
    ] = 2,
    as_json: JsonOption = False,
) -> None:
    """Measure the time from sending an event to receiving the orders, over loopback TCP.

    Example: parcae bench service --json
    """
    from parcae.service.benchmark import benchmark_service
    from parcae.workloads.archive import load_workload

    rows = benchmark_service(
        load_workload(workload),
        workload,
        names_in(policies),
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
        float,
        typer.Option(
            "--rate", min=0.01, max=1.0, help="Mean arrivals per time step.", callback=finite
        ),
    ] = 0.7,
    clusters: Annotated[
        int,
        typer.Option(
            "--clusters", min=1, max=100_000, help="Number of clusters that run side by side."
        ),
    ] = 500,
    repetitions: Annotated[
        int, typer.Option("--repetitions", min=1, max=MOST, help="Number of timed repetitions.")
    ] = 7,
    as_json: JsonOption = False,
) -> None:
    """Measure the packing of rigid jobs on one core.

    Measured are steps per second, decisions per second of SJF and of DeepRM, and
    the time of a training iteration of DeepRM.

    Example: parcae bench packing --json
    """
    from parcae.rigid.benchmark import benchmark_packing

    result = benchmark_packing(rate, clusters, repetitions)
    if as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
        return
    typer.echo(
        f"{result.steps_per_second / 1e6:.1f} million steps/s; "
        f"{result.sjf_decisions_per_second / 1e6:.1f} million decisions/s of SJF, "
        f"{result.deeprm_decisions_per_second / 1e6:.2f} million of DeepRM "
        f"(1 / {result.deeprm_to_sjf:.1f}); a training iteration takes "
        f"{result.iteration_seconds:.2f} s "
        f"({result.iteration_decisions / 1e3:,.0f} thousand decisions)"
    )
