"""`parcae learn`: from event logs to a policy, and a report of how much it would save."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parcae.cli.checks import Only, policies_to_write, refusing
from parcae.cli.groups import with_groups
from parcae.cli.learners import BudgetOption, SeedOption
from parcae.cli.learning import ObjectiveOption, objective_of
from parcae.cli.options import (
    MOST,
    ClusterOptions,
    DeadlinesOption,
    KeyOption,
    check_deadlines,
    in_cores,
    with_deadlines,
)
from parcae.cli.progress import ProgressLine, counting, print_reading

if TYPE_CHECKING:
    from parcae.api.study import Learned, LearnRequest
    from parcae.learning.scenario import Scenario
    from parcae.simulation.config import SimulationConfig
    from parcae.workloads.job import Workload

#: Default number of jobs in a simulated run: of a batch, and of a stream.
_BATCH_JOBS = 20
_STREAM_JOBS = 60


@dataclass(frozen=True)
class SettingOptions:
    """The runs to learn for."""

    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            max=MOST,
            help="Number of jobs in a run. (default: batch 20, streams 60)",
        ),
    ] = None
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            help="batch | poisson:25s (mean gap) | load:0.85  (default: the mean rate of the logs "
            "while jobs arrive, without nights)",
        ),
    ] = None
    deadlines: DeadlinesOption = None
    objective: ObjectiveOption = "average-jct"


@dataclass(frozen=True)
class SearchOptions:
    """How tuning and training search, and how the result is judged."""

    budget: BudgetOption = 5.0
    seeds: Annotated[
        int,
        typer.Option(
            "--seeds", min=2, max=MOST, help="Number of runs of the comparison, on unseen seeds."
        ),
    ] = 40
    seed: SeedOption = 0
    start: Annotated[
        str,
        typer.Option(
            "--start",
            help="Where tuning and training start: shipped (the policies in the package) | scratch",
        ),
    ] = "shipped"
    device: Annotated[str, typer.Option("--device", help="cpu | cuda")] = "cpu"


@refusing(
    Only(("key",), lambda given: not _is_workload(given["logs"]), "to event logs"),
    Only(
        ("device",),
        lambda given: not in_cores(given),
        "to --world executors (policies of the world of cores are trained without PyTorch)",
    ),
)
@with_groups
def learn_command(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="Spark event logs, or folders of them; or one workload file (*.parcae).",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Folder for the policy, the comparison and the report.",
            callback=policies_to_write,
        ),
    ],
    *,
    cluster: ClusterOptions,
    setting: SettingOptions,
    search: SearchOptions,
    key: KeyOption = None,
) -> None:
    """Learn a scheduling policy from a cluster's event logs, and estimate how much it would save.

    Example: parcae learn /var/log/spark-events -o learned --budget 5 --cores 50
    """
    from parcae.api.study import WORKLOAD, remove_results
    from parcae.base.files import locked_folder
    from parcae.cli.tables import print_whole
    from parcae.evaluation.comparison import comparison_table
    from parcae.workloads.archive import write_workload
    from parcae.workloads.demands import with_parallelism_model

    config = cluster.config()
    _check(search, setting, config)
    measured, recorded = _read(logs, key)
    modelled = with_parallelism_model(measured, cluster.parallelism_model)
    scenario = _scenario(modelled, recorded, config, setting)
    request = _request(scenario, folder, search)
    request.check()
    folder.mkdir(parents=True, exist_ok=True)
    # The files of a command that is still learning into the folder stay as they are.
    with locked_folder(folder, "learning into"):
        if removed := remove_results(folder):
            typer.echo(f"{folder}: removed the earlier results ({', '.join(removed)})", err=True)
        # Written before learning, so that an interrupted command need not read the logs again.
        write_workload(measured, folder / WORKLOAD)
    _print_scenario(scenario, folder)
    learned = _learned(request)
    print_whole(comparison_table(learned.comparison))
    typer.echo(f"\n{learned.paragraph}\n\npolicy: {learned.policy}\nreport: {learned.report}")
    if learned.training.ending not in ("done", "interrupted"):
        typer.echo(f"note: the training stopped early: {learned.training.ending}", err=True)


def _check(search: SearchOptions, setting: SettingOptions, config: SimulationConfig) -> None:
    """Check what can be checked before the logs are read, which may take minutes."""
    from parcae.base.errors import ConfigError
    from parcae.base.extras import require
    from parcae.learning.worlds import world_named

    require("torch", "cma", "plotly")
    if search.start not in ("shipped", "scratch"):
        raise ConfigError(f"--start {search.start}: write shipped or scratch")
    if setting.arrivals is not None:
        from parcae.learning.scenario import check_arrivals

        check_arrivals(setting.arrivals)
    objective = objective_of(setting.objective, setting.deadlines)
    check_deadlines(setting.deadlines)
    world_named(config.world).check(objective, search.device)


def _scenario(
    modelled: Workload,
    recorded: Workload | None,
    config: SimulationConfig,
    setting: SettingOptions,
) -> Scenario:
    """The scenario to learn for."""
    from parcae.api.study import default_arrivals
    from parcae.learning.scenario import Scenario

    workload = with_deadlines(modelled, setting.deadlines)
    process = setting.arrivals or default_arrivals(workload, recorded)
    count = setting.jobs or (_BATCH_JOBS if process == "batch" else _STREAM_JOBS)
    objective = objective_of(setting.objective, setting.deadlines)
    return Scenario(workload, config, process, count, objective)


def _print_scenario(scenario: Scenario, folder: Path) -> None:
    """Print what is learned for, and the warnings about it."""
    from parcae.api.study import WORKLOAD
    from parcae.base.texts import seconds_text
    from parcae.evaluation.doubts import setting_warnings

    workload = scenario.workload
    config = scenario.config
    typer.echo(
        f"{folder / WORKLOAD}: {len(workload.jobs)} recurring jobs, mean work "
        f"{seconds_text(workload.mean_work_ms / 1000)} "
        f"core-seconds; learning for arrivals {scenario.arrivals}, {config.total_executors} "
        f"{config.world.value}"
    )
    # Printed before the hours of work whose result they would change.
    for warning in setting_warnings(workload, config, scenario.arrivals):
        typer.echo(f"warning: {warning}", err=True)


def _request(scenario: Scenario, folder: Path, search: SearchOptions) -> LearnRequest:
    """What is to be learned, where, and for how long."""
    from parcae.api.study import LearnRequest

    budget_s = search.budget * 60
    return LearnRequest(
        scenario, folder, budget_s, search.seeds, search.seed, search.start, search.device
    )


def _learned(request: LearnRequest) -> Learned:
    """Learn, with a progress line."""
    from parcae.api.study import learn

    line = ProgressLine(request.budget_s)
    learned = learn(
        request,
        lambda done, total, text: line.show(done, text),
        command=shlex.join(["parcae", *sys.argv[1:]]),
    )
    line.end()
    return learned


def _is_workload(paths: list[Path]) -> bool:
    return len(paths) == 1 and paths[0].suffix == ".parcae"


def _read(paths: list[Path], key: str | None) -> tuple[Workload, Workload | None]:
    """The recurring jobs, and their recorded runs with arrivals (None for a workload file)."""
    from parcae.base.errors import FormatError
    from parcae.workloads.archive import read_workload
    from parcae.workloads.import_report import TooManyBadRowsError
    from parcae.workloads.spark_log.event_log import read_spark_event_logs

    # A workload file contains recurring jobs without arrivals of runs.
    if _is_workload(paths):
        return read_workload(paths[0]), None
    try:
        with counting("reading") as progress:
            workload, report = read_spark_event_logs(paths, key=key, progress=progress)
    except TooManyBadRowsError as error:
        named = [] if key is None else ["--key", key]
        words = shlex.join(["spark-events", *map(str, paths), *named])
        raise FormatError(
            f"{error} in `parcae workload import {words} -o mine.parcae --max-bad-share SHARE`, "
            "and learn from mine.parcae"
        ) from error
    print_reading(report)
    # Read again, now with every run as a job, for the arrivals.
    with counting("reading arrivals") as progress:
        recorded, _ = read_spark_event_logs(paths, key=key, recorded=True, progress=progress)
    return workload, recorded
