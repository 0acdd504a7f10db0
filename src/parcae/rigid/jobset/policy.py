"""The set network as a policy object; it decides without PyTorch."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.kernels import row_of
from parcae.base.errors import FormatError
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import Weights, zeros
from parcae.rigid.jobset.kernels import (
    FEATURE_VERSION,
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
from parcae.rigid.layout import View
from parcae.rigid.policies.policy import CompiledPackingPolicy
from parcae.rigid.policies.scores import WithholdParameter


def allocate_workspace() -> JobSetWorkspace:
    """Allocate a workspace."""

    many = JobSetWorkspace(
        **zeros(1, np.int64, (MAX_ROWS,), "row"),
        **zeros(1, np.float64, (MAX_ROWS,), "score"),
        **zeros(1, np.int64, (len(LOOKAHEAD),), "look"),
        **zeros(1, np.float32, (MAX_ROWS, NUM_JOB_FEATURES), "features"),
        **zeros(1, np.float32, (MAX_ROWS, HIDDEN), "hidden"),
        **zeros(1, np.float32, (NUM_SHARED_FEATURES,), "shared"),
        **zeros(1, np.float32, (HIDDEN,), "context", "base", "layer"),
        **zeros(1, np.float32, (MAX_ROWS + 1,), "logits"),
    )
    return row_of(many, 0)


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

    def tables(self, views: View) -> JobSetParts:
        """The network, and a workspace of this call only, so that threads can run side by side."""
        return JobSetParts(self.network, allocate_workspace())

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, path: str, name: str) -> JobSetPolicy:
        """Return the policy of a checkpoint."""
        checkpoint.require("set", FEATURE_VERSION, path)
        return cls(name, checkpoint.weights)
