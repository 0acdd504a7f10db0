"""The set network as a policy object; it decides without PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcae.base.compiled.kernels import row_of
from parcae.base.errors import FormatError
from parcae.cluster.kernels.policies import decide
from parcae.policies.networks.layout import Weights, zeros
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

    def floats(shape: tuple[int, ...], *names: str) -> dict[str, Any]:
        return zeros(count, np.float32, shape, *names)

    return JobSetWorkspace(
        **zeros(count, np.int64, (MAX_ROWS,), "row"),
        **zeros(count, np.float64, (MAX_ROWS,), "score"),
        **zeros(count, np.int64, (len(LOOKAHEAD),), "look"),
        **floats((MAX_ROWS, NUM_JOB_FEATURES), "features"),
        **floats((MAX_ROWS, HIDDEN), "hidden"),
        **floats((NUM_SHARED_FEATURES,), "shared"),
        **floats((HIDDEN,), "context", "base", "layer"),
        **floats((MAX_ROWS + 1,), "logits"),
    )


def allocate_record(count: int, capacity: int, num_rows: int) -> JobSetRecord:
    """Allocate a record for each of many clusters (the leading axis)."""
    return JobSetRecord(
        **zeros(count, np.int64, (1,), "count", "num_rows"),
        **zeros(count, np.int64, (capacity,), "now", "choice"),
        **zeros(count, np.int64, (capacity + 1,), "first_row"),
        **zeros(count, np.float64, (capacity,), "cost"),
        **zeros(count, np.float32, (capacity,), "log_prob"),
        **zeros(count, np.float32, (capacity, NUM_SHARED_FEATURES), "shared"),
        **zeros(count, np.float32, (num_rows, NUM_JOB_FEATURES), "rows"),
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
