"""Features and weights of the policy `parcae`, shared by the compiled pass and the PyTorch network.

Architecture (a deep set over the jobs in the system):
    h_j = two layers of the job's features,   g = a layer of [mean_j h_j, shared features]
    logit(job j) = MLP[h_j, g] + prior . (j is the rule's choice)
    logit(hold) = w . g + prior . (the rule lets all executors idle)
    logit(level p | job j) = MLP[h_j, g, features of p] + prior . (p is the rule's limit)
"hold" lets all offered executors idle. The last layers start at zero. An untrained network
therefore decides as the rule with a high probability, which the prior determines.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from parcae.policies.networks.layout import Weights, critic_shapes, deep_set_shapes, flat, glorot

#: Increased whenever a feature changes its meaning; checkpoints of other versions are rejected.
FEATURE_VERSION = 1


class JobFeature(IntEnum):
    """Columns of a job's features.

    The unit of work is the mean work of the workload's jobs. Numbers of executors are shares of the
    cluster.
    """

    REMAINING = 0  # log of the work of tasks that have not started
    WORK = 1  # log of total work
    STARTED = 2  # share of its work that has started
    SHARE = 3  # its share of the remaining work of all jobs
    RANK = 4  # share of the jobs that have less remaining work
    AHEAD = 5  # log1p of the remaining work of those jobs
    HELD = 6  # executors that work for it or move to it
    HELD_OF_CAP = 7  # the same / the rule's cap, at most 3
    CAP = 8  # the rule's cap
    IS_SOURCE = 9  # its executors are offered
    IDLE = 10  # executors idle in its pool
    STAGES = 11  # share of its stages that still have tasks to start
    SOLO = 12  # log of its solo duration at the cap
    LEVEL_CHEAP = 13  # the rule's cap at the lowest of four fixed prices (LEVEL_PRICES)
    LEVEL_LOW = 14  # at the second price
    LEVEL_HIGH = 15  # at the third price
    LEVEL_DEAR = 16  # at the highest price
    AGE = 17  # log1p of its time in the system, in units of (mean work / cluster)
    IS_RULE = 18  # the rule chooses it
    SCORE = 19  # the rule's score minus the smallest score, at most 5
    IS_RUNNABLE = 20  # its best stage is runnable
    PATH = 21  # share of its work on the heaviest path from its best stage to a leaf
    DEMAND = 22  # executors that its best stage can take
    WORTH = 23  # log of (remaining work / (executors that it holds + 1))


class SharedFeature(IntEnum):
    """Columns of the features that all jobs share."""

    JOBS = 0  # log of jobs in the system
    OPEN = 1  # log of jobs that have an unsaturated stage
    TOTAL = 2  # log of the remaining work of all jobs
    SOURCE = 3  # offered executors, share of the cluster
    IS_GLOBAL = 4  # the offered executors belong to no job
    IDLE = 5  # executors in pools, share of the cluster
    CLUSTER = 6  # log of the cluster's size
    RULE_HOLDS = 7  # the rule lets the offered executors idle
    CAN_HOLD = 8  # a decision may let all offered executors idle


class LimitFeature(IntEnum):
    """Columns of the features of one level as the chosen job's limit."""

    LEVEL = 0  # the level as share of the cluster
    LOG_LEVEL = 1  # log of the level
    ADDED = 2  # executors that the job would get, share of the cluster
    OF_SOURCE = 3  # executors that the job would get, share of the offered ones
    STRETCH = 4  # log of (solo duration at this level / shortest solo duration)
    INFLATION = 5  # log of (level x solo duration at this level / solo duration on one executor)
    OF_CAP = 6  # log of (level / the rule's cap)
    IS_RULE = 7  # the level is the rule's limit


#: Log of the four prices of the features LEVEL_CHEAP to LEVEL_DEAR.
LEVEL_PRICES = (-1.0, 0.5, 2.0, 3.5)
NUM_JOB_FEATURES = len(JobFeature)
NUM_SHARED_FEATURES = len(SharedFeature)
NUM_LIMIT_FEATURES = len(LimitFeature)
HIDDEN = 32
#: Slope of the leaky ReLU below zero.
SLOPE = 0.1
#: Initial weights of the rule's choice of a job, its choice to hold, and its limit.
PRIOR = (5.5, 5.5, 4.0)

#: Shapes of the weights by name; matrices are [in, out]. The compiled pass reads the weights from
#: one flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    **deep_set_shapes(NUM_JOB_FEATURES, NUM_SHARED_FEATURES, HIDDEN),
    "limit1.weight": (2 * HIDDEN + NUM_LIMIT_FEATURES, HIDDEN),
    "limit1.bias": (HIDDEN,),
    "limit2.weight": (HIDDEN, 1),
    "prior": (3,),
}
#: Shapes of the critic's weights. The critic is used in training only.
CRITIC_SHAPES = critic_shapes(HIDDEN)
_STARTS_AT_ZERO = ("choice2.weight", "hold.weight", "limit2.weight", "value2.weight")


NUM_WEIGHTS = sum(int(np.prod(shape)) for shape in SHAPES.values())


def initial_weights(rng: np.random.Generator, prior: tuple[float, float, float] = PRIOR) -> Weights:
    """Return initial weights: Glorot-uniform matrices, and zero for biases and last layers."""
    weights = glorot(rng, {**SHAPES, **CRITIC_SHAPES}, _STARTS_AT_ZERO)
    weights["prior"] = np.array(prior, np.float32)
    return weights


def flatten(weights: Weights, path: str = "weights") -> npt.NDArray[np.float32]:
    """Return the weights as one float32 array, in the order of SHAPES.

    `path` names the weights' file in error messages.

    Raises:
        FormatError: a weight is missing or has another shape.
    """
    return flat(weights, SHAPES, path)
