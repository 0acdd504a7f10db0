"""Search a policy's parameters with CMA-ES on simulated runs; the result of trying all values.

All candidates of a generation are measured on the same runs, and every generation uses new runs.
Separate selection runs decide which generation's mean is kept: the mean of the search's
distribution is less noisy than its best single candidate.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from parcae.base.arrays import Float64Array

#: A policy's parameters, in the order in which its name lists them.
Values = tuple[float, ...]
#: First standard deviation: of a new search, and of one that continues from given parameters.
_START_SPREAD = 0.5
_AGAIN_SPREAD = 0.15


@dataclass(frozen=True)
class Knobs:
    """The tunable parameters of a policy by name.

    Args:
        names: what they are called.
        grid: the values to try in a cluster of this number of executors.
        around: finer values to try around the best ones.
        open_ended: those whose best value may lie beyond the grid.
    """

    names: tuple[str, ...]
    grid: Callable[[int], Iterable[Values]]
    around: Callable[[Values], Iterable[Values]] = lambda best: ()
    open_ended: tuple[str, ...] = ()


class SearchProblem(Protocol):
    """What a search minimises."""

    def draw(self, generation: int) -> None:
        """Replace the runs on which `cost` measures candidates by those of this generation."""

    def cost(self, parameters: Float64Array) -> float:
        """The cost on the runs of the last `draw`."""

    def selection(self, parameters: Float64Array) -> float:
        """The cost on the selection runs, which are used for nothing else."""


@dataclass(frozen=True)
class SearchState:
    """The result of a search so far.

    Args:
        parameters: float64[num_parameters], the best parameters so far.
        cost: their cost on the selection runs; optimistic, since they were chosen on these runs.
        best_generation: the generation whose mean they are; 0 for the start.
        generations: number of generations so far.
        candidates: number of candidates that were measured so far.
        seconds: wall-clock time so far.
    """

    parameters: Float64Array
    cost: float
    best_generation: int
    generations: int
    candidates: int
    seconds: float


@dataclass(frozen=True)
class SearchLimits:
    """When a search ends and how often it selects.

    Args:
        budget_s: wall-clock seconds.
        max_generations: maximum number of generations.
        select_every: number of generations between measurements on the selection runs.
    """

    budget_s: float
    max_generations: int
    select_every: int


def search_parameters(
    problem: SearchProblem,
    start: Float64Array,
    limits: SearchLimits,
    *,
    continues: bool = False,
    seed: int = 0,
    best: SearchState | None = None,
    progress: Callable[[SearchState], None] | None = None,
) -> SearchState:
    """Search until the time or the generations are used up, or CMA-ES has converged.

    If the generations end the search, the same seed gives the same parameters.

    Args:
        problem: what to minimise.
        start: float64[num_parameters], the mean of the first generation.
        limits: when to end.
        continues: whether `start` was found by an earlier search: the first standard deviation is
            then smaller.
        seed: seed of the search.
        best: result of an earlier search to improve on; None to begin with the start itself.
        progress: called after every selection.

    Returns:
        The mean with the least cost on the selection runs, or `best` (or the start) where none is
        better.
    """
    began = time.perf_counter()
    strategy = _new_strategy(start, _AGAIN_SPREAD if continues else _START_SPREAD, seed)
    if best is None:
        best = SearchState(start, problem.selection(start), 0, 0, 0, 0.0)
    generation = 0
    num_candidates = 0
    is_over = False
    while not is_over:
        problem.draw(generation)
        candidates = strategy.ask()
        strategy.tell(candidates, [problem.cost(candidate) for candidate in candidates])
        generation += 1
        num_candidates += len(candidates)
        is_over = (
            time.perf_counter() - began >= limits.budget_s
            or generation >= limits.max_generations
            or bool(strategy.stop())
        )
        if generation % limits.select_every == 0 or is_over:
            mean = np.array(strategy.mean)
            mean_cost = problem.selection(mean)
            if mean_cost < best.cost:
                best = replace(best, parameters=mean, cost=mean_cost, best_generation=generation)
            seconds = time.perf_counter() - began
            best = replace(best, generations=generation, candidates=num_candidates, seconds=seconds)
            if progress is not None:
                progress(best)
    return best


def _new_strategy(start: Float64Array, spread: float, seed: int) -> Any:
    # Every generation has runs of its own: CMA-ES must not stop because two generations cost about
    # the same (tolfun, tolfunhist), or all candidates of one the same (tolflatfitness).
    options = {
        "seed": seed + 1,
        "verbose": -9,
        "maxfevals": np.inf,
        "tolfun": 0,
        "tolfunhist": 0,
        "tolflatfitness": np.inf,
        "tolx": 1e-6,
    }
    with warnings.catch_warnings():
        # At its import it misses matplotlib, which only its own plots need.
        warnings.simplefilter("ignore")
        import cma

        return cma.CMAEvolutionStrategy(start, spread, options)


@dataclass(frozen=True)
class Sweep:
    """The result of a parameter sweep.

    Args:
        names: names of the parameters.
        costs: by parameter values, the cost on all tuning sequences.
        num_given_up: number of other values, which were tried on a quarter of the sequences only.
    """

    names: tuple[str, ...]
    costs: Mapping[Values, float]
    num_given_up: int = 0

    @property
    def best(self) -> Values:
        """The values with the least cost; of equal ones, those nearest to 0."""
        return min(self.costs, key=lambda values: (self.costs[values], sum(map(abs, values))))

    @property
    def best_words(self) -> str:
        """The best values with their names, such as "alpha -1"."""
        pairs = zip(self.names, self.best, strict=True)
        return ", ".join(f"{name} {value:g}" for name, value in pairs)


#: A grid with more values than this is first tried on a quarter of the sequences.
_MANY = 50
#: The best values of that first round, this many, are then tried on all sequences.
_FINALISTS = 25


def swept(knobs: Knobs, size: int, cost: Callable[[Values, float], float]) -> Sweep:
    """Try all values for a cluster of a size, then finer ones around the best.

    `cost` measures values on a share of the sequences, which are the same for all values.
    """
    grid = tuple(knobs.grid(size))
    num_given_up = len(grid) - _FINALISTS if len(grid) > _MANY else 0
    if num_given_up:
        first = {values: cost(values, 0.25) for values in grid}
        grid = tuple(sorted(grid, key=first.__getitem__)[:_FINALISTS])
    costs = {values: cost(values, 1.0) for values in grid}
    finer = [one for one in knobs.around(Sweep(knobs.names, costs).best) if one not in costs]
    costs |= {values: cost(values, 1.0) for values in finer}
    return Sweep(knobs.names, costs, num_given_up)


def edge_warning(knobs: Knobs, size: int, sweep: Sweep) -> str:
    """A sentence that warns of a best value at the edge of its grid; no text where none is."""
    columns = zip(*knobs.grid(size), strict=True)
    for knob, best, tried in zip(sweep.names, sweep.best, columns, strict=True):
        low, high = min(tried), max(tried)
        if knob in knobs.open_ended and best in {low, high} - {0.0}:
            return (
                f"{knob} {best:g} is at the edge of the values that were tried ({low:g} to "
                f"{high:g}): a better one may lie beyond it"
            )
    return ""
