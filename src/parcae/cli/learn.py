"""`parcae learn`: from event logs to a policy, and a report of how much it would save."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import typer

from parcae.api.formulas import learn_formula
from parcae.api.study import STATE, WORKLOAD, LearnRequest, LearnResult, default_arrivals
from parcae.api.study import learn as learn_policy
from parcae.base.errors import ConfigError, FormatError
from parcae.base.extensions import require
from parcae.base.options import REQUIRED, argument, option
from parcae.base.texts import seconds_text
from parcae.cli.commands import Only, command
from parcae.cli.options import (
    DEADLINES,
    MOST,
    ClusterOptions,
    EventOptions,
    Options,
    in_cores,
    with_deadlines,
)
from parcae.cli.progress import budgeted, naming_kept, print_reading, read_logs
from parcae.cli.tables import print_rows
from parcae.cli.train import BUDGET, OBJECTIVE, SEARCH_SEED, objective_of
from parcae.evaluation.comparison import Comparison
from parcae.evaluation.sections import setting_warnings
from parcae.evaluation.statistics import with_interval
from parcae.learning.formulas import MOST_TERMS
from parcae.learning.scenario import Scenario, check_arrivals
from parcae.learning.worlds import world_named
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.describe import CORES_IN_LOGS
from parcae.workloads.import_report import TooManyBadRowsError, counted
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.state import write_state
from parcae.workloads.tables import read_deadlines
from parcae.workloads.workload import Workload

#: Default number of jobs in a simulated run: of a batch, and of a stream.
_BATCH_JOBS = 20
_STREAM_JOBS = 60
_FORMULA = "formula"
_KINDS = ("network", _FORMULA)


class SettingOptions(Options):
    """The runs to learn for."""

    jobs: int | None = option(
        None, "Number of jobs in a run. (default: batch 20, streams 60)", ge=1, le=MOST
    )
    arrivals: str | None = option(
        None,
        "batch | poisson:25s (mean gap) | load:0.85  (default: as in the logs while jobs arrive, "
        "without nights)",
    )
    deadlines: Path | None = DEADLINES
    objective: str = OBJECTIVE

    def scenario(self, modelled: Workload, config: SimulationConfig) -> Scenario:
        """The scenario to learn for."""
        workload = with_deadlines(modelled, self.deadlines)
        process = self.arrivals or default_arrivals(workload)
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
    kind: str = option(
        "network",
        "What is learned beside the tuned rule: network (which corrects it) | formula (of at most "
        f"{MOST_TERMS} terms)",
        "--as",
    )


@command(
    Only(("key", "user", "queue"), lambda given: not _is_workload(given["logs"]), "to event logs"),
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
    wanted: EventOptions,
    logs: list[str] = argument(
        "Spark event logs, or folders of them; or one workload file (*.parcae).", check="read"
    ),
    folder: Path = option(
        REQUIRED,
        "Folder for the policy, the comparison and the report.",
        "-o",
        "--output",
        check="learned",
    ),
) -> None:
    """Learn a scheduling policy from a cluster's event logs, and estimate how much it would save.

    Cores and arrivals are those of the logs unless they are given.

    Example: parcae learn /var/log/spark-events -o learned
    """
    config = cluster.config()
    _check(search, setting, config)
    measured, runs = _read(logs, wanted)
    modelled = with_parallelism_model(measured, cluster.parallelism_model)
    cores = measured.provenance.get(CORES_IN_LOGS, "")
    if cores.isdecimal() and cluster.size is None and config.world is WorldName.CORES:
        config = config.model_copy(update={"num_executors": int(cores)})
    scenario = setting.scenario(modelled, config)
    budget_s = search.budget * 60

    def begin(removed: list[str]) -> None:
        if removed:
            typer.echo(f"{folder}: removed the earlier results ({', '.join(removed)})", err=True)
        # Written before learning, so that an interrupted command need not read the logs again.
        write_workload(measured, folder / WORKLOAD)
        if runs:
            write_state(runs, folder / STATE)
        _print_scenario(scenario, folder)

    request = LearnRequest(
        scenario, folder, budget_s, search.seeds, search.seed, search.start, search.device
    )
    read = folder / WORKLOAD
    kept = (
        f"learning has not ended; what was read is in {read}: name that file in place of the logs "
        "to learn again"
    )
    search_one = learn_formula if search.kind == _FORMULA else learn_policy
    with naming_kept(read, kept), budgeted(budget_s) as show:
        learned = search_one(
            request,
            lambda done, total, text: show(done, text),
            shlex.join(["parcae", *sys.argv[1:]]),
            begin,
        )
    _print_comparison(learned.comparison, folder)
    if learned.front:
        _print_front(learned)
    said = filter(None, [learned.headline, str(learned.policy) * bool(learned.front)])
    typer.echo("\n" + "\n\n".join([*said, learned.paragraph, ""]))
    typer.echo(_results(learned))
    training = learned.training
    if training is not None and training.ending not in ("done", "interrupted"):
        typer.echo(f"note: the training stopped early: {training.ending}", err=True)


def _print_comparison(comparison: Comparison, folder: Path) -> None:
    """Print what fits into 80 columns; the report and the JSON have the rest."""
    results = comparison.policies
    rows = [
        [
            result.name.replace(f"{folder}/", ""),
            seconds_text(result.average_jct_s.mean),
            with_interval(result.ratio_to_first),
            f"{result.estimates['later_than_first_share'].mean:.0%}",
        ]
        for result in results
    ]
    headings = ("policy", "average s", f"ratio to {results[0].name}", "later")
    print_rows(comparison.title(), headings, rows)
    for warning in comparison.warnings():
        typer.echo(f"warning: {warning}")


def _print_front(learned: LearnResult) -> None:
    """Print the formulas by their length."""
    rows = [
        [one.text, f"{one.terms}", f"{one.ratio_to_fair:.3f}", with_interval(ratio)]
        for one, ratio in learned.front
    ]
    headings = ("formula", "terms", "of fair, where it was chosen", "of the tuned rule, elsewhere")
    print_rows("No shorter formula is better", headings, rows)


def _results(learned: LearnResult) -> str:
    """The files, and the command that comes next."""
    lines = [f"report: {learned.report}"]
    if isinstance(learned.policy, Path):
        lines.append(f"policy: {learned.policy}")
    if learned.exported is not None:
        exported = shlex.quote(str(learned.exported))
        lines.append(f"policy file for Spark's plugin: {learned.exported}")
        if (state := learned.report.with_name(STATE)).exists():
            lines.append(f"sizes of the logs' queries for spark.parcae.state: {state}")
        lines.append(f"next: parcae spark doctor --policy {exported}")
    return "\n".join(lines)


def _check(search: LearnSearchOptions, setting: SettingOptions, config: SimulationConfig) -> None:
    """Check what can be checked before the logs are read, which may take minutes."""
    require("cma", "matplotlib")
    if search.start not in ("shipped", "scratch"):
        raise ConfigError(f"--start {search.start}: write shipped or scratch")
    if search.kind not in _KINDS:
        raise ConfigError(f"--as {search.kind}: write {' or '.join(_KINDS)}")
    if search.kind == _FORMULA and config.world is not WorldName.CORES:
        raise ConfigError("--as formula exists in the world of cores only: leave out --world")
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
        f"{folder / WORKLOAD}: {counted(len(workload.jobs), 'recurring job')}, mean work "
        f"{seconds_text(workload.mean_work_ms / 1000)} "
        f"core-seconds; learning for arrivals {scenario.arrivals}, {config.size_text}"
    )
    # Printed before the hours of work whose result they would change.
    for warning in setting_warnings(workload, config, scenario.arrivals):
        typer.echo(f"warning: {warning}", err=True)


def _is_workload(paths: list[str]) -> bool:
    return len(paths) == 1 and paths[0].endswith(".parcae")


def _read(paths: list[str], wanted: EventOptions) -> tuple[Workload, list[JobRun]]:
    """The recurring jobs of logs and their runs, or the jobs of a workload file."""
    if _is_workload(paths):
        return read_workload(Path(paths[0])), []
    try:
        logged = read_logs(paths, wanted)
    except TooManyBadRowsError as error:
        given = wanted.model_dump(exclude_none=True)
        named = [word for name, value in given.items() for word in (f"--{name}", value)]
        words = shlex.join(["spark-events", *map(str, paths), *named])
        raise FormatError(
            f"{error} in `parcae workload import {words} -o mine.parcae --max-bad-share SHARE`, "
            "and learn from mine.parcae"
        ) from error
    workload, report = logged.workload()
    print_reading(report)
    return workload, logged.runs
