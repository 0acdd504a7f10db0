"""`parcae learn`: from event logs to a policy, a report and what would be saved."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.learning import BudgetOption, ObjectiveOption, ProgressLine, SeedOption
from parcae.cli.options import (
    CoresOption,
    ErrorOption,
    ExecutorsOption,
    ModelOption,
    MovingOption,
    ReferenceOption,
    UnknownOption,
    WarmupOption,
    WorldOption,
    simulation_config,
)

if TYPE_CHECKING:
    from parcae.workloads.job import Workload

#: Jobs of a simulated run unless they are given: of a batch, and of a stream.
_BATCH_JOBS = 20
_STREAM_JOBS = 60


def learn_command(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Spark event logs or folders of them; or one workload file (*.parcae).",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="Folder for the policy, the comparison and the report."
        ),
    ],
    key: Annotated[
        str | None, typer.Option("--key", help="Spark property that names the recurring job.")
    ] = None,
    budget: BudgetOption = 5.0,
    world: WorldOption = None,
    executors: ExecutorsOption = None,
    cores: CoresOption = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Jobs of a run. [default: 20; on streams 60]"),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals", help="batch | poisson:25s | load:0.85  [default: at the logs' mean rate]"
        ),
    ] = None,
    objective: ObjectiveOption = "average-jct",
    seeds: Annotated[
        int, typer.Option("--seeds", min=2, help="Held-out runs of the comparison.")
    ] = 40,
    seed: SeedOption = 0,
    start: Annotated[
        str, typer.Option("--start", help="shipped | scratch: where tuning and training start.")
    ] = "shipped",
    device: Annotated[str, typer.Option("--device", help="cpu | cuda")] = "cpu",
    reference_semantics: ReferenceOption = False,
    moving_delay_ms: MovingOption = None,
    warmup_delay_ms: WarmupOption = None,
    parallelism_model: ModelOption = "none",
    unknown_share: UnknownOption = 0.0,
    estimate_error: ErrorOption = "log",
) -> None:
    """Learn a scheduling policy for a cluster from its own logs, and say what it would save.

    Example: parcae learn /var/log/spark-events -o learned --budget 5 --cores 50
    """
    from parcae.errors import ConfigError
    from parcae.learning.scenario import Scenario
    from parcae.metrics.objectives import parse_objective
    from parcae.studies.learn import LearnRequest, default_arrivals, learn
    from parcae.workloads.archive import write_workload
    from parcae.workloads.parallelism import with_parallelism_model

    if start not in ("shipped", "scratch"):
        raise ConfigError(f"--start {start}: write shipped or scratch")
    config = simulation_config(
        world=world,
        executors=executors,
        cores=cores,
        reference_semantics=reference_semantics,
        moving_delay_ms=moving_delay_ms,
        warmup_delay_ms=warmup_delay_ms,
        parallelism_model=parallelism_model,
        unknown_share=unknown_share,
        estimate_error=estimate_error,
    )
    measured, recorded = _read(logs, key)
    folder.mkdir(parents=True, exist_ok=True)
    write_workload(measured, folder / "workload.parcae")
    workload = with_parallelism_model(measured, parallelism_model)
    process = arrivals or default_arrivals(workload, recorded)
    typer.echo(
        f"{folder / 'workload.parcae'}: {len(workload.jobs)} recurring jobs, mean work {workload.mean_work_ms / 1000:,.1f} "
        f"core-seconds; learning for arrivals {process}, {config.total_executors} {config.world.value}"
    )
    line = ProgressLine(budget * 60)
    count = jobs or (_BATCH_JOBS if process == "batch" else _STREAM_JOBS)
    scenario = Scenario(workload, config, process, count, parse_objective(objective))
    learned = learn(
        LearnRequest(scenario, folder, budget * 60, seeds, seed, start, device),
        lambda done, total, text: line.show(done, text),
        command=shlex.join(["parcae", *sys.argv[1:]]),
    )
    line.end()
    from parcae.cli.tables import print_whole
    from parcae.evaluation.compare import comparison_table

    print_whole(comparison_table(learned.comparison))
    typer.echo(f"\n{learned.paragraph}\n\npolicy: {learned.policy}\nreport: {learned.report}")
    if learned.training.ending not in ("done", "interrupted"):
        typer.echo(f"note: the training stopped early: {learned.training.ending}", err=True)


def _read(paths: list[Path], key: str | None) -> tuple[Workload, Workload | None]:
    """The recurring jobs, and the runs with their arrivals (None where a workload file was given)."""
    from parcae.workloads.archive import read_workload
    from parcae.workloads.spark_event_log import read_spark_event_logs

    if len(paths) == 1 and paths[0].suffix == ".parcae":
        return read_workload(paths[0]), None
    workload, report = read_spark_event_logs(paths, key=key)
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)
    recorded, _ = read_spark_event_logs(paths, key=key, recorded=True)
    return workload, recorded
