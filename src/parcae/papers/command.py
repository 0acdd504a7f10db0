"""`parcae reproduce`: repeats studies of the papers, each as a table, a picture and JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from parcae.base.errors import ConfigError
from parcae.base.extras import require
from parcae.base.options import argument, option, same
from parcae.cli.checks import names_in
from parcae.cli.commands import Only, Values, command
from parcae.cli.options import MOST, NO_MODEL, PROCESSES, ClusterOptions, Options
from parcae.cli.progress import telling
from parcae.cli.tables import print_rows
from parcae.decima.alibaba import DECIMA_STEPS, read_alibaba
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.recipes import parse_recipe
from parcae.learning.config import override, recipe_settings
from parcae.papers.catalog import (
    CLASS_STUDIES,
    DECIMA_SETTINGS_STUDIES,
    DEFAULT_STREAM,
    PACKING_STUDIES,
    REPLACED_BY_POLICIES,
    TRACE_LOAD,
    UNUSED,
    find_study,
    paper_setting,
    reproduce,
    training_minutes,
)
from parcae.papers.study import PackingRequest, RecordedSetting, StudyRequest
from parcae.papers.trainings import reproduce_often
from parcae.rigid.a2c import learner as a2c
from parcae.rigid.deeprm import learner as deeprm
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import read_workload
from parcae.workloads.demands import prepare
from parcae.workloads.job import Workload

#: Width of the tables in characters.
_WIDTH = 140


def _workload_and_config(
    workload: str, model: str | None, given: dict[str, Any]
) -> tuple[Workload, SimulationConfig]:
    """The workload and cluster of the papers, with the changes that the options describe."""
    loaded = ClusterOptions(parallelism_model=model or NO_MODEL).load(workload)
    adapted, config = paper_setting(loaded)
    # A parallelism model that the user chose, also none, takes precedence over that of the paper.
    settings = {**config.model_dump(), **given}
    return (adapted if model is None else loaded), type(config).model_validate(settings)


def _recorded(
    study: str, trace: Path, arrivals: str | None, given: dict[str, Any]
) -> RecordedSetting:
    """The trace with its arrivals; it is prepared as in the paper unless it is a workload file."""
    if study not in CLASS_STUDIES:
        raise ConfigError(
            f"{study} does not use a --trace; only these studies do: {', '.join(CLASS_STUDIES)}"
        )
    is_prepared = trace.suffix == ".parcae"
    workload = (
        read_workload(trace) if is_prepared else prepare(read_alibaba(trace)[0], DECIMA_STEPS)[0]
    )
    # A trace has arrivals; a load is reached by changing their pace.
    trace_arrivals = (arrivals or f"trace:{TRACE_LOAD:g}").replace("load:", "trace:")
    return RecordedSetting(workload, SimulationConfig.model_validate(given), trace_arrivals)


def _cluster_settings(
    study: str,
    executors: int | None,
    executor_classes: str | None,
    moving_delay_ms: int | None,
    warmup_delay_ms: int | None,
) -> dict[str, Any]:
    """The options about the cluster that were given, by their names in the simulation config.

    In studies of executor classes, a number of executors means that many in Decima's classes.
    """
    classes = executor_classes or (
        # Without classes these studies would have nothing to show.
        "decima" if executors is not None and study in CLASS_STUDIES else None
    )
    given = {
        "num_executors": executors,
        "executor_classes": classes,
        "moving_delay_ms": moving_delay_ms,
        "warmup_delay_ms": warmup_delay_ms,
    }
    return {key: value for key, value in given.items() if value is not None}


class EffortOptions(Options):
    """How much a study runs and trains."""

    full: bool = option(False, "Use as many runs and jobs as the paper; this takes hours.")
    budget: float | None = option(
        None,
        "Minutes for all trainings together; policies that ship are then trained, too. "
        "(default: 1; idle-* 10; with --full 120)",
        ge=0.01,
    )
    seed: int = option(0, "Seed of the trainings (0 to 255), and first seed of the runs.", ge=0)
    runs: int | None = option(
        None, "Number of runs of the evaluation. (default: the study's)", ge=2, le=MOST
    )
    jobs: int | None = option(
        None, "Number of jobs in a run. (default: the study's)", ge=1, le=MOST
    )
    trainings: int = option(
        1,
        "Run the study so often, with the next seeds, and sum up the paper's findings. Runs "
        "that are in the folder already are not repeated.",
        ge=1,
        le=100,
    )
    processes: int | None = PROCESSES


class StudyClusterOptions(Options):
    """The cluster and the arrivals of a study."""

    arrivals: str | None = option(
        None, "Continuous arrivals, e.g. poisson:45s. (default: load:0.7)"
    )
    executors: int | None = same(
        SimulationConfig,
        "num_executors",
        unset="the study's; 20 for tpch, 50 where jobs take minutes, 200 with executor classes",
    )
    executor_classes: str | None = same(SimulationConfig, "executor_classes", default=None)
    trace: Path | None = option(
        None,
        "Alibaba's batch tasks, or a recorded workload file; for fig11, fig12, fig20, fig21 and "
        "table3.",
    )
    moving_delay_ms: int | None = same(
        SimulationConfig, "moving_delay_ms", unset="200 for tpch, 2000 where jobs take minutes"
    )
    warmup_delay_ms: int | None = same(
        SimulationConfig, "warmup_delay_ms", unset="100 for tpch, 1000 where jobs take minutes"
    )
    parallelism_model: str | None = option(
        None,
        "How task durations grow above the highest measured parallelism: none | decima-cluster. "
        "(default: decima-cluster for tpch, else none)",
    )


def _is_packing(given: Values) -> bool:

    return given["study"] in PACKING_STUDIES


def _uses(field: str) -> Callable[[Values], bool]:
    """Whether the study uses a field of its request."""

    def applies(given: Values) -> bool:

        return given["study"] not in UNUSED[field]

    return applies


def _takes_decima_settings(given: Values) -> bool:

    return given["study"] in DECIMA_SETTINGS_STUDIES


def _may_train(given: Values) -> bool:

    return given["policy"] is None or given["study"] not in REPLACED_BY_POLICIES


@command(
    Only(
        (
            "executors",
            "executor_classes",
            "trace",
            "moving_delay_ms",
            "warmup_delay_ms",
            "arrivals",
            "jobs",
            "parallelism_model",
        ),
        lambda given: not _is_packing(given),
        "to studies of Decima's cluster (the clusters of the others are fixed)",
    ),
    Only(
        ("workload",),
        lambda given: not _is_packing(given) or given["study"] == "a2c-table4",
        "to studies of Decima's cluster and, with a log (*.swf), to a2c-table4",
    ),
    Only(
        (
            "workload",
            "parallelism_model",
            "executors",
            "executor_classes",
            "moving_delay_ms",
            "warmup_delay_ms",
            "jobs",
        ),
        _uses("workload"),
        "to other studies than fig16 and fig19 (they have DAGs of their own)",
    ),
    Only(
        ("arrivals",),
        _uses("stream"),
        "to fig9b, fig10, fig11, fig12, fig15a, fig15b, fig20, fig21, table2, table3 and "
        "objectives (the others have batches, or loads of their own)",
    ),
    Only(
        ("policy",),
        _uses("policies"),
        "to other studies than fig13, fig14, fig15a, fig16, fig19, fig23, table2, table3, "
        "objectives, learning-curves, deeprm-fig6 and a2c-table3 (they compare trainings)",
    ),
    Only(
        ("runs",),
        _uses("num_runs"),
        "to other studies than fig10, fig15b, fig16, fig19 and fig20 (they show one run)",
    ),
    Only(
        ("recipe",),
        _uses("recipe"),
        "to other studies than fig16, fig19, objectives, shifts, learning-curves and deeprm-fig6",
    ),
    Only(
        ("budget",),
        _uses("budget_s"),
        "to other studies than fig16 and shifts (they train nothing)",
    ),
    Only(("budget", "recipe", "decima"), _may_train, "where this study trains, not with --policy"),
    Only(
        ("seed", "full"),
        _uses("seed"),
        "to other studies than fig16 (it shows one DAG, whose durations are fixed)",
    ),
    Only(
        ("decima",),
        _takes_decima_settings,
        "to studies that train one Decima in several settings (fig13, fig22, fig23, table2, "
        "idle-table1, idle-fig3, idle-fig4, learning-curves)",
    ),
)
def reproduce_study(
    study: str = argument(
        "decima-fig3, and in the same way fig9a, fig9b, fig10, fig11, fig12, fig13, fig14, "
        "fig15a, fig15b, fig16, fig19, fig20, fig21, fig22, fig23, table2, table3; idle-table1,"
        " idle-fig3, idle-fig4, idle-fig5; objectives, shifts, learning-curves; deeprm-fig4, "
        "deeprm-fig5, deeprm-fig6, deeprm-fig7; a2c-table1, a2c-table2, a2c-table3, a2c-table4",
        metavar="STUDY",
    ),
    *,
    effort: EffortOptions,
    cluster: StudyClusterOptions,
    workload: str = option(
        "tpch", "A built-in workload, a workload file (*.parcae), or for a2c-table4 a log (*.swf)."
    ),
    output: Path = option(
        Path("reproduced"),
        "Folder for the table, the picture and the JSON.",
        "-o",
        "--output",
        check="folder",
    ),
    policy: str | None = option(
        None,
        "Policies to use instead of training new ones, separated by commas: learned ones, or in"
        " Decima's studies also heuristics.",
        check="policies",
    ),
    recipe: str | None = option(
        None,
        "Recipe of the trainings: fast | imitation | decima-2019; DeepRM: fresh | paper | fast;"
        " A2cScheduler: fast | paper. Policies that ship are then trained, too. (default: the "
        "first)",
    ),
    decima: list[str] | None = option(
        None,
        "Change a setting of Decima's network in all trainings: features=jobs. Can be repeated.",
    ),
) -> None:
    """Repeat a study of a paper, and write a table, a picture and JSON into a folder.

    The papers are those of Decima, DeepRM, A2cScheduler and idle slots.

    Example: parcae reproduce decima-fig16 -o reproduced
    """
    require("matplotlib")  # draws the picture, after all runs
    # Raises an error for an unknown study before the workload is loaded.
    find_study(study)
    with telling("starting") as say:
        given = _Given(study, effort, cluster, workload, output, policy, recipe, decima)
        make_request = _packing_request if study in PACKING_STUDIES else _study_request
        request = make_request(given, say)
        words = shlex.join(["parcae", *sys.argv[1:]])
        if effort.trainings > 1:
            result, files = reproduce_often(study, request, effort.trainings, words)
        else:
            result, files = reproduce(study, request, words)
    title = f"{study}: {result.title}"
    print_rows(title, result.columns, result.rows, _WIDTH, f"The paper: {result.paper}")
    typer.echo(f"{files.table}\n{files.picture}\n{files.numbers}")


@dataclass(frozen=True)
class _Given:
    """What the command line says about the study."""

    study: str
    effort: EffortOptions
    cluster: StudyClusterOptions
    workload: str
    output: Path
    policy: str | None
    recipe: str | None
    decima: list[str] | None

    @property
    def budget_s(self) -> float:
        """Seconds of all trainings together."""

        minutes = self.effort.budget
        if minutes is None:
            minutes = training_minutes(self.study, self.effort.full)
        return 60.0 * minutes

    @property
    def trains_anew(self) -> bool:
        """Whether the user says how to train, which shipped policies would ignore."""
        return self.effort.budget is not None or self.recipe is not None

    @property
    def policies(self) -> tuple[str, ...]:
        """The learned policies to use."""
        return () if self.policy is None else tuple(names_in(self.policy))


def _packing_request(given: _Given, say: Callable[[str], None]) -> PackingRequest:

    effort = given.effort
    is_log = given.workload.endswith((".swf", ".swf.gz"))
    return PackingRequest(
        given.output,
        effort.full,
        given.budget_s,
        effort.seed,
        given.policies,
        _packing_recipe(given),
        effort.runs,
        effort.processes,
        say,
        Path(given.workload) if is_log else None,
        given.trains_anew,
    )


def _packing_recipe(given: _Given) -> str:
    """The recipe of a packing study, checked here because one with given policies never reads
    it.
    """
    if given.study.startswith("a2c"):
        recipe = given.recipe or "fast"
        recipe_settings(a2c.RECIPES, recipe, "a2c", ())
    else:
        recipe = given.recipe or "fresh"
        recipe_settings(deeprm.RECIPES, recipe, "deeprm", ())
    return recipe


def _study_request(given: _Given, say: Callable[[str], None]) -> StudyRequest:

    cluster = given.cluster
    effort = given.effort
    settings = _cluster_settings(
        given.study,
        cluster.executors,
        cluster.executor_classes,
        cluster.moving_delay_ms,
        cluster.warmup_delay_ms,
    )
    adapted, config = _workload_and_config(given.workload, cluster.parallelism_model, settings)
    recorded = None
    if cluster.trace is not None:
        recorded = _recorded(given.study, cluster.trace, cluster.arrivals, settings)
    return StudyRequest(
        adapted,
        config,
        cluster.arrivals or DEFAULT_STREAM,
        given.output,
        is_full=effort.full,
        budget_s=given.budget_s,
        seed=effort.seed,
        policies=given.policies,
        recipe=parse_recipe(given.recipe or "fast"),
        num_runs=effort.runs,
        num_jobs=effort.jobs,
        processes=effort.processes,
        say=say,
        recorded=recorded,
        decima=override(DecimaSettings(), given.decima or []),
        is_cluster_given=bool(settings),
        trains_anew=given.trains_anew,
    )
