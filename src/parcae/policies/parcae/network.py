"""The same network in PyTorch, over ragged batches of decisions: for training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.networks.layout import Weights
from parcae.policies.networks.ragged import Judged, entropy_terms, ragged_log_softmax
from parcae.policies.parcae.layout import (
    CRITIC_SHAPES,
    HIDDEN,
    SHAPES,
    SLOPE,
    JobFeature,
    LimitFeature,
    SharedFeature,
)


@dataclass(frozen=True)
class Decisions:
    """A batch of B decisions over R jobs (the jobs of all decisions, one after another) and K levels.

    Args:
        rows: float32[R, job features]. owner: int64[R], the decision that a job belongs to.
        can_choose: bool[R]. first_row: int64[B], the decision's first job.
        shared: float32[B, shared features].
        choice: int64[B], position of the chosen job, or the number of jobs for hold. num_jobs: int64[B].
        level: int64[B], chosen level, -1 for hold.
        limits: float32[B, K, limit features] of the chosen job. can_limit: bool[B, K].
    """

    rows: Tensor
    owner: Tensor
    can_choose: Tensor
    first_row: Tensor
    num_jobs: Tensor
    shared: Tensor
    choice: Tensor
    level: Tensor
    limits: Tensor
    can_limit: Tensor

    def __len__(self) -> int:
        return len(self.choice)


class ParcaeNetwork(nn.Module):
    """See `layout` for the architecture; parameters are named as there, matrices are [in, out]."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        names = [*SHAPES, *CRITIC_SHAPES]
        self.table = nn.ParameterDict(
            {n.replace(".", "_"): nn.Parameter(torch.from_numpy(weights[n].copy())) for n in names}
        )

    def _layer(self, name: str, x: Tensor) -> Tensor:
        out = torch.addmm(self.table[f"{name}_bias"], x, self.table[f"{name}_weight"])
        return nn.functional.leaky_relu(out, SLOPE)

    def _contexts(
        self, rows: Tensor, owner: Tensor, num_jobs: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden = self._layer("job2", self._layer("job1", rows))
        pooled = hidden.new_zeros(len(num_jobs), HIDDEN).index_add(0, owner, hidden)
        pooled = pooled / num_jobs.clamp(min=1).unsqueeze(1)
        return hidden, self._layer("context", torch.cat([pooled, shared], 1))

    def value(self, batch: Decisions) -> Tensor:
        """The critic's value of every state, float32[B], in units of the trainer's choosing."""
        return self._value(self._contexts(batch.rows, batch.owner, batch.num_jobs, batch.shared)[1])

    def _value(self, context: Tensor) -> Tensor:
        out = (
            self._layer("value1", context.detach()) @ self.table["value2_weight"]
            + self.table["value2_bias"]
        )
        value: Tensor = out.squeeze(1)
        return value

    def job_logits(self, batch: Decisions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(hidden [R, H], context [B, H], logits of jobs [R], of hold [B]); -inf where impossible."""
        hidden, context = self._contexts(batch.rows, batch.owner, batch.num_jobs, batch.shared)
        weight = self.table["choice1_weight"]
        base = torch.addmm(self.table["choice1_bias"], context, weight[HIDDEN:])
        layer = nn.functional.leaky_relu(
            hidden @ weight[:HIDDEN] + base.index_select(0, batch.owner), SLOPE
        )
        prior = self.table["prior"]
        jobs = (layer @ self.table["choice2_weight"]).squeeze(1) + prior[0] * batch.rows[
            :, JobFeature.IS_RULE
        ]
        hold = (context @ self.table["hold_weight"]).squeeze(1) + self.table["hold_bias"]
        hold = hold + prior[1] * batch.shared[:, SharedFeature.RULE_HOLDS]
        jobs = jobs.masked_fill(~batch.can_choose, -torch.inf)
        hold = hold.masked_fill(batch.shared[:, SharedFeature.CAN_HOLD] == 0, -torch.inf)
        return hidden, context, jobs, hold

    def limit_logits(self, batch: Decisions, hidden: Tensor, context: Tensor, at: Tensor) -> Tensor:
        """Logits of the chosen jobs' levels, float32[len(at), K], of the decisions `at`; -inf where impossible."""
        weight = self.table["limit1_weight"]
        row = batch.first_row[at] + batch.choice[at]
        base = torch.addmm(self.table["limit1_bias"], hidden.index_select(0, row), weight[:HIDDEN])
        base = base + context.index_select(0, at) @ weight[HIDDEN : 2 * HIDDEN]
        limits = batch.limits[at]
        layer = nn.functional.leaky_relu(base.unsqueeze(1) + limits @ weight[2 * HIDDEN :], SLOPE)
        logits = (layer @ self.table["limit2_weight"]).squeeze(2)
        logits = logits + self.table["prior"][2] * limits[:, :, LimitFeature.IS_RULE]
        masked: Tensor = logits.masked_fill(~batch.can_limit[at], -torch.inf)
        return masked

    def forward(self, batch: Decisions) -> Judged:
        """Log probability of every recorded choice, entropy of the distributions it was drawn from, value of the state."""
        hidden, context, jobs, hold = self.job_logits(batch)
        log_probs = ragged_log_softmax(jobs, batch.owner, len(batch), hold)
        log_jobs = log_probs[: len(jobs)]
        log_hold = log_probs[len(jobs) :]
        row = (batch.first_row + batch.choice).clamp(max=len(jobs) - 1)
        log_prob = torch.where(batch.level >= 0, log_jobs.index_select(0, row), log_hold)
        entropy = entropy_terms(log_hold).index_add(0, batch.owner, entropy_terms(log_jobs))
        at = torch.nonzero((batch.level >= 0) & (batch.can_limit.sum(1) > 1)).squeeze(1)
        log_limits = torch.log_softmax(self.limit_logits(batch, hidden, context, at), 1)
        limit = log_limits.gather(1, batch.level[at].unsqueeze(1)).squeeze(1)
        log_prob = log_prob.index_add(0, at, limit)
        entropy = entropy.index_add(0, at, entropy_terms(log_limits).sum(1))
        return Judged(log_prob, entropy, self._value(context))

    def load_arrays(self, weights: Weights) -> None:
        """Take these weights."""
        with torch.no_grad():
            for name in (*SHAPES, *CRITIC_SHAPES):
                parameter = self.table[name.replace(".", "_")]
                parameter.copy_(
                    torch.from_numpy(np.array(weights[name], np.float32)).to(parameter.device)
                )

    def export(self) -> Weights:
        """The weights as arrays, by the names of the layout."""
        return {
            n: self.table[n.replace(".", "_")].detach().cpu().numpy().astype(np.float32)
            for n in [*SHAPES, *CRITIC_SHAPES]
        }
