"""`parcae workload`: imports, prepares, describes, samples and measures workloads."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from parcae.cli.checks import Only, check_options, file_to_read, file_to_write, finite
from parcae.cli.options import MOST, JsonOption, ModelOption, WorkloadArgument, load
from parcae.cli.progress import counting, print_reading

if TYPE_CHECKING:
    from parcae.workloads.import_report import ImportReport
    from parcae.workloads.job import Workload
    from parcae.workloads.readers import Reader, ReaderOption

app = typer.Typer(
    help="Import, prepare, describe, sample and measure workloads.", no_args_is_help=True
)


class _ImportGroup(TyperGroup):
    """A command for each reader of the table (`parcae.workloads.readers`)."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The formats."""
        self._add_commands()
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a format; None if there is no such reader."""
        self._add_commands()
        return super().get_command(ctx, cmd_name)

    def _add_commands(self) -> None:
        # Only now, because other commands should start without the readers.
        from parcae.workloads.readers import readers

        for reader in readers():
            self.commands.setdefault(reader.format, _import_command(reader))


# A group within the group: `parcae workload import spark-events`, and so on.
import_app = typer.Typer(
    help="Make a workload file from event logs, profiles or a trace.",
    no_args_is_help=True,
    cls=_ImportGroup,
)
app.add_typer(import_app, name="import")


@import_app.callback()
def _formats() -> None:
    pass


OutputOption = Annotated[
    Path,
    typer.Option(
        "-o", "--output", help="The workload file to write (*.parcae).", callback=file_to_write
    ),
]
NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Name of the workload. (default: the name of the source)"),
]


def _import_command(reader: Reader) -> Any:
    """The command that imports a format: its paths, -o, --name, and the reader's own options."""
    parameters = _import_parameters(reader)
    source = parameters[0].name
    rules = tuple(_rule(option) for option in reader.options if option.useless_with is not None)

    def command(_context: typer.Context, output: Path, **options: Any) -> None:
        check_options(_context, options, rules)
        from parcae.workloads.readers import read_workload

        given = options.pop(source)
        paths = given if reader.takes_many else [given]
        _import(
            lambda progress: read_workload(reader.format, paths, progress=progress, **options),
            output,
        )

    example = f"parcae workload import {reader.format} {reader.example}"
    command.__doc__ = f"{reader.summary}\n\nExample: {example}"
    parameters.append(_parameter("_context", typer.Context))
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    alone = typer.Typer(add_completion=False)
    alone.command(reader.format)(command)
    return typer.main.get_command(alone)


def _rule(option: ReaderOption) -> Only:
    """The rule that an option of a reader has no effect with another one."""
    other = str(option.useless_with)
    words = f"without --{other.replace('_', '-')}"
    return Only((option.name,), lambda given: not given[other], words)


def _import_parameters(reader: Reader) -> list[inspect.Parameter]:
    """The parameters of the command that imports a format, the paths first."""
    argument = typer.Argument(help=reader.source, show_default=False, callback=file_to_read)
    if reader.takes_url:
        source = _parameter("url", Annotated[str, argument])
    elif reader.takes_many:
        source = _parameter("paths", Annotated[list[Path], argument])
    else:
        source = _parameter("path", Annotated[Path, argument])
    parameters = [
        source,
        _parameter("output", OutputOption),
        _parameter("name", NameOption, None),
    ]
    for option in reader.options:
        least, most = option.bounds
        words = option.name.replace("_", "-")
        check = file_to_read if option.is_file else finite if option.type is float else None
        flag = typer.Option(f"--{words}", min=least, max=most, help=option.help, callback=check)
        kind = option.type if option.default is not None else option.type | None
        parameters.append(_parameter(option.name, Annotated[kind, flag], option.default))
    return parameters


