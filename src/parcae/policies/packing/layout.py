"""The hand-made packing policies by number, and their parameters."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class PackingKind(IntEnum):
    """A hand-made packing policy."""

    SJF = 0  # shortest first
    PACKER = 1  # best alignment of what is free and what is asked
    TETRIS = 2  # knob: what alignment weighs beside 1 / duration
    RANDOM = 3  # seed, is_greedy
    FCFS = 4  # nobody overtakes
    EASY = 5  # is_shortest_first: order of backfilling
    CONSERVATIVE = 6  # depth: jobs that get a reservation
    WITHHOLD = 7  # the WithholdParameter
    AREA = 8  # least duration x share of the resources first


class WithholdParameter(IntEnum):
    """Parameters of the withholding rule (see `kernels.withholding`)."""

    ALIGNMENT = 0
    AGE = 1
    RESERVE = 2
    STEEPNESS = 3
    LENGTH = 4
    PATIENCE = 5
    CROWD = 6
    PAUSE = 7


#: Steps after the last arrival for which a network may leave an empty cluster empty, unless it is DeepRM, which may always.
LONGEST_PAUSE = 10


class Plan(NamedTuple):
    """Room for a plan of what is free when (with a leading axis: of many clusters)."""

    points: Any  # int64[num_points]
    free_from: Any  # int64[num_points, num_resources]
    num_points: Any  # int64[1]


def allocate_plan(count: int, num_points: int, num_resources: int) -> Plan:
    """Room for plans of `count` clusters."""
    points = np.zeros((count, num_points), np.int64)
    free_from = np.zeros((count, num_points, num_resources), np.int64)
    return Plan(points, free_from, np.zeros((count, 1), np.int64))
