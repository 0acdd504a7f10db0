"""Learned policies for a study: those that were asked for, those that ship, or new ones trained within the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parcae.errors import ConfigError
from parcae.learning.config import TrainConfig
from parcae.learning.recipes import Recipe, recipe_config
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import write_checkpoint
from parcae.policies.decima.layout import DecimaSettings
from parcae.policies.learned import (
    SUFFIX,
    require_durations,
    rule_checkpoint,
    setting_card,
    variants,
)
from parcae.studies.reproduce.contest import Contender
from parcae.studies.reproduce.study import StudyRequest

if TYPE_CHECKING:
    from parcae.learning.family import Weights
    from parcae.learning.run import TrainRequest
    from parcae.learning.train import Iteration
    from parcae.learning.tune import Tuning

#: Trainings shorter than this use small collections and are measured often on few runs: else they would end before they began.
_SHORT_S = 600.0
_SHORT: dict[str, Any] = {
    "num_groups": 2,
    "group_size": 8,
    "epochs": 2,
    "num_selection": 16,
    "select_every": 4,
}
_SHORT_2019: dict[str, Any] = {"group_size": 8, "num_selection": 16, "select_every": 4}
#: The same of tuning, which is quicker.
_SHORT_TUNING_S = 30.0
_SHORT_TUNING: dict[str, Any] = {"runs_per_generation": 16, "num_selection": 32}


@dataclass(frozen=True)
class Learned:
    """A policy that a study trained.

    Args:
        label: in tables. path: its checkpoint. ratio_to_fair: its objective / fair sharing's on the runs that chose it.
        words: how it was trained.
    """

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
        """For a contest."""
        return Contender(self.label, str(self.path))

    def to_json(self) -> dict[str, Any]:
        """How it was trained."""
        keys = ("label", "ratio_to_fair", "iterations", "decisions", "seconds")
        return {"checkpoint": self.path.name, **{key: getattr(self, key) for key in keys}}


def short_config(
    recipe: Recipe, scenario: Scenario, share_s: float, network: str = "decima"
) -> TrainConfig:
    """The recipe's settings, or smaller ones for a training of minutes."""
    config = recipe_config(recipe, scenario, network)
    if share_s >= _SHORT_S:
        return config
    return config.model_copy(update=_SHORT_2019 if recipe is Recipe.DECIMA_2019 else _SHORT)


def train_decima(
    request: StudyRequest,
    scenario: Scenario,
    label: str,
    share_s: float,
    *,
    decima: DecimaSettings | None = None,
    recipe: Recipe | None = None,
    changes: Mapping[str, Any] | None = None,
    weights: Weights | None = None,
    teacher: Learned | None = None,
    progress: Callable[[Iteration], None] | None = None,
) -> Learned:
    """Train Decima's network for a scenario; the checkpoint lies in the study's folder.

    Args:
        label: what the study calls it; the file is named after it.
        share_s: wall-clock seconds.
        changes: other values of the recipe's settings.
        weights: where to go on from.
        teacher: the rule to imitate first; the shipped one unless given.

    Raises:
        ConfigError: a workload that nothing can be learned from.
        KeyboardInterrupt: the user stopped the training, and so the study.
    """
    from parcae.learning.run import TrainRequest
    from parcae.learning.start import start_rule

    config = short_config(recipe or request.recipe, scenario, share_s).model_copy(
        update=dict(changes or {})
    )
    taught = (
        f" ({config.imitation:.0%} of the time imitating the tuned rule)"
        if config.imitation > 0
        else ""
    )
    rule = (
        start_rule("tuned", scenario, scenario.arrivals)
        if teacher is None
        else teacher.weights["rule"]
    )
    training = TrainRequest(
        scenario,
        config,
        "decima",
        parameters=None if config.imitation == 0 else rule,
        decima=decima or DecimaSettings(),
        weights=weights,
        budget_s=share_s,
        seed=request.training_seed,
    )
    return _train(
        request,
        training,
        label,
        f"Decima's network, recipe {recipe or request.recipe}{taught}",
        progress,
    )


