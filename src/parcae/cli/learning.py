"""`parcae tune` and `parcae train`: learn a policy for a workload."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parcae.cli.checks import Only, Values, file_to_read, refusing
from parcae.cli.groups import with_groups
from parcae.cli.learners import (
    Found,
    SearchOptions,
    SettingsOption,
    TrainingFolder,
    TrainingOptions,
    run_training,
)
from parcae.cli.options import (
    MOST,
    ArrivalsOption,
    ClassClusterOptions,
    ClusterOptions,
    DeadlinesOption,
    JobsOption,
    JsonOption,
    WorkloadArgument,
    with_deadlines,
)
from parcae.cli.policy_names import policy_to_read, start_to_read
from parcae.workloads.durations import MOST_EXECUTORS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from parcae.learning.scenario import Scenario
    from parcae.learning.tune import Tuning
    from parcae.learning.worlds import Parameters
    from parcae.simulation.config import SimulationConfig
    from parcae.simulation.objectives import Objective, ObjectiveFunction

ObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        help="What to minimise: average-jct | makespan | p95-jct | mean-slowdown | "
        "missed-deadlines | deadlines (of --deadlines)",
    ),
]


def _also_to_read(
    context: typer.Context, option: typer.CallbackParam, texts: list[str] | None
) -> list[str] | None:
    """Check that no option replaces a workload of `--also`; the callback of this option."""
    parts = [part.partition("=") for text in texts or [] for part in text.split()]
    file_to_read(context, option, [value for key, _, value in parts if key == "workload"])
    return texts


AlsoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--also",
        callback=_also_to_read,
        help="A further setting that the same policy must serve, e.g. "
        '"arrivals=load:0.8 jobs=60 cores=100 workload=FILE". Can be repeated.',
    ),
]
#: Delays of executors that `--also` can change.
_DELAYS = ("moving_delay_ms", "warmup_delay_ms")
#: The smallest and the largest values of the numbers of `--also`, those of the options.
_RANGES = {
    "jobs": (1, MOST),
    "executors": (1, MOST_EXECUTORS),
    **dict.fromkeys(_DELAYS, (0, 10**12)),
}


@dataclass(frozen=True)
class ScenarioOptions:
    """What a policy is learned for."""

    jobs: JobsOption = 20
    arrivals: ArrivalsOption = "batch"
    deadlines: DeadlinesOption = None
    objective: ObjectiveOption = "average-jct"
    also: AlsoOption = None


@dataclass(frozen=True)
class TuneOptions(SearchOptions):
    """How a rule's parameters are searched for; by default, the search starts from what ships."""

    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="Where the search starts: shipped (the rule in the package) | scratch | a "
            "checkpoint, or a name such as tuned:batch.",
            callback=start_to_read,
        ),
    ] = "shipped"

    def start_parameters(self, scenario: Scenario) -> Parameters | None:
        """The parameters to start from; None starts from scratch."""
        from parcae.learning.start import start_rule

        if self.start is None or self.start == "scratch":
            return None
        return start_rule("tuned" if self.start == "shipped" else self.start, scenario)


