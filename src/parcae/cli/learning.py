"""`parcae tune` and `parcae train`: learn a policy for a workload. All trainings run here."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.groups import with_groups
from parcae.cli.options import (
    ArrivalsOption,
    ClassClusterOptions,
    ClusterOptions,
    JobsOption,
    JsonOption,
    WorkloadArgument,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from parcae.learning.gradients import GradientLearner
    from parcae.learning.loop import Learner, Plan, TrainResult
    from parcae.learning.order_evolution import EvolutionLearner
    from parcae.learning.scenario import Scenario
    from parcae.learning.tune import Tuning
    from parcae.policies.checkpoint import Checkpoint

ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        help="What to minimise: average-jct | makespan | p95-jct | mean-slowdown | "
        "missed-deadlines",
    ),
]
BudgetOption = Annotated[
    float, typer.Option("--budget", min=0.01, help="Minutes of wall-clock time.")
]
SeedOption = Annotated[
    int, typer.Option("--seed", min=0, max=255, help="Seed of the search or training.")
]
TrainingFolder = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="Folder for the state, the best policy (best.safetensors) and TensorBoard.",
    ),
]
#: What a measurement on the selection runs is relative to.
_UNITS = {"ratio_to_fair": " of fair", "ratio_to_rule": " of the rule", "cost": ""}

AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        help="A further setting that the same policy must serve, e.g. "
        '"arrivals=load:0.8 jobs=60 cores=100". Can be repeated.',
    ),
]


class ProgressLine:
    """A progress line of a search or training on standard error, with the time left.

    It is shown only if standard error is a terminal.
    """

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.is_shown = sys.stderr.isatty()

    def show(self, seconds: float, text: str) -> None:
        """Replace the line."""
        if self.is_shown:
            left = max(0.0, self.budget_s - seconds)
            # Return to the start of the line and erase it.
            sys.stderr.write(f"\r\033[K{seconds / self.budget_s:4.0%}  {left:5.0f} s left  {text}")
            sys.stderr.flush()

    def end(self) -> None:
        """End the line, so that further output begins on a new one."""
        if self.is_shown:
            sys.stderr.write("\n")


@dataclass(frozen=True)
class ScenarioOptions:
    """What a policy is learned for."""

    jobs: JobsOption = 20
    arrivals: ArrivalsOption = "batch"
    objective: ObjectiveOption = "average-jct"
    also: AlsoOption = None


@dataclass(frozen=True)
class NetworkOptions:
    """Which network is trained, how, and from what."""

    network: Annotated[str, typer.Option("--network", help="parcae | decima")] = "parcae"
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", help="fast | decima-2019 (default: fast)", show_default=False),
    ] = None
    rule: Annotated[
        str,
        typer.Option(
            "--rule",
            help="The tuned rule that parcae corrects and decima imitates: a checkpoint or a name.",
        ),
    ] = "tuned"
    start: Annotated[
        str | None,
        typer.Option("--start", help="A trained network to start from: a checkpoint or a name."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting of the recipe: learning_rate=0.001. Can be repeated."
        ),
    ] = None
    decima: Annotated[
        list[str] | None,
        typer.Option(
            "--decima",
            help="Change a setting of Decima's network: features=code, has_graph=false, "
            "limits=outputs, idle_lengths=10. Can be repeated.",
        ),
    ] = None
    device: Annotated[
        str | None, typer.Option("--device", help="cpu | cuda (default: cpu)", show_default=False)
    ] = None
    ray: Annotated[
        str | None,
        typer.Option("--ray", help="Spread rollouts over the Ray cluster at this address."),
    ] = None


@dataclass(frozen=True)
class TrainingOptions:
    """How long a training runs, and where."""

    budget: BudgetOption = 5.0
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            min=1,
            help="End after this many iterations. A resumed training then ends with exactly the "
            "same weights.",
        ),
    ] = None
    seed: SeedOption = 0
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the training in the output folder.")
    ] = False

    def plan(self, folder: Path) -> Plan:
        """The plan of a training in this folder."""
        from parcae.learning.loop import Plan

        command = shlex.join(["parcae", *sys.argv[1:]])
        return Plan(self.budget * 60, self.iterations, folder, self.resume, command)


def scenario_of(workload: str, cluster: ClusterOptions, setting: ScenarioOptions) -> Scenario:
    """The scenario that the options describe.

    Args:
        workload: name or file of the workload.
        cluster: the cluster and how it is simulated.
        setting: the runs, and the objective.

    Raises:
        ConfigError: the objective or the arrivals are unknown, or the arrivals are recorded.
    """
    from parcae.errors import ConfigError
    from parcae.learning.scenario import Scenario
    from parcae.metrics.objectives import parse_objective
    from parcae.workloads.arrivals import ArrivalProcess

    # Every training run needs other arrivals.
    if ArrivalProcess.parse(setting.arrivals).kind == "recorded":
        raise ConfigError(
            "a policy cannot be learned on recorded arrivals, which are a single job sequence: use "
            "random arrivals of a similar rate, e.g. poisson:25s or load:0.85"
        )
    return Scenario(
        cluster.load(workload),
        cluster.config(),
        setting.arrivals,
        setting.jobs,
        parse_objective(setting.objective),
    )


@dataclass(frozen=True)
class Found:
    """A tuned policy: the best so far of a search.

    Args:
        checkpoint: the policy with its model card.
        card: what the search did, as JSON.
        seconds: how long the search has taken.
        words: the search in words, for the progress line.
        sentence: the result in words.
    """

    checkpoint: Checkpoint
    card: Mapping[str, Any]
    seconds: float
    words: str
    sentence: str


@dataclass(frozen=True)
class SearchOptions:
    """How a policy's parameters are searched for, and where they go."""

    output: Annotated[
        Path, typer.Option("-o", "--output", help="The checkpoint to write (*.safetensors).")
    ]
    budget: BudgetOption = 3.0
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Checkpoint of a tuned rule to start from; for a workload also a name, such as "
            "tuned:batch.",
        ),
    ] = None
    seed: SeedOption = 0
    as_json: JsonOption = False

    @property
    def budget_s(self) -> float:
        """The budget in seconds."""
        return self.budget * 60

    def run(self, search: Callable[[Callable[[Found], None]], Found]) -> None:
        """Search, and print the result. The checkpoint always contains the best policy so far.

        Args:
            search: returns the tuned policy. It calls its argument with the best one so far, so
                that a killed search leaves that one behind.

        Raises:
            ConfigError: the name of the checkpoint has another ending, or its folder is missing.
        """
        from parcae.errors import ConfigError
        from parcae.policies.checkpoint import SUFFIX, write_checkpoint

        if self.output.suffix != SUFFIX or not self.output.parent.is_dir():
            raise ConfigError(
                f"-o {self.output}: give a file in an existing folder, with a name that ends in "
                f"{SUFFIX}"
            )
        line = ProgressLine(self.budget_s)

        def save(found: Found) -> None:
            write_checkpoint(found.checkpoint, self.output)
            line.show(found.seconds, found.words)

        found = search(save)
        save(found)
        line.end()
        summary = json.dumps({**found.card, "output": str(self.output)})
        typer.echo(summary if self.as_json else f"{self.output}: {found.sentence}")


