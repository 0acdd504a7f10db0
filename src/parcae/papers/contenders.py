"""Who competes in a study: policies that are named, given by the user, shipped or trained here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.arrays import Float64Array
from parcae.base.errors import ConfigError
from parcae.decima.checkpoints import rule_checkpoint, variant_as_in_paper
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.decima.learning.gradients import GradientLearner
from parcae.decima.learning.recipes import Recipe, TrainRequest, parse_recipe, recipe_config
from parcae.evaluation.compare import ClusterWorld
from parcae.evaluation.policies import describe
from parcae.evaluation.policies import tune as sweep
from parcae.learning.loop import Iteration, TrainingPlan, TrainResult, train
from parcae.learning.scenario import Scenario, check_search_seed, start_rule
from parcae.learning.tune import Tuning, tune_rule
from parcae.policies.checkpoint import SUFFIX, Checkpoint, read_checkpoint, write_checkpoint
from parcae.policies.learned import require_durations, setting_card
from parcae.policies.names import PolicyName
from parcae.policies.registry import bind
from parcae.rigid.a2c.learner import A2cLearner
from parcae.rigid.a2c.policy import A2cPolicy
from parcae.rigid.deeprm.learner import DeepRMLearner
from parcae.rigid.deeprm.policy import DeepRMPolicy
from parcae.rigid.evaluation.tuning import tune_knob
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import comparable_costs
from parcae.rigid.policies import catalog
from parcae.rigid.policies.catalog import make_packing_policy
from parcae.rigid.policies.policy import PackingPolicy
from parcae.rigid.sources import PackingSource, RigidLogSource
from parcae.rigid.world import PackingBatch
from parcae.simulation.config import SimulationConfig
from parcae.workloads.workload import Workload

#: Minutes for all trainings of a study together, by default and with --full.
QUICK_MINUTES = 1.0
FULL_MINUTES = 120.0
#: Distance between the first evaluation seeds of two consecutive `--seed` values.
SEEDS_APART = 10_000
_FIRST_RIGID_SEED = 1_000
#: Below this budget, a note says that such trainings are too short to draw conclusions from.
_FAIR_BUDGET_S = 20 * 60.0
#: Shorter trainings use small batches of runs and frequent selections on few runs. With the usual
#: settings they would hardly complete an iteration.
_SHORT_S = 120.0
_SHORT: dict[str, Any] = {
    "num_groups": 2,
    "group_size": 8,
    "epochs": 2,
    "num_selection": 16,
    "select_every": 4,
}
# Deviation: Decima, Appendix C has 16 rollouts of a job sequence. Short trainings have 8, because
# with 16 they would hardly complete an iteration.
_SHORT_2019: dict[str, Any] = {"group_size": 8, "num_selection": 16, "select_every": 4}
_PUBLISHED_ROLLOUTS = 16
#: The same for tuning, which is quicker.
_SHORT_TUNING_S = 30.0
_SHORT_TUNING: dict[str, Any] = {"runs_per_generation": 16, "num_selection": 32}
#: Number of runs on which the start of a search is chosen among several rules.
_NUM_SELECTION = 200
#: Number of iterations of a full training (DeepRM, section 4.1).
_DEEPRM_ITERATIONS = 1_000
#: What follows the name of a policy of rigid jobs that takes the most probable action.
GREEDY = ", greedy"


@dataclass(frozen=True)
class RecordedTrace:
    """A recorded trace and the cluster that it is replayed on.

    The first half of the jobs by arrival is for training, the second for tests. A load in
    `arrivals` is a share of what the executor classes can serve.
    """

    workload: Workload
    config: SimulationConfig
    arrivals: str


@dataclass(frozen=True)
class Request:
    """The input of a study. Studies of rigid jobs define their jobs and clusters themselves.

    Args:
        output: folder for the result; while the study runs, the folder for its checkpoints.
        workload: the jobs; None in studies of rigid jobs.
        config: the cluster.
        stream: arrivals in studies of continuous arrivals.
        is_full: whether to use the paper's number of runs and jobs, or far fewer.
        budget_s: wall-clock seconds of all trainings of the study together, without simulation.
        seed: seed of the trainings; it also determines the first evaluation seed.
        policies: policies of the user, instead of shipped or newly trained ones.
        recipe: recipe of the trainings.
        num_runs, num_jobs: None for the study's defaults.
        processes: number of worker processes of comparisons; of threads with rigid jobs.
        say: called with a text about the current step.
        recorded: the recorded trace for studies of executor classes, in addition to the workload.
        decima: settings of Decima's network in all trainings, unless the study changes them.
        is_cluster_given: the user chose the cluster, so that no study chooses another size.
        trains_anew: train policies that ship, too.
        log: log of a batch cluster, for the studies that need one.
    """

    output: Path
    workload: Workload | None = None
    config: SimulationConfig = field(default_factory=SimulationConfig)
    stream: str = "load:0.7"
    is_full: bool = False
    budget_s: float = 60.0 * QUICK_MINUTES
    seed: int = 0
    policies: tuple[str, ...] = ()
    recipe: str = "fast"
    num_runs: int | None = None
    num_jobs: int | None = None
    processes: int | None = None
    say: Callable[[str], None] = field(default=lambda _: None)
    recorded: RecordedTrace | None = None
    decima: DecimaSettings = field(default_factory=DecimaSettings)
    is_cluster_given: bool = False
    trains_anew: bool = False
    log: Path | None = None

    def runs(self, numbers: tuple[int, int]) -> int:
        """Number of runs: the requested one, or the study's by default or with --full."""
        return self.num_runs or numbers[self.is_full]

    def jobs(self, quick: int, full: int) -> int:
        """The same for the number of jobs in a run."""
        return self.num_jobs or (full if self.is_full else quick)

    def scenario(self, arrivals: str, quick: int, full: int) -> Scenario:
        """The workload on the cluster, with these arrivals and this number of jobs."""
        return Scenario(self.jobs_to_draw, self.config, arrivals, self.jobs(quick, full))

    @property
    def jobs_to_draw(self) -> Workload:
        """The workload of a study that needs one."""
        assert self.workload is not None
        return self.workload

    @property
    def first_seed(self) -> int:
        """The first evaluation seed. No training uses an evaluation seed."""
        return self.seed * SEEDS_APART + (_FIRST_RIGID_SEED if self.workload is None else 0)

    @property
    def training_seed(self) -> int:
        check_search_seed(self.seed)
        return self.seed


