"""Decima's architecture: what it sees, its transforms and where their weights lie.

    e_v = g(sum over children u of f(e_u)) + prep(x_v)              (Decima, Eq. 1, from leaves to roots)
    y_i = g2(sum over stages v of f2(x_v, e_v)),  z = g3(sum over jobs i of f3(y_i))
    P(v) = softmax over schedulable v of q(e_v, y_i, z)             (Eq. 2)
    P(l | v) = softmax over limits l above what the job holds of w(y_i, z, l)

Every transform has hidden layers of 32 and 16 and leaky rectifiers. # Deviation: Decima, section 6.1 states 12,736 parameters,
which no arrangement that follows the paper has; with embeddings of 8 numbers, as in the released code, ours has 8,386.
"""

from __future__ import annotations

import itertools
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from parcae.policies.networks.layout import Weights, flat, glorot

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
HIDDEN_1, HIDDEN_2, EMBEDDING = 32, 16, 8
#: Sets of embeddings that the compiled pass keeps, by the number of executors asked about.
VERSIONS = 8
#: Slope of the leaky rectifier below zero.
SLOPE = 0.2
#: Scales of the features, as in the released code.
EXECUTOR_SCALE, TASK_SCALE, WORK_SCALE_MS, LOCAL = 20.0, 200.0, 1e5, 2.0
TASK_SCALE_MS, GAP_SCALE_MS = 1e4, 1e5


class FeatureSet(StrEnum):
    """Which facts a stage shows."""

    PAPER = "paper"  # tasks left, task duration, executors on the stage, executors asked about, whether they are local
    CODE = "code"  # executors of the job, local, executors asked about, work left, tasks left


class Limits(StrEnum):
    """How parallelism limits are chosen (Decima, Figure 15a, and Figure 14 for none)."""

    INPUT = "input"  # one score function that takes the limit as an input
    OUTPUTS = "outputs"  # one output for every limit
    STAGE = "stage"  # limits of stages, not of jobs
    NONE = "none"  # all executors go to the chosen stage


class DecimaSettings(BaseModel):
    """What of Decima is switched on; the default is the paper's.

    Args:
        features: which facts a stage shows.
        knows_gap: whether it also shows the mean time between arrivals so far (Decima, Table 2).
        has_graph: False gives raw features to the score functions (Figure 14).
        has_two_transforms: False leaves g out (Appendix E).
        limits: how limits are chosen.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: FeatureSet = FeatureSet.PAPER
    knows_gap: bool = False
    has_graph: bool = True
    has_two_transforms: bool = True
    limits: Limits = Limits.INPUT

    @property
    def num_features(self) -> int:
        """Numbers that a stage shows."""
        return 5 + int(self.knows_gap)


class Transform(IntEnum):
    """The network's parts, in the order of the flat weights."""

    PREP = 0
    F_STAGE = 1
    G_STAGE = 2
    F_JOB = 3
    G_JOB = 4
    F_GLOBAL = 5
    G_GLOBAL = 6
    Q = 7
    W = 8


def decima_levels(num_executors: int) -> npt.NDArray[np.int64]:
    """The limits to choose from: every number of executors, or above 100 some two dozen.

    # Deviation: Decima, section 5.2 gives a score to every limit; on clusters of thousands a coarser choice is as good.
    """
    from parcae.policies.solo_curves import limit_levels

    return np.arange(1, num_executors + 1) if num_executors <= 100 else limit_levels(num_executors)


def sizes(settings: DecimaSettings, num_levels: int) -> dict[Transform, tuple[int, int]]:
    """Inputs and outputs of every transform."""
    d, x = EMBEDDING, settings.num_features
    limit_in = {Limits.INPUT: 2 * d + 1, Limits.STAGE: 3 * d + 1, Limits.OUTPUTS: 2 * d, Limits.NONE: 1}[settings.limits]
    limit_out = num_levels if settings.limits is Limits.OUTPUTS else 1
    return {
        Transform.PREP: (x, d),
        Transform.F_STAGE: (d, d),
        Transform.G_STAGE: (d, d),
        Transform.F_JOB: (x + d, d),
        Transform.G_JOB: (d, d),
        Transform.F_GLOBAL: (d, d),
        Transform.G_GLOBAL: (d, d),
        Transform.Q: (3 * d, 1),
        Transform.W: (limit_in, limit_out),
    }


def shapes(settings: DecimaSettings, num_levels: int) -> dict[str, tuple[int, ...]]:
    """Weights by name, in the order of the flat array; matrices are [in, out]."""
    found: dict[str, tuple[int, ...]] = {}
    for transform, (num_in, num_out) in sizes(settings, num_levels).items():
        widths = [num_in, num_out] if transform is Transform.PREP else [num_in, HIDDEN_1, HIDDEN_2, num_out]
        for layer, (a, b) in enumerate(itertools.pairwise(widths), 1):
            found[f"{transform.name.lower()}.{layer}.weight"] = (a, b)
            found[f"{transform.name.lower()}.{layer}.bias"] = (b,)
    return found


def starts(settings: DecimaSettings, num_levels: int) -> npt.NDArray[np.int64]:
    """Where every transform's weights start in the flat array, int64[number of transforms]."""
    at, found = 0, dict[str, int]()
    for name, shape in shapes(settings, num_levels).items():
        found.setdefault(name.partition(".")[0], at)
        at += int(np.prod(shape))
    return np.array([found[transform.name.lower()] for transform in Transform], np.int64)


def initial_weights(rng: np.random.Generator, settings: DecimaSettings, num_levels: int) -> Weights:
    """Glorot-uniform matrices and zero biases."""
    return glorot(rng, shapes(settings, num_levels))


def flatten(weights: Weights, settings: DecimaSettings, num_levels: int, path: str = "weights") -> npt.NDArray[np.float32]:
    """The weights as one float32 array.

    Raises:
        FormatError: one is missing or has another shape.
    """
    return flat(weights, shapes(settings, num_levels), path)