@with_groups
def tune_command(
    workload: WorkloadArgument,
    *,
    cluster: ClassClusterOptions,
    setting: ScenarioOptions,
    search: SearchOptions,
) -> None:
    """Tune the parameters of the rule for a workload with CMA-ES.

    With --also, one rule is tuned for several settings. The checkpoint always
    contains the best rule so far. Continue an interrupted search with --start.

    Example: parcae tune tpch --arrivals batch --jobs 20 --budget 3 -o tuned.safetensors
    """
    from parcae.learning.start import start_rule
    from parcae.learning.tune import tune_rule, tuned_checkpoint
    from parcae.policies.learned import require_durations

    scenario = scenario_of(workload, cluster, setting)
    require_durations(scenario.workload)
    scenarios = [scenario, *(_also(scenario, text) for text in setting.also or [])]
    start = None if search.start is None else start_rule(search.start, scenario)
    compare = (
        f"parcae compare {workload} --policies fair,weighted-fair:tuned,{search.output} "
        f"--arrivals {setting.arrivals} --jobs {setting.jobs}"
    )

    def found(tuning: Tuning) -> Found:
        card = _tuning_card(tuning, setting, search.seed)
        gain = f"{setting.objective} {tuning.ratio_to_fair:.3f} of fair"
        return Found(
            tuned_checkpoint(tuning.parameters, scenario, {**scenario.card(), **card}),
            card,
            tuning.seconds,
            f"{tuning.generations} generations, {gain}",
            f"{gain} on the selection runs, after {tuning.generations} generations "
            f"({tuning.evaluations:,} simulated runs, {tuning.seconds:.0f} s)\n"
            f"compare it on other runs: {compare}",
        )

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


