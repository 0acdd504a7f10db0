"""What learning knows of the world of executors: its rule, and its two networks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import FormatError
from parcae.base.extensions import require
from parcae.decima.checkpoints import decima_settings, rule_checkpoint
from parcae.decima.corrector.kernels import PRIOR
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.rule import CLASS_PARAMETERS, Parameters, RulePolicy, padded, start_parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.config import override
from parcae.learning.loop import Learner
from parcae.learning.scenario import Scenario, start_checkpoint
from parcae.learning.worlds import (
    OWN_NETWORK,
    LearnerEntry,
    LearnerRequest,
    LearningWorld,
)
from parcae.policies.checkpoint import Weights

#: Settings of Decima's network that may differ from those of the network that a training starts
#: from: they change no input of the other parts. A head for idle slots must be there, though.
_FREE_PARTS = ("idle_lengths", "most_jobs")
#: Shorter trainings start close to the rule. Longer ones explore more at first, and end better.
_SHORT_S = 150.0
#: Number of selection runs on which a start is chosen.
_NUM_SELECTION = 100


def start_deciding_rule(text: str, scenario: Scenario) -> Parameters:
    """Load the parameters of a rule that decides, to correct or to imitate, in either world."""
    checkpoint, kind = start_checkpoint(text, scenario)
    if kind.worlds[0] != "executors" or kind.rule is None:
        raise FormatError(
            f"--rule {text}: a rule of the world of cores plans orders, and decides nothing that a "
            "network could imitate; train without imitation (--recipe fast), or give a rule that "
            "`parcae tune --world executors` made"
        )
    return np.array(kind.rule(checkpoint, f"--rule {text}"))


def start_weights(
    text: str, network: str, scenario: Scenario, decima: DecimaSettings | None = None
) -> Weights:
    """Load the weights of a network, without those of the rule within it."""
    checkpoint, kind = start_checkpoint(text, scenario)
    if kind.kind != network:
        raise FormatError(
            f"{text} is a checkpoint of {checkpoint.kind!r}: to start from a network, give a "
            f"checkpoint of {network!r}"
        )
    if network == "decima":
        _check_parts(decima_settings(checkpoint, text), decima or DecimaSettings(), text)
    return {name: array for name, array in checkpoint.weights.items() if name != "rule"}


def _check_parts(saved: DecimaSettings, wanted: DecimaSettings, text: str) -> None:
    """Raise an error if a network has other parts than the one whose weights it would start from.

    Weights of other features often have the same shapes, but mean nothing.
    """
    present = wanted.model_dump(mode="json")
    lacks_head = saved.idle_lengths == 0 < wanted.idle_lengths
    for key, value in saved.model_dump(mode="json").items():
        is_free = key in _FREE_PARTS and not (key == "idle_lengths" and lacks_head)
        if not is_free and value != present[key]:
            setting = f"{key}={str(value).lower()}"
            raise FormatError(
                f"--start {text}: a network with {setting}: to start from it, add --decima "
                f"{setting}"
            )


def learner_of(network: str, request: LearnerRequest) -> Learner:
    """The learner of a network that is trained by policy gradients.

    Its options are recipe, settings (KEY=VALUE), decima (KEY=VALUE), device and ray.
    """
    require("torch")
    # Importing PyTorch takes seconds.
    from parcae.decima.learning.gradients import GradientLearner
    from parcae.decima.learning.recipes import TrainRequest, parse_recipe, recipe_config

    scenario = request.scenarios[0]
    given = request.options
    recipe = parse_recipe(given.get("recipe", "fast"))
    # The head for executor classes is useful only if there are several.
    usual = DecimaSettings(executor_classes=len(scenario.config.classes) > 1)
    decima = override(usual, given.get("decima", []))
    config = override(recipe_config(recipe, scenario, network, decima), given.get("set", []))
    start = start_weights(request.start, network, scenario, decima) if request.start else None
    needs_rule = network == "corrector" or config.imitation > 0
    return GradientLearner(
        TrainRequest(
            request.scenarios,
            config,
            network,
            start_deciding_rule(request.rule, scenario) if needs_rule else None,
            decima,
            start,
            request.seed,
            given.get("device", "cpu"),
            given.get("ray"),
        )
    )


def _search(
    start: Parameters | None, scenarios: Sequence[Scenario]
) -> tuple[Parameters, npt.NDArray[np.int64]]:
    first = start_parameters() if start is None else padded(start)
    # With one executor class, the parameters about classes change nothing: leave them out.
    has_classes = any(len(one.config.classes) > 1 for one in scenarios)
    return first, np.array(
        [index for index in range(len(first)) if has_classes or index not in CLASS_PARAMETERS]
    )


def _policy_of_rule(name: str, theta: tuple[float, ...], scenario: Scenario) -> RulePolicy:
    return RulePolicy(name, theta, solo_curves(scenario.workload, scenario.config))


def _check(objective: Any, device: str) -> None:
    require("torch")
    # Importing PyTorch takes seconds.
    from parcae.decima.learning.gradients import check_device
    from parcae.decima.learning.simulators import accruing

    check_device(device)
    accruing(objective)


def _after_tuning(
    scenario: Scenario, rule: Parameters, budget_s: float, seed: int, is_shipped: bool, device: str
) -> Learner:
    """The learner of the corrector after its rule has been tuned."""
    require("torch")
    # Importing PyTorch takes seconds.
    from parcae.decima.learning.gradients import GradientLearner
    from parcae.decima.learning.recipes import Recipe, TrainRequest, recipe_config

    config = recipe_config(Recipe.FAST, scenario)
    # A short training has little time to explore, so it starts close to the rule.
    if budget_s < _SHORT_S:
        config = config.model_copy(update={"prior": PRIOR})
    weights = _start(scenario, rule, seed) if is_shipped else None
    return GradientLearner(
        TrainRequest([scenario], config, parameters=rule, weights=weights, seed=seed, device=device)
    )


def _start(scenario: Scenario, rule: Parameters, seed: int) -> Weights | None:
    """The shipped network's weights, if they beat the rule alone on the selection runs.

    Otherwise None, which starts the training with new weights.
    """
    # Importing PyTorch takes seconds.
    from parcae.decima.corrector.family import CorrectorFamily

    weights = start_weights("corrector", "corrector", scenario)
    # A network with new weights decides like the rule.
    family = CorrectorFamily(scenario, rule, PRIOR)
    runs = scenario.selection(_NUM_SELECTION)
    fresh = family.initial_weights(np.random.default_rng(seed))
    shipped, of_rule = (runs.mean(family.policy(w).play_many) for w in (weights, fresh))
    return weights if shipped <= of_rule else None


WORLDS = (
    LearningWorld(
        "executors",
        "corrector",
        ("fifo", "fair", "sjf-cp", "weighted-fair:tuned", "srpt-cap:tuned"),
        {
            "fifo": "first come, first served in Decima's cluster",
            "fair": "fair sharing in Decima's cluster",
        },
        _policy_of_rule,
        rule_checkpoint,
        _search,
        _after_tuning,
        check=_check,
    ),
)
LEARNERS = (
    LearnerEntry("corrector", partial(learner_of, "corrector"), ("executors", "cores")),
    LearnerEntry("decima", partial(learner_of, "decima"), ("executors", "cores")),
    LearnerEntry(OWN_NETWORK, "parcae.environments.own_network:learner_of", ("executors", "cores")),
)
