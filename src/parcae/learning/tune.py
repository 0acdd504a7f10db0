"""Tunes the parameters of the rule with CMA-ES on simulated runs of the user's workload.

The search is that of `parcae.policies.parameter_search`. The seeds of its runs are never used by
comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.learning.scenario import Parameters, Scenario, Yardstick, search_seeds
from parcae.learning.worlds import world_of
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.parameter_search import SearchLimits, SearchState, search_parameters

#: Number of selection runs, and after how many generations the mean is measured on them.
_NUM_SELECTION = 100
_SELECT_EVERY = 10
#: Each candidate of a generation is measured on about this many jobs.
_JOBS_PER_GENERATION = 1_000
_FEWEST_RUNS = 16
_MOST_RUNS = 48


@dataclass(frozen=True)
class Tuning:
    """The result of a tuning so far.

    Args:
        parameters: the best parameters so far.
        ratio_to_fair: their objective / the fair policy's on the selection runs; with several
            scenarios the mean of the ratios. Optimistic, since the parameters were chosen on these
            runs.
        generations: number of generations.
        evaluations: number of simulated runs.
        seconds: wall-clock time of the search.
    """

    parameters: Parameters
    ratio_to_fair: float
    generations: int
    evaluations: int
    seconds: float


Progress = Callable[[Tuning], None]


def rule_policy(name: str, theta: npt.ArrayLike, scenario: Scenario) -> Any:
    """The rule of the scenario's world with these parameters."""
    values = tuple(float(value) for value in np.asarray(theta, np.float64))
    return world_of(scenario).policy_of_rule(name, values, scenario)


def tuned_checkpoint(theta: npt.ArrayLike, scenario: Scenario, card: dict[str, Any]) -> Checkpoint:
    """The tuned rule of the scenario's world as a checkpoint."""
    return world_of(scenario).checkpoint_of_rule(theta, card)


class _RuleProblem:
    """The mean ratio to fair sharing over all scenarios, of the parameters that are searched."""

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        start: Parameters | None,
        seed: int,
        num_runs: int,
        num_selection: int,
    ) -> None:
        self._scenarios = scenarios
        self._first, self._searched = world_of(scenarios[0]).search(start, scenarios)
        self._seed = seed
        self._num_runs = num_runs
        self._selection = [one.selection(num_selection).against_fair() for one in scenarios]
        self._fresh = self._selection

    @property
    def start(self) -> Parameters:
        """The searched parameters to start from."""
        return self._first[self._searched]

    def rule(self, parameters: Parameters) -> Parameters:
        """All parameters of the rule, given those that are searched."""
        theta = self._first.copy()
        theta[self._searched] = parameters
        return theta

    def draw(self, generation: int) -> None:
        """New runs in every scenario."""
        seeds = search_seeds(self._seed, generation, self._num_runs)
        self._fresh = [one.batch(seeds).against_fair() for one in self._scenarios]

    def cost(self, parameters: Parameters) -> float:
        """Mean ratio on the runs of the last `draw`."""
        return self._ratio(parameters, self._fresh)

    def selection(self, parameters: Parameters) -> float:
        """Mean ratio on the selection runs."""
        return self._ratio(parameters, self._selection)

    def _ratio(self, parameters: Parameters, measured: Sequence[Yardstick]) -> float:
        theta = self.rule(parameters)
        policies = (rule_policy("tuning", theta, one.runs.scenario) for one in measured)
        pairs = zip(measured, policies, strict=True)
        return float(np.mean([one.ratio(policy.play_many) for one, policy in pairs]))


def tune_rule(
    scenario: Scenario | Sequence[Scenario],
    *,
    budget_s: float,
    start: Parameters | None = None,
    seed: int = 0,
    runs_per_generation: int | None = None,
    num_selection: int = _NUM_SELECTION,
    max_generations: int = 100_000,
    progress: Progress | None = None,
) -> Tuning:
    """Tune the rule for one or more scenarios until the time is up or CMA-ES has converged.

    With several scenarios the mean of their ratios to fair sharing is minimised, so that one rule
    serves all of them; runs are divided among them. If no scenario has several executor classes,
    the parameters about classes are not changed. From a given `start` the search begins with a
    smaller standard deviation. `progress` is called every few generations with the result so far,
    which is always usable. Returns the best parameters on the selection runs.
    """
    scenarios = [scenario] if isinstance(scenario, Scenario) else list(scenario)
    if len({one.config.world for one in scenarios}) > 1:
        raise ConfigError(
            "one rule cannot serve both worlds: tune for --world cores and --world executors "
            "separately"
        )
    if runs_per_generation is None:
        # Runs of each candidate: the fewer, the longer they are.
        fitting = _JOBS_PER_GENERATION // max(one.num_jobs for one in scenarios)
        runs_per_generation = min(_MOST_RUNS, max(_FEWEST_RUNS, fitting))
    runs, selection = (
        max(2, total // len(scenarios)) for total in (runs_per_generation, num_selection)
    )
    problem = _RuleProblem(scenarios, start, seed, runs, selection)

    # Compiles the kernels before the clock starts; the search draws these runs again.
    problem.draw(0)
    problem.cost(problem.start)

    def tuning(state: SearchState) -> Tuning:
        evaluations = state.candidates * runs * len(scenarios)
        rule = problem.rule(state.parameters)
        return Tuning(rule, state.cost, state.generations, evaluations, state.seconds)

    found = search_parameters(
        problem,
        problem.start,
        SearchLimits(budget_s, max_generations, _SELECT_EVERY),
        continues=start is not None,
        seed=seed,
        progress=None if progress is None else lambda state: progress(tuning(state)),
    )
    return tuning(found)
