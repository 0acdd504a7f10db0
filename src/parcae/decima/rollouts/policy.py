"""`RolloutPolicy`: a policy that tries its decisions in rollouts first.

Source: Bertsekas and Castanon, "Rollout algorithms for stochastic scheduling problems" (1999).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from parcae.cluster.decision import Decision
from parcae.cluster.kernels.tables import may_idle
from parcae.cluster.observation import Observation
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.candidates import candidates
from parcae.decima.rollouts.playing import (
    Assumptions,
    Rollouts,
    Trials,
    roll_out,
)
from parcae.decima.rollouts.race import Budget, Clock, choose
from parcae.decima.rollouts.runs import PlayTrials, RolloutModel, RolloutRuns, Sampler
from parcae.decima.rule.policy import RulePolicy
from parcae.policies.compiled import size_of
from parcae.simulation.kernels.playing import Simulation

#: Stages that Decima's network proposes.
_PROPOSALS = 8


@dataclass
class RolloutPolicy:
    """A policy of Decima's world that tries its decisions first.

    It plays every candidate decision in rollouts that go on under a fast policy, with everything
    unknown drawn anew, and takes the one after which jobs spend the least time in the system. If
    none is surely better, it takes the decision of its base policy.
    """

    name: str
    base: Any
    player: RulePolicy | HeuristicPolicy | DecimaPolicy
    model: RolloutModel
    budget: Budget = field(default_factory=Budget)

    def __post_init__(self) -> None:
        self._runs = RolloutRuns(self.model, self.budget.num_threads)

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event."""
        clock = Clock(self.budget)
        options = self.options(observation)
        if len(options) == 1:
            return options[0]
        self._runs.fit(observation)
        sampler = Sampler(self._runs, observation, options, self.rollouts_from(observation), clock)
        row = choose(sampler, len(options), self.budget, clock, sampler.with_arrivals)
        return options[row]

    def options(self, observation: Observation) -> list[Decision]:
        """The decisions that it tries, its base's own first."""
        base: Decision = self.base.decide(observation)
        others = [] if self.player is self.base else [self.player.decide(observation)]
        if isinstance(self.base, DecimaPolicy):
            others += self.base.proposals(observation, _PROPOSALS)
        return candidates(observation, base, others, may_idle=bool(may_idle(observation)))

    def rollouts_from(self, observation: Observation) -> PlayTrials:
        """What plays rollouts from an observed state on."""

        def play(run: Simulation, trials: Trials, assumed: Assumptions, a: int, b: int) -> None:
            rollouts = Rollouts(observation, trials, assumed)
            roll_out(run, rollouts, self.player.tables_for(*size_of(run.state)), a, b)

        return play
