"""`OrderNetworkPolicy`: the network of the world of cores as a policy, and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import Float64Array
from parcae.base.compiled.tables import allocate_tables
from parcae.base.errors import FormatError, PolicyError
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.compiled import CompiledPlanner
from parcae.policies.learned import order_parameters
from parcae.policies.network.kernels import (
    FEATURE_VERSION,
    KIND,
    NUM_ORDER_WEIGHTS,
    OrderNetwork,
    OrderWorkspace,
)
from parcae.policies.rule.policy import order_rule
from parcae.simulation.kernels.playing import Simulations, play_each
from parcae.simulation.simulator import PlayMany
from parcae.workloads.workload import Workload


def order_network(
    weights: npt.ArrayLike,
    theta: npt.ArrayLike,
    mean_work_ms: float,
    num_jobs: int,
    num_stages: int,
) -> OrderNetwork:
    """Return the network's tables, with an empty workspace and virtual run."""
    values = np.ascontiguousarray(weights, np.float64)
    if values.shape != (NUM_ORDER_WEIGHTS,):
        raise PolicyError(
            f"the network of the world of cores has {NUM_ORDER_WEIGHTS} weights, not {values.size}"
        )
    rule = order_rule(theta, mean_work_ms, num_jobs, num_stages)
    return OrderNetwork(values, rule, allocate_tables(OrderWorkspace, jobs=num_jobs))


def play_rows(weights: Float64Array, theta: npt.ArrayLike, mean_work_ms: float) -> PlayMany:
    """Return a function that simulates many runs, each with its own row of weights.

    Every thread simulates its share of the runs in one compiled call.
    """

    def run(simulations: Simulations, first: int, last: int) -> None:
        states = simulations.states
        sizes = states.jobs.shape[1], states.stages.shape[1]
        network = order_network(weights[0], theta, mean_work_ms, *sizes)
        play_each(simulations, weights, network, first, last)

    return run


@dataclass
class OrderNetworkPolicy(CompiledPlanner):
    """The network with its weights and the rule that it corrects, for one workload.

    Args:
        name: name in tables and reports.
        weights: float64[NUM_ORDER_WEIGHTS].
        parameters: the rule's parameters, one number for each `OrderParameter`.
        mean_work_ms: mean work of the workload's jobs, in ms of one core.
    """

    name: str
    weights: Float64Array
    parameters: tuple[float, ...]
    mean_work_ms: float

    @property
    def tier_unit_ms(self) -> float:
        """The unit of work of which its tiers are logarithms."""
        return max(1.0, self.mean_work_ms)

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> OrderNetwork:
        """The network's tables, with an empty workspace and virtual run."""
        return order_network(self.weights, self.parameters, self.mean_work_ms, num_jobs, num_stages)


def network_weights(checkpoint: Checkpoint, name: str) -> Float64Array:
    """Return the network's weights in a checkpoint, float64[NUM_ORDER_WEIGHTS]."""
    checkpoint.require(KIND, FEATURE_VERSION, name)
    array = checkpoint.weights.get("network")
    if array is None or array.shape != (NUM_ORDER_WEIGHTS,):
        shape = "nothing" if array is None else array.shape
        raise FormatError(
            f"{name}: weights 'network' should have shape {(NUM_ORDER_WEIGHTS,)}, but there is "
            f"{shape}; train the network again with `parcae train --world cores`"
        )
    return np.asarray(array, np.float64)


def bind_network(checkpoint: Checkpoint, name: str, workload: Workload) -> OrderNetworkPolicy:
    """Return the policy of a checkpoint, for a workload in the world of cores."""
    weights = network_weights(checkpoint, name)
    theta = order_parameters(checkpoint, name)
    return OrderNetworkPolicy(name, weights, theta, workload.mean_work_ms)
