"""`parcae reproduce`: the papers' studies, each a table, a picture and JSON."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.options import (
    ClassesOption,
    ExecutorsOption,
    ModelOption,
    MovingOption,
    WarmupOption,
    load,
)

if TYPE_CHECKING:
    from parcae.simulation.config import SimulationConfig
    from parcae.studies.reproduce.study import RecordedSetting
    from parcae.workloads.job import Workload


def _setting(workload: str, model: str, given: dict[str, Any]) -> tuple[Workload, SimulationConfig]:
    from parcae.studies.reproduce.catalog import paper_setting

    loaded = load(workload, model)
    fitting, config = paper_setting(loaded)
    return (fitting if model == "none" else loaded), type(config).model_validate(
        {**config.model_dump(), **given}
    )


def _recorded(
    study: str, trace: Path, arrivals: str | None, given: dict[str, Any]
) -> RecordedSetting:
    """The trace, prepared as in the paper unless it is a workload file, on the paper's delays."""
    from parcae.errors import ConfigError
    from parcae.simulation.config import SimulationConfig
    from parcae.studies.reproduce.catalog import CLASS_STUDIES, TRACE_LOAD
    from parcae.studies.reproduce.study import RecordedSetting
    from parcae.workloads.alibaba import DECIMA_STEPS, read_alibaba
    from parcae.workloads.archive import read_workload
    from parcae.workloads.demands import prepare

    if study not in CLASS_STUDIES:
        raise ConfigError(f"{study} takes no --trace; it is for {', '.join(CLASS_STUDIES)}")
    is_prepared = trace.suffix == ".parcae"
    workload = (
        read_workload(trace) if is_prepared else prepare(read_alibaba(trace)[0], DECIMA_STEPS)[0]
    )
    paced = (arrivals or f"trace:{TRACE_LOAD:g}").replace("load:", "trace:")
    return RecordedSetting(workload, SimulationConfig.model_validate(given), paced)


def _given(
    study: str,
    executors: int | None,
    executor_classes: str | None,
    moving_delay_ms: int | None,
    warmup_delay_ms: int | None,
) -> dict[str, Any]:
    """What of the cluster was asked for; studies of executor classes read a number of executors as so many of Decima's."""
    from parcae.studies.reproduce.catalog import CLASS_STUDIES

    classes = executor_classes or (
        "decima" if executors is not None and study in CLASS_STUDIES else None
    )
    given = {
        "num_executors": executors,
        "executor_classes": classes,
        "moving_delay_ms": moving_delay_ms,
        "warmup_delay_ms": warmup_delay_ms,
    }
    return {key: value for key, value in given.items() if value is not None}


def _refuse(study: str, *given: object) -> None:
    from parcae.errors import ConfigError

    if any(value is not None for value in given):
        raise ConfigError(
            f"{study} has a cluster of its own: --executors, --executor-classes, --trace, --moving-delay-ms, --warmup-delay-ms, "
            "--arrivals and --jobs are not for it; leave them out"
        )


def reproduce_command(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="decima-fig3, and so on for fig9a, fig9b, fig10, fig11, fig12, fig13, fig14, fig15a, fig15b, fig16, fig19, "
            "fig20, fig21, fig22, fig23, table2, table3; idle-table1, idle-fig3, idle-fig4, idle-fig5; objectives, shifts, "
            "learning-curves; deeprm-fig4, deeprm-fig5, deeprm-fig6, deeprm-fig7; a2c-table1, a2c-table2, a2c-table3, a2c-table4",
            show_default=False,
        ),
    ],
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            help="A built-in workload, a workload file (*.parcae), or a2c-table4's log (*.swf).",
        ),
    ] = "tpch",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the table, the picture and the JSON.")
    ] = Path("reproduced"),
    full: Annotated[
        bool, typer.Option("--full", help="As many runs and jobs as in the paper: hours.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            min=0.01,
            help="Minutes of all trainings together. [default: 1, idle-* 10; with --full 120]",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", min=0, help="Seed of the trainings, and where the runs' seeds start."
        ),
    ] = 0,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals", help="Continuous arrivals, e.g. poisson:45s. [default: load:0.7]"
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", help="Learned policies to show, separated by commas, instead of training."
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            help="Of the trainings: fast | decima-2019; of DeepRM: fresh | paper | fast; of A2cScheduler: fast | paper. "
            "[default: the first]",
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option("--runs", min=2, help="Runs of the evaluation, instead of the study's."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, help="Jobs of a run, instead of the study's.")
    ] = None,
    executors: ExecutorsOption = None,
    executor_classes: ClassesOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Alibaba's batch tasks or a recorded workload file, for fig11, fig12, fig20, fig21, table3.",
        ),
    ] = None,
    moving_delay_ms: MovingOption = None,
    warmup_delay_ms: WarmupOption = None,
    parallelism_model: ModelOption = "none",
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Worker processes. [default: all cores]"),
    ] = None,
) -> None:
    """Run one of the studies of the papers (Decima, DeepRM, A2cScheduler, idle slots): a table, a picture and JSON in a folder.

    Example: parcae reproduce decima-fig16 -o reproduced
    """
    from rich.console import Console

    from parcae.learning.recipes import parse_recipe
    from parcae.studies.reproduce.catalog import (
        DEFAULT_STREAM,
        PACKING_STUDIES,
        find_study,
        reproduce,
        training_minutes,
    )
    from parcae.studies.reproduce.study import PackingRequest, StudyRequest

    find_study(study)
    minutes = training_minutes(study, full) if budget is None else budget
    known = tuple(policy.split(",")) if policy else ()
    console = Console(stderr=True)
    request: StudyRequest | PackingRequest
    with console.status("starting") as status:
        if study in PACKING_STUDIES:
            _refuse(
                study,
                executors,
                executor_classes,
                trace,
                moving_delay_ms,
                warmup_delay_ms,
                arrivals,
                jobs,
            )
            request = PackingRequest(
                output,
                full,
                60.0 * minutes,
                seed,
                known,
                recipe or ("fast" if study.startswith("a2c") else "fresh"),
                runs,
                processes,
                lambda text: status.update(text),
                Path(workload) if workload.endswith((".swf", ".swf.gz")) else None,
            )
        else:
            given = _given(study, executors, executor_classes, moving_delay_ms, warmup_delay_ms)
            fitting, config = _setting(workload, parallelism_model, given)
            request = StudyRequest(
                fitting,
                config,
                arrivals or DEFAULT_STREAM,
                output,
                is_full=full,
                budget_s=60.0 * minutes,
                seed=seed,
                policies=known,
                recipe=parse_recipe(recipe or "fast"),
                num_runs=runs,
                num_jobs=jobs,
                processes=processes,
                say=lambda text: status.update(text),
                recorded=None if trace is None else _recorded(study, trace, arrivals, given),
            )
        result, files = reproduce(study, request, shlex.join(["parcae", *sys.argv[1:]]))
    _print(study, result)
    typer.echo(f"{files.table}\n{files.picture}\n{files.numbers}")


def _print(study: str, result: Any) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=escape(f"{study}: {result.title}"), caption=escape(f"The paper: {result.paper}")
    )
    for column, heading in enumerate(result.columns):
        table.add_column(escape(heading), justify="left" if column == 0 else "right")
    for row in result.rows:
        table.add_row(*(escape(cell) for cell in row))
    console = Console()
    (console if console.width >= _WIDTH else Console(width=_WIDTH)).print(table)


#: Columns that the tables need.
_WIDTH = 140
