"""Decima's architecture: its features, its transforms and the order of their weights.

    e_v = g(sum over children u of f(e_u)) + prep(x_v)         (Decima, Eq. 1, from leaves to roots)
    y_i = g2(sum over stages v of f2(x_v, e_v)),  z = g3(sum over jobs i of f3(y_i))
    P(v) = softmax over schedulable v of q(e_v, y_i, z)        (Eq. 2)
    P(l | v) = softmax over limits l above what the job holds of w(y_i, z, l)

With the feature set `jobs`, q and w also take features d_v of the stage, its job and the offer, and
w takes features of the limit beside its number: q(e_v, y_i, z, d_v) and w(y_i, z, d_v, l).

Two heads are optional: executor classes c (section 7.3), and idle slots of length g/G (Duan & Wu,
section IV-B):

    P(c | v, l) = softmax over offered classes c that fit of u(e_v, y_i, z, features of the class)
    P(g | v, l) = softmax over lengths g/G of an idle slot of r(e_v, y_i, z, g/G)

Every transform but prep has hidden layers of 32 and 16 units and leaky rectifiers. prep is linear.

# Deviation: Decima, Eq. 1 adds x_v itself. Here prep(x_v) is added, as in the released code,
# because x_v has fewer numbers than an embedding. There prep has hidden layers; here it is linear,
# because section 6.1 counts only six transforms of the graph with hidden layers.
# Deviation: Decima, Eq. 1 adds g(0) to the embeddings of leaves, whose sums are empty. Here, as in
# the released code, they are prep(x_v) alone, because a leaf has no messages.
# Deviation: Decima, section 6.1 states 12,736 parameters, which no arrangement that follows the
# paper has; with embeddings of 8 numbers, as in the released code, ours has 8,386.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from parcae.policies.networks.layout import Weights, glorot, offsets_of

#: Raised whenever a feature changes its meaning: older checkpoints are then refused.
FEATURE_VERSION = 1
HIDDEN_1 = 32
HIDDEN_2 = 16
EMBEDDING = 8
#: Sets of embeddings that the compiled kernels cache, one for each number of offered executors.
VERSIONS = 8
#: Slope of the leaky rectifier below zero.
SLOPE = 0.2
LOCAL = 2.0
#: The most of the feature that is the work left.
MOST_WORK = 20.0
#: Unit of the number of offered executors in a network that chooses executor classes.
OFFERED_UNIT = 20.0
#: Logit that an untrained idle head adds to the score of "no idle slot": idling is the exception.
NO_SLOT = 4.0
NO_SLOT_NAME = "idle.none"


class FeatureSet(StrEnum):
    """Which features a stage has, in this order."""

    # tasks left, task duration, executors on the stage, offered executors, whether they are local
    PAPER = "paper"
    # executors of the job, whether the offered ones are local, offered executors, work left, tasks
    # left
    CODE = "code"
    # as PAPER, but relative to the cluster and to the workload's mean task, tasks and durations as
    # logarithms; then work left relative to the workload's mean job, how long executors move
    # compared with a task, and tasks of a job compared with executors
    RELATIVE = "relative"
    # tasks left, task duration, executors on the stage, work left, and the last two of RELATIVE, in
    # its units. What depends on the offer, and what a scheduler knows of the whole job, goes to the
    # scores directly (see `Direct` and `LimitFeature`): so a job's embeddings change only if the
    # job does.
    # Deviation: Decima, section 5.1 has no such inputs, because its scores take embeddings only.
    JOBS = "jobs"


#: Features of a stage in each feature set, without the optional ones.
_NUM_FEATURES = {
    FeatureSet.PAPER: 5,
    FeatureSet.CODE: 5,
    FeatureSet.RELATIVE: 8,
    FeatureSet.JOBS: 6,
}


class Limits(StrEnum):
    """How parallelism limits are chosen (Decima, Figure 15a, and Figure 14 for none)."""

    INPUT = "input"  # one score function that takes the limit as an input
    OUTPUTS = "outputs"  # one output for every limit
    STAGE = "stage"  # limits of stages, not of jobs
    NONE = "none"  # all executors go to the chosen stage


#: The kernels' numbers for how limits are chosen.
LIMIT_KINDS = {limits: number for number, limits in enumerate(Limits)}
LIMIT_OUTPUTS = LIMIT_KINDS[Limits.OUTPUTS]
LIMIT_STAGE = LIMIT_KINDS[Limits.STAGE]
LIMIT_NONE = LIMIT_KINDS[Limits.NONE]


class DecimaSettings(BaseModel):
    """Which parts of Decima are switched on; the default is the paper's network.

    Args:
        features: which features a stage has.
        knows_gap: whether a stage also has the mean time between arrivals so far (Decima, Table 2).
        has_graph: False gives raw features to the score functions (Figure 14).
        has_two_transforms: False leaves g out (Appendix E).
        limits: how limits are chosen.
        critical_path: whether a stage also has the length of the critical path of its job's
            unfinished part (Duan & Wu, section IV-B).
        average_width: whether it also has the width of that part: work / critical path.
        idle_lengths: G; the lengths of idle slots are 0, 1/G, ... 1 of the stage's length. 0 for a
            network that adds no idle slots.
        executor_classes: whether the class of the executors is chosen too. Stages then have their
            memory as a feature, and counts are logarithmic, so that what the network learns on a
            small cluster holds on a large one.
        most_jobs: with the feature set `jobs`, a cluster with more jobs in the system looks as if
            it had this many of the same mean size, because a network does not know what it never
            saw. A training sets it to three quarters of the jobs of its largest runs: more are in
            the system only at a batch's beginning. 0 for no bound.

    Raises:
        ValueError: the feature set `jobs` is combined with executor classes, without a graph, or
            with another kind of limits than `input`; or `most_jobs` with another feature set.
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
    most_jobs: int = Field(default=0, ge=0, le=10**9)

    @model_validator(mode="after")
    def _check(self) -> DecimaSettings:
        """Refuse what the feature set `jobs` does not go with."""
        if self.has_job_features and not (
            self.has_graph and self.limits is Limits.INPUT and not self.executor_classes
        ):
            raise ValueError(
                "features=jobs needs a graph, limits=input and a single executor class; choose "
                "another feature set, such as features=relative"
            )
        if self.most_jobs > 0 and not self.has_job_features:
            raise ValueError("most_jobs applies to features=jobs only")
        return self

    @property
    def has_job_features(self) -> bool:
        """Whether the scores take the features of `Direct` and `LimitFeature`."""
        return self.features is FeatureSet.JOBS

    @property
    def num_features(self) -> int:
        """Number of features of a stage."""
        num_features = _NUM_FEATURES[self.features]
        return num_features + self.knows_gap + self.critical_path + self.average_width

    @property
    def num_direct(self) -> int:
        """Number of further inputs of the stage scores (see `Fit` and `Direct`)."""
        if self.has_job_features:
            return len(Direct)
        return len(Fit) if self.executor_classes else 0

    @property
    def num_limit_features(self) -> int:
        """Number of features of a limit; only its number, if the feature set is not `jobs`."""
        if self.limits is Limits.OUTPUTS:
            return 0
        return len(LimitFeature) if self.has_job_features else 1

    @property
    def limit_places(self) -> tuple[int, ...]:
        """Where the embeddings that the score of a limit takes begin among e_v, y_i and z.

        It takes y_i and z, and e_v if limits are of stages. Without a graph e_v takes y_i's place.
        """
        pair = (EMBEDDING if self.has_graph else 0, 2 * EMBEDDING)
        return {Limits.STAGE: (*pair, 0), Limits.NONE: ()}.get(self.limits, pair)