def _tuning_card(tuning: Tuning, setting: ScenarioOptions, seed: int) -> dict[str, Any]:
    """What a tuning did, for the model card and as JSON."""
    return {
        "objective": setting.objective,
        "also": setting.also or [],
        "seed": seed,
        "generations": tuning.generations,
        "simulated_runs": tuning.evaluations,
        "seconds": round(tuning.seconds, 1),
        "ratio_to_fair_on_selection_runs": tuning.ratio_to_fair,
    }


def _also(scenario: Scenario, text: str) -> Scenario:
    """The scenario with the changes that one value of `--also` describes."""
    from dataclasses import replace

    from parcae.simulation.uncertainty import parse_estimate_error
    from parcae.workloads.arrivals import ArrivalProcess

    changes = _changes(text)
    arrivals = changes.get("arrivals", scenario.arrivals)
    config = scenario.config
    ArrivalProcess.parse(arrivals)  # raises an error if it is invalid
    if "executors" in changes:
        config = config.resized(int(changes["executors"]))
    if "estimate_error" in changes:
        error = parse_estimate_error(changes["estimate_error"])
        config = config.model_copy(update={"estimate_error": error})
    return replace(
        scenario,
        arrivals=arrivals,
        num_jobs=int(changes.get("jobs", scenario.num_jobs)),
        config=config,
    )


def _changes(text: str) -> dict[str, str]:
    """The changes that one value of `--also` describes, by name.

    Raises:
        ConfigError: a name is unknown, or a number is none.
    """
    from parcae.errors import ConfigError

    # [::2] drops the separator: (key, "=", value) becomes (key, value).
    changes = dict(part.partition("=")[::2] for part in text.split())
    if "cores" in changes:
        changes["executors"] = changes.pop("cores")
    unknown = set(changes) - {"arrivals", "jobs", "executors", "estimate_error"}
    # A number that is not given counts as the valid "1" in the check.
    numbers = [changes.get(key, "1") for key in ("jobs", "executors")]
    are_valid = all(number.isdigit() and int(number) > 0 for number in numbers)
    if unknown or not changes or not are_valid:
        raise ConfigError(
            f"--also {text!r}: write some of arrivals=..., jobs=N, cores=N (or executors=N) and "
            "estimate_error=SIGMA, separated by spaces"
        )
    return changes


@with_groups
def train_command(
    workload: WorkloadArgument,
    folder: TrainingFolder,
    *,
    cluster: ClassClusterOptions,
    setting: ScenarioOptions,
    net: NetworkOptions,
    training: TrainingOptions,
    as_json: JsonOption = False,
) -> None:
    """Train a network for a workload. Ctrl-C saves the state, and --resume continues.

    In the world of cores, the network parcae corrects the orders of the tuned
    rule. An evolution strategy trains it without PyTorch, so --recipe, --device,
    --ray, --set and --decima do not apply. With --also, one network serves several
    settings. All other networks are trained by policy gradients.

    Example: parcae train tpch --arrivals batch --budget 5 -o training
    """
    from parcae.simulation.config import WorldName

    scenario = scenario_of(workload, cluster, setting)
    is_evolved = net.network == "parcae" and scenario.config.world is WorldName.CORES
    make = _evolution_learner if is_evolved else _gradient_learner
    learner = make(scenario, setting, net, training.seed)
    run_training(learner, training.plan(folder), setting.objective, as_json)


def _evolution_learner(
    scenario: Scenario, setting: ScenarioOptions, net: NetworkOptions, seed: int
) -> EvolutionLearner:
    """The learner of the network that corrects the tuned rule in the world of cores."""
    from parcae.learning.order_evolution import EvolutionLearner
    from parcae.learning.start import start_order_network, start_order_rule

    _refuse_gradients(net)
    return EvolutionLearner(
        [scenario, *(_also(scenario, text) for text in setting.also or [])],
        start_order_rule(net.rule, scenario),
        start=None if net.start is None else start_order_network(net.start, scenario),
        seed=seed,
    )


