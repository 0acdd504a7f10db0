"""`parcae workload`: imports, prepares, describes and samples workloads."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import typer
from typer.core import TyperGroup

from parcae.base.errors import ConfigError
from parcae.base.extensions import is_reference
from parcae.base.options import REQUIRED, argument, option
from parcae.base.urls import address_of
from parcae.cli.commands import Only, command, made
from parcae.cli.options import (
    JSON,
    MODEL,
    MOST,
    WORKLOAD,
    CheckedEventOptions,
    ClusterOptions,
)
from parcae.cli.progress import counting, print_reading, read_logs
from parcae.cli.tables import check_tables, print_fitted, print_json
from parcae.evaluation.described import description_tables
from parcae.evaluation.log_check import check_log, replay_note
from parcae.workloads import demands
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.describe import describe_workload, sample_workload
from parcae.workloads.import_report import counted
from parcae.workloads.readers import Reader, ReaderOption, find_reader, read_workload, readers
from parcae.workloads.workload import Workload

OUTPUT = option(REQUIRED, "The workload file to write (*.parcae).", "-o", "--output", check="write")
NAME = option(None, "Name of the workload. (default: the name of the source)", "--name")


class _ImportGroup(TyperGroup):
    """A command for each reader of the table (`parcae.workloads.readers`)."""

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        for reader in readers():
            self.commands[reader.format] = made(reader.format, _import_command(reader))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a format, or of a reader that `module:attribute` names."""
        if is_reference(cmd_name):
            return made(cmd_name, _import_command(find_reader(cmd_name)))
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    help="Make a workload file from event logs, profiles or a trace.",
    no_args_is_help=True,
    cls=_ImportGroup,
)


@app.callback()
def _formats() -> None:
    pass


def _import_command(reader: Reader) -> Any:
    """The command that imports a format: its paths, -o, --name, and the reader's own options."""
    source = "url" if reader.takes_url else "paths" if reader.takes_many else "path"
    kinds = {"url": str, "paths": list[str], "path": Path}

    def imported(**given: Any) -> None:
        output = given.pop("output")
        found = given.pop(source)
        paths = found if reader.takes_many else [found]
        with counting("reading") as progress:
            workload, report = read_workload(reader.format, paths, progress=progress, **given)
        write_workload(workload, output)
        print_reading(report)
        if report.logged is not None:
            typer.echo(f"note: {replay_note(report.logged)}", err=True)
        bad = f", {counted(report.num_bad_rows, 'bad row')} left out" if report.num_bad_rows else ""
        files = f"{counted(report.num_files, 'file')} ({counted(report.num_rows, 'row')}{bad})"
        typer.echo(f"{address_of(output) or output}: {_size(workload)} from {files}")

    fields = {
        source: (kinds[source], argument(reader.source, check="read")),
        "output": (Path, OUTPUT),
        "name": (str | None, NAME),
        **{one.name: _field(one) for one in reader.options},
    }
    imported.__doc__ = (
        f"{reader.summary}\n\nExample: parcae workload import {reader.format} {reader.example}"
    )
    imported.__annotations__ = {name: hint for name, (hint, _) in fields.items()}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=fields[name][1]) for name in fields]
    imported.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    rules = [_rule(one) for one in reader.options if one.useless_with is not None]
    return command(*rules)(imported)


def _field(one: ReaderOption) -> tuple[Any, Any]:
    """The type and the option of an option of a reader."""
    least, most = one.bounds
    check = "read" if one.is_file else ""
    kind = one.type if one.default is not None else one.type | None
    return kind, option(one.default, one.help, ge=least, le=most, check=check)


def _rule(one: ReaderOption) -> Only:
    """The rule that an option of a reader has no effect with another one."""
    other = str(one.useless_with)
    words = f"without --{other.replace('_', '-')}"
    return Only((one.name,), lambda given: not given[other], words)


