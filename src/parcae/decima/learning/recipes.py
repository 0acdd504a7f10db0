"""Recipes: settings of a training by name, adapted to the scenario and the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.decima.corrector.family import CorrectorFamily
from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.layout import DecimaSettings, Limits
from parcae.decima.rule import NUM_PARAMETERS, Parameters, Rule
from parcae.decima.solo_curves import solo_curves
from parcae.learning.config import Algorithm, TrainConfig
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.simulation.config import mean_gap_ms
from parcae.simulation.metrics import summarize

#: A kind of network for a scenario: all that the training loop knows about it.
Family = CorrectorFamily | DecimaFamily
#: Share of the jobs of a run that are often enough in the system at once to learn from.
_FAMILIAR_SHARE = 0.75


@dataclass(frozen=True)
class TrainRequest:
    """Which network to train, what for, and how.

    Args:
        scenarios: what to train for, in turn.
        config: the settings of the training.
        network: "corrector" or "decima".
        parameters: the tuned rule that "corrector" corrects, and that "decima" imitates if the
            config says so.
        decima: features and parts of Decima's network.
        weights: a network to start from, or None for random weights.
        seed: seed of the training.
        device: "cpu" or "cuda".
        ray_address: address of a Ray cluster for the rollouts, or None to use this machine.
    """

    scenarios: Sequence[Scenario]
    config: TrainConfig
    network: str = "corrector"
    parameters: Parameters | None = None
    decima: DecimaSettings = field(default_factory=DecimaSettings)
    weights: Weights | None = None
    seed: int = 0
    device: str = "cpu"
    ray_address: str | None = None


def make_family(request: TrainRequest, scenario: Scenario) -> Family:
    """The family of the requested network, for one of the scenarios."""
    if request.network == "decima":
        return DecimaFamily(scenario, _decima_of(request))
    if request.network != "corrector":
        raise ConfigError(f"network {request.network!r}: write corrector or decima")
    if request.parameters is None:
        raise ConfigError(
            "the network 'corrector' corrects a tuned rule: give one with --rule (make it with "
            "`parcae tune`)"
        )
    return CorrectorFamily(scenario, _deciding(request.parameters), request.config.prior)


def _deciding(parameters: Parameters) -> Parameters:
    """The parameters, if they are those of a rule that decides."""
    theta = np.asarray(parameters, np.float64)
    if theta.shape != (NUM_PARAMETERS,):
        raise ConfigError(
            f"a rule that decides has {NUM_PARAMETERS} parameters, not {theta.size}: one that "
            "plans orders for the world of cores cannot be corrected or imitated here"
        )
    return theta


def _decima_of(request: TrainRequest) -> DecimaSettings:
    """The settings of Decima's network, with the most jobs that it sees (`DecimaSettings`)."""
    decima = request.decima
    sizes = {scenario.config.total_executors for scenario in request.scenarios}
    if decima.limits is Limits.OUTPUTS and len(sizes) > 1:
        raise ConfigError(
            "limits=outputs has one output for each limit, so all settings need clusters of one "
            "size; use limits=input"
        )
    if not decima.has_job_features or decima.most_jobs > 0:
        return decima
    most_jobs = max(scenario.num_jobs for scenario in request.scenarios)
    return decima.model_copy(update={"most_jobs": max(1, round(_FAMILIAR_SHARE * most_jobs))})


def teacher_of(request: TrainRequest, scenario: Scenario) -> Rule | None:
    """The rule that the network imitates first in a scenario, if the config says so."""
    if request.config.imitation == 0:
        return None
    if request.network != "decima":
        raise ConfigError(
            f"the network {request.network!r} starts as its rule and needs no imitation: set "
            "imitation=0"
        )
    if request.parameters is None:
        raise ConfigError("imitation needs a tuned rule: give one with --rule, or set imitation=0")
    curves = solo_curves(scenario.workload, scenario.config)
    return Rule(_deciding(request.parameters), *curves)


