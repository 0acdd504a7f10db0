"""The rule's parameters found by CMA-ES on simulated runs of the user's own workload.

Every generation is measured on fresh runs, the same for all of its candidates; which mean was best is decided on runs of its
own. No seed that a comparison may use is ever touched.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.learning.scenario import Runs, Scenario
from parcae.policies.catalog import make_policy
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.heuristics.policy import HeuristicPolicy
from parcae.policies.learned import order_rule_checkpoint, rule_checkpoint
from parcae.policies.order_rule.policy import OrderRulePolicy, checked_parameters, search_start
from parcae.policies.orders.layout import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.policies.rule.layout import CLASS_PARAMETERS
from parcae.policies.rule.policy import Parameters, RulePolicy, padded, start_parameters
from parcae.policies.solo_curves import solo_curves
from parcae.simulation.config import WorldName
from parcae.workloads.random_streams import SELECTION_SEED_START, TUNING_SEED_START

#: Runs that decide which generation's mean is kept, and every how many generations they are asked.
_NUM_SELECTION = 100
_SELECT_EVERY = 10
#: A generation's candidates are each measured on about so many jobs.
_JOBS_PER_GENERATION = 1_000
_START_SPREAD = 0.5
_AGAIN_SPREAD = 0.15


@dataclass(frozen=True)
class Tuning:
    """What tuning came to so far.

    Args:
        parameters: the best so far.
        ratio_to_fair: its objective / the fair policy's on the runs that decide (of several scenarios, the mean ratio);
            optimistic, since it was chosen on them.
        generations, evaluations: how much was tried (`evaluations` counts runs).
        seconds: how long it took.
    """

    parameters: Parameters
    ratio_to_fair: float
    generations: int
    evaluations: int
    seconds: float


Progress = Callable[[Tuning], None]


def is_planned(scenario: Scenario) -> bool:
    """Whether the scenario lives in the world of cores, where the rule plans orders."""
    return scenario.config.world is WorldName.CORES


def fair_policy(scenario: Scenario) -> HeuristicPolicy | OrderPolicy:
    """Fair sharing in the scenario's world: in the world of cores Spark's FAIR, a pool a job."""
    if is_planned(scenario):
        return OrderPolicy("fair", OrderKind.FAIR, plan_tables())
    return make_policy("fair", scenario.config.total_executors)


def rule_policy(
    name: str, theta: npt.ArrayLike, scenario: Scenario
) -> RulePolicy | OrderRulePolicy:
    """The rule of the scenario's world with these parameters.

    Raises:
        PolicyError: another number of parameters.
    """
    values = tuple(float(value) for value in np.asarray(theta, np.float64))
    if is_planned(scenario):
        return OrderRulePolicy(name, values, scenario.workload.mean_work_ms)
    return RulePolicy(name, values, solo_curves(scenario.workload, scenario.config))


def tuned_checkpoint(theta: npt.ArrayLike, scenario: Scenario, card: dict[str, Any]) -> Checkpoint:
    """The tuned rule of the scenario's world as a checkpoint."""
    return (
        order_rule_checkpoint(theta, card) if is_planned(scenario) else rule_checkpoint(theta, card)
    )


def _start_of(
    start: Parameters | None, scenarios: Sequence[Scenario]
) -> tuple[Parameters, npt.NDArray[np.int64]]:
    """(parameters to start from, which of them are searched).

    Raises:
        ConfigError: scenarios of both worlds.
    """
    if len({own.config.world for own in scenarios}) > 1:
        raise ConfigError(
            "one rule cannot serve both worlds: tune for --world cores and --world executors separately"
        )
    if is_planned(scenarios[0]):
        order_first = np.array(search_start() if start is None else checked_parameters(start))
        return order_first, np.arange(len(order_first))
    first = start_parameters() if start is None else padded(start)
    has_classes = any(len(own.config.classes) > 1 for own in scenarios)
    return first, np.array(
        [own for own in range(len(first)) if has_classes or own not in CLASS_PARAMETERS]
    )