@dataclass(frozen=True)
class NetworkOptions:
    """Which network is trained, how, and from what."""

    network: Annotated[
        str,
        typer.Option(
            "--network",
            help="parcae (world of cores) | corrector | decima | that of an installed package | "
            "MODULE:LEARNER (default: parcae, in the world of executors corrector)",
            show_default=False,
        ),
    ] = ""
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", help="fast | imitation | decima-2019 (default: fast)", show_default=False
        ),
    ] = None
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="The tuned rule that the network corrects or imitates: a checkpoint or a name "
            "(default: that of the network in --start, else tuned).",
            show_default=False,
            callback=policy_to_read,
        ),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            help="A trained network to start from: a checkpoint or a name.",
            callback=policy_to_read,
        ),
    ] = None
    settings: SettingsOption = None
    decima: Annotated[
        list[str] | None,
        typer.Option(
            "--decima",
            help="Change a setting of Decima's network: features=jobs, has_graph=false, "
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

    def chosen_rule(self) -> str:
        """The rule to correct or to imitate. A network knows how to correct its own rule."""
        if self.rule is None and self.network != "decima" and self.start is not None:
            return self.start
        return self.rule or "tuned"

    def options(self) -> dict[str, Any]:
        """The options of the kind of learner that were given, by name."""
        given = {
            "recipe": self.recipe,
            "set": self.settings,
            "decima": self.decima,
            "device": self.device,
            "ray": self.ray,
        }
        return {name: value for name, value in given.items() if value}


def scenario_of(workload: str, cluster: ClusterOptions, setting: ScenarioOptions) -> Scenario:
    """The scenario that the options describe."""
    from parcae.learning.scenario import Scenario

    objective = objective_of(setting.objective, setting.deadlines)
    return Scenario(
        with_deadlines(cluster.load(workload), setting.deadlines),
        cluster.config(),
        setting.arrivals,
        setting.jobs,
        objective,
    )


def objective_of(text: str, deadlines: Path | None) -> Objective | ObjectiveFunction:
    """The objective that an option names."""
    from parcae.base.errors import ConfigError
    from parcae.simulation.objectives import NEEDS_DEADLINES, missed_and_tardy, parse_objective

    objective = parse_objective(text)
    if objective is missed_and_tardy and deadlines is None:
        raise ConfigError(NEEDS_DEADLINES)
    return objective


@with_groups
def tune_command(
    workload: WorkloadArgument,
    *,
    cluster: ClassClusterOptions,
    setting: ScenarioOptions,
    search: TuneOptions,
) -> None:
    """Tune the parameters of the rule for a workload with CMA-ES.

    With --also, one rule is tuned for several settings. The checkpoint always
    contains the best rule so far. The search starts from the rule that ships;
    continue an interrupted one with --start CHECKPOINT.

    Example: parcae tune tpch --arrivals batch --jobs 20 --budget 3 -o tuned.safetensors
    """
    from parcae.learning.tune import tune_rule, tuned_checkpoint
    from parcae.policies.learned import require_durations

    scenario = scenario_of(workload, cluster, setting)
    require_durations(scenario.workload)
    scenarios = _settings_of(scenario, cluster, setting)
    start = search.start_parameters(scenario)
    policies = f"fair,weighted-fair:tuned,{search.output}"

    def found(tuning: Tuning) -> Found:
        card = _tuning_card(tuning, setting, search.seed)
        checkpoint = tuned_checkpoint(tuning.parameters, scenario, {**scenario.card(), **card})
        gain = f"{setting.objective} {tuning.ratio_to_fair:.3f} of fair"
        words = f"{tuning.generations} generations, {gain}"
        names = shlex.join([workload, "--policies", policies])
        compared = f"{names} {cluster.as_words()}".rstrip()
        sentence = _tuning_sentence(gain, tuning, compared, setting)
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


def _tuning_sentence(gain: str, tuning: Tuning, compared: str, setting: ScenarioOptions) -> str:
    """What a tuning came to, in words, and how to compare its policy."""
    given = [] if setting.deadlines is None else ["--deadlines", str(setting.deadlines)]
    runs = ["--arrivals", setting.arrivals, "--jobs", str(setting.jobs), *given]
    return (
        f"{gain} on the selection runs, after {tuning.generations} generations "
        f"({tuning.evaluations:,} simulated runs, {tuning.seconds:.0f} s)\n"
        f"compare it on other runs: parcae compare {compared} {shlex.join(runs)}"
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


def _also(
    scenario: Scenario, text: str, cluster: ClusterOptions, setting: ScenarioOptions
) -> Scenario:
    """The scenario with the changes that one value of `--also` describes."""
    from dataclasses import replace

    changes = _changes(text)
    workload = scenario.workload
    if "workload" in changes:
        # Another workload is loaded as the first is.
        workload = with_deadlines(cluster.load(changes["workload"]), setting.deadlines)
    return replace(
        scenario,
        workload=workload,
        arrivals=changes.get("arrivals", scenario.arrivals),
        num_jobs=int(changes.get("jobs", scenario.num_jobs)),
        config=_changed_cluster(scenario.config, changes),
    )


def _changed_cluster(config: SimulationConfig, changes: Mapping[str, str]) -> SimulationConfig:
    """The cluster with the changes that one value of `--also` describes."""
    from parcae.base.errors import ConfigError
    from parcae.simulation.config import WorldName
    from parcae.simulation.tables import parse_estimate_error

    if "executors" in changes:
        config = config.resized(int(changes["executors"]))
    delays = {name: int(changes[name]) for name in _DELAYS if name in changes}
    if delays and config.world is WorldName.CORES:
        raise ConfigError(
            f"--also {next(iter(delays))} has no effect in the world of cores: leave it out, or "
            "use --world executors"
        )
    update: dict[str, Any] = dict(delays)
    if "estimate_error" in changes:
        update["estimate_error"] = parse_estimate_error(changes["estimate_error"])
    return config.model_copy(update=update)


def _settings_of(
    scenario: Scenario, cluster: ClusterOptions, setting: ScenarioOptions
) -> list[Scenario]:
    """The scenario, and those that `--also` describes."""
    return [scenario, *(_also(scenario, text, cluster, setting) for text in setting.also or [])]


def _changes(text: str) -> dict[str, str]:
    """The changes that one value of `--also` describes, by name."""
    from parcae.base.errors import ConfigError

    changes = dict[str, str]()
    for part in text.split():
        key, _, value = part.partition("=")
        name = "executors" if key == "cores" else key
        if name in changes:
            raise ConfigError(f"--also {text!r}: {key} is given twice; give one value")
        changes[name] = value
    known = {"arrivals", "estimate_error", "workload", *_RANGES}
    numbers = {key: changes[key] for key in _RANGES if key in changes}
    are_numbers = all(number.isdecimal() for number in numbers.values())
    if set(changes) - known or not changes or not are_numbers:
        raise ConfigError(
            f"--also {text!r}: write some of arrivals=..., jobs=N, cores=N (or executors=N), "
            "estimate_error=SIGMA, moving_delay_ms=N, warmup_delay_ms=N and workload=FILE, "
            "separated by spaces"
        )
    for key, number in numbers.items():
        least, most = _RANGES[key]
        # Python converts no text of thousands of digits, and 20 of them are out of range.
        if not least <= int(number[:20]) <= most:
            raise ConfigError(f"--also {key}=N: give a number from {least:,} to {most:,}")
    return changes


def _may_imitate(given: Values) -> bool:
    is_set = any(setting.startswith("imitation=") for setting in given["settings"] or ())
    return given["recipe"] == "imitation" or is_set


@refusing(
    Only(("decima",), lambda given: given["network"] == "decima", "with --network decima"),
    Only(
        ("rule",),
        lambda given: given["network"] != "decima" or _may_imitate(given),
        "to networks that correct a rule and to --recipe imitation",
    ),
)
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
    --ray, --set and --decima do not apply. All other networks are trained by policy
    gradients. With --also, one network serves several settings.

    Example: parcae train tpch --arrivals batch --budget 5 -o training
    """
    from parcae.learning.worlds import LearnerRequest, make_learner, world_of

    scenario = scenario_of(workload, cluster, setting)
    request = LearnerRequest(
        _settings_of(scenario, cluster, setting),
        net.chosen_rule(),
        net.start,
        training.seed,
        net.options(),
    )
    learner = make_learner(net.network or world_of(scenario).network, request)
    run_training(learner, training.plan(folder), setting.objective, as_json)
