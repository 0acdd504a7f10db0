"""The hand-made policies' names, parameters and what they remember; numpy only."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class HeuristicKind(IntEnum):
    """Which rule decides; the meaning of its parameters stands beside each."""

    STATIC = 0  # [cap]: first job in order of arrival that holds fewer than cap
    GRANTED = 1  # [cap]: first job that was ever granted fewer than cap (the released "spark_fifo")
    FAIR = 2  # [divides by: 0 jobs with an unsaturated stage, 1 all jobs in the system]
    WEIGHTED_FAIR = 3  # [alpha]
    SJF_CP = 4  # []
    RANDOM = 5  # [seed]
    SRPT_CAP = 6  # [cap]
    ORDER = 7  # rank of every job row, smallest first
    TETRIS = 8  # [knob]: weight of the job's remaining work beside the alignment
    GRAPHENE = 9  # [alpha, least LongScore, greatest FragScore of a troublesome stage, longest wait for parents in s]
    IDLE_THEORY = 10  # [cap, 1 to take the last free executor for the only machine there is]: as SRPT_CAP, with idle slots


KNOWN_JOB = np.dtype(
    [
        ("work_ms", "f8"),  # the work that `weight` is for
        ("weight", "f8"),  # 0 until it is known
        ("fingerprint", "u8"),  # of the job's stages, for which its group was found
        ("num_troublesome", "i8"),  # stages in its group
        ("is_suppressed", "i8"),  # its group was found to wait when the job was last looked at
        ("cpu", "f8"),  # share of the cluster's cores that its executors have
        ("memory", "f8"),  # share of its memory
        ("num_seen", "i8"),  # executors that work for it or move to it
    ],
    align=True,
)
KNOWN_STAGE = np.dtype(
    [
        ("is_troublesome", "i8"),
        ("is_above", "i8"),  # a troublesome stage depends on it
        ("is_below", "i8"),  # it depends on a troublesome stage
    ],
    align=True,
)


class Known(NamedTuple):
    """What a rule need not work out at every decision; rows as in the cluster's tables.

    Nothing here is more than a shortcut: every row says what it was found for, and is found anew for anything else.
    """

    jobs: Any  # KNOWN_JOB[num_jobs]
    stages: Any  # KNOWN_STAGE[num_stages]


def allocate_known(num_jobs: int, num_stages: int) -> Known:
    """Room for what is known of so many jobs and stages; nothing is known yet."""
    return Known(
        np.zeros(num_jobs, KNOWN_JOB).view(np.recarray),
        np.zeros(num_stages, KNOWN_STAGE).view(np.recarray),
    )
