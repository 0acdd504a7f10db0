"""What a training by gradients is asked for, and the network and the teacher that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from parcae.errors import ConfigError
from parcae.learning.config import TrainConfig
from parcae.learning.decima_family import DecimaFamily
from parcae.learning.family import Family
from parcae.learning.parcae_family import ParcaeFamily
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.decima.layout import DecimaSettings
from parcae.policies.rule.kernels.scores import Rule
from parcae.policies.rule.layout import NUM_PARAMETERS
from parcae.policies.rule.policy import Parameters
from parcae.policies.solo_curves import solo_curves

#: Share of the jobs of a run that are often enough in the system at once to learn from.
_FAMILIAR_SHARE = 0.75


@dataclass(frozen=True)
class TrainRequest:
    """Which network to train, what for, and how.

    Args:
        scenarios: what to train for, in turn.
        config: the settings of the training.
        network: "parcae" or "decima".
        parameters: the tuned rule that "parcae" corrects, and that "decima" imitates if the config
            says so.
        decima: features and parts of Decima's network.
        weights: a network to start from, or None for random weights.
        seed: seed of the training.
        device: "cpu" or "cuda".
        ray_address: address of a Ray cluster for the rollouts, or None to use this machine.
    """

    scenarios: Sequence[Scenario]
    config: TrainConfig
    network: str = "parcae"
    parameters: Parameters | None = None
    decima: DecimaSettings = field(default_factory=DecimaSettings)
    weights: Weights | None = None
    seed: int = 0
    device: str = "cpu"
    ray_address: str | None = None


def check_early_gap(request: TrainRequest) -> None:
    """Check that there are gaps between arrivals that the setting `early_gap` can stretch.

    Raises:
        ConfigError: the setting would change nothing.
    """
    is_batch = all(scenario.arrivals == "batch" for scenario in request.scenarios)
    if request.config.early_gap > 1 and is_batch:
        raise ConfigError(
            f"early_gap={request.config.early_gap:g} stretches the gaps between arrivals, and here "
            "all jobs arrive at once: leave it out, or choose other --arrivals"
        )


def make_family(request: TrainRequest, scenario: Scenario) -> Family:
    """The family of the requested network, for one of the scenarios.

    Raises:
        ConfigError: the network is unknown or does not fit the world, or it is "parcae" and there
            is no rule that decides.
    """
    if request.network == "decima":
        return DecimaFamily(scenario, _decima_of(request))
    if request.network != "parcae":
        raise ConfigError(f"network {request.network!r}: write parcae or decima")
    if request.parameters is None:
        raise ConfigError(
            "the network 'parcae' corrects a tuned rule: give one with --rule (make it with "
            "`parcae tune`)"
        )
    return ParcaeFamily(scenario, _deciding(request.parameters), request.config.prior)


def _deciding(parameters: Parameters) -> Parameters:
    """The parameters, if they are those of a rule that decides.

    Raises:
        ConfigError: they are not.
    """
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
    if not decima.has_job_features or decima.most_jobs > 0:
        return decima
    most_jobs = max(scenario.num_jobs for scenario in request.scenarios)
    return decima.model_copy(update={"most_jobs": max(1, round(_FAMILIAR_SHARE * most_jobs))})


def teacher_of(request: TrainRequest, scenario: Scenario) -> Rule | None:
    """The rule that the network imitates first in a scenario, if the config says so.

    Raises:
        ConfigError: there is no rule to imitate, or it does not decide.
    """
    if request.config.imitation == 0:
        return None
    if request.parameters is None:
        raise ConfigError("imitation needs a tuned rule: give one with --rule, or set imitation=0")
    curves = solo_curves(scenario.workload, scenario.config)
    return Rule(_deciding(request.parameters), *curves)
