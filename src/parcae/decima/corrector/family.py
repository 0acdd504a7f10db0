"""The corrector for the trainer: its network in PyTorch, over ragged batches of decisions.

The network computes the same function as the compiled pass in `kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parcae.base.compiled.tables import allocate_tables
from parcae.decima.corrector.kernels import (
    CRITIC_SHAPES,
    FEATURE_VERSION,
    HIDDEN,
    NET,
    SHAPES,
    CorrectorLimitFeature,
    CorrectorRecord,
    initial_weights,
)
from parcae.decima.corrector.policy import CorrectorPolicy, allocate_workspace
from parcae.decima.learning.updates import Rollout
from parcae.decima.rule import Parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.layout import SLOPE
from parcae.policies.networks.training import (
    DeepSetNetwork,
    JobChoices,
    JobData,
    Judged,
    entropy_terms,
)

#: Job rows that a record has room for, per decision. Where a scenario has fewer jobs, all fit.
_JOBS_PER_DECISION = 24


@dataclass(frozen=True)
class CorrectorDecisions(JobChoices):
    """A batch of B decisions with K levels each, over R jobs."""

    can_choose: Tensor
    level: Tensor
    limits: Tensor
    can_limit: Tensor


class CorrectorModule(DeepSetNetwork):
    """The network; `layout` describes the architecture and names the parameters."""

    NET = NET

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


class CorrectorFamily:
    """The corrector for a scenario: all that a training needs to know about it.

    Args:
        scenario: what to train for.
        parameters: parameters of the rule that the network corrects.
        prior: initial logits of the rule's choices of job, hold and limit.
    """

    name = "corrector"
    feature_version = FEATURE_VERSION

    def __init__(
        self, scenario: Scenario, parameters: Parameters, prior: tuple[float, float, float]
    ) -> None:
        self.scenario = scenario
        self.parameters = np.asarray(parameters, np.float64)
        self.prior = prior
        # How long each job takes alone at every level of executors; the rule needs them.
        self.curves = solo_curves(scenario.workload, scenario.config)

    @property
    def settings(self) -> dict[str, Any]:
        """None: the network has no settings."""
        return {}

    @property
    def fixed_weights(self) -> Weights:
        """The parameters of the rule."""
        return {"rule": self.parameters}

    def initial_weights(self, rng: np.random.Generator) -> Weights:
        """Initial weights: the network then chooses what the rule chooses, with some randomness."""
        return dict(initial_weights(rng, self.prior))

    def network(self, weights: Weights) -> CorrectorModule:
        """The batched network with these weights."""
        return CorrectorModule(weights)

    def policy(self, weights: Weights) -> CorrectorPolicy:
        """The policy with these weights."""
        return CorrectorPolicy("corrector", weights, tuple(self.parameters), self.curves)

    def allocate(self, num_simulators: int, capacity: int) -> tuple[Any, Any]:
        """Workspaces and records for this many simulators."""
        num_jobs = self.scenario.num_jobs
        levels = len(self.curves.levels)
        works = allocate_workspace(num_simulators, num_jobs, levels)
        # The record also holds the state in which a rollout ends.
        rows = capacity * min(num_jobs, _JOBS_PER_DECISION) + 2 * num_jobs
        records = allocate_tables(
            CorrectorRecord, num_simulators, decisions=capacity + 1, rows=rows, levels=levels
        )
        return works, records

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> JobData:
        """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
        return JobData(
            [rollout.record for rollout in rollouts],
            [rollout.span(ends) for rollout in rollouts],
            CorrectorDecisions,
        )