def _parameter(
    name: str, annotation: Any, default: Any = inspect.Parameter.empty
) -> inspect.Parameter:
    """A parameter of a command."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _import(
    read: Callable[[Callable[[int, int], None]], tuple[Workload, ImportReport]], output: Path
) -> None:
    """Read a workload with a progress bar, write it, and print what was read and left out."""
    from parcae.workloads.archive import write_workload
    from parcae.workloads.import_report import counted

    with counting("reading") as progress:
        workload, report = read(progress)
    write_workload(workload, output)
    print_reading(report)
    bad = f", {counted(report.num_bad_rows, 'bad row')} left out" if report.num_bad_rows else ""
    source = f"{counted(report.num_files, 'file')} ({counted(report.num_rows, 'row')}{bad})"
    typer.echo(f"{output}: {_size(workload)} from {source}")


def _size(workload: Workload) -> str:
    from parcae.workloads.import_report import counted

    stages = counted(workload.num_stages, "stage")
    return f"{counted(len(workload.jobs), 'job')}, {stages}, {counted(workload.num_tasks, 'task')}"


@app.command("describe")
def describe_command(
    workload: WorkloadArgument,
    parallelism_model: ModelOption = "none",
    as_json: JsonOption = False,
) -> None:
    """Describe a workload: jobs, stages, work, critical paths, measured parallelism and origin.

    Example: parcae workload describe tpch
    """
    from parcae.workloads.describe import describe_workload

    description = describe_workload(load(workload, parallelism_model))
    if as_json:
        typer.echo(json.dumps(description.to_json(), indent=2))
        return
    from parcae.cli.tables import description_tables, print_fitted

    for table in description_tables(description.to_json()):
        print_fitted(table)


@app.command("sample")
def sample_command(
    workload: WorkloadArgument,
    output: OutputOption,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, max=MOST, help="Number of jobs to draw.")
    ] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the draws.")] = 0,
) -> None:
    """Draw jobs from a workload into a smaller workload file.

    Jobs with recorded arrivals keep them, and each of them is drawn at most once.

    Example: parcae workload sample tpch --jobs 20 --seed 1 -o small.parcae
    """
    import numpy as np

    from parcae.workloads.archive import load_workload, write_workload
    from parcae.workloads.describe import sample_workload
    from parcae.workloads.import_report import counted

    sampled = sample_workload(load_workload(workload), jobs, np.random.default_rng(seed))
    write_workload(sampled, output)
    tasks = counted(sampled.num_tasks, "task")
    typer.echo(f"{output}: {counted(len(sampled.jobs), 'job')}, {tasks}")


@app.command("prepare")
def prepare_command(
    workload: WorkloadArgument,
    output: OutputOption,
    work_quantile: Annotated[
        float | None,
        typer.Option(
            "--work-quantile",
            help="Remove the jobs with more work than this quantile, e.g. 0.99.",
            callback=finite,
        ),
    ] = None,
    work: Annotated[
        float | None,
        typer.Option(
            "--work", help="Multiply all task durations by this factor, e.g. 10.", callback=finite
        ),
    ] = None,
    memory_quantile: Annotated[
        float | None,
        typer.Option(
            "--memory-quantile",
            help="Divide the stages' memory demands by this quantile of them, e.g. 0.999, and "
            "limit them to 1.",
            callback=finite,
        ),
    ] = None,
    most_cpu: Annotated[
        float | None,
        typer.Option(
            "--most-cpu", help="Limit the stages' CPU demands to this many cores.", callback=finite
        ),
    ] = None,
    memory_demands: Annotated[
        str | None,
        typer.Option(
            "--memory-demands",
            help="Draw the memory demand of every stage from (0, 1]: uniform | uniform:SEED",
        ),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(
            "--half", help="Keep one half of the jobs by arrival: first (for training) | second"
        ),
    ] = None,
) -> None:
    """Prepare a workload: other sizes, or what executor classes need.

    Removes outliers, multiplies durations, normalises or draws demands, and keeps
    one half of the workload. The steps run in the order of the options below.

    Example: parcae workload prepare tpch --memory-demands uniform:7 -o tpch-memory.parcae
    """
    from parcae.base.errors import ConfigError
    from parcae.workloads import demands
    from parcae.workloads.archive import load_workload, write_workload

    steps = [
        # Outliers go first, so that they do not affect the quantiles of the demands.
        *([] if work_quantile is None else [demands.without_largest(work_quantile)]),
        *([] if work is None else [demands.with_work(work)]),
        *([] if memory_quantile is None else [demands.in_memory_units(memory_quantile)]),
        *([] if most_cpu is None else [demands.with_cpu_at_most(most_cpu)]),
        *([] if memory_demands is None else [demands.with_drawn_memory(memory_demands)]),
        *([] if which is None else [demands.half(which)]),
    ]
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