class Recipe(StrEnum):
    """The names of the recipes."""

    FAST = "fast"  # proximal policy optimisation; the best of those tried
    IMITATION = "imitation"  # of Decima's network: it imitates a tuned rule first
    DECIMA_2019 = "decima-2019"  # Algorithm 1 of the paper, with the released code's entropy bonus


def parse_recipe(text: str) -> Recipe:
    """The recipe with this name."""
    try:
        return Recipe(text)
    except ValueError:
        raise ConfigError(f"recipe {text!r}: write one of {', '.join(Recipe)}") from None


#: Usual and longest windows and horizons of the fast recipe on streams, in mean gaps between
#: arrivals.
_WINDOW_GAPS = 24.0
_HORIZON_GAPS = 12.0
_LONGEST_WINDOW = 50.0
_LONGEST_HORIZON = 170.0
#: Shortest windows and horizons, in average JCTs under fair sharing. Where jobs take many gaps, a
#: decision shows only after its job: in shorter ones a network for such a cluster got worse.
_WINDOW_JCTS = 7.0
_HORIZON_JCTS = 5.0
#: The usual lengths suffice where executors are idle for at least this share of the time under
#: fair sharing.
_USUAL_IDLE = 0.3
#: A cluster counts as busy if its idle share is this many times smaller than the usual one.
_BUSY = 1.5
#: Number of runs in which the idle share is measured.
_NUM_MEASURED = 8
#: What differs for Decima's network, whose updates cost more than its rollouts.
_DECIMA: dict[str, Any] = {
    "num_groups": 6,
    "epochs": 1,
    "learning_rate": 3e-3,
    "entropy": 0.004,
    "averaging": 0.97,
    "select_every": 30,
}
#: What differs further with the feature set `jobs`, which learns faster.
_JOB_FEATURES: dict[str, Any] = {"learning_rate": 4e-3, "entropy": 0.01}
_IMITATING: dict[str, Any] = {
    "num_groups": 4,
    "epochs": 1,
    "minibatch": 512,
    "learning_rate": 2e-3,
    "entropy": 0.03,
    "imitation": 0.5,
}
#: With several executor classes, each executor that becomes free needs a decision. Collections are
#: therefore smaller, and the imitation, which brings most of the progress of a training of minutes,
#: takes longer.
_SEVERAL_CLASSES = {"num_groups": 2, "group_size": 6, "minibatch": 256}
_LONGER_IMITATION = {"imitation": 0.7}
#: Memoryless termination, in mean gaps between arrivals: mean length of the first episodes, its
#: growth in each iteration, its maximum. At gaps of 25 s these are the released code's 2,000 s to
#: 20,000 s over about 1,100 iterations.
_EPISODE_GAPS = 80.0
_GROWTH_GAPS = 0.64
_LONGEST_GAPS = 800.0


def mean_gap_s(scenario: Scenario) -> float:
    """Mean time between arrivals in seconds; 0 for a batch."""
    return mean_gap_ms(scenario.workload, scenario.config, scenario.arrivals) / MS_PER_S


@dataclass(frozen=True)
class FairRuns:
    """What a few runs under fair sharing show of a scenario."""

    busy_share: float
    average_jct_s: float


def fair_runs(scenario: Scenario) -> FairRuns:
    """Play a few runs of the scenario under fair sharing."""
    runs = scenario.selection(_NUM_MEASURED)
    runs.cost(scenario.fair_policy().play_many)
    found = [
        summarize(runs.simulators.trace(row, "fair"), sequence)
        for row, sequence in enumerate(runs.sequences)
    ]
    return FairRuns(
        float(np.mean([run.utilization for run in found])),
        float(np.mean([run.average_jct_ms for run in found])) / MS_PER_S,
    )