def _refuse_gradients(net: NetworkOptions) -> None:
    """Raise an error if an option was given that exists only for training by gradients."""
    from parcae.errors import ConfigError

    given = {
        "--decima": net.decima,
        "--device": net.device,
        "--ray": net.ray,
        "--recipe": net.recipe,
        "--set": net.settings,
    }
    for option, value in given.items():
        # These options have no defaults, so that a value means that the user gave it.
        if value:
            raise ConfigError(
                f"{option} does not apply to parcae in the world of cores, which is trained by an "
                "evolution strategy: leave it out, or choose --world executors or --network decima"
            )


def _gradient_learner(
    scenario: Scenario, setting: ScenarioOptions, net: NetworkOptions, seed: int
) -> GradientLearner:
    """The learner of a network that is trained by policy gradients."""
    from parcae.errors import ConfigError
    from parcae.learning.config import override
    from parcae.learning.recipes import parse_recipe, recipe_config
    from parcae.learning.run import TrainRequest, gradient_learner
    from parcae.learning.start import start_rule, start_weights
    from parcae.policies.decima.layout import DecimaSettings

    if setting.also:
        raise ConfigError(
            "--also needs `parcae train --world cores --network parcae`: training by policy "
            "gradients uses one setting"
        )
    recipe = parse_recipe(net.recipe or "fast")
    config = override(recipe_config(recipe, scenario, net.network), net.settings or [])
    needs_rule = net.network == "parcae" or config.imitation > 0
    # The head for executor classes is useful only if there are several.
    decima = DecimaSettings(executor_classes=len(scenario.config.classes) > 1)
    request = TrainRequest(
        scenario,
        config,
        net.network,
        start_rule(net.rule, scenario) if needs_rule else None,
        override(decima, net.decima or []),
        start_weights(net.start, net.network, scenario) if net.start else None,
        seed,
        net.device or "cpu",
        net.ray,
    )
    return gradient_learner(request)


def run_training(learner: Learner, plan: Plan, objective: str, as_json: bool) -> None:
    """Train, print the result, and end the command as scripts expect.

    Args:
        learner: what is trained.
        plan: for how long, and in which folder.
        objective: name of the objective.
        as_json: print the result as JSON.

    Raises:
        typer.Exit: the training was interrupted (130) or diverged (1).
    """
    from parcae.learning.loop import train

    line = ProgressLine(plan.budget_s)
    unit = _UNITS[learner.measured]
    result = train(
        learner,
        plan,
        lambda i: line.show(
            i.seconds, f"iteration {i.iteration}, best {objective} {i.best:.3f}{unit}"
        ),
    )
    line.end()
    summary = _summary(learner, plan, result, objective)
    typer.echo(json.dumps(summary) if as_json else _sentence(learner, result, summary))
    if result.ending == "interrupted":
        typer.echo("interrupted: to continue, add --resume to the same command", err=True)
        raise typer.Exit(130)
    # The best policy is written, but a script should notice that the training failed.
    if result.ending != "done":
        typer.echo(f"parcae: {result.ending}", err=True)
        raise typer.Exit(1)


def _summary(learner: Learner, plan: Plan, result: TrainResult, objective: str) -> dict[str, Any]:
    """What a training came to, as plain JSON."""
    from parcae.learning.loop import BEST_FILE

    assert plan.folder is not None
    measurement = f"{learner.measured}_on_selection_runs"
    return {
        "output": str(plan.folder / BEST_FILE),
        learner.iterations_name: result.iterations,
        **result.counts,
        "seconds": round(result.seconds, 1),
        "objective": objective,
        measurement: result.checkpoint.card[measurement],
        "ending": result.ending,
    }


def _sentence(learner: Learner, result: TrainResult, summary: dict[str, Any]) -> str:
    """What a training came to, in words."""
    best = summary[f"{learner.measured}_on_selection_runs"]
    measured = "not measured"
    if best is not None:
        measured = f"{best:.3f}{_UNITS[learner.measured]} on the selection runs"
    counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in result.counts.items()]
    work = ", ".join([*counts, f"{result.seconds:.0f} s"])
    objective = summary["objective"].replace("_", " ")
    return (
        f"{summary['output']}: {objective} {measured}, "
        f"after {result.iterations:,} {learner.iterations_name} ({work})"
    )
