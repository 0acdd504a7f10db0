"""A deep set over jobs in PyTorch, over ragged batches of decisions, for training.

`parcae.policies.networks.layout.deep_set_shapes` describes the architecture. The compiled pass is
in `parcae.policies.networks.kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from parcae.policies.networks.ragged import entropy_terms, ragged_log_softmax
from parcae.policies.networks.table import TableNetwork


@dataclass(frozen=True)
class JobChoices:
    """A batch of B recorded choices of a job or hold, over R jobs.

    Args:
        rows: float32[R, job features]; the jobs of all decisions lie one after another.
        owner: int64[R], the decision that a job belongs to.
        first_row: int64[B], the decision's first job.
        num_jobs: int64[B].
        shared: float32[B, shared features].
        choice: int64[B], position of the chosen job, or the number of jobs for hold.
    """

    rows: Tensor
    owner: Tensor
    first_row: Tensor
    num_jobs: Tensor
    shared: Tensor
    choice: Tensor

    def __len__(self) -> int:
        return len(self.choice)


class DeepSetNetwork(TableNetwork):
    """A network that chooses a job or holds, with a critic. A subclass names sizes and columns."""

    #: Number of hidden units, and the slope of the leaky rectifier below zero.
    HIDDEN: ClassVar[int]
    SLOPE: ClassVar[float]
    #: Columns: the rule chooses the job; the rule holds; a decision may hold.
    IS_RULE: ClassVar[int]
    RULE_HOLDS: ClassVar[int]
    CAN_HOLD: ClassVar[int]

    def _layer(self, name: str, x: Tensor) -> Tensor:
        """A linear layer with leaky rectifier."""
        return nn.functional.leaky_relu(self.linear(name, x), self.SLOPE)

    def _contexts(self, batch: JobChoices) -> tuple[Tensor, Tensor]:
        """h_j of every job [R, H], and g of every decision [B, H]."""
        hidden = self._layer("job2", self._layer("job1", batch.rows))
        pooled = hidden.new_zeros(len(batch), self.HIDDEN)
        pooled = pooled.index_add(0, batch.owner, hidden)
        pooled = pooled / batch.num_jobs.clamp(min=1).unsqueeze(1)
        return hidden, self._layer("context", torch.cat([pooled, batch.shared], 1))

    def _value(self, context: Tensor) -> Tensor:
        # The critic's loss must not change the layers that it shares with the actor, hence detach.
        layer = self._layer("value1", context.detach())
        out = layer @ self.table["value2_weight"] + self.table["value2_bias"]
        value: Tensor = out.squeeze(1)
        return value

    def _choices(
        self, batch: JobChoices, hidden: Tensor, context: Tensor, can_choose: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(logits of jobs [R], logits of hold [B]); those of impossible choices are -inf."""
        weight = self.table["choice1_weight"]
        # The product with [h_j, g] is split into its two parts, since all jobs of a decision share
        # the part of g.
        base = torch.addmm(self.table["choice1_bias"], context, weight[self.HIDDEN :])
        layer = nn.functional.leaky_relu(
            hidden @ weight[: self.HIDDEN] + base.index_select(0, batch.owner), self.SLOPE
        )
        prior = self.table["prior"]
        jobs = (layer @ self.table["choice2_weight"]).squeeze(1)
        jobs = jobs + prior[0] * batch.rows[:, self.IS_RULE]
        hold = (context @ self.table["hold_weight"]).squeeze(1) + self.table["hold_bias"]
        hold = hold + prior[1] * batch.shared[:, self.RULE_HOLDS]
        hold = hold.masked_fill(batch.shared[:, self.CAN_HOLD] == 0, -torch.inf)
        return jobs.masked_fill(~can_choose, -torch.inf), hold

    @staticmethod
    def _judged(batch: JobChoices, jobs: Tensor, hold: Tensor) -> tuple[Tensor, Tensor]:
        """Log probability of every recorded choice of a job or hold, and entropy, [B] each."""
        log_probs = ragged_log_softmax(jobs, batch.owner, len(batch), hold)
        log_jobs = log_probs[: len(jobs)]
        log_hold = log_probs[len(jobs) :]
        # A choice to hold is one past the decision's jobs; the clamp keeps its row in bounds.
        row = (batch.first_row + batch.choice).clamp(max=len(jobs) - 1)
        is_job = batch.choice < batch.num_jobs
        log_prob = torch.where(is_job, log_jobs.index_select(0, row), log_hold)
        entropy = entropy_terms(log_hold).index_add(0, batch.owner, entropy_terms(log_jobs))
        return log_prob, entropy
