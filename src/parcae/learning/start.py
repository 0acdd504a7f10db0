"""Where a search or a training starts: rules and networks by name or file."""

from __future__ import annotations

import numpy as np

from parcae.errors import FormatError
from parcae.learning.family import Weights
from parcae.learning.scenario import Scenario
from parcae.policies.learned import (
    PLANNING_KINDS,
    find_checkpoint,
    order_parameters,
    rule_parameters,
)
from parcae.policies.rule.policy import Parameters
from parcae.simulation.config import WorldName


def start_rule(text: str, scenario: Scenario, arrivals: str) -> Parameters:
    """The parameters of the rule (or of the rule in a network) that `text` names.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is none.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, arrivals)
    if scenario.config.world is WorldName.CORES and checkpoint.kind in PLANNING_KINDS:
        return np.array(order_parameters(checkpoint, text))
    return np.array(rule_parameters(checkpoint, text))


def start_weights(text: str, network: str, scenario: Scenario, arrivals: str) -> Weights:
    """The weights of the network that `text` names.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is none, or it is of another kind.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, arrivals)
    if checkpoint.kind != network:
        raise FormatError(
            f"{text}: a checkpoint of {checkpoint.kind!r}; to start a {network!r} network give one of its own kind"
        )
    return {name: array for name, array in checkpoint.weights.items() if name != "rule"}
