"""The set network as a policy object; it decides without PyTorch."""

from __future__ import annotations

import numpy as np

from parcae.base.compiled.tables import empty_tables
from parcae.base.errors import FormatError
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import Weights
from parcae.rigid.jobset.kernels import (
    FEATURE_VERSION,
    JobSetParts,
    JobSetTables,
    JobSetWorkspace,
    flatten,
)
from parcae.rigid.layout import View
from parcae.rigid.policies.policy import CompiledPackingPolicy
from parcae.rigid.policies.scores import WithholdParameter


class JobSetPolicy(CompiledPackingPolicy):
    """The set network with its weights.

    It takes the most probable decision, and never lets time pass for ever.
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
        return JobSetParts(self.network, JobSetWorkspace(**empty_tables(JobSetWorkspace)))

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, path: str, name: str) -> JobSetPolicy:
        """Return the policy of a checkpoint."""
        checkpoint.require("set", FEATURE_VERSION, path)
        return cls(name, checkpoint.weights)
