"""`parcae tune` and `parcae train`: learn a policy for a workload."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parcae.base.errors import ConfigError, problem
from parcae.base.options import REQUIRED, option
from parcae.cli.commands import Only, Values, command
from parcae.cli.options import (
    ARRIVALS,
    DEADLINES,
    JOBS,
    JSON,
    MOST,
    WORKLOAD,
    ClassClusterOptions,
    ClusterOptions,
    Options,
)
from parcae.cli.progress import budgeted
from parcae.learning.loop import Iteration, Learner, TrainingPlan, TrainResult
from parcae.learning.loop import train as run_loop
from parcae.learning.scenario import Parameters, Scenario, start_rule
from parcae.learning.tune import Tuning, tune_rule, tuned_checkpoint
from parcae.learning.worlds import LearnerRequest, make_learner, world_of
from parcae.policies.checkpoint import BEST_FILE, SUFFIX, Checkpoint, write_checkpoint
from parcae.policies.learned import require_durations
from parcae.simulation.config import WorldName
from parcae.simulation.objectives import (
    NEEDS_DEADLINES,
    Objective,
    ObjectiveFunction,
    missed_and_tardy,
    parse_objective,
)
from parcae.simulation.tables import parse_estimate_error
from parcae.workloads.durations import MOST_EXECUTORS

SEARCH_SEED = option(0, "Seed of the search or training.", "--seed", ge=0, le=255)
BUDGET = option(5.0, "Minutes of wall-clock time.", "--budget", ge=0.01)
SETTINGS = option(
    None, "Change a setting of the recipe: learning_rate=0.001. Can be repeated.", "--set"
)
#: What a measurement on the selection runs is relative to.
_UNITS = {"ratio_to_fair": " of fair", "ratio_to_rule": " of the rule", "cost": ""}


@dataclass(frozen=True)
class Found:
    """A tuned policy: the best so far of a search, and the search as JSON and in words."""

    checkpoint: Checkpoint
    card: Mapping[str, Any]
    seconds: float
    #: For the progress line, and for the result.
    words: str
    sentence: str


class SearchOptions(Options):
    """How a policy's parameters are searched for, and where they go."""

    output: Path = option(
        REQUIRED, "The checkpoint to write (*.safetensors).", "-o", "--output", check="checkpoint"
    )
    budget: float = option(3.0, "Minutes of wall-clock time.", ge=0.01)
    start: str | None = option(None, "Checkpoint of a tuned rule to start from.", check="start")
    seed: int = SEARCH_SEED
    as_json: bool = JSON

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return self.budget * 60

    def run(self, search: Callable[[Callable[[Found], None]], Found]) -> None:
        """Search, and print the result. The checkpoint always contains the best policy so far."""
        if self.output.suffix != SUFFIX:
            raise ConfigError(f"-o {self.output}: give a file with a name that ends in {SUFFIX}")
        with budgeted(self.budget_s) as show:

            def save(found: Found) -> None:
                write_checkpoint(found.checkpoint, self.output)
                show(found.seconds, found.words)

            found = search(save)
            save(found)
        summary = json.dumps({**found.card, "output": str(self.output)})
        typer.echo(summary if self.as_json else f"{self.output}: {found.sentence}")


