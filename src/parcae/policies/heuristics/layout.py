"""The memo tables of the hand-made policies that have one.

This module needs numpy only, so that both the kernels and the policy objects can import it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
        ("fingerprint", "u8"),  # that of the job that the marks were computed for
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
