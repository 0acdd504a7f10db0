"""The set network as a policy object; it decides without PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import row_of
from parcae.base.errors import FormatError
from parcae.cluster.kernels.policies import decide
from parcae.policies.networks.layout import Weights
from parcae.rigid.jobset.kernels import (
    HIDDEN,
    LOOKAHEAD,
    MAX_ROWS,
    NUM_JOB_FEATURES,
    NUM_SHARED_FEATURES,
    JobSetParts,
    JobSetRecord,
    JobSetTables,
    JobSetWorkspace,
    flatten,
)
from parcae.rigid.layout import Packing, View
from parcae.rigid.policies.kernels.scores import WithholdParameter
from parcae.rigid.policies.policy import CompiledPackingPolicy


def allocate_workspace(count: int) -> JobSetWorkspace:
    """Allocate a workspace for each of many clusters (the leading axis)."""

    def floats(*shape: int) -> npt.NDArray[np.float32]:
        return np.zeros((count, *shape), np.float32)

    return JobSetWorkspace(
        row=np.zeros((count, MAX_ROWS), np.int64),
        score=np.zeros((count, MAX_ROWS), np.float64),
        look=np.zeros((count, len(LOOKAHEAD)), np.int64),
        features=floats(MAX_ROWS, NUM_JOB_FEATURES),
        hidden=floats(MAX_ROWS, HIDDEN),
        shared=floats(NUM_SHARED_FEATURES),
        context=floats(HIDDEN),
        base=floats(HIDDEN),
        layer=floats(HIDDEN),
        logits=floats(MAX_ROWS + 1),
    )


def allocate_record(count: int, capacity: int, row_capacity: int) -> JobSetRecord:
    """Allocate a record for each of many clusters (the leading axis)."""

    def zeros(dtype: Any, *shape: int) -> npt.NDArray[Any]:
        return np.zeros((count, *shape), dtype)

    return JobSetRecord(
        count=zeros(np.int64, 1),
        num_rows=zeros(np.int64, 1),
        now=zeros(np.int64, capacity),
        cost=zeros(np.float64, capacity),
        first_row=zeros(np.int64, capacity + 1),
        choice=zeros(np.int64, capacity),
        log_prob=zeros(np.float32, capacity),
        shared=zeros(np.float32, capacity, NUM_SHARED_FEATURES),
        rows=zeros(np.float32, row_capacity, NUM_JOB_FEATURES),
    )


class JobSetPolicy(CompiledPackingPolicy):
    """The set network with its weights.

    It takes the most probable decision, and never lets time pass for ever.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    wants_profile = True

    def __init__(self, name: str, weights: Weights) -> None:
        self.name = name
        rule = np.array(weights.get("rule", ()), np.float64)
        if rule.shape != (len(WithholdParameter),):
            raise FormatError(
                f"{name}: the checkpoint holds a withholding rule of {rule.size} parameters, "
                f"not {len(WithholdParameter)}; train it again"
            )
        self.network = JobSetTables(flatten(weights, name), rule)
        self._work = row_of(allocate_workspace(1), 0)

    def tables_for(self, states: Packing, views: View) -> JobSetParts:
        """The network, and a workspace of this call only, so that threads can run side by side."""
        return JobSetParts(self.network, row_of(allocate_workspace(1), 0))

    def decide(self, view: View) -> int:
        """Return the slot whose job to place now, or VOID, for the view of one cluster."""
        self.check_view(view)
        return int(decide(view, JobSetParts(self.network, self._work)))
