"""The rule's parameters found by CMA-ES on simulated runs of the user's own workload.

Every generation is measured on fresh runs, the same for all of its candidates; which mean was best is decided on runs of its
own. No seed that a comparison may use is ever touched.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.learning.scenario import Runs, Scenario
from parcae.policies.catalog import make_policy
from parcae.policies.rule.policy import Parameters, RulePolicy, start_parameters
from parcae.policies.solo_curves import SoloCurves, solo_curves
from parcae.units import MS_PER_S
from parcae.workloads.random_streams import SELECTION_SEED_START, TUNING_SEED_START

#: Runs that decide which generation's mean is kept, and every how many generations they are asked.
_NUM_SELECTION = 100
_SELECT_EVERY = 10
_START_SPREAD, _AGAIN_SPREAD = 0.5, 0.15


@dataclass(frozen=True)
class Tuning:
    """What tuning came to so far.

    Args:
        parameters: the best so far.
        ratio_to_fair: its objective / the fair policy's on the runs that decide; optimistic, since it was chosen on them.
        generations, evaluations: how much was tried (`evaluations` counts runs).
        seconds: how long it took.
    """

    parameters: Parameters
    ratio_to_fair: float
    generations: int
    evaluations: int
    seconds: float


Progress = Callable[[Tuning], None]


def _policy(theta: npt.ArrayLike, curves: SoloCurves) -> RulePolicy:
    return RulePolicy("tuning", tuple(np.asarray(theta, np.float64)), curves)


class _Judge:
    """Which parameters are best, on runs that are used for nothing else."""

    def __init__(self, scenario: Scenario, num_runs: int) -> None:
        self.runs = scenario.batch([SELECTION_SEED_START + row for row in range(num_runs)])
        self.fair = float(self.runs.cost(make_policy("fair", scenario.config.total_executors).play_many).mean())

    def ratio(self, policy: RulePolicy) -> float:
        return float(self.runs.cost(policy.play_many).mean()) / max(self.fair, 1e-9)


def tune_rule(
    scenario: Scenario,
    *,
    budget_s: float,
    start: Parameters | None = None,
    seed: int = 0,
    runs_per_generation: int = 48,
    num_selection: int = _NUM_SELECTION,
    max_generations: int = 100_000,
    progress: Progress | None = None,
) -> Tuning:
    """Tune the rule for a scenario until the time is up or CMA-ES has converged.

    Args:
        budget_s: wall-clock seconds.
        start: parameters to go on from (they are searched more narrowly).
        seed: of the search; another seed is another search.
        progress: called every few generations with the state so far, which is always usable.
    """
    import cma

    curves = solo_curves(scenario.workload, scenario.config)
    judge = _Judge(scenario, num_selection)
    first = start_parameters() if start is None else np.asarray(start, np.float64)
    options = {"seed": seed + 1, "verbose": -9, "maxfevals": np.inf, "tolfun": 0, "tolx": 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = cma.CMAEvolutionStrategy(first, _START_SPREAD if start is None else _AGAIN_SPREAD, options)
    began = time.perf_counter()
    best, best_ratio, generation, evaluations = first, judge.ratio(_policy(first, curves)), 0, 0
    while time.perf_counter() - began < budget_s and generation < max_generations and not search.stop():
        runs = scenario.batch(_seeds(seed, generation, runs_per_generation))
        candidates = search.ask()
        search.tell(candidates, [_cost(runs, _policy(theta, curves)) for theta in candidates])
        generation, evaluations = generation + 1, evaluations + len(candidates) * runs_per_generation
        if generation % _SELECT_EVERY == 0:
            ratio = judge.ratio(_policy(search.mean, curves))
            if ratio < best_ratio:
                best, best_ratio = np.array(search.mean), ratio
            if progress is not None:
                progress(Tuning(best, best_ratio, generation, evaluations, time.perf_counter() - began))
    ratio = judge.ratio(_policy(search.mean, curves))
    if ratio < best_ratio:
        best, best_ratio = np.array(search.mean), ratio
    return Tuning(best, best_ratio, generation, evaluations, time.perf_counter() - began)


def _seeds(seed: int, generation: int, count: int) -> list[int]:
    first = TUNING_SEED_START + ((seed & 0xFF) << 30) + (generation + 1) * count
    return list(range(first, first + count))


def _cost(runs: Runs, policy: RulePolicy) -> float:
    return float(runs.cost(policy.play_many).mean()) / MS_PER_S
