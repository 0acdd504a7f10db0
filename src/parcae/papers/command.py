"""`parcae reproduce`: repeats studies of the papers, each as a table, a picture and JSON."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from parcae.base.extensions import require
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
from parcae.papers.contenders import FULL_MINUTES, RecordedTrace, Request
from parcae.papers.runner import FINDING_COLUMNS, Study, reproduce, reproduce_often
from parcae.papers.table import STUDIES, TRACE_LOAD, find_study, paper_setting
from parcae.rigid.a2c import learner as a2c
from parcae.rigid.deeprm import learner as deeprm
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import read_workload
from parcae.workloads.demands import prepare

#: Recipes of policies of rigid jobs.
_RECIPES: dict[str, Any] = {"a2c": a2c.RECIPES, "deeprm": deeprm.RECIPES}
_CLUSTER = ("executors", "executor_classes", "moving_delay_ms", "warmup_delay_ms")


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


def _only(options: tuple[str, ...], applies: Callable[[Study], bool], why: str = "") -> Only:
    """A rule: the options have an effect only in studies of a kind, which the error names."""
    names = ", ".join(name for name, study in STUDIES.items() if applies(study))
    # An unknown study is refused by the command itself, in better words.
    return Only(
        options,
        lambda given: given["study"] not in STUDIES or applies(STUDIES[given["study"]]),
        f"to {names}{why}",
    )


def _ignores(option: str) -> Callable[[Study], bool]:
    """Whether a study uses an option."""
    return lambda study: option not in study.ignores


def _may_train(given: Values) -> bool:
    study = STUDIES.get(given["study"])
    return study is None or given["policy"] is None or study.given != "replaces"


@command(
    _only(
        (*_CLUSTER, "arrivals", "jobs", "parallelism_model", "trace"),
        lambda study: not study.is_rigid,
        " (the clusters of the others are fixed)",
    ),
    _only(
        ("workload",),
        lambda study: (study.needs_log or not study.is_rigid) and "workload" not in study.ignores,
        " (a2c-table4: a log, *.swf)",
    ),
    _only(
        (*_CLUSTER, "parallelism_model", "jobs"),
        _ignores("workload"),
        " (the others have DAGs of their own)",
    ),
    _only(
        ("arrivals",),
        _ignores("arrivals"),
        " (the others have batches, or loads of their own)",
    ),
    _only(("trace",), lambda study: study.has_classes),
    _only(("policy",), lambda study: bool(study.given), " (the others compare trainings)"),
    _only(("runs",), _ignores("runs"), " (the others show one run)"),
    _only(("recipe",), _ignores("recipe")),
    _only(("budget",), _ignores("budget"), " (the others train nothing)"),
    _only(("seed", "full"), _ignores("seed"), " (the others have no random draws)"),
    _only(
        ("decima",),
        lambda study: study.takes_decima,
        " (they train one Decima in several settings)",
    ),
    Only(("budget", "recipe", "decima"), _may_train, "where this study trains, not with --policy"),
)
def reproduce_study(
    study: str = argument(f"One of {', '.join(STUDIES)}.", metavar="STUDY"),
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
    row = find_study(study)
    minutes = effort.budget or (FULL_MINUTES if effort.full else row.minutes)
    with telling("starting") as say:
        request = Request(
            output,
            is_full=effort.full,
            budget_s=60.0 * minutes,
            seed=effort.seed,
            policies=() if policy is None else tuple(names_in(policy)),
            recipe=_recipe(row, recipe),
            num_runs=effort.runs,
            num_jobs=effort.jobs,
            processes=effort.processes,
            say=say,
            decima=override(DecimaSettings(), decima or []),
            # Who says how to train does not want policies that ship.
            trains_anew=effort.budget is not None or recipe is not None,
            **_setting(row, workload, cluster),
        )
        words = shlex.join(["parcae", *sys.argv[1:]])
        if effort.trainings > 1:
            result, files = reproduce_often(row, request, effort.trainings, words)
        else:
            result, files = reproduce(row, request, words)
    title = f"{study}: {result.study.title}"
    if result.whose_jobs:
        typer.echo(result.whose_jobs)
    print_rows(title, result.columns, result.rows, f"The paper: {row.paper}")
    if result.findings:
        found = [one.row() for one in result.findings]
        print_rows(f"{study}: the paper and here", FINDING_COLUMNS, found)
    typer.echo(f"{files.table}\n{files.picture}\n{files.numbers}")


def _recipe(study: Study, text: str | None) -> str:
    """The recipe, checked here because a study with given policies never reads it."""
    recipe = text or study.recipe
    kind = study.name.partition("-")[0]
    if kind not in _RECIPES:
        return parse_recipe(recipe)
    recipe_settings(_RECIPES[kind], recipe, kind, ())
    return recipe


def _setting(study: Study, workload: str, cluster: StudyClusterOptions) -> dict[str, Any]:
    """The workload and cluster of the papers, with the changes that the options describe."""
    if study.is_rigid:
        is_log = workload.endswith((".swf", ".swf.gz"))
        return {"log": Path(workload)} if is_log else {}
    given = {key: getattr(cluster, key) for key in _CLUSTER}
    if study.has_classes and given["executors"] is not None and not given["executor_classes"]:
        # Without classes these studies would have nothing to show.
        given["executor_classes"] = "decima"
    given["num_executors"] = given.pop("executors")
    given = {key: value for key, value in given.items() if value is not None}
    model = cluster.parallelism_model
    loaded = ClusterOptions(parallelism_model=model or NO_MODEL).load(workload)
    adapted, config = paper_setting(loaded)
    setting = {
        # A parallelism model that the user chose, also none, precedes that of the paper.
        "workload": adapted if model is None else loaded,
        "config": SimulationConfig.model_validate({**config.model_dump(), **given}),
        "is_cluster_given": bool(given),
    }
    if cluster.arrivals is not None:
        setting["stream"] = cluster.arrivals
    if cluster.trace is not None:
        setting["recorded"] = _recorded(cluster.trace, cluster.arrivals, given)
    return setting


def _recorded(trace: Path, arrivals: str | None, given: dict[str, Any]) -> RecordedTrace:
    """The trace with its arrivals; it is prepared as in the paper unless it is a workload file."""
    if trace.suffix == ".parcae":
        workload = read_workload(trace)
    else:
        workload = prepare(read_alibaba(trace)[0], DECIMA_STEPS)[0]
    # A trace has arrivals; a load is reached by changing their pace.
    pace = (arrivals or f"trace:{TRACE_LOAD:g}").replace("load:", "trace:")
    return RecordedTrace(workload, SimulationConfig.model_validate(given), pace)
