"""The corrector for the trainer: joins recorded decisions into a data set of minibatches."""

from __future__ import annotations

from typing import Any

import numpy as np

from parcae.base.compiled.tables import allocate_tables
from parcae.decima.corrector.kernels import FEATURE_VERSION, CorrectorRecord, initial_weights
from parcae.decima.corrector.network import CorrectorDecisions, CorrectorModule
from parcae.decima.corrector.policy import CorrectorPolicy, allocate_workspace
from parcae.decima.learning.family import Rollout
from parcae.decima.rule import Parameters
from parcae.decima.solo_curves import solo_curves
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights
from parcae.policies.networks.training import JobData

#: Job rows that a record has room for, per decision. Where a scenario has fewer jobs, all fit.
_JOBS_PER_DECISION = 24


class CorrectorFamily:
    """The `Family` of the corrector for a scenario.

    Args:
        scenario: what to train for.
        parameters: parameters of the rule that the network corrects.
        prior: initial logits of the rule's choices of job, hold and limit.
    """

    name = "corrector"
    feature_version = FEATURE_VERSION
    imitates = False

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

    def fit(self, network: CorrectorModule) -> None:
        """Nothing: the network does not depend on the scenario."""

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
