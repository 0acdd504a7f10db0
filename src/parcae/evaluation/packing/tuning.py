"""Hand-made packing policies tuned on sequences that no comparison ever uses."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.metrics.packing import BY_JOB, typical_cost
from parcae.packing.config import TimeMode
from parcae.packing.layout import Cost
from parcae.packing.sources import LogSource, PackingSource
from parcae.packing.world import PackingBatch
from parcae.policies.packing.layout import PackingKind, WithholdParameter
from parcae.policies.packing.policy import HandMadePolicy
from parcae.workloads.random_streams import SELECTION_SEED_START, TUNING_SEED_START
from parcae.workloads.rigid import RigidJobs

FloatArray = npt.NDArray[np.float64]
#: Sequences that a value is measured on: of steps, or pieces of a log; the knob's sweep, which has no second stage, takes more.
_NUM_SEQUENCES = 500
_NUM_PIECES = 12
_SWEEP_FACTOR = 2
#: Jobs of a piece of a log, and of how many pieces of the log's length it is at most one.
PIECE_JOBS = 1_000
_MIN_PIECES = 4
#: A sweep tries so many knobs a factor of ten, from where alignment hardly breaks ties of the longest jobs.
_KNOBS_A_DECADE = 6
#: Alignment of exact times, in units of a cluster of two resources of 10; in steps it counts in the cluster's own units.
_LARGEST_ALIGNMENT = 200.0
_START_SPREAD = 0.5
_AGAIN_SPREAD = 0.15
#: Generations of the search, and every how many of them its mean is measured on the selection's sequences.
MAX_GENERATIONS = 60
_SELECT_EVERY = 5


@dataclass(frozen=True)
class Tuned:
    """A tuned policy, and how it came about.

    Args:
        policy: with the parameters that were found.
        cost: on the sequences that decided; optimistic, since it was chosen on them.
        text: what was found, in words, for the settings.
        card: the same as plain JSON.
    """

    policy: HandMadePolicy
    cost: float
    text: str
    card: Mapping[str, Any] = field(default_factory=dict)


def tuning_pieces(log: RigidJobs, most: int = PIECE_JOBS) -> LogSource:
    """Pieces of a log for tuning or training: of `most` jobs, of a short log of a quarter of them.

    Example: of a log of 10,000 jobs they have 1,000 jobs, of one of 400 they have 100.
    """
    return LogSource(log, max(1, min(most, len(log) // _MIN_PIECES)))


class _Arena:
    """Measures policies on sequences of a source."""

    def __init__(self, source: PackingSource, cost: Cost, num_threads: int | None = None) -> None:
        self.source = source
        self.cost = cost
        self.num_threads = num_threads
        self.count = _NUM_PIECES if source.config.mode is TimeMode.EXACT else _NUM_SEQUENCES

    def batch(self, first_seed: int, factor: int = 1) -> PackingBatch:
        count = self.count * factor
        return PackingBatch(
            self.source.draw(range(first_seed, first_seed + count)), self.source.config
        )

    def measure(self, policy: HandMadePolicy, batch: PackingBatch) -> float:
        batch.run(policy.play_many, self.num_threads)
        return typical_cost(batch, self.cost)


def knobs(sequences: Sequence[RigidJobs], mode: TimeMode = TimeMode.STEPS) -> tuple[float, ...]:
    """The knobs that a sweep tries: 0, and up to 1 evenly on a logarithmic scale.

    The knob weighs alignment, up to the sum of the squared capacities, against 1 / duration: the larger the cluster and the
    longer the jobs, the smaller are knobs that matter.
    """
    longest = max((int(jobs.told.max()) for jobs in sequences if len(jobs)), default=1)
    in_units = max(float((jobs.capacity.astype(np.float64) ** 2).sum()) for jobs in sequences)
    low = 0.1 / ((in_units if mode is TimeMode.STEPS else _LARGEST_ALIGNMENT) * longest)
    count = int(np.ceil(-np.log10(low) * _KNOBS_A_DECADE)) + 1
    return (0.0, *(float(f"{knob:.3g}") for knob in np.geomspace(low, 1.0, count)))


def tune_knob(
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    name: str = "tetris",
    num_threads: int | None = None,
) -> Tuned:
    """Tetris* with the knob that is best on the tuning's sequences; of equals, the least knob.

    Source: DeepRM, section 4.1, which gives no knob.
    """
    arena = _Arena(source, cost, num_threads)
    batch = arena.batch(TUNING_SEED_START, _SWEEP_FACTOR)
    tried = knobs(batch.sequences, source.config.mode)
    costs = {
        knob: arena.measure(HandMadePolicy(name, PackingKind.TETRIS, (knob,)), batch)
        for knob in tried
    }
    best = min(costs, key=lambda knob: (costs[knob], knob))
    text = f"knob {best:g} ({cost_name(cost)} {costs[best]:,.3f}) of {len(tried)} from 0 to 1, on {len(batch)} tuning sequences"
    return Tuned(
        HandMadePolicy(name, PackingKind.TETRIS, (best,)),
        costs[best],
        text,
        {"knob": best, "cost": costs[best]},
    )


def cost_name(cost: Cost) -> str:
    """In words; "mean slowdown". What accrues as bounded slowdown is below 1 for jobs that are done within the bound."""
    name = ("mean " if cost in BY_JOB else "") + cost.name.lower().replace("_", " ")
    return name + (" not held to 1," if cost is Cost.BOUNDED_SLOWDOWN else "")


def tune_withholding(
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    budget_s: float = 60.0,
    *,
    max_generations: int = MAX_GENERATIONS,
    start: npt.ArrayLike | None = None,
    seed: int = 0,
    name: str = "withhold",
    progress: Callable[[Tuned, float, int], None] | None = None,
) -> Tuned:
    """The withholding rule with parameters found by CMA-ES.

    Every generation is measured on fresh tuning sequences, the same for all of its candidates; which mean is kept is decided on
    the selection's sequences. Unless told where to start, it is searched from two places, each for so many generations or half
    of the seconds, whichever is first: where the generations end it, the same seed finds the same rule.

    Args:
        start: parameters to go on from (they are searched more narrowly). seed: of the search.
        progress: called with the best so far, the seconds and the generations.
    """
    arena = _Arena(source, cost)
    selection = arena.batch(SELECTION_SEED_START)
    starts = (
        start_parameters(selection.sequences) if start is None else [np.asarray(start, np.float64)]
    )
    best: Tuned | None = None
    for number, first in enumerate(starts):
        hunt = _Hunt(
            arena,
            selection,
            _search(first, start, seed),
            seed,
            name,
            best,
            number * max_generations,
        )
        best = hunt.run(
            budget_s / len(starts), max_generations, number * budget_s / len(starts), progress
        )
    assert best is not None
    return best


class _Hunt:
    """One search; `best` is the best of those before it."""

    def __init__(
        self,
        arena: _Arena,
        selection: PackingBatch,
        search: Any,
        seed: int,
        name: str,
        best: Tuned | None,
        before: int,
    ) -> None:
        self.arena = arena
        self.selection = selection
        self.search = search
        self.seed = seed
        self.name = name
        self.generation = 0
        self.before = before
        self.best = self._measured() if best is None else best

    def _measured(self) -> Tuned:
        """The search's mean on the selection's sequences."""
        theta = np.array(self.search.mean)
        cost = self.arena.measure(_withhold(self.name, theta), self.selection)
        return _tuned_rule(self.name, theta, cost, self.arena.cost, self.generation)

    def _generation(self) -> None:
        arena = self.arena
        first = TUNING_SEED_START + ((self.seed & 0xFF) << 30)
        batch = arena.batch(first + (self.generation + 1) * arena.count)
        candidates = self.search.ask()
        self.search.tell(
            candidates, [arena.measure(_withhold(self.name, theta), batch) for theta in candidates]
        )
        self.generation += 1

    def run(
        self,
        budget_s: float,
        max_generations: int,
        spent_s: float,
        progress: Callable[[Tuned, float, int], None] | None,
    ) -> Tuned:
        """Search until the time or the generations are used up, or CMA-ES has converged."""
        began = time.perf_counter()
        is_over = False
        while not is_over:
            self._generation()
            seconds = time.perf_counter() - began
            is_over = (
                seconds >= budget_s
                or self.generation >= max_generations
                or bool(self.search.stop())
            )
            if self.generation % _SELECT_EVERY == 0 or is_over:
                own = self._measured()
                if own.cost < self.best.cost:
                    self.best = own
                if progress is not None:
                    progress(self.best, spent_s + seconds, self.before + self.generation)
        return self.best


def start_parameters(sequences: Sequence[RigidJobs]) -> list[FloatArray]:
    """Where the search may begin: shortest first, while jobs longer than most leave a little free, or wait for nearly all."""
    told = np.concatenate([jobs.told for jobs in sequences])
    length = float(np.quantile(np.log(told), 0.7)) if len(told) else 0.0
    mild = np.zeros(len(WithholdParameter))
    firm = np.zeros(len(WithholdParameter))
    for start, reserve, patience, pause in ((mild, 0.3, 0.1, 3.0), (firm, 3.0, 0.3, 8.0)):
        start[WithholdParameter.RESERVE] = reserve
        start[WithholdParameter.STEEPNESS] = 2.0
        start[WithholdParameter.LENGTH] = length
        start[WithholdParameter.PATIENCE] = patience
        start[WithholdParameter.CROWD] = 0.3 * (start is firm)
        start[WithholdParameter.PAUSE] = pause
    return [mild, firm]


def _search(first: FloatArray, start: npt.ArrayLike | None, seed: int) -> Any:
    import cma

    options = {"seed": seed + 1, "verbose": -9, "maxfevals": np.inf, "tolfun": 0, "tolx": 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cma.CMAEvolutionStrategy(
            first, _START_SPREAD if start is None else _AGAIN_SPREAD, options
        )


def _withhold(name: str, theta: npt.ArrayLike) -> HandMadePolicy:
    return HandMadePolicy(name, PackingKind.WITHHOLD, theta)


def _tuned_rule(name: str, theta: FloatArray, cost: float, what: Cost, generations: int) -> Tuned:
    found = {
        parameter.name.lower(): round(float(theta[parameter]), 4) for parameter in WithholdParameter
    }
    text = ", ".join(f"{key} {value:g}" for key, value in found.items())
    text += f" ({cost_name(what)} {cost:,.3f} on selection sequences, {generations} generations of CMA-ES)"
    card = {**found, "cost": cost, "generations": generations}
    return Tuned(_withhold(name, theta), cost, text, card)
