"""Where a search or a training starts: rules and networks by name or file."""

from __future__ import annotations

import numpy as np

from parcae.errors import FormatError
from parcae.learning.family import Weights
from parcae.learning.scenario import Scenario
from parcae.policies.learned import find_checkpoint, rule_parameters
from parcae.policies.rule.policy import Parameters


def start_rule(text: str, scenario: Scenario, arrivals: str) -> Parameters:
    """The parameters of the rule (or of the rule in a network) that `text` names.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is none.
    """
    return np.array(rule_parameters(find_checkpoint(text, scenario.workload, scenario.config, arrivals), text))


def start_weights(text: str, network: str, scenario: Scenario, arrivals: str) -> Weights:
    """The weights of the network that `text` names.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is none, or it is of another kind.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, arrivals)
    if checkpoint.kind != network:
        raise FormatError(f"{text}: a checkpoint of {checkpoint.kind!r}; to start a {network!r} network give one of its own kind")
    return {name: array for name, array in checkpoint.weights.items() if name != "rule"}
