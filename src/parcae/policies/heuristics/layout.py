"""Kinds and parameters of the hand-made policies, and the memo tables of those that have one.

This module needs numpy only, so that both the kernels and the policy objects can import it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np


class HeuristicKind(IntEnum):
    """Which hand-made policy decides. The comments list the parameters of each kind."""

    STATIC = 0  # [cap]: first job in order of arrival that has fewer than cap executors
    # [cap]: as STATIC, but counts all executors ever granted to a job (the released "spark_fifo")
    GRANTED = 1
    FAIR = 2  # [number of shares: 0 = jobs with an unsaturated stage, 1 = all jobs in the system]
    WEIGHTED_FAIR = 3  # [alpha]: a job's weight is its total work ^ alpha
    SJF_CP = 4  # []
    RANDOM = 5  # [seed]
    SRPT_CAP = 6  # [cap]
    ORDER = 7  # [rank of job row 0, rank of job row 1, ...], smallest first
    TETRIS = 8  # [knob]: weight of the job's remaining work relative to the alignment
    # [alpha, smallest LongScore and largest FragScore of a troublesome stage, longest wait for
    # parents in s]
    GRAPHENE = 9
    # [cap, alone]: as SRPT_CAP, with idle slots; alone = 1 assumes that no other executor
    # ever becomes free
    IDLE_THEORY = 10


JOB_MEMO = np.dtype(
    [
        ("work_ms", "f8"),  # the work that `weight` was computed from
        ("weight", "f8"),  # 0 until it is computed
        ("fingerprint", "u8"),  # hash of the job's stages that its group was computed from
        ("num_troublesome", "i8"),  # stages in its troublesome group
        ("is_suppressed", "i8"),  # its group had to wait when the job was last examined
        ("cpu", "f8"),  # share of the cluster's cores that its executors have
        ("memory", "f8"),  # share of the cluster's memory that its executors have
        ("num_counted", "i8"),  # executors that work for it or move to it
    ],
    align=True,
)
STAGE_MEMO = np.dtype(
    [
        ("is_troublesome", "i8"),
        ("is_above", "i8"),  # a troublesome stage depends on it
        ("is_below", "i8"),  # it depends on a troublesome stage
    ],
    align=True,
)


class HeuristicMemo(NamedTuple):
    """Intermediate results that a policy reuses between decisions; rows as in the cluster's tables.

    A memo never changes a decision. Every row stores the input that it was computed from
    (`work_ms`, `fingerprint`), and is computed again when that input differs.
    """

    jobs: Any  # JOB_MEMO[num_jobs]
    stages: Any  # STAGE_MEMO[num_stages]


def allocate_memo(num_jobs: int, num_stages: int) -> HeuristicMemo:
    """Return an empty memo with rows for `num_jobs` jobs and `num_stages` stages."""
    return HeuristicMemo(
        np.zeros(num_jobs, JOB_MEMO).view(np.recarray),
        np.zeros(num_stages, STAGE_MEMO).view(np.recarray),
    )
