"""What the network sees and where its weights lie: shared by the compiled pass and the batched one.

Architecture (a deep set over the jobs in the system):
    h_j = two layers of the job's features,   g = a layer of [mean_j h_j, shared features]
    logit(job j) = MLP[h_j, g] + prior . (j is the rule's choice),   logit(hold) = w . g + prior . (the rule lets idle)
    logit(level p | job j) = MLP[h_j, g, features of p] + prior . (p is the rule's limit)
The last layers start at zero, so that an untrained network is the rule, softened.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from parcae.policies.networks.layout import Weights, flat, glorot, offsets_of

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1


class JobFeature(IntEnum):
    """Columns of a job's features; work is measured in the workload's mean work, executors in shares of the cluster."""

    REMAINING = 0  # log of work not started
    WORK = 1  # log of total work
    STARTED = 2  # share of its work that has started
    SHARE = 3  # its part of all remaining work
    RANK = 4  # share of the jobs that have less left
    AHEAD = 5  # log1p of the remaining work of those jobs
    HELD = 6  # executors that work for it or move to it
    HELD_OF_CAP = 7  # the same over the rule's cap
    CAP = 8  # the rule's cap
    IS_SOURCE = 9  # its executors are asked about
    IDLE = 10  # executors idle in its pool
    STAGES = 11  # share of its stages that still have tasks to start
    SOLO = 12  # log of its solo duration at the cap
    LEVEL_CHEAP = 13  # best level at the lowest of four prices
    LEVEL_LOW = 14
    LEVEL_HIGH = 15
    LEVEL_DEAR = 16
    AGE = 17  # log1p of its time in the system, in mean work over the cluster
    IS_RULE = 18  # the rule chooses it
    SCORE = 19  # the rule's score over the smallest, at most 5
    IS_RUNNABLE = 20  # its best stage could start at once
    PATH = 21  # share of its work on the heaviest path from that stage
    DEMAND = 22  # executors that this stage can take
    WORTH = 23  # log of remaining work for one more executor


class SharedFeature(IntEnum):
    """Columns of the features that all jobs share."""

    JOBS = 0  # log of jobs in the system
    OPEN = 1  # log of jobs that want executors
    TOTAL = 2  # log of all remaining work
    SOURCE = 3  # executors that are asked about
    IS_GLOBAL = 4  # they belong to no job
    IDLE = 5  # executors in pools
    CLUSTER = 6  # log of the cluster's size
    RULE_HOLDS = 7  # the rule lets them idle
    CAN_HOLD = 8  # they may all idle


class LimitFeature(IntEnum):
    """Columns of the features of one level as the chosen job's limit."""

    LEVEL = 0  # share of the cluster
    LOG_LEVEL = 1
    ADDED = 2  # executors that the job would get, share of the cluster
    OF_SOURCE = 3  # share of those that are asked about
    STRETCH = 4  # log of the solo duration over the shortest
    INFLATION = 5  # log of executors x solo duration over that of one executor
    OF_CAP = 6  # log of the level over the rule's cap
    IS_RULE = 7  # the rule's limit


#: Log of the four prices that the LEVEL features stand for.
LEVEL_PRICES = (-1.0, 0.5, 2.0, 3.5)
NUM_JOB_FEATURES = len(JobFeature)
NUM_SHARED_FEATURES = len(SharedFeature)
NUM_LIMIT_FEATURES = len(LimitFeature)
HIDDEN = 32
#: Slope of the leaky rectifier below zero.
SLOPE = 0.1
#: What the rule's choice of job, its choice to hold, and its limit weigh at the start.
PRIOR = (5.5, 5.5, 4.0)

#: Weights by name: matrices are [in, out]. The compiled pass reads them from one flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    "job1.weight": (NUM_JOB_FEATURES, HIDDEN),
    "job1.bias": (HIDDEN,),
    "job2.weight": (HIDDEN, HIDDEN),
    "job2.bias": (HIDDEN,),
    "context.weight": (HIDDEN + NUM_SHARED_FEATURES, HIDDEN),
    "context.bias": (HIDDEN,),
    "choice1.weight": (2 * HIDDEN, HIDDEN),
    "choice1.bias": (HIDDEN,),
    "choice2.weight": (HIDDEN, 1),
    "hold.weight": (HIDDEN, 1),
    "hold.bias": (1,),
    "limit1.weight": (2 * HIDDEN + NUM_LIMIT_FEATURES, HIDDEN),
    "limit1.bias": (HIDDEN,),
    "limit2.weight": (HIDDEN, 1),
    "prior": (3,),
}
#: The critic is used in training only.
CRITIC_SHAPES: dict[str, tuple[int, ...]] = {
    "value1.weight": (HIDDEN, HIDDEN),
    "value1.bias": (HIDDEN,),
    "value2.weight": (HIDDEN, 1),
    "value2.bias": (1,),
}
_STARTS_AT_ZERO = ("choice2.weight", "hold.weight", "limit2.weight", "value2.weight")


def offsets() -> dict[str, int]:
    """Where each weight starts in the flat array."""
    return offsets_of(SHAPES)


NUM_WEIGHTS = sum(int(np.prod(shape)) for shape in SHAPES.values())


def initial_weights(rng: np.random.Generator, prior: tuple[float, float, float] = PRIOR) -> Weights:
    """Glorot-uniform matrices, zero biases, heads that start at zero."""
    weights = glorot(rng, {**SHAPES, **CRITIC_SHAPES}, _STARTS_AT_ZERO)
    weights["prior"] = np.array(prior, np.float32)
    return weights


def flatten(weights: Weights, path: str = "weights") -> npt.NDArray[np.float32]:
    """The weights as one float32 array, in the order of SHAPES.

    Raises:
        FormatError: one is missing or has another shape.
    """
    return flat(weights, SHAPES, path)
