"""What the set network sees and where its weights lie: shared by the compiled pass and the batched one.

Architecture (a deep set over the waiting jobs; of more than MAX_ROWS, those that the rule likes best):
    h_j = two layers of the job's features,   g = a layer of [mean_j h_j, shared features]
    logit(job j) = MLP[h_j, g] + prior . (j is the rule's choice),   logit(hold) = w . g + prior . (the rule holds)
The rule is the tuned withholding rule (`parcae.policies.packing`). The last layers start at zero, so that an untrained network
is the rule, softened. Nothing depends on the number of resources: of each job and of what is free it sees the least, the mean
and the largest share.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from parcae.policies.networks.layout import Weights, flat, glorot, offsets_of

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
#: Waiting jobs that are looked at one by one.
MAX_ROWS = 32


class JobFeature(IntEnum):
    """Columns of a waiting job's features; shares are of the cluster's resources."""

    TOLD = 0  # log of its told duration, in steps
    TOLD_OF_ARRIVED = 1  # the same less the mean over all jobs that arrived
    TOLD_OF_WAITING = 2  # the same less the mean over those that wait
    AGE = 3  # log1p of its age / told duration
    LEAST_SHARE = 4
    MEAN_SHARE = 5
    LARGEST_SHARE = 6
    LEFT = 7  # least share that would stay free if it started
    ALIGNMENT = 8  # what is free . what it asks for
    CAN_START = 9
    FREE_AT_END = 10  # least share that is free from its end on, if it started now
    IS_RULE = 11  # the rule starts it
    SCORE = 12  # the rule's score less the best, at least -5
    RESERVE = 13  # what would stay free less what the rule wants to stay free
    OWN_NOW = 14  # what is free, less its demand, of the resource that it asks most of: now and at the five times of LOOKAHEAD
    OWN_LAST = 19
    OTHER_NOW = 20  # the same of the other resources, the least of them
    OTHER_LAST = 25


class SharedFeature(IntEnum):
    """Columns of the features that all jobs share."""

    WAITING = 0  # log1p of the visible jobs
    BACKLOG = 1  # log1p of the others that wait
    RUNNING = 2  # log1p of the placed ones
    FREE_NOW = 3  # least free share of a resource, now and at the five times of LOOKAHEAD
    FREE_LAST = 8
    FREE_MEAN = 9  # mean free share, now
    LOAD = 10  # arrived work a step so far, log1p
    CLOCK = 11  # log1p of the time since the start / typical duration
    PAUSE = 12  # log1p of the time since the last arrival / typical duration
    STARTABLE = 13  # share of the waiting that can start
    TYPICAL = 14  # mean log duration of the arrived
    WAITING_TOLD = 15  # mean log duration of the waiting, less TYPICAL
    WAITING_SHARE = 16  # mean largest share of the waiting
    RULE_HOLDS = 17
    CAN_HOLD = 18


#: Times at which the policy looks at what will be free, in typical durations of the jobs that arrived.
LOOKAHEAD = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
NUM_JOB_FEATURES = JobFeature.OTHER_LAST + 1
NUM_SHARED_FEATURES = SharedFeature.CAN_HOLD + 1
HIDDEN = 24
#: Slope of the leaky rectifier below zero.
SLOPE = 0.1
#: What the rule's choice of job and its choice to hold weigh at the start, as logits.
PRIOR = (2.0, 2.0)
#: Where the rule starts that nobody tuned: shortest first, long jobs leave a third of the cluster free.
START_RULE = (0.0, 0.05, 0.5, 3.0, 2.0, 0.2, 0.1, 3.0)

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
    "prior": (2,),
}
#: The critic is used in training only.
CRITIC_SHAPES: dict[str, tuple[int, ...]] = {
    "value1.weight": (HIDDEN, HIDDEN),
    "value1.bias": (HIDDEN,),
    "value2.weight": (HIDDEN, 1),
    "value2.bias": (1,),
}
_STARTS_AT_ZERO = ("choice2.weight", "hold.weight", "value2.weight")


def offsets() -> dict[str, int]:
    """Where each weight starts in the flat array."""
    return offsets_of(SHAPES)


def initial_weights(rng: np.random.Generator, prior: tuple[float, float] = PRIOR) -> Weights:
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
