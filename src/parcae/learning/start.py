"""Loads the rule or network from which a search or a training starts, by name or file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from parcae.errors import FormatError
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.learned import (
    PLANNING_KINDS,
    find_checkpoint,
    order_parameters,
    rule_parameters,
)
from parcae.policies.order_network.policy import network_weights
from parcae.policies.rule.policy import Parameters
from parcae.simulation.config import WorldName


def start_rule(text: str, scenario: Scenario, arrivals: str) -> Parameters:
    """Load the parameters of a rule, or of the rule within a network.

    Args:
        text: name of a shipped policy, or path of a checkpoint.
        scenario: gives the workload and the cluster.
        arrivals: specification of the arrivals.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is no such rule.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, arrivals)
    if scenario.config.world is WorldName.CORES and checkpoint.kind in PLANNING_KINDS:
        return np.array(order_parameters(checkpoint, text))
    return np.array(rule_parameters(checkpoint, text))


def start_weights(text: str, network: str, scenario: Scenario, arrivals: str) -> Weights:
    """Load the weights of a network.

    Args:
        text: name of a shipped policy, or path of a checkpoint.
        network: kind of network that the checkpoint must be of.
        scenario: gives the workload and the cluster.
        arrivals: specification of the arrivals.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is no such network, or it is of another
            kind.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, arrivals)
    if checkpoint.kind != network:
        raise FormatError(
            f"{text} is a checkpoint of {checkpoint.kind!r}: to start from a network, give a "
            f"checkpoint of {network!r}"
        )
    # The rule within the network is given apart, see `start_rule`.
    return {name: array for name, array in checkpoint.weights.items() if name != "rule"}


def start_order_rule(text: str, scenario: Scenario) -> Parameters:
    """Load the parameters of a rule of the world of cores, or of the rule within a network.

    `text` is the name of a shipped policy, or the path of a checkpoint.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is no such rule.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    if checkpoint.kind not in PLANNING_KINDS:
        raise FormatError(
            f"--rule {text}: no rule of the world of cores; make one with `parcae tune --world "
            "cores`"
        )
    return np.array(order_parameters(checkpoint, f"--rule {text}"))


def start_order_network(text: str, scenario: Scenario) -> npt.NDArray[np.float64]:
    """Load the weights of a network of the world of cores, float64[NUM_ORDER_WEIGHTS].

    `text` is the name of a shipped policy, or the path of a checkpoint.

    Raises:
        PolicyError, FormatError, FileNotFoundError: there is no such network.
    """
    checkpoint = find_checkpoint(text, scenario.workload, scenario.config, scenario.arrivals)
    return network_weights(checkpoint, f"--start {text}")
