"""`RolloutPolicy` and `RolloutPlanner`: policies that try what they do in rollouts first.

Source: Bertsekas and Castanon, "Rollout algorithms for stochastic scheduling problems" (1999).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from parcae.cluster.decision import Decision
from parcae.cluster.kernels.tables import may_idle
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders
from parcae.cluster.state import VirtualRun
from parcae.decima.graph.policy import DecimaPolicy
from parcae.decima.heuristics.policy import HeuristicPolicy
from parcae.decima.rollouts.candidates import bring_forward, candidates, order_candidates
from parcae.decima.rollouts.playing import (
    Assumptions,
    Rollouts,
    Trials,
    roll_out,
    roll_out_orders,
)
from parcae.decima.rollouts.race import Budget, Clock, choose
from parcae.decima.rollouts.runs import PlayTrials, RolloutModel, RolloutRuns, Sampler
from parcae.decima.rule.policy import RulePolicy
from parcae.policies.compiled import CompiledPlanner, size_of, virtual_runs
from parcae.policies.orders.policy import OrderPolicy
from parcae.policies.rule.policy import OrderRulePolicy
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
            rollouts = Rollouts(observation, trials, assumed, (), ())
            roll_out(run, rollouts, self.player.tables_for(*size_of(run.state)), a, b)

        return play


@dataclass
class RolloutPlanner:
    """A policy of the world of cores that tries its orders first.

    The candidates are the orders of its base policy, and the same orders with one stage brought
    forward. Orders hold until the next plan, in a rollout as in the run.

    Args:
        name: name in tables and reports.
        base: the policy whose orders it improves.
        player: the policy that rollouts go on with.
        model: what rollouts know.
        budget: what a plan may cost.
    """

    name: str
    base: CompiledPlanner
    player: OrderRulePolicy | OrderPolicy
    model: RolloutModel
    budget: Budget = field(default_factory=Budget)
    has_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._runs = RolloutRuns(self.model, self.budget.num_threads)

    def restart(self) -> None:
        """Forget the base's virtual run: a new run begins."""
        self.base.restart()

    def plan(self, observation: Observation) -> Orders:
        """Return the orders that hold from now on."""
        orders = self.base.plan(observation)
        return self.improved(observation, orders, self.base.memory)

    def improved(self, observation: Observation, orders: Orders, memory: VirtualRun) -> Orders:
        """Return the best of the base's orders and those with a stage brought forward."""
        clock = Clock(self.budget)
        options = order_candidates(observation, orders)
        if len(options) == 1:
            return orders
        self._runs.fit(observation)

        def play(run: Simulation, trials: Trials, assumed: Assumptions, a: int, b: int) -> None:
            rollouts = Rollouts(observation, trials, assumed, orders, memory)
            tables = self.player.tables_for(*size_of(run.state))
            roll_out_orders(run, rollouts, next(virtual_runs(tables)), tables, a, b)

        sampler = Sampler(self._runs, observation, options, play, clock)
        row = choose(sampler, len(options), self.budget, clock, sampler.with_arrivals)
        return bring_forward(orders, observation, options[row])