@dataclass(frozen=True)
class Training:
    """A policy that a study trains for scenarios, in turn.

    Args:
        scenarios: what it is trained for.
        kind: "decima", "corrector" or "tuned" (the rule).
        share: its weight in the budget.
        network: what Decima's network has other than in the request.
        recipe: its recipe, unless that of the request.
        changes: changes of the recipe's settings.
        over: keys of trainings. The rule of the first is imitated or corrected; the search for a
            rule starts at the best of them.
    """

    scenarios: tuple[Scenario, ...]
    kind: str = "decima"
    share: float = 1.0
    network: DecimaSettings = field(default_factory=DecimaSettings)
    recipe: Recipe | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    over: tuple[str, ...] = ()


@dataclass(frozen=True)
class RigidTraining:
    """DeepRM or A2cScheduler (`kind`, that of their checkpoints), trained for rigid jobs.

    The curve of one that is watched is its slowdown on the sequences of a stage, and not its cost
    on the selection runs.
    """

    source: PackingSource
    kind: str
    cost: Cost = Cost.SLOWDOWN
    share: float = 1.0
    recipe: str = ""
    options: tuple[str, ...] = ()
    select_every: int = 10
    num_selection: int | None = None
    watched_on: Stage | None = None

    def fits(self, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint was trained for this, or A2cScheduler for further rates, too."""
        if checkpoint.kind != self.kind:
            return False
        learned = {**(checkpoint.card.get("source") or {})}
        wanted = self.source.card()
        if self.kind == "deeprm":
            return learned == wanted and checkpoint.card.get("cost") == self.cost.name.lower()
        rates = set(wanted.pop("rates", ()))
        return rates <= set(learned.pop("rates", ())) and learned == wanted


@dataclass(frozen=True)
class Stage:
    """Sequences of rigid jobs that no policy was trained on.

    Args:
        source: of the sequences on which heuristics are tuned.
        sequences: the jobs of every run.
        first_seed: of the policies' draws.
        num_threads: of the runs.
    """

    source: PackingSource
    sequences: Sequence[RigidJobs]
    first_seed: int
    num_threads: int | None = None

    def play(self, policy: PackingPolicy) -> PackingBatch:
        """Run every sequence once, each on a cluster of its own."""
        wants, seed = policy.wants_profile, self.first_seed
        batch = PackingBatch(self.sequences, self.source.config, wants_profile=wants, seed=seed)
        batch.run(policy.play_many, self.num_threads)
        return batch


def drawn(source: PackingSource, request: Request, num_runs: int) -> Stage:
    """Sequences that a source draws, without the empty ones."""
    seeds = range(request.first_seed, request.first_seed + num_runs)
    sequences = [jobs for jobs in source.draw(seeds) if len(jobs)]
    return Stage(source, sequences, request.first_seed, request.processes)


def pieces(
    source: RigidLogSource, request: Request, num_runs: int, tuned_on: PackingSource
) -> Stage:
    """At most `num_runs` consecutive pieces of a log without a common job.

    The first one begins at a job that the seed draws.
    """
    jobs = source.jobs
    size = source.num_jobs or len(jobs)
    total = min(num_runs, len(jobs) // size) * size
    first = int(np.random.default_rng(request.first_seed).integers(len(jobs) - total + 1))
    sequences = [jobs.piece(at, at + size) for at in range(first, first + total, size)]
    return Stage(tuned_on, sequences, request.first_seed, request.processes)


def rigid_values(batch: PackingBatch) -> dict[str, Float64Array]:
    """The measures of every sequence of rigid jobs, as means over its jobs, lost ones too."""
    counts = np.array([len(jobs) for jobs in batch.sequences])
    completion = comparable_costs(batch, Cost.COMPLETION) / counts
    return {
        "slowdown": comparable_costs(batch, Cost.SLOWDOWN) / counts,
        "completion": completion,
        "waiting": completion - [jobs.duration.mean() for jobs in batch.sequences],
        "unfinished": np.array([(one.start < 0).sum() for one in batch.outcomes()], np.float64),
    }


@dataclass(frozen=True)
class Part:
    """One setting of a study, and who competes in it.

    Args:
        name: what sets it apart from the study's other parts; "" if there is none.
        setting: the runs that are measured, if the study has no way of its own.
        policies: by label, the name of a policy or the key of a training of any part.
        trainings: what is trained for this part, by key. The key also names the checkpoint.
        notes: about the setting.
        x: its place on the axis of a picture, or of several pictures (`panel`).
    """

    name: str
    setting: Scenario | Stage | None
    policies: Mapping[str, str]
    trainings: Mapping[str, Training | RigidTraining] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    x: float = 0.0
    panel: str = ""

    @property
    def scenario(self) -> Scenario:
        """The runs, on a cluster of executors."""
        assert isinstance(self.setting, Scenario)
        return self.setting

    @property
    def stage(self) -> Stage:
        """The runs, of rigid jobs."""
        assert isinstance(self.setting, Stage)
        return self.setting

    @property
    def world(self) -> ClusterWorld:
        """The cluster of the runs, on which policies are compared."""
        one = self.scenario
        return ClusterWorld(one.workload, one.config, one.arrivals, one.num_jobs)


def named(*names: str) -> dict[str, str]:
    """Policies that are labelled with their names."""
    return {name: name for name in names}


@dataclass(frozen=True)
class Learned:
    """A policy that a training made, or that was found in its place.

    Args:
        name: the policy's name or its checkpoint's path.
        words: where it comes from, and how its training went.
        checkpoint: the checkpoint; None for one of Decima's studies that ships.
        numbers: numbers of the training; empty if it was not trained here.
        curve: (iteration, seconds, cost on the selection runs) of its training.
        result: the training of a network.
    """

    name: str
    words: str
    checkpoint: Checkpoint | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    curve: Sequence[tuple[int, float, float]] = ()
    result: TrainResult | None = None

    @property
    def rule(self) -> Any:
        """The parameters of a rule that was tuned here."""
        assert self.checkpoint is not None
        return self.checkpoint.weights["rule"]

    def rigid(self, is_greedy: bool = False) -> PackingPolicy:
        """The policy for rigid jobs, which draws its actions or takes the most probable ones."""
        assert self.checkpoint is not None
        kind = A2cPolicy if self.checkpoint.kind == "a2c" else DeepRMPolicy
        return kind.from_checkpoint(self.checkpoint, self.name, is_greedy=is_greedy)


def checkpoint_path(request: Request, key: str) -> Path:
    """The file in which the study keeps the policy with a key.

    Example: "decima (trained here)" is kept in decima-trained-here.safetensors.
    """
    words = "".join(c if c.isalnum() or c == "." else " " for c in key).split()
    return request.output / ("-".join(words) + SUFFIX)


def requested(texts: Sequence[str]) -> dict[str, str]:
    """The policies of a request by label: names, or paths of checkpoints.

    The label of a checkpoint is its file's name, or its path if several policies have that name.

    Example: the label of "run/best.safetensors" is "best".
    """
    stems = [Path(text).stem if text.endswith(SUFFIX) else text for text in texts]
    return {
        (stem if stems.count(stem) == 1 else text): text
        for stem, text in zip(stems, texts, strict=True)
    }


def _own_agents(
    request: Request, trainings: Mapping[str, Training | RigidTraining]
) -> dict[str, Learned]:
    """The request's policies by key, for a study that takes only agents which it wrote."""
    by_file = {checkpoint_path(request, key).name: key for key in trainings}
    found: dict[str, Learned] = {}
    for text in request.policies:
        key = by_file.get(Path(text).name)
        if key is None:
            raise ConfigError(
                f"--policy {text}: not an agent of this study: give checkpoints that it wrote, "
                f"with the names {', '.join(by_file)}"
            )
        if key in found and found[key].name != text:
            raise ConfigError(
                f"--policy {found[key].name} and {text} are the same agent of this study, which "
                "shows one of each: give one of them"
            )
        checkpoint, training = read_checkpoint(Path(text)), trainings[key]
        if isinstance(training, RigidTraining) and not training.fits(checkpoint):
            raise ConfigError(f"--policy {text}: trained in another setting than {key}")
        found[key] = Learned(text, f"{key}: {text}, trained earlier", checkpoint)
    return found


def found_policies(
    request: Request, trainings: Mapping[str, Training | RigidTraining]
) -> dict[str, Learned]:
    """The policies that need not be trained, by key: the user's ones, or those that ship."""
    # Where the user's policies replace all trainings, none is left.
    found = _own_agents(request, trainings) if trainings else {}
    left = {} if request.trains_anew else {k: one for k, one in trainings.items() if k not in found}
    for key, training in left.items():
        if isinstance(training, Training):
            text = variant_as_in_paper(PolicyName(training.kind), training.scenarios[0].setting)
            words = f"{key}: {text}, the shipped variant for the nearest setting"
            found[key] = Learned(text, words)
            continue
        for variant in catalog.SHIPPED.variants(training.kind):
            path = catalog.SHIPPED.path(training.kind, variant)
            if training.fits(one := read_checkpoint(path)):
                amount = "{iterations} iterations in {seconds:,.0f} s".format_map(one.card)
                found[key] = Learned(str(path), f"{key}: {path.name}, {amount}", one)
    return found


def learn(
    request: Request, trainings: Mapping[str, Training | RigidTraining]
) -> dict[str, Learned]:
    """The policies of the trainings, by key; those that must be trained share the budget."""
    made = found_policies(request, trainings)
    new = {key: training for key, training in trainings.items() if key not in made}
    total = sum(training.share for training in new.values())
    for key, training in new.items():
        share_s = request.budget_s * training.share / total
        if isinstance(training, RigidTraining):
            made[key] = _train_rigid(request, key, training, share_s)
        elif training.kind == "tuned":
            made[key] = _tune(request, key, training, share_s, made)
        else:
            made[key] = _train_network(request, key, training, share_s, made)
    return made


def budget_notes(request: Request, made: Mapping[str, Learned]) -> list[str]:
    """A warning if the trainings were too short to draw conclusions from."""
    is_trained = any(one.numbers for one in made.values())
    if not is_trained or request.budget_s >= _FAIR_BUDGET_S:
        return []
    return [
        f"all trainings of this study together had {request.budget_s / 60:.1f} minutes; the papers "
        "trained each policy for hours. Such short trainings show that the study runs, not how "
        "good the policies can become; give more time with --budget or --full"
    ]


def network_training(
    request: Request, training: Training, share_s: float, made: Mapping[str, Learned]
) -> tuple[TrainRequest, str]:
    """How a network is trained, and its recipe in words."""
    scenario = training.scenarios[0]
    over = made[training.over[0]] if training.over else None
    recipe = training.recipe or parse_recipe(request.recipe)
    is_decima = training.kind == "decima"
    if not is_decima:
        recipe = Recipe.FAST
    elif over is not None and recipe is Recipe.FAST:
        recipe = Recipe.IMITATION
    network = DecimaSettings.model_validate(
        {**request.decima.model_dump(), **training.network.model_dump(exclude_unset=True)}
    )
    config = recipe_config(recipe, scenario, training.kind, network if is_decima else None)
    # Long trainings use the recipe unchanged.
    if share_s < _SHORT_S:
        config = config.model_copy(update=_SHORT_2019 if recipe is Recipe.DECIMA_2019 else _SHORT)
    config = config.model_copy(update=dict(training.changes))
    rule = None
    if not is_decima or config.imitation > 0:
        rule = start_rule("tuned", scenario) if over is None else over.rule
    words = f"recipe {recipe}"
    if is_decima and network.features is not FeatureSet.PAPER:
        words = f"with the feature set {network.features}, {words}"
    if config.imitation > 0:
        words += f" ({config.imitation:.0%} of the time imitating the tuned rule)"
    if recipe is Recipe.DECIMA_2019 and config.group_size != _PUBLISHED_ROLLOUTS:
        words += (
            f" ({config.group_size} rollouts of a job sequence, the paper has "
            f"{_PUBLISHED_ROLLOUTS})"
        )
    decima = network if is_decima else DecimaSettings()
    seed = request.training_seed
    return TrainRequest(training.scenarios, config, training.kind, rule, decima, seed=seed), words


def _train_network(
    request: Request, key: str, training: Training, share_s: float, made: Mapping[str, Learned]
) -> Learned:
    request.say(f"training {key} for {share_s:.0f} s")
    prepared, words = network_training(request, training, share_s, made)
    result = train(GradientLearner(prepared), TrainingPlan(share_s))
    objective = f"{training.scenarios[0].objective_name} {result.best:.3f} of fair"
    words = f"{words}; {objective} on the selection runs"
    before_s = made[training.over[0]].numbers["training_s"] if training.kind == "corrector" else 0.0
    return _kept(request, key, result, words, before_s)


def _kept(
    request: Request, key: str, result: TrainResult, words: str, before_s: float = 0.0
) -> Learned:
    """A trained policy, after its checkpoint was written to the study's folder.

    Its curve begins `before_s` after the start, when the training began that it goes on from.
    """
    # An interrupted training would make the whole study worthless.
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    path = _write(request, key, result.checkpoint)
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    curve = [(int(i), before_s + s, cost) for i, s, cost in result.checkpoint.card["curve"]]
    numbers = {
        "best": result.best,
        # It shows whether the training still improved after its best checkpoint.
        "last": curve[-1][2] if curve else np.nan,
        "iterations": result.iterations,
        "training_s": result.seconds,
        "decisions": result.counts.get("decisions", 0),
        # Without the weights of the critic, which only training needs.
        "parameters": sum(
            np.size(array)
            for name, array in result.checkpoint.weights.items()
            if not name.startswith("critic.")
        ),
    }
    words = (
        f"{key}: trained here, {result.iterations} iterations in {result.seconds:,.0f} s, {words}"
        f"{result.late_words}{ended}"
    )
    return Learned(str(path), words, result.checkpoint, numbers, curve, result)


def _write(request: Request, key: str, checkpoint: Checkpoint) -> Path:
    path = checkpoint_path(request, key)
    request.output.mkdir(parents=True, exist_ok=True)
    write_checkpoint(checkpoint, path)
    return path


def _tune(
    request: Request, key: str, training: Training, share_s: float, made: Mapping[str, Learned]
) -> Learned:
    """Tune the parametric rule by CMA-ES."""
    (scenario,) = training.scenarios
    require_durations(scenario.workload)
    request.say(f"tuning {key} for {share_s:.0f} s")
    sizes: dict[str, Any] = dict(_SHORT_TUNING) if share_s < _SHORT_TUNING_S else {}
    if training.over:
        sizes["start"] = _best_start(scenario, [made[other] for other in training.over])
    curve: list[tuple[int, float, float]] = []

    def note(done: Tuning) -> None:
        curve.append((done.generations, done.seconds, done.ratio_to_fair))

    seed = request.training_seed
    tuning = tune_rule(scenario, budget_s=share_s, seed=seed, progress=note, **sizes)
    card = setting_card(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs)
    checkpoint = rule_checkpoint(tuning.parameters, {**card, "seed": seed})
    words = (
        f"{key}: the parametric rule, {tuning.generations} generations of CMA-ES "
        f"({tuning.evaluations:,} runs) in {tuning.seconds:.0f} s; {scenario.objective_name} "
        f"{tuning.ratio_to_fair:.3f} of fair on the selection runs"
    )
    numbers = {
        "best": tuning.ratio_to_fair,
        "last": tuning.ratio_to_fair,
        "iterations": tuning.generations,
        "training_s": tuning.seconds,
        "parameters": len(tuning.parameters),
    }
    path = _write(request, key, checkpoint)
    return Learned(str(path), words, checkpoint, numbers, curve)


def _best_start(scenario: Scenario, rules: Sequence[Learned]) -> Any:
    """The rule with the least cost on the selection runs.

    Objectives that count jobs or measure the tail are noisy, so a search for a similar smooth
    objective may find a better start than one for the objective itself.
    """
    runs = scenario.selection(_NUM_SELECTION)

    def cost(rule: Learned) -> float:
        assert rule.checkpoint is not None
        return runs.mean(bind(rule.checkpoint, rule.name, scenario.setting).play_many)

    return min(rules, key=cost).rule


def _train_rigid(request: Request, key: str, training: RigidTraining, share_s: float) -> Learned:
    recipe = training.recipe or request.recipe
    request.say(f"training {key}, recipe {recipe}, at most {share_s:.0f} s")
    make = DeepRMLearner if training.kind == "deeprm" else A2cLearner
    learner = make(training.source, training.cost, recipe, training.options, request.training_seed)
    learner.num_threads = request.processes
    learner.select_every = training.select_every
    if training.num_selection is not None:
        learner.num_selection = training.num_selection
    watched: list[tuple[int, float, float]] = []

    def watch(done: Iteration) -> None:
        # It is measured whenever the training runs its selection, and in the beginning.
        if training.watched_on and (done.iteration == 1 or np.isfinite(done.selected)):
            costs = rigid_values(training.watched_on.play(learner.policy()))["slowdown"]
            watched.append((done.iteration, done.seconds, float(costs.mean())))

    most = _DEEPRM_ITERATIONS if training.kind == "deeprm" else None
    result = train(learner, TrainingPlan(share_s, most), watch)
    settings = "".join(f", {option}" for option in training.options)
    kept = _kept(request, key, result, f"recipe {recipe}{settings}; cost {result.best:.3f}")
    return replace(kept, curve=watched) if watched else kept


_TETRIS = {"tetris*": Cost.SLOWDOWN, "tetris* for completion": Cost.COMPLETION}


def rigid_policies(
    part: Part, made: Mapping[str, Learned], threads: int | None
) -> dict[str, PackingPolicy]:
    """The policies of a part with rigid jobs, by label.

    "tetris*" has the knob that is best on tuning sequences for its cost.
    """
    source = part.stage.source
    policies: dict[str, PackingPolicy] = {}
    for label, name in part.policies.items():
        key = name.removesuffix(GREEDY)
        if key in made:
            policies[label] = made[key].rigid(is_greedy=name != key)
        elif name in _TETRIS:
            tuned = tune_knob(source, _TETRIS[name], num_threads=threads).policy
            tuned.name = f"tetris* ({tuned.params[0]:g})"
            policies[label] = tuned
        else:
            policies[label] = make_packing_policy(name)
    return policies


def without_trainings(part: Part, texts: Sequence[str]) -> Part:
    """The part with the user's policies in place of those that would be trained."""
    named_ones = {
        label: name for label, name in part.policies.items() if name not in part.trainings
    }
    policies = dict(named_ones)
    for label, text in requested(texts).items():
        if text not in policies.values():
            policies[text if label in policies else label] = text
    return replace(part, policies=policies, trainings={})


#: Largest number of jobs in the runs of sweeps and trainings of studies of executor classes, except
#: with --full: the sweep of Graphene* has 450 combinations.
SHORT_JOBS = 60


def with_sweeps(request: Request, part: Part) -> Part:
    """The part of a study of executor classes with `:tuned` heuristics, tuned on few jobs."""
    one = part.scenario
    # A batch must keep its size; a stream can be shorter for tuning.
    is_short = not request.is_full and one.arrivals != "batch"
    num_jobs = min(one.num_jobs, SHORT_JOBS) if is_short else one.num_jobs
    policies = {**part.policies}
    notes = [*part.notes]
    for label, name in part.policies.items():
        family = name.removesuffix(":tuned")
        if family != name:
            request.say(f"tuning {family} on {part.name}")
            best = sweep(one.workload, family, one.config, one.arrivals, num_jobs)
            policies[label] = ":".join([family, *(f"{value:g}" for value in best.best)])
            notes.append(f"{label}: {describe(best)} of {num_jobs} jobs")
    return replace(part, policies=policies, notes=tuple(notes))
