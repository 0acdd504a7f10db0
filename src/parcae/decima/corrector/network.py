"""The policy `parcae`'s network in PyTorch, over ragged batches of decisions, for training.

It computes the same function as the compiled pass in `kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from parcae.decima.corrector.kernels import (
    CRITIC_SHAPES,
    HIDDEN,
    SHAPES,
    SLOPE,
    CorrectorJobFeature,
    CorrectorLimitFeature,
    CorrectorSharedFeature,
)
from parcae.policies.networks.layout import Weights
from parcae.policies.networks.training import DeepSetNetwork, JobChoices, Judged, entropy_terms


@dataclass(frozen=True)
class CorrectorDecisions(JobChoices):
    """A batch of B decisions with K levels each, over R jobs."""

    can_choose: Tensor
    level: Tensor
    limits: Tensor
    can_limit: Tensor


class CorrectorModule(DeepSetNetwork):
    """The network; `layout` describes the architecture and names the parameters."""

    HIDDEN = HIDDEN
    SLOPE = SLOPE
    IS_RULE = CorrectorJobFeature.IS_RULE
    RULE_HOLDS = CorrectorSharedFeature.RULE_HOLDS
    CAN_HOLD = CorrectorSharedFeature.CAN_HOLD

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights, {**SHAPES, **CRITIC_SHAPES})

    def value(self, batch: CorrectorDecisions) -> Tensor:
        """Return the critic's value of every state, float32[B]. The trainer chooses the unit."""
        return self._value(self._contexts(batch)[1])

    def job_logits(self, batch: CorrectorDecisions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (hidden [R, H], context [B, H], logits of jobs [R], logits of hold [B]).

        Logits of impossible choices are -inf.
        """
        hidden, context = self._contexts(batch)
        return hidden, context, *self._choices(batch, hidden, context, batch.can_choose)

    def limit_logits(
        self, batch: CorrectorDecisions, hidden: Tensor, context: Tensor, at: Tensor
    ) -> Tensor:
        """Return the logits of the levels for the chosen jobs; -inf for impossible levels."""
        weight = self.table["limit1_weight"]
        row = batch.first_row[at] + batch.choice[at]
        base = torch.addmm(self.table["limit1_bias"], hidden.index_select(0, row), weight[:HIDDEN])
        base = base + context.index_select(0, at) @ weight[HIDDEN : 2 * HIDDEN]
        limits = batch.limits[at]
        layer = nn.functional.leaky_relu(base.unsqueeze(1) + limits @ weight[2 * HIDDEN :], SLOPE)
        logits = (layer @ self.table["limit2_weight"]).squeeze(2)
        logits = logits + self.table["prior"][2] * limits[:, :, CorrectorLimitFeature.IS_RULE]
        masked: Tensor = logits.masked_fill(~batch.can_limit[at], -torch.inf)
        return masked

    def forward(self, batch: CorrectorDecisions) -> Judged:
        """Return log probability and entropy of every recorded choice, and value of its state."""
        hidden, context, jobs, hold = self.job_logits(batch)
        log_prob, entropy = self._judged(batch, jobs, hold)
        # A level counts only if there were several to choose from.
        at = torch.nonzero((batch.level >= 0) & (batch.can_limit.sum(1) > 1)).squeeze(1)
        log_limits = torch.log_softmax(self.limit_logits(batch, hidden, context, at), 1)
        limit = log_limits.gather(1, batch.level[at].unsqueeze(1)).squeeze(1)
        log_prob = log_prob.index_add(0, at, limit)
        entropy = entropy.index_add(0, at, entropy_terms(log_limits).sum(1))
        return Judged(log_prob, entropy, self._value(context))