class Fit(IntEnum):
    """How a stage fits the offered executors."""

    OFFERED = 0  # number of offered executors, logarithmic
    SHARE = 1  # share of them that is large enough
    # Memory of the best-fitting class beyond the stage's demand, relative to the largest class.
    SPARE = 2
    # Demand that waits for the best-fitting class / executors of the class, logarithmic.
    WAITING = 3


class Direct(IntEnum):
    """What the scores know directly of a stage that may be chosen: the cluster, its job, itself.

    "Mean work" is the mean work of the workload's jobs.
    """

    OFFERED = 0  # offered executors / an eighth of the cluster, logarithmic
    IS_GLOBAL = 1  # whether the offered executors belong to no job
    JOBS = 2  # log of the number of jobs in the system
    OPEN = 3  # log of the number of jobs that want executors
    TOTAL = 4  # log of (remaining work of all jobs / mean work)
    IS_LOCAL = 5  # whether the offered executors belong to the job
    REMAINING = 6  # log of (the job's remaining work / mean work)
    RANK = 7  # share of the jobs in the system that have less remaining work
    STARTED = 8  # share of the job's work that has started
    HELD = 9  # executors that the job holds, without the offered ones / all executors
    WORTH = 10  # log of (remaining work / (1 + executors that the job holds) / mean work)
    # Executors that suit the job at four prices (`corrector.layout.LEVEL_PRICES`) / all executors
    LEVEL_CHEAP = 11
    LEVEL_FAIR = 12
    LEVEL_DEAR = 13
    LEVEL_DEAREST = 14
    IS_RUNNABLE = 15  # whether the stage's parents are complete
    PATH = 16  # length of the longest path from the stage on / that of the job
    DEMAND = 17  # executors that the stage can take / offered executors, at most 1
    WAVES = 18  # log of (tasks left / executors that the stage would have)
    ROUNDING = 19  # how much of the last of these waves of tasks would stay empty
    TASK = 20  # duration of its tasks / a tenth of the mean task, logarithmic
    OF_SIBLINGS = 21  # longest path from the stage on / that of the job's stages to choose from
    OF_JOB = 22  # share of the job's remaining work that is the stage's


