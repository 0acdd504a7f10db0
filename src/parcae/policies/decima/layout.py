"""Decima's architecture: what it sees, its transforms and where their weights lie.

    e_v = g(sum over children u of f(e_u)) + prep(x_v)              (Decima, Eq. 1, from leaves to roots)
    y_i = g2(sum over stages v of f2(x_v, e_v)),  z = g3(sum over jobs i of f3(y_i))
    P(v) = softmax over schedulable v of q(e_v, y_i, z)             (Eq. 2)
    P(l | v) = softmax over limits l above what the job holds of w(y_i, z, l)
    P(c | v, l) = softmax over offered classes c that fit of u(e_v, y_i, z, what is known of the class)        (section 7.3)
    P(g | v, l) = softmax over lengths g/G of an idle slot of r(e_v, y_i, z, g/G)    (Duan & Wu, section IV-B; both optional)

Every transform has hidden layers of 32 and 16 and leaky rectifiers. # Deviation: Decima, section 6.1 states 12,736 parameters,
which no arrangement that follows the paper has; with embeddings of 8 numbers, as in the released code, ours has 8,386.
"""

from __future__ import annotations

import itertools
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from parcae.policies.networks.layout import Weights, flat, glorot, offsets_of

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
HIDDEN_1 = 32
HIDDEN_2 = 16
EMBEDDING = 8
#: Sets of embeddings that the compiled pass keeps, by the number of executors asked about.
VERSIONS = 8
#: Slope of the leaky rectifier below zero.
SLOPE = 0.2
#: Scales of the features, as in the released code.
EXECUTOR_SCALE = 20.0
TASK_SCALE = 200.0
WORK_SCALE_MS = 1e5
LOCAL = 2.0
TASK_SCALE_MS = 1e4
GAP_SCALE_MS = 1e5
#: What a fresh idle head gives "no idle slot" beside its score, as a logit: idling is the exception.
NO_SLOT = 4.0
NO_SLOT_NAME = "idle.none"


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
        critical_path: whether a stage shows how long the critical path of its job's unfinished part is (Duan & Wu, section IV-B).
        average_width: whether it shows how wide that part is: work / critical path.
        idle_lengths: G, the idle slots' lengths are 0, 1/G, ... 1 of the stage's; 0 for a network that adds none.
        executor_classes: whether the class of the executors is chosen too. Stages then show their memory, and counts are
            logarithmic, so that what is learned on a small cluster holds on a large one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: FeatureSet = FeatureSet.PAPER
    knows_gap: bool = False
    has_graph: bool = True
    has_two_transforms: bool = True
    limits: Limits = Limits.INPUT
    critical_path: bool = False
    average_width: bool = False
    idle_lengths: int = Field(default=0, ge=0, le=100)
    executor_classes: bool = False

    @property
    def num_features(self) -> int:
        """Numbers that a stage shows."""
        return 5 + self.knows_gap + self.critical_path + self.average_width

    @property
    def num_fits(self) -> int:
        """Numbers that say how a stage fits the executors asked about; the stages' score takes them as they are."""
        return len(Fit) if self.executor_classes else 0


class Fit(IntEnum):
    """How a stage fits the executors asked about."""

    OFFERED = 0  # how many there are, logarithmic
    SHARE = 1  # the share of them that is large enough
    SPARE = 2  # memory that the best-fitting of them has beyond the demand, of the largest class's
    WAITING = (
        3  # demand that waits for the best-fitting class, for each of its executors, logarithmic
    )


class ClassFeature(IntEnum):
    """What the class head knows of a class."""

    CPU = 0  # of the largest class's
    MEMORY = 1
    SPARE = 2  # memory beyond the stage's demand, of the largest class's
    IS_BEST = 3  # whether it is the best-fitting one that is asked about
    OFFERED = 4  # share of the executors asked about
    COVERS = 5  # share of the limit that it can give
    FREE = 6  # share of the class that is idle in the global pool
    SHARE = 7  # of the cluster's executors
    WAITING = 8  # demand that fits no smaller class, for each executor, logarithmic


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
    CLASS = 9
    IDLE = 10


def decima_levels(num_executors: int) -> npt.NDArray[np.int64]:
    """The limits to choose from: every number of executors, or above 100 some two dozen.

    # Deviation: Decima, section 5.2 gives a score to every limit; on clusters of thousands a coarser choice is as good.
    """
    from parcae.policies.solo_curves import limit_levels

    return np.arange(1, num_executors + 1) if num_executors <= 100 else limit_levels(num_executors)


def sizes(settings: DecimaSettings, num_levels: int) -> dict[Transform, tuple[int, int]]:
    """Inputs and outputs of every transform."""
    d = EMBEDDING
    x = settings.num_features
    limit_in = {
        Limits.INPUT: 2 * d + 1,
        Limits.STAGE: 3 * d + 1,
        Limits.OUTPUTS: 2 * d,
        Limits.NONE: 1,
    }[settings.limits]
    limit_out = num_levels if settings.limits is Limits.OUTPUTS else 1
    found = {
        Transform.PREP: (x, d),
        Transform.F_STAGE: (d, d),
        Transform.G_STAGE: (d, d),
        Transform.F_JOB: (x + d, d),
        Transform.G_JOB: (d, d),
        Transform.F_GLOBAL: (d, d),
        Transform.G_GLOBAL: (d, d),
        Transform.Q: (3 * d + settings.num_fits, 1),
        Transform.W: (limit_in, limit_out),
    }
    if settings.executor_classes:
        found[Transform.CLASS] = (3 * d + len(ClassFeature), 1)
    if settings.idle_lengths:
        found[Transform.IDLE] = (3 * d + 1, 1)
    return found


def shapes(settings: DecimaSettings, num_levels: int) -> dict[str, tuple[int, ...]]:
    """Weights by name, in the order of the flat array; matrices are [in, out]."""
    found: dict[str, tuple[int, ...]] = {}
    for transform, (num_in, num_out) in sizes(settings, num_levels).items():
        widths = (
            [num_in, num_out]
            if transform is Transform.PREP
            else [num_in, HIDDEN_1, HIDDEN_2, num_out]
        )
        for layer, (a, b) in enumerate(itertools.pairwise(widths), 1):
            found[f"{transform.name.lower()}.{layer}.weight"] = (a, b)
            found[f"{transform.name.lower()}.{layer}.bias"] = (b,)
    if settings.idle_lengths:
        found[NO_SLOT_NAME] = (1,)
    return found


def starts(settings: DecimaSettings, num_levels: int) -> npt.NDArray[np.int64]:
    """Where every transform's weights start in the flat array, int64[number of transforms]; -1 for one that is not there."""
    found = dict[str, int]()
    for name, at in offsets_of(shapes(settings, num_levels)).items():
        found.setdefault(name.partition(".")[0], at)
    return np.array([found.get(transform.name.lower(), -1) for transform in Transform], np.int64)


def initial_weights(rng: np.random.Generator, settings: DecimaSettings, num_levels: int) -> Weights:
    """Glorot-uniform matrices and zero biases; an idle head that seldom idles."""
    weights = glorot(rng, shapes(settings, num_levels))
    if settings.idle_lengths:
        weights[NO_SLOT_NAME][:] = NO_SLOT
    return weights


def flatten(
    weights: Weights, settings: DecimaSettings, num_levels: int, path: str = "weights"
) -> npt.NDArray[np.float32]:
    """The weights as one float32 array.

    Raises:
        FormatError: one is missing or has another shape.
    """
    return flat(weights, shapes(settings, num_levels), path)
