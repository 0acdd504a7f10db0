"""`parcae learn`: from event logs to a policy, and a report of how much it would save."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer

from parcae.api.study import WORKLOAD, LearnRequest, default_arrivals
from parcae.api.study import learn as learn_policy
from parcae.base.errors import ConfigError, FormatError
from parcae.base.extensions import require
from parcae.base.options import REQUIRED, argument, option
from parcae.base.texts import seconds_text
from parcae.cli.commands import Only, command
from parcae.cli.options import (
    DEADLINES,
    KEY,
    MOST,
    ClusterOptions,
    Options,
    in_cores,
    with_deadlines,
)
from parcae.cli.progress import ProgressLine, counting, print_reading
from parcae.cli.tables import print_whole
from parcae.cli.train import BUDGET, OBJECTIVE, SEARCH_SEED, objective_of
from parcae.evaluation.comparison import comparison_table
from parcae.evaluation.sections import setting_warnings
from parcae.learning.scenario import Scenario, check_arrivals
from parcae.learning.worlds import world_named
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.import_report import TooManyBadRowsError
from parcae.workloads.spark_log.event_log import read_runs
from parcae.workloads.tables import read_deadlines
from parcae.workloads.workload import Workload

#: Default number of jobs in a simulated run: of a batch, and of a stream.
_BATCH_JOBS = 20
_STREAM_JOBS = 60


class SettingOptions(Options):
    """The runs to learn for."""

    jobs: int | None = option(
        None, "Number of jobs in a run. (default: batch 20, streams 60)", ge=1, le=MOST
    )
    arrivals: str | None = option(
        None,
        "batch | poisson:25s (mean gap) | load:0.85  (default: the mean rate of the logs while "
        "jobs arrive, without nights)",
    )
    deadlines: Path | None = DEADLINES
    objective: str = OBJECTIVE

    def scenario(
        self, modelled: Workload, recorded: Workload | None, config: SimulationConfig
    ) -> Scenario:
        """The scenario to learn for."""
        workload = with_deadlines(modelled, self.deadlines)
        process = self.arrivals or default_arrivals(workload, recorded)
        count = self.jobs or (_BATCH_JOBS if process == "batch" else _STREAM_JOBS)
        objective = objective_of(self.objective, self.deadlines)
        return Scenario(workload, config, process, count, objective)


class LearnSearchOptions(Options):
    """How tuning and training search, and how the result is judged."""

    budget: float = BUDGET
    seeds: int = option(40, "Number of runs of the comparison, on unseen seeds.", ge=2, le=MOST)
    seed: int = SEARCH_SEED
    start: str = option(
        "shipped",
        "Where tuning and training start: shipped (the policies in the package) | scratch",
    )
    device: str = option("cpu", "cpu | cuda")


@command(
    Only(("key",), lambda given: not _is_workload(given["logs"]), "to event logs"),
    Only(
        ("device",),
        lambda given: not in_cores(given),
        "to --world executors (policies of the world of cores are trained without PyTorch)",
    ),
)
def learn(
    cluster: ClusterOptions,
    setting: SettingOptions,
    search: LearnSearchOptions,
    logs: list[Path] = argument(
        "Spark event logs, or folders of them; or one workload file (*.parcae)."
    ),
    folder: Path = option(
        REQUIRED,
        "Folder for the policy, the comparison and the report.",
        "-o",
        "--output",
        check="learned",
    ),
    key: str | None = KEY,
) -> None:
    """Learn a scheduling policy from a cluster's event logs, and estimate how much it would save.

    Example: parcae learn /var/log/spark-events -o learned --budget 5 --cores 50
    """
    config = cluster.config()
    _check(search, setting, config)
    measured, recorded = _read(logs, key)
    modelled = with_parallelism_model(measured, cluster.parallelism_model)
    scenario = setting.scenario(modelled, recorded, config)
    line = ProgressLine(search.budget * 60)

    def begin(removed: list[str]) -> None:
        if removed:
            typer.echo(f"{folder}: removed the earlier results ({', '.join(removed)})", err=True)
        # Written before learning, so that an interrupted command need not read the logs again.
        write_workload(measured, folder / WORKLOAD)
        _print_scenario(scenario, folder)

    learned = learn_policy(
        LearnRequest(
            scenario,
            folder,
            line.budget_s,
            search.seeds,
            search.seed,
            search.start,
            search.device,
        ),
        lambda done, total, text: line.show(done, text),
        shlex.join(["parcae", *sys.argv[1:]]),
        begin,
    )
    line.end()
    print_whole(comparison_table(learned.comparison))
    typer.echo(f"\n{learned.paragraph}\n\npolicy: {learned.policy}\nreport: {learned.report}")
    if learned.training.ending not in ("done", "interrupted"):
        typer.echo(f"note: the training stopped early: {learned.training.ending}", err=True)


def _check(search: LearnSearchOptions, setting: SettingOptions, config: SimulationConfig) -> None:
    """Check what can be checked before the logs are read, which may take minutes."""
    require("cma", "plotly")
    if search.start not in ("shipped", "scratch"):
        raise ConfigError(f"--start {search.start}: write shipped or scratch")
    if setting.arrivals is not None:
        check_arrivals(setting.arrivals)
    objective = objective_of(setting.objective, setting.deadlines)
    if setting.deadlines is not None:
        read_deadlines(setting.deadlines)
    world_named(config.world).check(objective, search.device)


def _print_scenario(scenario: Scenario, folder: Path) -> None:
    """Print what is learned for, and the warnings about it."""
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


def _is_workload(paths: list[Path]) -> bool:
    return len(paths) == 1 and paths[0].suffix == ".parcae"


def _read(paths: list[Path], key: str | None) -> tuple[Workload, Workload | None]:
    """The recurring jobs, and their recorded runs with arrivals (None for a workload file)."""
    # A workload file contains recurring jobs without arrivals of runs.
    if _is_workload(paths):
        return read_workload(paths[0]), None
    try:
        with counting("reading") as progress:
            logged = read_runs(paths, key=key, progress=progress)
    except TooManyBadRowsError as error:
        named = [] if key is None else ["--key", key]
        words = shlex.join(["spark-events", *map(str, paths), *named])
        raise FormatError(
            f"{error} in `parcae workload import {words} -o mine.parcae --max-bad-share SHARE`, "
            "and learn from mine.parcae"
        ) from error
    workload, report = logged.workload()
    print_reading(report)
    return workload, logged.workload(recorded=True)[0]
