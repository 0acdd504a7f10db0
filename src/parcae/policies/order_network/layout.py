"""Features, weights and workspace of the network of the world of cores.

Architecture (a deep set over the jobs in the system; all float64):
    h_j = tanh(features_j W + b),   g = mean_j h_j
    u_j = tanh(h_j W' + g V + b'),  tier_j = the rule's tier + t SCALE tanh(u_j . w)
The factor t grows with the recent estimate error: from 0 if estimates are exact to 1 at FULL_ERROR
and above. With exact estimates, least remaining work first can hardly be improved. The output
weights w start at 0, so that an untrained network makes the same orders as the rule.

Source of the architecture: Zaheer et al., "Deep Sets" (NeurIPS 2017), section 3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.policies.networks.layout import glorot, offsets_of
from parcae.policies.order_rule.layout import OrderRule

#: Kind of the network's checkpoints.
KIND = "order-network"
#: Increased whenever a feature changes its meaning; checkpoints of other versions are rejected.
FEATURE_VERSION = 1


class OrderFeature(IntEnum):
    """Columns of a job's features. The unit of work is the mean work of the workload's jobs."""

    LEFT = 0  # log of remaining work
    TOTAL = 1  # log of total work
    NARROW = 2  # log1p of the remaining critical path / (remaining work / cores)
    CORRECTION = 3  # log of the correction of its estimate
    # log of (actual / estimated time of finished tasks), scaled down while few tasks have finished
    SURPRISE = 4
    STARTED = 5  # share of its tasks that have started
    STAGES = 6  # share of its stages that are left
    AGE = 7  # log1p of its time in the system
    WIDTH = 8  # log1p of (tasks that it could start now / cores)
    UNTRIED = 9  # 1 while none of its tasks has finished
    FEW = 10  # 1 / (1 + finished tasks)
    RUNNING = 11  # share of the cores that it has
    VIRTUAL = 12  # log1p of the time to its end in the virtual run of fair sharing
    RANK = 13  # share of the jobs that the rule serves before it
    AHEAD = 14  # log1p of the remaining work of those jobs
    ABOVE = 15  # its tier by the rule minus the smallest tier, at most MOST_ABOVE
    IS_TRIED = 16  # 1 while the rule probes its first tasks
    ERRING = 17  # recent estimate error
    JOBS = 18  # log of the number of jobs in the system
    DEMAND = 19  # log1p of (tasks that all jobs could start now / cores)


NUM_ORDER_FEATURES = len(OrderFeature)
HIDDEN = 12
#: The network changes a tier by less than this, as if remaining work differed by a factor below e.
SCALE = 1.0
#: Below this estimate error (root mean square of a logarithm), the changes shrink in proportion.
FULL_ERROR = 0.4
#: Upper bound of the feature ABOVE.
MOST_ABOVE = 5.0

#: Weights by name: matrices are [in, out]. They lie in one flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    "job.weight": (NUM_ORDER_FEATURES, HIDDEN),
    "job.bias": (HIDDEN,),
    "mixed.own": (HIDDEN, HIDDEN),
    "mixed.context": (HIDDEN, HIDDEN),
    "mixed.bias": (HIDDEN,),
    "output.weight": (HIDDEN,),
}
OFFSETS = offsets_of(SHAPES)
NUM_ORDER_WEIGHTS = sum(int(np.prod(shape)) for shape in SHAPES.values())


class OrderWorkspace(NamedTuple):
    """Intermediate results of one plan. Row i belongs to the i-th job in the system."""

    features: Any  # float64[num_jobs, NUM_ORDER_FEATURES]
    hidden: Any  # float64[num_jobs, HIDDEN]
    tier: Any  # float64[num_jobs], the rule's
    left_ms: Any  # float64[num_jobs], remaining work
    by_tier: Any  # int64[num_jobs], positions of the jobs, sorted by tier
    context: Any  # float64[HIDDEN], the mean of `hidden` over the jobs
    base: Any  # float64[HIDDEN], bias and context's part of the second layer, equal for all jobs


class OrderNetwork(NamedTuple):
    """What the network needs besides the observation: weights, rule and workspace."""

    weights: Any  # float64[NUM_ORDER_WEIGHTS]
    rule: OrderRule
    work: OrderWorkspace


def allocate_order_workspace(num_jobs: int) -> OrderWorkspace:
    """Return a workspace for plans with at most `num_jobs` jobs in the system."""
    return OrderWorkspace(
        features=np.zeros((num_jobs, NUM_ORDER_FEATURES)),
        hidden=np.zeros((num_jobs, HIDDEN)),
        tier=np.zeros(num_jobs),
        left_ms=np.zeros(num_jobs),
        by_tier=np.zeros(num_jobs, np.int64),
        context=np.zeros(HIDDEN),
        base=np.zeros(HIDDEN),
    )


def initial_weights(seed: int) -> npt.NDArray[np.float64]:
    """Return the weights that training starts from, float64[NUM_ORDER_WEIGHTS].

    Matrices are Glorot-uniform; biases and output weights are 0, so that the network is the rule.
    """
    drawn = glorot(np.random.default_rng(seed), SHAPES)
    return np.concatenate([drawn[name].ravel() for name in SHAPES]).astype(np.float64)