def recipe_config(
    recipe: Recipe,
    scenario: Scenario,
    network: str = "corrector",
    decima: DecimaSettings | None = None,
) -> TrainConfig:
    """The settings of a recipe for a scenario and a network.

    Decima's graph network learns in hours by itself. With the recipe `imitation` it imitates a
    tuned rule first, which saves most of them.
    """
    gap_s = mean_gap_s(scenario)
    if recipe is Recipe.DECIMA_2019:
        return _decima_2019(gap_s)
    config = TrainConfig(
        learning_rate=4e-3, entropy=0.02, minibatch=1024, epochs=3, prior=(2.0, 2.0, 2.0)
    )
    if network == "decima":
        return _of_decima(recipe, scenario, config, gap_s, decima or DecimaSettings())
    if recipe is Recipe.IMITATION:
        raise ConfigError(
            "recipe 'imitation' is for --network decima: the network corrector starts as the tuned "
            "rule and has nothing to imitate"
        )
    return config if gap_s == 0 else _in_windows(scenario, config, gap_s, "corrector")


def _of_decima(
    recipe: Recipe,
    scenario: Scenario,
    config: TrainConfig,
    gap_s: float,
    decima: DecimaSettings,
) -> TrainConfig:
    """The settings for Decima's network, from those for the network parcae."""
    has_classes = len(scenario.config.classes) > 1
    changes = _IMITATING if recipe is Recipe.IMITATION else _DECIMA
    if decima.has_job_features and recipe is Recipe.FAST:
        changes = changes | _JOB_FEATURES
    if has_classes:
        changes = changes | _SEVERAL_CLASSES
        if recipe is Recipe.IMITATION:
            changes = changes | _LONGER_IMITATION
    config = config.model_copy(update=changes)
    return config if gap_s == 0 else _in_windows(scenario, config, gap_s, "decima")


def _in_windows(scenario: Scenario, config: TrainConfig, gap_s: float, network: str) -> TrainConfig:
    """The settings on streams, which are simulated window by window."""
    has_classes = network == "decima" and len(scenario.config.classes) > 1
    # The busier a cluster is, the longer a decision shows in the queues: windows and horizons grow.
    fair = fair_runs(scenario)
    tightness = max(1.0, _USUAL_IDLE / max(1e-3, 1.0 - fair.busy_share))
    window_s = gap_s * min(_LONGEST_WINDOW, _WINDOW_GAPS * tightness)
    horizon_s = gap_s * min(_LONGEST_HORIZON, _HORIZON_GAPS * tightness**4)
    if tightness < _BUSY:
        # Elsewhere they are long already, and JCTs are mostly waiting.
        window_s = max(window_s, _WINDOW_JCTS * fair.average_jct_s)
        horizon_s = max(horizon_s, _HORIZON_JCTS * fair.average_jct_s)
    window = {
        "window_s": window_s * (0.5 if has_classes else 1.0),
        "horizon_s": horizon_s,
        "num_selection": 60,
    }
    # Random decisions waste capacity: near full load they alone would make the queues grow.
    noise = (
        {"entropy": 0.015}
        if tightness < _BUSY
        else {"entropy": 0.002, "learning_rate": 2e-3, "prior": (3.0, 3.0, 3.0)}
    )
    return config.model_copy(
        update={**window, **noise}
        if network == "corrector"
        else {**window, "entropy": config.entropy / 2}
    )


def _decima_2019(gap_s: float) -> TrainConfig:
    """The settings of Decima's paper; `gap_s` is the mean gap between arrivals, 0 for a batch."""
    # Source: Decima, section 5.3 and Appendix C: 16 workers, Adam with 1e-3.
    # Deviation: Decima, Algorithm 1 has no entropy bonus. Here there is one that decays, because
    # the released code has it.
    config = TrainConfig(
        algorithm=Algorithm.REINFORCE,
        num_groups=1,
        group_size=16,
        capacity=8192,
        learning_rate=1e-3,
        entropy=1.0,
        max_jobs_factor=1e6,
        select_every=25,
    )
    if gap_s == 0:
        return config
    episodes = {
        "episode_s": _EPISODE_GAPS * gap_s,
        "episode_growth_s": _GROWTH_GAPS * gap_s,
        "episode_max_s": _LONGEST_GAPS * gap_s,
        "is_differential": True,
        "num_selection": 40,
    }
    return config.model_copy(update=episodes)