def train_parcae(
    request: StudyRequest,
    scenario: Scenario,
    label: str,
    share_s: float,
    rule: Learned,
    *,
    progress: Callable[[Iteration], None] | None = None,
) -> Learned:
    """Train the network "parcae" over a rule, for a scenario, from fresh weights."""
    from parcae.learning.run import TrainRequest

    config = short_config(Recipe.FAST, scenario, share_s, "parcae")
    parameters = rule.weights["rule"]
    seed = request.training_seed
    training = TrainRequest(
        scenario, config, "parcae", parameters=parameters, budget_s=share_s, seed=seed
    )
    return _train(
        request, training, label, "the network parcae over that rule, recipe fast", progress
    )


def _train(
    request: StudyRequest,
    training: TrainRequest,
    label: str,
    what: str,
    progress: Callable[[Iteration], None] | None,
) -> Learned:
    from parcae.learning.run import train_policy

    request.say(f"training {label} for {training.budget_s:.0f} s")
    result = train_policy(training, progress)
    if result.ending == "interrupted":
        raise KeyboardInterrupt
    path = checkpoint_path(request, label)
    write_checkpoint(result.checkpoint, path)
    ended = "" if result.ending == "done" else f"; it ended early: {result.ending}"
    words = (
        f"{label}: {what}, {result.iterations} iterations ({result.decisions:,} decisions) in {result.seconds:.0f} s; "
        f"{training.scenario.objective} {result.ratio_to_fair:.3f} of fair on the selection runs{ended}"
    )
    return Learned(
        label,
        path,
        result.ratio_to_fair,
        result.iterations,
        result.decisions,
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
    start: Learned | None = None,
) -> Learned:
    """Tune the parametric rule for a scenario by CMA-ES, from its usual start or from another rule."""
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
        f"{label}: the parametric rule, {tuning.generations} generations of CMA-ES ({tuning.evaluations:,} runs) in "
        f"{tuning.seconds:.0f} s; {scenario.objective} {tuning.ratio_to_fair:.3f} of fair on the selection runs"
    )
    return Learned(
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
    """Where the study keeps a policy of that label.

    Example: "decima (trained here)" lies in decima-trained-here.safetensors.
    """
    request.output.mkdir(parents=True, exist_ok=True)
    words = "".join(c if c.isalnum() or c == "." else " " for c in label).split()
    return request.output / ("-".join(words) + SUFFIX)


def learned_contenders(
    request: StudyRequest,
    scenario: Scenario,
    kinds: tuple[str, ...] = ("decima", "parcae", "tuned"),
) -> tuple[list[Contender], list[str]]:
    """Learned policies for a scenario, and a note on each: those of the request; else those that ship, the rest made here.

    "decima" and "tuned" are made within the budget where none ships; "parcae", which needs both, is then left out.

    Raises:
        ConfigError: no kind of policy.
    """
    if not kinds:
        raise ConfigError("a study of learned policies needs at least one kind of them")
    if request.policies:
        return [given(text) for text in request.policies], [
            f"learned policies as asked for: {', '.join(request.policies)}"
        ]
    missing = [kind for kind in kinds if kind != "parcae" and not variants(kind)]
    found = list[Contender]()
    notes = list[str]()
    for kind in kinds:
        if variants(kind):
            found.append(Contender(kind, kind))
            notes.append(f"{kind}: the shipped variant for the nearest setting")
        elif kind in missing:
            make = tune if kind == "tuned" else train_decima
            learned = make(
                request, scenario, f"{kind} (made here)", request.budget_s / len(missing)
            )
            found.append(learned.contender)
            notes.append(learned.words)
    return found, notes + budget_notes(request, trained="decima" in missing)


def given(text: str) -> Contender:
    return Contender(Path(text).stem if text.endswith(SUFFIX) else text, text)


def budget_notes(request: StudyRequest, trained: bool = True) -> list[str]:
    """A warning where the trainings were too short to conclude anything from."""
    if not trained or request.budget_s >= 20 * 60:
        return []
    return [
        f"all trainings of this study together had {request.budget_s / 60:.1f} minutes, where the paper trained each policy for "
        f"hours: what is learned in that time shows that the study runs, not how good the policies can get; "
        f"give more with --budget or --full, or trained policies with --policy"
    ]