#: The first features that differ between jobs, and between the stages of a job.
FIRST_OF_JOB = Direct.IS_LOCAL
FIRST_OF_STAGE = Direct.IS_RUNNABLE


class LimitFeature(IntEnum):
    """Inputs of the score of a limit in the feature set `jobs`."""

    LEVEL = 0  # limit / all executors
    LOG_LEVEL = 1  # log of the limit / 4
    ADDED = 2  # executors that the limit gives away / all executors
    OF_SOURCE = 3  # executors that the limit gives away / offered executors
    STRETCH = 4  # log of (solo duration on so many executors / shortest solo duration)
    INFLATION = 5  # log of (solo duration x limit / solo duration on one executor)
    OF_DEMAND = 6  # executors that the stage would take of those given away / that it can take
    WAVES = 7  # log of (tasks left / executors that the stage would have)
    ROUNDING = 8  # how much of the last of these waves of tasks would stay empty


class ClassFeature(IntEnum):
    """Inputs of the class head for one class."""

    CPU = 0  # relative to the class with the most cores
    MEMORY = 1  # relative to the class with the most memory
    SPARE = 2  # memory beyond the stage's demand, relative to the class with the most memory
    IS_BEST = 3  # whether it is the best-fitting of the offered classes
    OFFERED = 4  # share of the offered executors that are of this class
    COVERS = 5  # share of the limit that the offered executors of this class can fill
    FREE = 6  # share of the class that is idle in the global pool and not committed
    SHARE = 7  # share of the cluster's executors that are of this class
    WAITING = 8  # demand that fits no smaller class / executors of the class, logarithmic


class Transform(IntEnum):
    """The transforms of the network, in the order of the flat weights."""

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


class Unit(IntEnum):
    """What features are divided by, by their kind, and features that a run does not change."""

    TASKS = 0
    TASK_MS = 1  # durations of tasks, and of critical paths
    WORK_MS = 2
    GAP_MS = 3  # gaps between arrivals
    EXECUTORS = 4
    DELAY = 5  # a feature: how long executors move, compared with a task
    WIDTH = 6  # a feature: how many tasks a job has, compared with the executors


#: The units of the released code, made for TPC-H on 50 executors.
_RELEASED_UNITS = (200.0, 1e4, 1e5, 1e5, 20.0, 0.0, 0.0)


