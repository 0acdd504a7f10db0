"""Learned policies for a study: requested ones, shipped ones, or ones trained within the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcae.base.errors import ConfigError
from parcae.decima.checkpoints import rule_checkpoint, variant_as_in_paper
from parcae.decima.graph.layout import DecimaSettings, FeatureSet
from parcae.decima.learning.recipes import Recipe, recipe_config
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.papers.contest import Contender
from parcae.papers.study import StudyRequest
from parcae.policies.checkpoint import SUFFIX, Weights, write_checkpoint
from parcae.policies.learned import SHIPPED, require_durations, setting_card
from parcae.policies.names import PolicyName

if TYPE_CHECKING:
    from parcae.decima.learning.recipes import TrainRequest
    from parcae.learning.loop import Iteration
    from parcae.learning.tune import Tuning

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
#: Rollouts of a job sequence in the paper (Decima, Appendix C).
_PUBLISHED_ROLLOUTS = 16
#: The same for tuning, which is quicker.
_SHORT_TUNING_S = 30.0
_SHORT_TUNING: dict[str, Any] = {"runs_per_generation": 16, "num_selection": 32}


@dataclass(frozen=True)
class StudiedPolicy:
    """A policy that a study trained."""

    label: str
    path: Path
    ratio_to_fair: float
    iterations: int
    decisions: int
    seconds: float
    words: str
    weights: Weights = field(repr=False)

    @property
    def contender(self) -> Contender:
        """The policy as a contender, by its checkpoint."""
        return Contender(self.label, str(self.path))

    def to_json(self) -> dict[str, Any]:
        """Figures of the training."""
        keys = ("label", "ratio_to_fair", "iterations", "decisions", "seconds")
        return {"checkpoint": self.path.name, **{key: getattr(self, key) for key in keys}}


@dataclass(frozen=True)
class DecimaVariant:
    """Which parts Decima's network has, and how it is trained."""

    settings: DecimaSettings = field(default_factory=DecimaSettings)
    recipe: Recipe | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def settings_for(self, request: StudyRequest) -> DecimaSettings:
        """The settings of the network in a study: those of the request, with the variant's."""
        changes = self.settings.model_dump(exclude_unset=True)
        return DecimaSettings.model_validate({**request.decima.model_dump(), **changes})


#: Decima with all its parts, trained by the recipe of the request.
_WHOLE = DecimaVariant()


def short_config(
    recipe: Recipe,
    scenario: Scenario,
    share_s: float,
    network: str = "decima",
    decima: DecimaSettings | None = None,
) -> TrainConfig:
    """The training settings of a recipe, reduced for short trainings."""
    config = recipe_config(recipe, scenario, network, decima)
    # Long trainings use the recipe unchanged.
    if share_s >= _SHORT_S:
        return config
    return config.model_copy(update=_SHORT_2019 if recipe is Recipe.DECIMA_2019 else _SHORT)


def train_decima(
    request: StudyRequest,
    scenario: Scenario,
    label: str,
    share_s: float,
    variant: DecimaVariant = _WHOLE,
    *,
    weights: Weights | None = None,
    teacher: StudiedPolicy | None = None,
    progress: Callable[[Iteration], None] | None = None,
) -> StudiedPolicy:
    """Train Decima's network for a scenario and write the checkpoint to the study's folder."""
    from parcae.decima.learning.recipes import TrainRequest
    from parcae.learning.start import start_rule

    recipe = variant.recipe or request.recipe
    if teacher is not None and recipe is Recipe.FAST:
        recipe = Recipe.IMITATION
    settings = variant.settings_for(request)
    config = short_config(recipe, scenario, share_s, decima=settings)
    config = config.model_copy(update=dict(variant.changes))
    rule = start_rule("tuned", scenario) if teacher is None else teacher.weights["rule"]
    training = TrainRequest(
        [scenario],
        config,
        "decima",
        parameters=None if config.imitation == 0 else rule,
        decima=settings,
        weights=weights,
        seed=request.training_seed,
    )
    return _train(
        request,
        training,
        share_s,
        label,
        f"Decima's network{_features(settings)}, {recipe_words(recipe, config)}",
        progress,
    )


