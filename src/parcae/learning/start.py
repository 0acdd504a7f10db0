"""Loads the rule or network from which a search or a training starts, by name or file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parcae.base.errors import FormatError
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.learned import find_checkpoint
from parcae.policies.names import PolicyName
from parcae.policies.network.policy import network_weights
from parcae.policies.registry import CheckpointKind, kind_of

Parameters = npt.NDArray[np.float64]


def start_rule(text: str, scenario: Scenario, option: str = "") -> Parameters:
    """Load the parameters of a rule of the scenario's world, or of the rule within a network.

    `text` is the name of a shipped policy, or the path of a checkpoint; `option` begins it in error
    messages.
    """
    checkpoint, kind = start_checkpoint(text, scenario)
    world = scenario.config.world.value
    # The rules of two worlds may have as many parameters, which mean different things.
    if kind.worlds[0] != world or kind.rule is None:
        raise FormatError(
            f"{option}{text} is a checkpoint of {checkpoint.kind!r}, which has no rule for --world "
            f"{world}: give one that `parcae tune --world {world}` made"
        )
    return np.array(kind.rule(checkpoint, f"{option}{text}"))


def start_order_network(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """Load the weights of a network of the world of cores, float64[NUM_ORDER_WEIGHTS]."""
    return network_weights(start_checkpoint(text, scenario)[0], f"--start {text}")


def start_checkpoint(text: str, scenario: Scenario) -> tuple[Checkpoint, CheckpointKind]:
    """The checkpoint of a name or a path, and its kind."""
    found = find_checkpoint(PolicyName(text), scenario.setting)
    return found, kind_of(found, text)