@dataclass(frozen=True)
class Magnitudes:
    """How large the jobs of a workload and a cluster are."""

    tasks: float
    task_ms: float
    moving_ms: float
    executors: int

    def units(self, features: FeatureSet) -> npt.NDArray[np.float64]:
        """Return the units of a feature set, float64[number of units]."""
        if features not in (FeatureSet.RELATIVE, FeatureSet.JOBS):
            return np.array(_RELEASED_UNITS)
        task_ms = max(1.0, self.task_ms)
        return np.array(
            [
                self.executors / 8.0,
                task_ms / 10.0,
                task_ms * self.tasks,
                task_ms * self.tasks / self.executors,
                self.executors / 2.5,
                math.log1p(10.0 * self.moving_ms / task_ms) / 2.0,
                math.log1p(self.tasks / self.executors),
            ]
        )


def decima_levels(num_executors: int, settings: DecimaSettings) -> npt.NDArray[np.int64]:
    """Return the limits to choose from: every number of executors, or about two dozen of them.

    # Deviation: Decima, section 5.2 gives a score to every limit; on clusters of more than 100
    executors, and with the feature set `jobs`, there are those of the solo curves.
    """
    from parcae.decima.solo_curves import limit_levels

    is_coarse = num_executors > 100 or settings.has_job_features
    return limit_levels(num_executors) if is_coarse else np.arange(1, num_executors + 1)


def sizes(settings: DecimaSettings, num_levels: int) -> dict[Transform, tuple[int, int]]:
    """Return the numbers of inputs and outputs of every transform."""
    d = EMBEDDING
    x = settings.num_features
    limit_in = len(settings.limit_places) * d + settings.num_limit_features
    if settings.has_job_features:
        limit_in += settings.num_direct
    limit_out = num_levels if settings.limits is Limits.OUTPUTS else 1
    sizes_by_transform = {
        Transform.PREP: (x, d),
        Transform.F_STAGE: (d, d),
        Transform.G_STAGE: (d, d),
        Transform.F_JOB: (x + d, d),
        Transform.G_JOB: (d, d),
        Transform.F_GLOBAL: (d, d),
        Transform.G_GLOBAL: (d, d),
        Transform.Q: (3 * d + settings.num_direct, 1),
        Transform.W: (limit_in, limit_out),
    }
    if settings.executor_classes:
        sizes_by_transform[Transform.CLASS] = (3 * d + len(ClassFeature), 1)
    if settings.idle_lengths:
        sizes_by_transform[Transform.IDLE] = (3 * d + 1, 1)
    return sizes_by_transform


def shapes(settings: DecimaSettings, num_levels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights by name, in the order of the flat array.

    Matrices are [in, out].
    """
    shape_by_name: dict[str, tuple[int, ...]] = {}
    for transform, (num_in, num_out) in sizes(settings, num_levels).items():
        widths = (
            [num_in, num_out]
            if transform is Transform.PREP
            else [num_in, HIDDEN_1, HIDDEN_2, num_out]
        )
        for layer, (a, b) in enumerate(itertools.pairwise(widths), 1):
            shape_by_name[f"{transform.name.lower()}.{layer}.weight"] = (a, b)
            shape_by_name[f"{transform.name.lower()}.{layer}.bias"] = (b,)
    if settings.idle_lengths:
        shape_by_name[NO_SLOT_NAME] = (1,)
    return shape_by_name


def starts(settings: DecimaSettings, num_levels: int) -> npt.NDArray[np.int64]:
    """Return where every transform's weights start in the flat array.

    The result is int64[number of transforms]; -1 stands for a transform that the network lacks.
    """
    first_offset = dict[str, int]()
    for name, at in offsets_of(shapes(settings, num_levels)).items():
        first_offset.setdefault(name.partition(".")[0], at)
    return np.array(
        [first_offset.get(transform.name.lower(), -1) for transform in Transform], np.int64
    )


def initial_weights(rng: np.random.Generator, settings: DecimaSettings, num_levels: int) -> Weights:
    """Draw the weights of an untrained network: Glorot-uniform matrices and zero biases.

    The idle head starts with a bias against idle slots.
    """
    weights = glorot(rng, shapes(settings, num_levels))
    if settings.idle_lengths:
        weights[NO_SLOT_NAME][:] = NO_SLOT
    return weights