class TrainingOptions(Options):
    """How long a training runs, and where."""

    folder: Path = option(
        REQUIRED,
        "Folder for the state, the best policy (best.safetensors) and TensorBoard.",
        "-o",
        "--output",
        check="learned",
    )
    budget: float = BUDGET
    iterations: int | None = option(
        None,
        "End after this many iterations, or earlier when the budget is used up. A training that "
        "crashed and was resumed then ends with exactly the same weights.",
        ge=1,
        le=MOST,
    )
    seed: int = SEARCH_SEED
    resume: bool = option(False, "Continue the training in the output folder.", "--resume")
    as_json: bool = JSON

    def run(self, learner: Learner, objective: str) -> None:
        """Train, print the result, and end the command as scripts expect."""
        command = shlex.join(["parcae", *sys.argv[1:]])
        plan = TrainingPlan(self.budget * 60, self.iterations, self.folder, self.resume, command)
        # The latest measurement shows when a training gets worse, which the best does not.
        latest = ""

        def said(done: Iteration) -> str:
            nonlocal latest
            if not math.isnan(done.selected):
                latest = f", now {done.selected:.3f}"
            best = f"best {objective} {done.best:.3f}{_UNITS[learner.measured]}"
            return f"iteration {done.iteration}, {best}{latest}"

        with budgeted(plan.budget_s) as show:
            result = run_loop(learner, plan, lambda done: show(done.seconds, said(done)))
        measurement = f"{learner.measured}_on_selection_runs"
        summary = {
            "output": str(self.folder / BEST_FILE),
            learner.iterations_name: result.iterations,
            **result.counts,
            "seconds": round(result.seconds, 1),
            "objective": objective,
            measurement: result.checkpoint.card[measurement],
            "late_gain": result.late_gain,
            "ending": result.ending,
        }
        typer.echo(json.dumps(summary) if self.as_json else _sentence(learner, result, summary))
        if result.ending == "interrupted":
            typer.echo("interrupted: to continue, add --resume to the same command", err=True)
            raise typer.Exit(130)
        # The best policy is written, but a script should notice that the training failed.
        if result.ending != "done":
            typer.echo(f"parcae: {result.ending}; {summary['output']} is the best policy", err=True)
            raise typer.Exit(1)


def _sentence(learner: Learner, result: TrainResult, summary: dict[str, Any]) -> str:
    """The result of a training, in words."""
    best = summary[f"{learner.measured}_on_selection_runs"]
    unit = f"{_UNITS[learner.measured]} on the selection runs"
    measured = "not measured" if best is None else f"{best:.3f}{unit}"
    counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in result.counts.items()]
    work = ", ".join([*counts, f"{result.seconds:.0f} s"])
    return (
        f"{summary['output']}: {summary['objective']} {measured}, "
        f"after {result.iterations:,} {learner.iterations_name} ({work}){result.late_words}"
    )


OBJECTIVE = option(
    "average-jct",
    "What to minimise: average-jct | makespan | p95-jct | mean-slowdown | missed-deadlines | "
    "deadlines (of --deadlines)",
    "--objective",
)
#: Delays of executors that `--also` can change.
_DELAYS = {"moving_delay_ms", "warmup_delay_ms"}


_ALSO_HELP = (
    "write some of arrivals=..., jobs=N, cores=N (or executors=N), estimate_error=SIGMA, "
    "moving_delay_ms=N, warmup_delay_ms=N and workload=FILE, separated by spaces"
)


class _Changes(BaseModel):
    """What one value of `--also` can change."""

    model_config = ConfigDict(extra="forbid")

    arrivals: str | None = None
    workload: str | None = None
    jobs: int | None = Field(None, ge=1, le=MOST)
    executors: int | None = Field(None, ge=1, le=MOST_EXECUTORS)
    moving_delay_ms: int | None = Field(None, ge=0, le=10**12)
    warmup_delay_ms: int | None = Field(None, ge=0, le=10**12)
    estimate_error: str | None = None


def objective_of(text: str, deadlines: Path | None) -> Objective | ObjectiveFunction:
    """The objective that an option names."""
    objective = parse_objective(text)
    if objective is missed_and_tardy and deadlines is None:
        raise ConfigError(NEEDS_DEADLINES)
    return objective


