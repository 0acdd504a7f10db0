"""The withholding rule's parameters, and the buffers of backfilling."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class WithholdParameter(IntEnum):
    """Parameters of the withholding rule (see `kernels.scores.withholding`)."""

    ALIGNMENT = 0  # weight of alignment in a job's score
    AGE = 1  # weight of log(1 + age / duration) in a job's score
    RESERVE = 2  # share that the longest jobs must leave free
    STEEPNESS = 3  # how fast the reserve grows with the log duration
    LENGTH = 4  # log duration at which half the reserve is required
    PATIENCE = 5  # how fast the reserve shrinks with log(1 + age / duration)
    CROWD = 6  # how fast the reserve shrinks with log(1 + jobs waiting)
    PAUSE = 7  # steps for which an empty cluster may stay empty after the last arrival


#: Steps after the last arrival for which a network may leave an empty cluster empty. It does not
#: apply to DeepRM, which may always do so.
LONGEST_PAUSE = 10


class Plan(NamedTuple):
    """Buffers for a profile of free resources with reservations.

    With a leading axis, they are for many clusters.

    `free_from[k]` units are free from `points[k]` until `points[k + 1]`; the last row holds for
    ever.
    """

    points: Any  # int64[num_points]
    free_from: Any  # int64[num_points, num_resources]
    num_points: Any  # int64[1]


def allocate_plan(count: int, num_points: int, num_resources: int) -> Plan:
    """Allocate plans for `count` clusters.

    Args:
        count: length of the leading axis.
        num_points: points of a plan at most.
        num_resources: number of resources.
    """
    points = np.zeros((count, num_points), np.int64)
    free_from = np.zeros((count, num_points, num_resources), np.int64)
    return Plan(points, free_from, np.zeros((count, 1), np.int64))
