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
from parcae.learning.scenario import Runs, Scenario, search_seeds
from parcae.learning.worlds import Parameters, world_of
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.parameter_search import SearchLimits, SearchState, search_parameters
from parcae.workloads.workload import SELECTION_SEED_START

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


def _start_of(
    start: Parameters | None, scenarios: Sequence[Scenario]
) -> tuple[Parameters, npt.NDArray[np.int64]]:
    """The parameters to start from, and the indices of those that are searched."""
    if len({one.config.world for one in scenarios}) > 1:
        raise ConfigError(
            "one rule cannot serve both worlds: tune for --world cores and --world executors "
            "separately"
        )
    return world_of(scenarios[0]).search(start, scenarios)


class _Measurement:
    """Measures rules on runs of one scenario, relative to fair sharing on the same runs."""

    def __init__(self, scenario: Scenario, num_selection: int) -> None:
        self.scenario = scenario
        self._fair = scenario.fair_policy()
        self._selection = self._with_fair(
            range(SELECTION_SEED_START, SELECTION_SEED_START + num_selection)
        )
        self._fresh = self._selection

    def _with_fair(self, seeds: Sequence[int]) -> tuple[Runs, float]:
        runs = self.scenario.batch(seeds)
        return runs, float(runs.cost(self._fair.play_many).mean())

    def draw(self, seeds: Sequence[int]) -> None:
        """Replace the runs on which `cost` measures rules."""
        self._fresh = self._with_fair(seeds)

    def _ratio(self, theta: npt.ArrayLike, runs: Runs, fair: float) -> float:
        policy = rule_policy("tuning", theta, self.scenario)
        return self.scenario.ratio(float(runs.cost(policy.play_many).mean()), fair)

    def cost(self, theta: npt.ArrayLike) -> float:
        """Ratio to fair sharing on the runs of the last `draw`."""
        return self._ratio(theta, *self._fresh)

    def selection(self, theta: npt.ArrayLike) -> float:
        """Ratio to fair sharing on the selection runs."""
        return self._ratio(theta, *self._selection)


class _RuleProblem:
    """The mean ratio to fair sharing over all scenarios, of the parameters that are searched."""

    def __init__(
        self,
        measurements: Sequence[_Measurement],
        first: Parameters,
        searched: npt.NDArray[np.int64],
        seed: int,
        runs: int,
    ) -> None:
        self._measurements = measurements
        self._first = first
        self._searched = searched
        self._seed = seed
        self._runs = runs

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
        seeds = search_seeds(self._seed, generation, self._runs)
        for measurement in self._measurements:
            measurement.draw(seeds)

    def cost(self, parameters: Parameters) -> float:
        """Mean ratio on the runs of the last `draw`."""
        theta = self.rule(parameters)
        return float(np.mean([one.cost(theta) for one in self._measurements]))

    def selection(self, parameters: Parameters) -> float:
        """Mean ratio on the selection runs."""
        theta = self.rule(parameters)
        return float(np.mean([one.selection(theta) for one in self._measurements]))


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

    If no scenario has several executor classes, the parameters about classes are not changed.

    Args:
        scenario: what to tune for. With several scenarios the mean of their ratios to fair sharing
            is minimised, so that one rule serves all of them.
        budget_s: wall-clock seconds, without the compilation of kernels.
        start: parameters to start from. The search then begins with a smaller standard deviation.
        seed: seed of the search.
        runs_per_generation: runs of each candidate, over all scenarios together. Default: between
            16 (long runs) and 48.
        num_selection: selection runs, over all scenarios together.
        max_generations: maximum number of generations.
        progress: called every few generations with the result so far, which is always usable.

    Returns:
        The best parameters on the selection runs; these are the start where nothing was better.

    Raises:
        ConfigError: the scenarios are of both worlds.
        PolicyError: `start` has the wrong number of parameters.
    """
    scenarios = [scenario] if isinstance(scenario, Scenario) else list(scenario)
    measurements = [_Measurement(one, max(2, num_selection // len(scenarios))) for one in scenarios]
    if runs_per_generation is None:
        runs_per_generation = _default_runs(scenarios)
    # Every scenario gets its share of the runs.
    runs = max(2, runs_per_generation // len(scenarios))
    problem = _RuleProblem(measurements, *_start_of(start, scenarios), seed, runs)

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


def _default_runs(scenarios: Sequence[Scenario]) -> int:
    """Runs of each candidate: the fewer, the longer they are."""
    num_jobs = max(one.num_jobs for one in scenarios)
    return min(_MOST_RUNS, max(_FEWEST_RUNS, _JOBS_PER_GENERATION // num_jobs))
