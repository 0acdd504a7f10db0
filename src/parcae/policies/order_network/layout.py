"""What the network of the world of cores sees, and where its weights lie.

Architecture (a deep set over the jobs in the system; all float64):
    h_j = tanh(features_j W + b),   g = mean_j h_j
    u_j = tanh(h_j W' + g V + b'),  tier_j = the rule's tier + t SCALE tanh(u_j . w)
where t grows with what estimates err by, from 0 where they are exact to 1 from FULL_ERROR on: least remaining work first can
hardly be bettered where sizes are known. The output weights w start at 0: an untrained network is the rule, order for order.

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
#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1


class OrderFeature(IntEnum):
    """Columns of a job's features; work is measured in the workload's mean work of a job."""

    LEFT = 0  # log of remaining work
    TOTAL = 1  # log of total work
    NARROW = 2  # log1p of the critical path over remaining work on all cores
    CORRECTION = 3  # log of the correction of its estimate
    SURPRISE = 4  # log of (what finished tasks took / what was foretold), by how many have finished
    STARTED = 5  # share of its tasks that have started
    STAGES = 6  # share of its stages that are left
    AGE = 7  # log1p of its time in the system
    WIDTH = 8  # log1p of the tasks that it could start now, over the cores
    UNTRIED = 9  # 1 while none of its tasks has finished
    FEW = 10  # 1 / (1 + finished tasks)
    RUNNING = 11  # share of the cores that it has
    VIRTUAL = 12  # log1p of the time to its end under fair sharing
    RANK = 13  # share of the jobs that the rule serves before it
    AHEAD = 14  # log1p of the remaining work of those jobs
    ABOVE = 15  # the rule's tier minus the smallest, at most MOST_ABOVE
    IS_TRIED = 16  # 1 while the rule has its first tasks tried before all others
    ERRING = 17  # how far estimates err
    JOBS = 18  # log of the number of jobs in the system
    DEMAND = 19  # log1p of the tasks that all jobs could start now, over the cores


NUM_ORDER_FEATURES = len(OrderFeature)
HIDDEN = 12
#: The network moves a tier by less than this: e times more or less remaining work.
SCALE = 1.0
#: Where estimates err by less (root mean square of a logarithm), tiers are moved by less, in proportion.
FULL_ERROR = 0.4
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
    """Room for one plan; row i belongs to the i-th job in the system."""

    features: Any  # float64[num_jobs, NUM_ORDER_FEATURES]
    hidden: Any  # float64[num_jobs, HIDDEN]
    tier: Any  # float64[num_jobs], the rule's
    left_ms: Any  # float64[num_jobs]
    by_tier: Any  # int64[num_jobs], positions of the jobs by tier
    context: Any  # float64[HIDDEN], the mean of `hidden`
    base: Any  # float64[HIDDEN], what the context adds to every job


class OrderNetwork(NamedTuple):
    """What the network knows beside the observation."""

    weights: Any  # float64[NUM_ORDER_WEIGHTS]
    rule: OrderRule
    work: OrderWorkspace


def allocate_order_workspace(num_jobs: int) -> OrderWorkspace:
    """Room for a plan with so many jobs in the system at most."""
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
    """Glorot-uniform matrices, zero biases and output weights: the rule itself. float64[NUM_ORDER_WEIGHTS]."""
    drawn = glorot(np.random.default_rng(seed), SHAPES)
    return np.concatenate([drawn[name].ravel() for name in SHAPES]).astype(np.float64)
