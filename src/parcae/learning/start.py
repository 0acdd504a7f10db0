"""Loads the rule or network from which a search or a training starts, by name or file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parcae.base.errors import FormatError
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.rule.policy import Parameters
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Checkpoint, Weights
from parcae.policies.learned import (
    PLANNING_KINDS,
    decima_settings,
    find_checkpoint,
    order_parameters,
    require_version,
    rule_parameters,
)
from parcae.policies.network.policy import network_weights
from parcae.simulation.config import WorldName

#: Settings of Decima's network that may differ from those of the network that a training starts
#: from: they change no input of the other parts. A head for idle slots must be there, though.
_FREE_PARTS = ("idle_lengths", "most_jobs")


def start_rule(text: str, scenario: Scenario) -> Parameters:
    """Load the parameters of a rule of the scenario's world, or of the rule within a network.

    `text` is the name of a shipped policy, or the path of a checkpoint.
    """
    checkpoint = _find(text, scenario)
    world = scenario.config.world
    is_planned = world is WorldName.CORES
    # The rules of both worlds may have as many parameters, which mean different things.
    if (checkpoint.kind in PLANNING_KINDS) != is_planned:
        raise FormatError(
            f"{text} is a checkpoint of {checkpoint.kind!r}, which has no rule for --world "
            f"{world.value}: give one that `parcae tune --world {world.value}` made"
        )
    return np.array((order_parameters if is_planned else rule_parameters)(checkpoint, text))


def start_deciding_rule(text: str, scenario: Scenario) -> Parameters:
    """Load the parameters of a rule that decides, to correct or to imitate, in either world."""
    checkpoint = _find(text, scenario)
    if checkpoint.kind in PLANNING_KINDS:
        raise FormatError(
            f"--rule {text}: a rule of the world of cores plans orders, and decides nothing that a "
            "network could imitate; train without imitation (--recipe fast), or give a rule that "
            "`parcae tune --world executors` made"
        )
    return np.array(rule_parameters(checkpoint, f"--rule {text}"))


def start_order_rule(text: str, scenario: Scenario) -> Parameters:
    """Load the parameters of a rule as `start_rule` does, but only those of the world of cores."""
    checkpoint = _find(text, scenario)
    if checkpoint.kind not in PLANNING_KINDS:
        raise FormatError(
            f"--rule {text}: no rule of the world of cores; make one with `parcae tune --world "
            "cores`"
        )
    return np.array(order_parameters(checkpoint, f"--rule {text}"))


def start_weights(
    text: str, network: str, scenario: Scenario, decima: DecimaSettings | None = None
) -> Weights:
    """Load the weights of a network, without those of the rule within it."""
    checkpoint = _find(text, scenario)
    if checkpoint.kind != network:
        raise FormatError(
            f"{text} is a checkpoint of {checkpoint.kind!r}: to start from a network, give a "
            f"checkpoint of {network!r}"
        )
    if network == "decima":
        _check_parts(decima_settings(checkpoint, text), decima or DecimaSettings(), text)
    return {name: array for name, array in checkpoint.weights.items() if name != "rule"}


def start_order_network(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """Load the weights of a network of the world of cores, float64[NUM_ORDER_WEIGHTS]."""
    return network_weights(_find(text, scenario), f"--start {text}")


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


def _find(text: str, scenario: Scenario) -> Checkpoint:
    found = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    require_version(found, text)
    return found
