"""The set network's features and weights, shared by the compiled kernels and the PyTorch network.

The architecture is a deep set over the waiting jobs. If there are more than MAX_ROWS, the network
sees those with the best score by the rule.

    h_j = two layers of the job's features,   g = a layer of [mean_j h_j, shared features]
    logit(job j) = MLP[h_j, g] + prior . (j is the rule's choice)
    logit(hold) = w . g + prior . (the rule holds)

The rule is the tuned withholding rule (`parcae.policies.packing`). The last layers start at zero,
so that an untrained network is a softened version of the rule. Nothing depends on the number of
resources: of each job's demand and of the free resources the network sees the least, the mean and
the largest share.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from parcae.policies.networks.layout import Weights, critic_shapes, deep_set_shapes, flat, glorot

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
#: Waiting jobs whose features the network sees, at most.
MAX_ROWS = 32


class JobFeature(IntEnum):
    """Columns of a waiting job's features; shares are relative to the cluster's resources.

    Sets of columns from *_NOW to *_LAST hold one value for each time of LOOKAHEAD.
    """

    ESTIMATE = 0  # log of the estimated duration, in steps
    ESTIMATE_VS_ARRIVED = 1  # ESTIMATE - its mean over all jobs that have arrived
    ESTIMATE_VS_WAITING = 2  # ESTIMATE - its mean over the waiting jobs
    AGE = 3  # log1p(age / estimated duration)
    LEAST_SHARE = 4  # least demand, over resources
    MEAN_SHARE = 5
    LARGEST_SHARE = 6
    LEFT = 7  # least share that stays free if the job starts
    ALIGNMENT = 8  # dot product of free resources and demand
    CAN_START = 9
    FREE_AT_END = 10  # least share that is free after the job's end, if it starts now
    IS_RULE = 11  # whether the rule starts this job
    SCORE = 12  # the rule's score - the best score, at least -5
    RESERVE = 13  # LEFT - the share that the rule wants to keep free
    # Free share - demand of the dominant resource, which is the one with the largest demand.
    DOMINANT_NOW = 14
    DOMINANT_LAST = 19
    OTHER_NOW = 20  # the same of the other resources, the least of them
    OTHER_LAST = 25


class SharedFeature(IntEnum):
    """Columns of the features that all jobs share."""

    WAITING = 0  # log1p of the number of visible waiting jobs
    BACKLOG = 1  # log1p of the number of jobs in the backlog
    RUNNING = 2  # log1p of the number of placed jobs
    FREE_NOW = 3  # least free share of a resource, at each time of LOOKAHEAD
    FREE_LAST = 8
    FREE_MEAN = 9  # mean free share now
    LOAD = 10  # log1p of the arrived work per step so far
    CLOCK = 11  # log1p(time since the start / typical duration)
    PAUSE = 12  # log1p(time since the last arrival / typical duration)
    STARTABLE = 13  # share of the waiting jobs that can start
    TYPICAL = 14  # mean log estimate of all jobs that have arrived
    WAITING_ESTIMATE = 15  # mean log estimate of the waiting jobs - TYPICAL
    WAITING_SHARE = 16  # mean largest demand of the waiting jobs
    RULE_HOLDS = 17  # whether the rule lets time pass
    CAN_HOLD = 18  # whether the network may let time pass


#: Times from now at which the network sees the free resources, in typical durations: exp(TYPICAL).
LOOKAHEAD = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
NUM_JOB_FEATURES = JobFeature.OTHER_LAST + 1
NUM_SHARED_FEATURES = SharedFeature.CAN_HOLD + 1
HIDDEN = 24
#: Slope of the leaky rectifier below zero.
SLOPE = 0.1
#: Initial logits of the rule's choice of a job and of its choice to hold.
PRIOR = (2.0, 2.0)
#: Parameters of an untuned rule: shortest first, and long jobs leave about a third of the cluster
#: free.
START_RULE = (0.0, 0.05, 0.5, 3.0, 2.0, 0.2, 0.1, 3.0)

#: Weights by name; matrices are [in, out]. The kernels read them from a flat array in this order.
SHAPES: dict[str, tuple[int, ...]] = {
    **deep_set_shapes(NUM_JOB_FEATURES, NUM_SHARED_FEATURES, HIDDEN),
    "prior": (2,),
}
#: The critic is used in training only.
CRITIC_SHAPES = critic_shapes(HIDDEN)
_ZERO_AT_START = ("choice2.weight", "hold.weight", "value2.weight")


def initial_weights(rng: np.random.Generator, prior: tuple[float, float] = PRIOR) -> Weights:
    """Draw initial weights: Glorot-uniform matrices, zero biases, and last layers of zeros."""
    weights = glorot(rng, {**SHAPES, **CRITIC_SHAPES}, _ZERO_AT_START)
    weights["prior"] = np.array(prior, np.float32)
    return weights


def flatten(weights: Weights, path: str = "weights") -> npt.NDArray[np.float32]:
    """Return the weights as one float32 array, in the order of SHAPES.

    Raises:
        FormatError: a weight is missing or has another shape.
    """
    return flat(weights, SHAPES, path)
