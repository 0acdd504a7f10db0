"""`FormulaPolicy`: a policy whose orders are a formula over features of a query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parcae.base.arrays import Float64Array
from parcae.cluster.observation import Observation
from parcae.cluster.state import allocate_virtual
from parcae.policies.compiled import CompiledPlanner, PlaysRuns
from parcae.policies.formula.kernels import Feature, Program, describe, evaluate
from parcae.policies.formula.language import FEATURES, MOST_VALUES, Expression
from parcae.policies.rule.policy import ordering_by_path
from parcae.simulation.kernels.playing import Simulation, Simulations

#: Features that take more passes over the stages of a job.
_OF_STAGES = [feature for feature in Feature if Feature.TOTAL <= feature <= Feature.ERROR]


@dataclass
class FormulaPolicy(CompiledPlanner):
    """A policy that serves the jobs with the smallest value of a formula first, and of each
    the stages with the longest critical path.

    Args:
        name: name in tables and reports.
        expression: the formula.
        deadline_ms: float64[num_profiles + 1], as `plan_tables` has it; used by `slack`.

    Example: where queries are chains of stages, `FormulaPolicy("formula: rem",
    parse_formula("rem"))` is `srpt`.
    """

    name: str
    expression: Expression
    deadline_ms: Float64Array = field(default_factory=lambda: np.zeros(1))

    @property
    def keeps_accounts(self) -> bool:
        """Whether it needs accounts of users."""
        return self.expression.uses(Feature.OVERDRAFT, Feature.SHARE)

    def keep(self, now: Any) -> None:
        """Let a state keep accounts of users, which only the formula counts."""
        now.keeps_accounts[...] = 1
        now.account_factor[...] = 0.0

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Program:
        """The program, with an empty virtual run."""
        uses = self.expression.uses
        return Program(
            np.array(self.expression.steps, np.int64),
            np.array(self.expression.numbers, np.float64),
            int(uses(*_OF_STAGES)),
            int(uses(Feature.FAIR)),
            int(uses(Feature.AGE, Feature.SERVICE, Feature.SLACK)),
            int(self.keeps_accounts),
            self.deadline_ms,
            ordering_by_path(),
            allocate_virtual(num_jobs, num_stages),
            np.zeros(len(Feature)),
            np.zeros(MOST_VALUES + 1),
            np.zeros(num_jobs),
        )

    def terms_of(self, observation: Observation, job: int) -> list[tuple[str, float, str]]:
        """By what the latest plan, that of this observation, ordered a job: features, parts of the
        formula and its value, each as (text, value, unit).
        """
        program = self._tables(observation)
        describe(observation, program, job)
        terms = [
            (feature.name.lower(), float(program.values[feature]), FEATURES[feature][0])
            for feature in Feature
            if self.expression.uses(feature)
        ]
        for name, part in [
            *((part.text, part) for part in self.expression.parts),
            ("value", self.expression),
        ]:
            steps, numbers = np.array(part.steps, np.int64), np.array(part.numbers)
            value = evaluate(program._replace(steps=steps, numbers=numbers))
            terms.append((name, float(value), ""))
        return terms

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many, with accounts if it uses them."""
        now = simulations.states.now[first:last]
        before = now.keeps_accounts.copy()
        if self.keeps_accounts:
            self.keep(now)
        try:
            super().play_many(simulations, first, last)
        finally:
            now.keeps_accounts[...] = before

    def unwrapped(self, simulation: Simulation) -> tuple[PlaysRuns, Simulation]:
        """The policy and the tables with which one run is played in several calls."""
        if self.keeps_accounts:
            self.keep(simulation.state.now)
        return self, simulation
