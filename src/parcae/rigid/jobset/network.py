"""The set network in PyTorch, over ragged batches of decisions: used for training."""

from __future__ import annotations

from torch import Tensor

from parcae.policies.networks.layout import Weights
from parcae.policies.networks.training import DeepSetNetwork, JobChoices, Judged
from parcae.rigid.jobset.kernels import (
    CRITIC_SHAPES,
    HIDDEN,
    SHAPES,
    SLOPE,
    RigidJobFeature,
    RigidSharedFeature,
)


class JobSetNetwork(DeepSetNetwork):
    """The set network with a critic; `layout` describes the architecture."""

    HIDDEN = HIDDEN
    SLOPE = SLOPE
    IS_RULE = RigidJobFeature.IS_RULE
    RULE_HOLDS = RigidSharedFeature.RULE_HOLDS
    CAN_HOLD = RigidSharedFeature.CAN_HOLD

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, {**SHAPES, **CRITIC_SHAPES})

    def logits(self, batch: JobChoices) -> tuple[Tensor, Tensor, Tensor]:
        """Return (logits of jobs [R], of hold [B], context [B, HIDDEN]); -inf means impossible."""
        hidden, context = self._contexts(batch)
        can_start = batch.rows[:, RigidJobFeature.CAN_START] != 0
        return *self._choices(batch, hidden, context, can_start), context

    def forward(self, batch: JobChoices) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        jobs, hold, context = self.logits(batch)
        return Judged(*self._judged(batch, jobs, hold), self._value(context))