class ScenarioOptions(Options):
    """What a policy is learned for."""

    jobs: int = JOBS
    arrivals: str = ARRIVALS
    deadlines: Path | None = DEADLINES
    objective: str = OBJECTIVE
    also: list[str] | None = option(
        None,
        "A further setting that the same policy must serve, e.g. "
        '"arrivals=load:0.8 jobs=60 cores=100 workload=FILE". Can be repeated.',
        check="also",
    )

    def scenario(self, workload: str, cluster: ClusterOptions) -> Scenario:
        """The scenario that the options describe."""
        objective = objective_of(self.objective, self.deadlines)
        loaded = cluster.load(workload, self.deadlines)
        return Scenario(loaded, cluster.config(), self.arrivals, self.jobs, objective)

    def scenarios(self, scenario: Scenario, cluster: ClusterOptions) -> list[Scenario]:
        """The scenario, and those that `--also` describes."""
        return [scenario, *(self._changed(scenario, text, cluster) for text in self.also or [])]

    def _changed(self, scenario: Scenario, text: str, cluster: ClusterOptions) -> Scenario:
        """The scenario with the changes that one value of `--also` describes."""
        changes = _changes(text)
        config = scenario.config
        if changes.executors is not None:
            config = config.resized(changes.executors)
        update = changes.model_dump(include=_DELAYS, exclude_none=True)
        if update and config.world is WorldName.CORES:
            raise ConfigError(
                f"--also {next(iter(update))} has no effect in the world of cores: leave it out, "
                "or use --world executors"
            )
        if changes.estimate_error is not None:
            update["estimate_error"] = parse_estimate_error(changes.estimate_error)
        # Another workload is loaded as the first is.
        other = changes.workload and cluster.load(changes.workload, self.deadlines)
        return replace(
            scenario,
            workload=other or scenario.workload,
            config=config.model_copy(update=update),
            arrivals=changes.arrivals or scenario.arrivals,
            num_jobs=changes.jobs or scenario.num_jobs,
        )


def _changes(text: str) -> _Changes:
    """The changes that one value of `--also` describes."""
    parts = [part.partition("=") for part in text.split()]
    pairs = [("executors" if key == "cores" else key, value) for key, _, value in parts]
    for key, _ in pairs:
        if [name for name, _ in pairs].count(key) > 1:
            raise ConfigError(f"--also {text!r}: {key} is given twice; give one value")
    if not pairs:
        raise ConfigError(f"--also {text!r}: {_ALSO_HELP}")
    try:
        return _Changes(**dict(pairs))  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        # Without the text, which may be of any length.
        raise ConfigError(f"--also {first['loc'][0]}: {problem(first)}; {_ALSO_HELP}") from None


class TuneOptions(SearchOptions):
    """How a rule's parameters are searched for; by default, the search starts from what ships."""

    start: str | None = option(
        "shipped",
        "Where the search starts: shipped (the rule in the package) | scratch | a checkpoint, or "
        "a name such as tuned:batch.",
        check="start",
    )

    def start_parameters(self, scenario: Scenario) -> Parameters | None:
        """The parameters to start from; None starts from scratch."""
        if self.start in (None, "scratch"):
            return None
        return start_rule("tuned" if self.start == "shipped" else str(self.start), scenario)


@command()
def tune(
    cluster: ClassClusterOptions,
    setting: ScenarioOptions,
    search: TuneOptions,
    workload: str = WORKLOAD,
) -> None:
    """Tune the parameters of the rule for a workload with CMA-ES.

    With --also, one rule is tuned for several settings. The checkpoint always
    contains the best rule so far. The search starts from the rule that ships;
    continue an interrupted one with --start CHECKPOINT.

    Example: parcae tune tpch --arrivals batch --jobs 20 --budget 3 -o tuned.safetensors
    """
    scenario = setting.scenario(workload, cluster)
    require_durations(scenario.workload)
    scenarios = setting.scenarios(scenario, cluster)
    start = search.start_parameters(scenario)
    policies = f"fair,weighted-fair:tuned,{search.output}"
    given = [] if setting.deadlines is None else ["--deadlines", str(setting.deadlines)]
    runs = ["--arrivals", setting.arrivals, "--jobs", str(setting.jobs), *given]
    compared = shlex.join([workload, "--policies", policies, *cluster.as_words(), *runs])

    def found(tuning: Tuning) -> Found:
        card: dict[str, Any] = {
            "objective": setting.objective,
            "also": setting.also or [],
            "seed": search.seed,
            "generations": tuning.generations,
            "simulated_runs": tuning.evaluations,
            "seconds": round(tuning.seconds, 1),
            "ratio_to_fair_on_selection_runs": tuning.ratio_to_fair,
        }
        checkpoint = tuned_checkpoint(tuning.parameters, scenario, {**scenario.card(), **card})
        gain = f"{setting.objective} {tuning.ratio_to_fair:.3f} of fair"
        words = f"{tuning.generations} generations, {gain}"
        sentence = (
            f"{gain} on the selection runs, after {tuning.generations} generations "
            f"({tuning.evaluations:,} simulated runs, {tuning.seconds:.0f} s)\n"
            f"compare it on other runs: parcae compare {compared}"
        )
        return Found(checkpoint, card, tuning.seconds, words, sentence)

    search.run(
        lambda save: found(
            tune_rule(
                scenarios,
                budget_s=search.budget_s,
                start=start,
                seed=search.seed,
                progress=lambda tuning: save(found(tuning)),
            )
        )
    )