def recipe_words(recipe: Recipe, config: TrainConfig) -> str:
    """The recipe of a training, and what one should know of its use in the study.

    Example: "recipe imitation (50% of the time imitating the tuned rule)".
    """
    notes = []
    if config.imitation > 0:
        notes.append(f"{config.imitation:.0%} of the time imitating the tuned rule")
    if recipe is Recipe.DECIMA_2019 and config.group_size != _PUBLISHED_ROLLOUTS:
        notes.append(
            f"{config.group_size} rollouts of a job sequence, the paper has {_PUBLISHED_ROLLOUTS}"
        )
    return f"recipe {recipe}" + (f" ({'; '.join(notes)})" if notes else "")


def _features(settings: DecimaSettings) -> str:
    """Which features the network has, unless they are the paper's."""
    is_paper = settings.features is FeatureSet.PAPER
    return "" if is_paper else f" with the feature set {settings.features}"


def train_parcae(
    request: StudyRequest,
    scenario: Scenario,
    label: str,
    share_s: float,
    rule: StudiedPolicy,
    *,
    progress: Callable[[Iteration], None] | None = None,
) -> StudiedPolicy:
    """Train the network "corrector", which corrects a rule, from new weights."""
    from parcae.decima.learning.recipes import TrainRequest

    config = short_config(Recipe.FAST, scenario, share_s, "corrector")
    training = TrainRequest(
        [scenario], config, "corrector", rule.weights["rule"], seed=request.training_seed
    )
    what = "the network corrector over that rule, recipe fast"
    return _train(request, training, share_s, label, what, progress)


def _train(
    request: StudyRequest,
    training: TrainRequest,
    share_s: float,
    label: str,
    what: str,
    progress: Callable[[Iteration], None] | None,
) -> StudiedPolicy:
    from parcae.decima.learning.gradients import gradient_learner
    from parcae.learning.loop import TrainingPlan, train

    request.say(f"training {label} for {share_s:.0f} s")
    result = train(gradient_learner(training), TrainingPlan(share_s), progress)
    # An interrupted training would make the whole study worthless.
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    path = checkpoint_path(request, label)
    write_checkpoint(result.checkpoint, path)
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    decisions = result.counts["decisions"]
    words = (
        f"{label}: {what}, {result.iterations} iterations ({decisions:,} decisions) "
        f"in {result.seconds:.0f} s; {training.scenarios[0].objective} "
        f"{result.best:.3f} of fair on the selection runs{result.late_words}{ended}"
    )
    return StudiedPolicy(
        label,
        path,
        result.best,
        result.iterations,
        decisions,
        result.seconds,
        words,
        result.checkpoint.weights,
    )


def tune(
    request: StudyRequest,
    scenario: Scenario,
    label: str,
    share_s: float,
    progress: Callable[[Tuning], None] | None = None,
    start: StudiedPolicy | None = None,
) -> StudiedPolicy:
    """Tune the parametric rule for a scenario by CMA-ES."""
    from parcae.learning.tune import tune_rule

    require_durations(scenario.workload)
    request.say(f"tuning {label} for {share_s:.0f} s")
    sizes: dict[str, Any] = dict(_SHORT_TUNING) if share_s < _SHORT_TUNING_S else {}
    sizes["start"] = None if start is None else start.weights["rule"]
    tuning = tune_rule(
        scenario, budget_s=share_s, seed=request.training_seed, progress=progress, **sizes
    )
    card = setting_card(scenario.workload, scenario.config, scenario.arrivals, scenario.num_jobs)
    path = checkpoint_path(request, label)
    checkpoint = rule_checkpoint(tuning.parameters, {**card, "seed": request.training_seed})
    write_checkpoint(checkpoint, path)
    words = (
        f"{label}: the parametric rule, {tuning.generations} generations of CMA-ES "
        f"({tuning.evaluations:,} runs) in {tuning.seconds:.0f} s; {scenario.objective} "
        f"{tuning.ratio_to_fair:.3f} of fair on the selection runs"
    )
    return StudiedPolicy(
        label,
        path,
        tuning.ratio_to_fair,
        tuning.generations,
        tuning.evaluations,
        tuning.seconds,
        words,
        checkpoint.weights,
    )


