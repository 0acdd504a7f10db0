"""The set network in PyTorch, over ragged batches of decisions: used for training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.jobset.layout import (
    CRITIC_SHAPES,
    HIDDEN,
    SHAPES,
    SLOPE,
    JobFeature,
    SharedFeature,
)
from parcae.policies.networks.layout import Weights
from parcae.policies.networks.ragged import Judged, entropy_terms, ragged_log_softmax

_NAMES = (*SHAPES, *CRITIC_SHAPES)


@dataclass(frozen=True)
class Decisions:
    """A batch of B decisions over R jobs; the jobs of all decisions lie one after another.

    Args:
        rows: float32[R, job features].
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


class JobSetNetwork(nn.Module):
    """The set network with a critic; `layout` describes the architecture.

    Parameters are named as in `layout`, with _ for the dot; matrices are [in, out].
    """

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.table = nn.ParameterDict(
            {n.replace(".", "_"): nn.Parameter(torch.from_numpy(weights[n].copy())) for n in _NAMES}
        )

    def _layer(self, name: str, x: Tensor) -> Tensor:
        out = torch.addmm(self.table[f"{name}_bias"], x, self.table[f"{name}_weight"])
        return nn.functional.leaky_relu(out, SLOPE)

    def logits(self, batch: Decisions) -> tuple[Tensor, Tensor, Tensor]:
        """Return (logits of jobs [R], of hold [B], context [B, HIDDEN]); -inf means impossible."""
        hidden = self._layer("job2", self._layer("job1", batch.rows))
        pooled = hidden.new_zeros(len(batch), HIDDEN).index_add(0, batch.owner, hidden)
        pooled = pooled / batch.num_jobs.clamp(min=1).unsqueeze(1)
        context = self._layer("context", torch.cat([pooled, batch.shared], 1))
        weight = self.table["choice1_weight"]
        prior = self.table["prior"]
        base = torch.addmm(self.table["choice1_bias"], context, weight[HIDDEN:])
        layer = nn.functional.leaky_relu(
            hidden @ weight[:HIDDEN] + base.index_select(0, batch.owner), SLOPE
        )
        jobs = (layer @ self.table["choice2_weight"]).squeeze(1) + prior[0] * batch.rows[
            :, JobFeature.IS_RULE
        ]
        hold = (context @ self.table["hold_weight"]).squeeze(1) + self.table["hold_bias"]
        hold = hold + prior[1] * batch.shared[:, SharedFeature.RULE_HOLDS]
        jobs = jobs.masked_fill(batch.rows[:, JobFeature.CAN_START] == 0, -torch.inf)
        hold = hold.masked_fill(batch.shared[:, SharedFeature.CAN_HOLD] == 0, -torch.inf)
        return jobs, hold, context

    def forward(self, batch: Decisions) -> Judged:
        """Evaluate recorded decisions: log probability of each choice, entropy, and state value."""
        jobs, hold, context = self.logits(batch)
        log_probs = ragged_log_softmax(jobs, batch.owner, len(batch), hold)
        log_jobs = log_probs[: len(jobs)]
        log_hold = log_probs[len(jobs) :]
        row = (batch.first_row + batch.choice).clamp(max=len(jobs) - 1)
        log_prob = torch.where(
            batch.choice < batch.num_jobs, log_jobs.index_select(0, row), log_hold
        )
        entropy = entropy_terms(log_hold).index_add(0, batch.owner, entropy_terms(log_jobs))
        value = (
            self._layer("value1", context.detach()) @ self.table["value2_weight"]
            + self.table["value2_bias"]
        )
        return Judged(log_prob, entropy, value.squeeze(1))

    def load_arrays(self, weights: Weights) -> None:
        """Set all weights."""
        with torch.no_grad():
            for name in _NAMES:
                self.table[name.replace(".", "_")].copy_(
                    torch.from_numpy(np.array(weights[name], np.float32))
                )

    def export(self) -> Weights:
        """Return the weights as arrays, by the names of the layout."""
        return {
            n: self.table[n.replace(".", "_")].detach().numpy().astype(np.float32) for n in _NAMES
        }