class NetworkOptions(Options):
    """Which network is trained, how, and from what."""

    network: str | None = option(
        None,
        "parcae (world of cores) | corrector | decima | that of an installed package | "
        "MODULE:NET, a torch.nn.Module of your own (default: parcae, in the world of executors "
        "corrector)",
    )
    recipe: str | None = option(None, "fast | imitation | decima-2019 (default: fast)")
    rule: str | None = option(
        None,
        "The tuned rule that the network corrects or imitates: a checkpoint or a name (default: "
        "that of the network in --start, else tuned).",
        check="policy",
    )
    start: str | None = option(
        None, "A trained network to start from: a checkpoint or a name.", check="policy"
    )
    settings: list[str] | None = SETTINGS
    decima: list[str] | None = option(
        None,
        "Change a setting of Decima's network: features=jobs, has_graph=false, limits=outputs, "
        "idle_lengths=10. Can be repeated.",
    )
    device: str | None = option(None, "cpu | cuda (default: cpu)")
    ray: str | None = option(None, "Spread rollouts over the Ray cluster at this address.")

    def chosen_rule(self) -> str:
        """The rule to correct or to imitate. A network knows how to correct its own rule."""
        if self.rule is None and self.network != "decima" and self.start is not None:
            return self.start
        return self.rule or "tuned"

    def options(self) -> dict[str, Any]:
        """The options of the kind of learner that were given, by name."""
        given = self.model_dump(include={"recipe", "settings", "decima", "device", "ray"})
        names = {"settings": "set"}
        return {names.get(name, name): value for name, value in given.items() if value}


def _may_imitate(given: Values) -> bool:
    is_set = any(setting.startswith("imitation=") for setting in given["settings"] or ())
    return given["recipe"] == "imitation" or is_set


@command(
    Only(("decima",), lambda given: given["network"] == "decima", "with --network decima"),
    Only(
        ("rule",),
        lambda given: given["network"] != "decima" or _may_imitate(given),
        "to networks that correct a rule and to --recipe imitation",
    ),
)
def train(
    cluster: ClassClusterOptions,
    setting: ScenarioOptions,
    net: NetworkOptions,
    training: TrainingOptions,
    workload: str = WORKLOAD,
) -> None:
    """Train a network for a workload. Ctrl-C saves the state, and --resume continues.

    In the world of cores, the network parcae corrects the orders of the tuned
    rule. An evolution strategy trains it without PyTorch, so --recipe, --device,
    --ray, --set and --decima do not apply. All other networks are trained by policy
    gradients. With --also, one network serves several settings.

    Example: parcae train tpch --arrivals batch --budget 5 -o training
    """
    scenario = setting.scenario(workload, cluster)
    scenarios = setting.scenarios(scenario, cluster)
    request = LearnerRequest(scenarios, net.chosen_rule(), net.start, training.seed, net.options())
    learner = make_learner(net.network or world_of(scenario).network, request)
    training.run(learner, setting.objective)
