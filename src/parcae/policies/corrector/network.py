"""The policy `parcae`'s network in PyTorch, over ragged batches of decisions, for training.

It computes the same function as the compiled pass in `kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.corrector.layout import (
    CRITIC_SHAPES,
    HIDDEN,
    SHAPES,
    SLOPE,
    JobFeature,
    LimitFeature,
    SharedFeature,
)
from parcae.policies.networks.layout import Weights
from parcae.policies.networks.ragged import Judged, entropy_terms, ragged_log_softmax


@dataclass(frozen=True)
class Decisions:
    """A batch of B decisions with K levels each, and R jobs in total (grouped by decision).

    Args:
        rows: float32[R, NUM_JOB_FEATURES], features of the jobs.
        owner: int64[R], the decision that a job belongs to.
        can_choose: bool[R], whether the decision could choose the job.
        first_row: int64[B], row of the decision's first job.
        num_jobs: int64[B], number of the decision's jobs.
        shared: float32[B, NUM_SHARED_FEATURES].
        choice: int64[B], position of the chosen job among the decision's jobs; `num_jobs` for hold.
        level: int64[B], column of the chosen level; -1 for hold.
        limits: float32[B, K, NUM_LIMIT_FEATURES], features of the levels for the chosen job.
        can_limit: bool[B, K], whether the level could be chosen.
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
    """The network; `layout` describes the architecture and names the parameters.

    Args:
        weights: the weights of actor and critic, by name.
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        names = [*SHAPES, *CRITIC_SHAPES]
        self.table = nn.ParameterDict(
            {n.replace(".", "_"): nn.Parameter(torch.from_numpy(weights[n].copy())) for n in names}
        )

    def _layer(self, name: str, x: Tensor) -> Tensor:
        """A linear layer with leaky ReLU."""
        out = torch.addmm(self.table[f"{name}_bias"], x, self.table[f"{name}_weight"])
        return nn.functional.leaky_relu(out, SLOPE)

    def _contexts(
        self, rows: Tensor, owner: Tensor, num_jobs: Tensor, shared: Tensor
    ) -> tuple[Tensor, Tensor]:
        """h_j of every job [R, H], and g of every decision [B, H] (see `layout`)."""
        hidden = self._layer("job2", self._layer("job1", rows))
        pooled = hidden.new_zeros(len(num_jobs), HIDDEN).index_add(0, owner, hidden)
        pooled = pooled / num_jobs.clamp(min=1).unsqueeze(1)
        return hidden, self._layer("context", torch.cat([pooled, shared], 1))

    def value(self, batch: Decisions) -> Tensor:
        """Return the critic's value of every state, float32[B]. The trainer chooses the unit."""
        return self._value(self._contexts(batch.rows, batch.owner, batch.num_jobs, batch.shared)[1])

    def _value(self, context: Tensor) -> Tensor:
        # The critic's loss must not change the layers that it shares with the actor, hence detach.
        out = (
            self._layer("value1", context.detach()) @ self.table["value2_weight"]
            + self.table["value2_bias"]
        )
        value: Tensor = out.squeeze(1)
        return value

    def job_logits(self, batch: Decisions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (hidden [R, H], context [B, H], logits of jobs [R], logits of hold [B]).

        Logits of impossible choices are -inf.
        """
        hidden, context = self._contexts(batch.rows, batch.owner, batch.num_jobs, batch.shared)
        weight = self.table["choice1_weight"]
        # The product with [h_j, g] is split into its two parts, since all jobs of a decision share
        # the part of g.
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
        """Return the logits of the levels for the chosen jobs; -inf for impossible levels.

        Args:
            batch: the decisions.
            hidden: float32[R, H], from `job_logits`.
            context: float32[B, H], from `job_logits`.
            at: int64[N], indices of the decisions to compute; each must have chosen a job.

        Returns:
            float32[N, K].
        """
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
        """Return log probability and entropy of every recorded choice, and value of its state."""
        hidden, context, jobs, hold = self.job_logits(batch)
        log_probs = ragged_log_softmax(jobs, batch.owner, len(batch), hold)
        log_jobs = log_probs[: len(jobs)]
        log_hold = log_probs[len(jobs) :]
        # A choice to hold is one past the decision's jobs; the clamp keeps its row in bounds.
        row = (batch.first_row + batch.choice).clamp(max=len(jobs) - 1)
        log_prob = torch.where(batch.level >= 0, log_jobs.index_select(0, row), log_hold)
        entropy = entropy_terms(log_hold).index_add(0, batch.owner, entropy_terms(log_jobs))
        # A level counts only if there were several to choose from.
        at = torch.nonzero((batch.level >= 0) & (batch.can_limit.sum(1) > 1)).squeeze(1)
        log_limits = torch.log_softmax(self.limit_logits(batch, hidden, context, at), 1)
        limit = log_limits.gather(1, batch.level[at].unsqueeze(1)).squeeze(1)
        log_prob = log_prob.index_add(0, at, limit)
        entropy = entropy.index_add(0, at, entropy_terms(log_limits).sum(1))
        return Judged(log_prob, entropy, self._value(context))

    def load_arrays(self, weights: Weights) -> None:
        """Replace all weights by the given ones."""
        with torch.no_grad():
            for name in (*SHAPES, *CRITIC_SHAPES):
                parameter = self.table[name.replace(".", "_")]
                parameter.copy_(
                    torch.from_numpy(np.array(weights[name], np.float32)).to(parameter.device)
                )

    def export(self) -> Weights:
        """Return the weights as arrays, by the names of the layout."""
        return {
            n: self.table[n.replace(".", "_")].detach().cpu().numpy().astype(np.float32)
            for n in [*SHAPES, *CRITIC_SHAPES]
        }