class _Arena:
    """One scenario's part in the search."""

    def __init__(self, scenario: Scenario, num_selection: int) -> None:
        self.scenario = scenario
        self._fair = fair_policy(scenario)
        self._selection = self._with_fair(
            range(SELECTION_SEED_START, SELECTION_SEED_START + num_selection)
        )
        self._now = self._selection

    def _with_fair(self, seeds: Sequence[int]) -> tuple[Runs, float]:
        runs = self.scenario.batch(seeds)
        return runs, max(1e-9, float(runs.cost(self._fair.play_many).mean()))

    def draw(self, seeds: Sequence[int]) -> None:
        """Fresh runs, on which candidates are then measured."""
        self._now = self._with_fair(seeds)

    def _ratio(self, theta: npt.ArrayLike, runs: Runs, fair: float) -> float:
        policy = rule_policy("tuning", theta, self.scenario)
        return float(runs.cost(policy.play_many).mean()) / fair

    def cost(self, theta: npt.ArrayLike) -> float:
        """Ratio to fair on the fresh runs."""
        return self._ratio(theta, *self._now)

    def selection(self, theta: npt.ArrayLike) -> float:
        """Ratio to fair on the runs that decide, which are used for nothing else."""
        return self._ratio(theta, *self._selection)


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
    """Tune the rule for a scenario, or for several at once, until the time is up or CMA-ES has converged.

    Where no scenario has executors of several classes, the parameters about classes stay as they are.

    Args:
        scenario: of several, the mean of the ratios to fair counts, so that one rule serves them all.
        budget_s: wall-clock seconds.
        start: parameters to go on from (they are searched more narrowly).
        seed: of the search; another seed is another search.
        runs_per_generation, num_selection: of all scenarios together; unless given, 16 (long runs) to 48 a generation.
        progress: called every few generations with the state so far, which is always usable.
    """
    import cma

    scenarios = [scenario] if isinstance(scenario, Scenario) else list(scenario)
    arenas = [_Arena(own, max(2, num_selection // len(scenarios))) for own in scenarios]
    if runs_per_generation is None:
        runs_per_generation = min(
            48, max(16, _JOBS_PER_GENERATION // max(own.num_jobs for own in scenarios))
        )
    runs = max(2, runs_per_generation // len(scenarios))
    first, searched = _start_of(start, scenarios)
    options = {"seed": seed + 1, "verbose": -9, "maxfevals": np.inf, "tolfun": 0, "tolx": 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = cma.CMAEvolutionStrategy(
            first[searched], _START_SPREAD if start is None else _AGAIN_SPREAD, options
        )

    def whole(candidate: Parameters) -> Parameters:
        theta = first.copy()
        theta[searched] = candidate
        return theta

    def selection(theta: npt.ArrayLike) -> float:
        return float(np.mean([arena.selection(theta) for arena in arenas]))

    began = time.perf_counter()
    best = first
    best_ratio = selection(first)
    generation = 0
    evaluations = 0
    is_over = False
    while not is_over:
        for arena in arenas:
            arena.draw(_seeds(seed, generation, runs))
        candidates = search.ask()
        search.tell(
            candidates,
            [float(np.mean([arena.cost(whole(own)) for arena in arenas])) for own in candidates],
        )
        generation = generation + 1
        evaluations = evaluations + len(candidates) * runs * len(arenas)
        is_over = (
            time.perf_counter() - began >= budget_s
            or generation >= max_generations
            or bool(search.stop())
        )
        if generation % _SELECT_EVERY == 0 or is_over:
            mean = whole(search.mean)
            ratio = selection(mean)
            if ratio < best_ratio:
                best = mean
                best_ratio = ratio
            if progress is not None:
                progress(
                    Tuning(best, best_ratio, generation, evaluations, time.perf_counter() - began)
                )
    return Tuning(best, best_ratio, generation, evaluations, time.perf_counter() - began)


def _seeds(seed: int, generation: int, count: int) -> list[int]:
    first = TUNING_SEED_START + ((seed & 0xFF) << 30) + (generation + 1) * count
    return list(range(first, first + count))