def _size(workload: Workload) -> str:
    stages = counted(workload.num_stages, "stage")
    return f"{counted(len(workload.jobs), 'job')}, {stages}, {counted(workload.num_tasks, 'task')}"


@command()
def check(
    wanted: CheckedEventOptions,
    paths: list[str] = argument(
        "Event logs: files, rolling log folders, zips, or folders of them.", "LOGS...", "read"
    ),
    as_json: bool = JSON,
) -> None:
    """Hold the simulator against an event log: every query replayed, beside what it took there.

    Example: parcae workload check application.zstd
    """
    checked = check_log(read_logs(paths, wanted))
    if as_json:
        print_json(checked)
        return
    for table in check_tables(checked):
        print_fitted(table)


@command()
def describe(
    workload: str = WORKLOAD, parallelism_model: str = MODEL, as_json: bool = JSON
) -> None:
    """Describe a workload: jobs, stages, work, critical paths, measured parallelism and origin.

    Example: parcae workload describe tpch
    """
    loaded = ClusterOptions(parallelism_model=parallelism_model).load(workload)
    described = describe_workload(loaded)
    if as_json:
        print_json(described)
        return
    for table in description_tables(described):
        print_fitted(table)


@command()
def sample(
    workload: str = WORKLOAD,
    output: Path = OUTPUT,
    jobs: int = option(20, "Number of jobs to draw.", ge=1, le=MOST),
    seed: int = option(0, "Seed of the draws.", ge=0),
) -> None:
    """Draw jobs from a workload into a smaller workload file.

    Jobs with recorded arrivals keep them, and each of them is drawn at most once.

    Example: parcae workload sample tpch --jobs 20 --seed 1 -o small.parcae
    """
    sampled = sample_workload(load_workload(workload), jobs, np.random.default_rng(seed))
    write_workload(sampled, output)
    tasks = counted(sampled.num_tasks, "task")
    typer.echo(f"{output}: {counted(len(sampled.jobs), 'job')}, {tasks}")


@command()
def prepare(
    workload: str = WORKLOAD,
    output: Path = OUTPUT,
    work_quantile: float | None = option(
        None, "Remove the jobs with more work than this quantile, e.g. 0.99."
    ),
    work: float | None = option(None, "Multiply all task durations by this factor, e.g. 10."),
    memory_quantile: float | None = option(
        None,
        "Divide the stages' memory demands by this quantile of them, e.g. 0.999, and limit them "
        "to 1.",
    ),
    most_cpu: float | None = option(None, "Limit the stages' CPU demands to this many cores."),
    memory_demands: str | None = option(
        None, "Draw the memory demand of every stage from (0, 1]: uniform | uniform:SEED"
    ),
    half: str | None = option(
        None, "Keep one half of the jobs by arrival: first (for training) | second"
    ),
) -> None:
    """Prepare a workload: other sizes, or what executor classes need.

    Removes outliers, multiplies durations, normalises or draws demands, and keeps
    one half of the workload. The steps run in the order of the options below.

    Example: parcae workload prepare tpch --memory-demands uniform:7 -o tpch-memory.parcae
    """
    given: tuple[tuple[Any, Any], ...] = (
        # Outliers go first, so that they do not affect the quantiles of the demands.
        (work_quantile, demands.without_largest),
        (work, demands.with_work),
        (memory_quantile, demands.in_memory_units),
        (most_cpu, demands.with_cpu_at_most),
        (memory_demands, demands.with_drawn_memory),
        (half, demands.half),
    )
    steps = [make(value) for value, make in given if value is not None]
    if not steps:
        raise ConfigError(
            "nothing to prepare: give --work-quantile, --work, --memory-quantile, --most-cpu, "
            "--memory-demands or --half"
        )
    prepared, notes = demands.prepare(load_workload(workload), steps)
    write_workload(prepared, output)
    for note in notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"{output}: {_size(prepared)}")