def checkpoint_path(request: StudyRequest, label: str) -> Path:
    """The file in which the study keeps the policy with a label.

    Example: "decima (trained here)" is kept in decima-trained-here.safetensors.
    """
    request.output.mkdir(parents=True, exist_ok=True)
    words = "".join(c if c.isalnum() or c == "." else " " for c in label).split()
    return request.output / ("-".join(words) + SUFFIX)


def learned_contenders(
    request: StudyRequest,
    scenario: Scenario,
    kinds: tuple[str, ...] = ("decima", "corrector", "tuned"),
) -> tuple[list[Contender], list[str]]:
    """Learned policies for a scenario, and a note on each. Returns the policies, and the notes.

    The policies of the request are taken if there are any, otherwise the shipped ones, "decima"
    with the paper's features. If the request wants new ones, or none are shipped, they are trained
    within the budget: "corrector" over the rule "tuned", and not without it.
    """
    if not kinds:
        raise ConfigError("a study of learned policies needs at least one kind of policy")
    if request.policies:
        return requested(request.policies), [
            f"learned policies as requested: {', '.join(request.policies)}"
        ]
    new = [kind for kind in kinds if request.trains_anew or not SHIPPED.variants(kind)]
    if "tuned" not in new:
        new = [kind for kind in new if kind != "corrector"]
    made = _made_here(request, scenario, new)
    learned_policies = list[Contender]()
    notes = list[str]()
    for kind in kinds:
        if kind in made:
            learned_policies.append(made[kind].contender)
            notes.append(made[kind].words)
        elif SHIPPED.variants(kind):
            text = variant_as_in_paper(PolicyName(kind), scenario.setting)
            learned_policies.append(Contender(kind, text))
            notes.append(f"{kind}: {text}, the shipped variant for the nearest setting")
    return learned_policies, notes + budget_notes(request, trained="decima" in made)


def _made_here(
    request: StudyRequest, scenario: Scenario, kinds: Sequence[str]
) -> dict[str, StudiedPolicy]:
    """Policies of these kinds, trained for a scenario; they share the budget."""
    made = dict[str, StudiedPolicy]()
    share_s = request.budget_s / max(1, len(kinds))
    if "tuned" in kinds:
        made["tuned"] = tune(request, scenario, "tuned (made here)", share_s)
    if "corrector" in kinds:
        label = "corrector (made here)"
        made["corrector"] = train_parcae(request, scenario, label, share_s, made["tuned"])
    if "decima" in kinds:
        made["decima"] = train_decima(request, scenario, "decima (made here)", share_s)
    return made


def requested(texts: Sequence[str]) -> list[Contender]:
    """The contenders for policies of the request: names, or paths of checkpoints.

    The label of a checkpoint is its file's name, or its path if several policies have that name.

    Example: the label of "run/best.safetensors" is "best".
    """
    stems = [Path(text).stem if text.endswith(SUFFIX) else text for text in texts]
    return [
        Contender(stem if stems.count(stem) == 1 else text, text)
        for stem, text in zip(stems, texts, strict=True)
    ]


def budget_notes(request: StudyRequest, trained: bool = True) -> list[str]:
    """A warning if the trainings were too short to draw conclusions from."""
    # From 20 minutes on, no warning.
    if not trained or request.budget_s >= 20 * 60:
        return []
    return [
        f"all trainings of this study together had {request.budget_s / 60:.1f} minutes; the paper "
        "trained each policy for hours. Such short trainings show that the study runs, not how "
        "good the policies can become; give more time with --budget or --full"
    ]
