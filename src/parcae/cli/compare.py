"""`parcae compare`: several policies on the same seeds, paired, with confidence intervals and a report."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.options import (
    ArrivalsOption,
    ClassesOption,
    CoresOption,
    DurationsOption,
    ErrorOption,
    ExecutorsOption,
    JobsOption,
    ModelOption,
    MovingOption,
    ReferenceOption,
    UnknownOption,
    WarmupOption,
    WorkloadArgument,
    WorldOption,
    load,
    simulation_config,
)

if TYPE_CHECKING:
    from parcae.evaluation.compare import Comparison
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.job import Workload

#: What is compared unless named, by world: the stock orders first.
DEFAULT_POLICIES = {
    "cores": "fair,fifo,srpt,psbs,tuned",
    "executors": "fair,fifo,sjf-cp,naive-weighted-fair,weighted-fair:tuned,srpt-cap",
}


def compare_command(
    workload: WorkloadArgument,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            help="Policies, separated by commas; ratios are to the first. "
            "[default: the stock orders and the best heuristics of the world]",
        ),
    ] = None,
    world: WorldOption = None,
    executors: ExecutorsOption = None,
    cores: CoresOption = None,
    executor_classes: ClassesOption = None,
    jobs: JobsOption = 20,
    arrivals: ArrivalsOption = "batch",
    seeds: Annotated[
        int, typer.Option("--seeds", min=2, help="How many seeds (paired over the policies).")
    ] = 20,
    seed_start: Annotated[int, typer.Option("--seed-start", min=0, help="First seed.")] = 0,
    durations: DurationsOption = "sampled",
    reference_semantics: ReferenceOption = False,
    moving_delay_ms: MovingOption = None,
    warmup_delay_ms: WarmupOption = None,
    parallelism_model: ModelOption = "none",
    unknown_share: UnknownOption = 0.0,
    estimate_error: ErrorOption = "log",
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Worker processes. [default: all cores]"),
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write the result as JSON to this file.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Write an HTML report (one self-contained file)."),
    ] = None,
    per_job: Annotated[
        Path | None,
        typer.Option(
            "--per-job", help="Write every job under every policy to this file (.csv or .parquet)."
        ),
    ] = None,
) -> None:
    """Compare policies on the same seeds, with 95% confidence intervals.

    Example: parcae compare tpch --policies fair,fifo,srpt --cores 50 --jobs 20 --seeds 20 --report report.html
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from parcae.cli.tables import print_whole
    from parcae.evaluation.compare import compare, comparison_table, write_comparison
    from parcae.evaluation.per_job import check_per_job, write_per_job

    if per_job is not None:
        check_per_job(per_job)
    config = simulation_config(
        world=world,
        executors=executors,
        cores=cores,
        durations=durations,
        reference_semantics=reference_semantics,
        moving_delay_ms=moving_delay_ms,
        warmup_delay_ms=warmup_delay_ms,
        parallelism_model=parallelism_model,
        executor_classes=executor_classes,
        unknown_share=unknown_share,
        estimate_error=estimate_error,
    )
    loaded = load(workload, parallelism_model)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("simulating", total=None)
        comparison = compare(
            loaded,
            (policies or DEFAULT_POLICIES[config.world.value]).split(","),
            config=config,
            num_jobs=jobs,
            arrivals=arrivals,
            num_seeds=seeds,
            seed_start=seed_start,
            processes=processes,
            progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    print_whole(comparison_table(comparison))
    if json_path is not None:
        write_comparison(comparison, json_path)
        typer.echo(f"JSON: {json_path}")
    if per_job is not None:
        write_per_job(comparison, per_job)
        typer.echo(f"jobs: {per_job}")
    if report is not None:
        _write_report(comparison, loaded, config, arrivals, jobs, seed_start, report)
        typer.echo(f"report: {report}")


def _write_report(
    comparison: Comparison,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str,
    jobs: int,
    seed: int,
    path: Path,
) -> None:
    """The report shows the first seed's runs beside the statistics of all."""
    from parcae.evaluation.bounds import lower_bounds
    from parcae.evaluation.report import write_report
    from parcae.simulation.run import simulate
    from parcae.workloads.arrivals import draw_sequence
    from parcae.workloads.random_streams import RandomStreams

    sequence = draw_sequence(workload, arrivals, jobs, config.total_executors, RandomStreams(seed))
    policies = comparison.resolved.for_sequence(sequence, seed)
    traces = {
        name: simulate(sequence, policy, config, seed, record=True)
        for name, policy in policies.items()
    }
    command = shlex.join(["parcae", *sys.argv[1:]])
    bounds = lower_bounds(sequence, config.total_executors)
    write_report(comparison, traces, path, command=command, bounds=bounds)
