"""Tune hand-made packing policies on sequences that no comparison uses.

`tune_knob` sweeps the parameter of Tetris*. `tune_withholding` searches the parameters of the
withholding rule by CMA-ES.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.policies.parameter_search import (
    Knobs,
    SearchLimits,
    SearchState,
    Sweep,
    Values,
    edge_warning,
    search_parameters,
)
from parcae.rigid.config import TimeMode
from parcae.rigid.jobs import RigidJobs
from parcae.rigid.layout import Cost
from parcae.rigid.metrics import BY_JOB, mean_cost_of_started, num_never_started, typical_cost
from parcae.rigid.policies.kernels.decisions import PackingKind
from parcae.rigid.policies.kernels.scores import WithholdParameter
from parcae.rigid.policies.policy import HandMadePolicy
from parcae.rigid.sources import PackingSource, RigidLogSource, origins
from parcae.rigid.world import PackingBatch
from parcae.workloads.import_report import counted
from parcae.workloads.workload import SELECTION_SEED_START, TUNING_SEED_START

FloatArray = npt.NDArray[np.float64]
#: Number of sequences that measure one value: sequences of steps, or pieces of a log.
_NUM_SEQUENCES = 500
_NUM_PIECES = 12
#: The knob's sweep takes this many times more, since no second stage checks its result.
_SWEEP_FACTOR = 2
#: Jobs in a piece of a log.
_PIECE_JOBS = 1_000
#: A piece has at most 1 / this many of the log's jobs.
_MIN_PIECES = 4
#: A sweep tries this many knobs per factor of ten. The smallest knob is so small that alignment
#: hardly does more than break ties of the longest jobs.
_KNOBS_A_DECADE = 6
#: Largest alignment with exact times, where it is scaled to a cluster with two resources of 10
#: units each. With steps, alignment is in the cluster's real units.
_LARGEST_ALIGNMENT = 200.0
#: Largest number of generations of the search.
MAX_GENERATIONS = 60
#: The search's mean is measured on the selection sequences after every so many generations.
_SELECT_EVERY = 5


@dataclass(frozen=True)
class Tuned:
    """A tuned policy and the result of tuning.

    Args:
        policy: the policy with the best parameters.
        cost: its cost on the sequences that selected it; optimistic for that reason. Jobs that
            were lost are charged, see `parcae.rigid.metrics.comparable_costs`.
        cost_words: the cost in words; where jobs were lost, also the mean over the others.
        text: the result in words, for the settings.
        card: the result as plain JSON.
        edge: a warning if a value is at the edge of those that were tried.
    """

    policy: HandMadePolicy
    cost: float
    cost_words: str
    text: str
    card: Mapping[str, Any] = field(default_factory=dict)
    edge: str = ""


def tuning_pieces(log: RigidJobs) -> RigidLogSource:
    """Pieces of a log for tuning or training.

    A piece has 1,000 jobs, but at most a quarter of the log's jobs.

    Example: a log of 10,000 jobs gives pieces of 1,000 jobs, a log of 400 jobs pieces of 100.
    """
    return RigidLogSource(log, max(1, min(_PIECE_JOBS, len(log) // _MIN_PIECES)))


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
        # A batch has consecutive seeds: which of them share a log does not depend on the first.
        return typical_cost(batch, self.cost, origins(self.source, range(len(batch))))

    def words(self, policy: HandMadePolicy, batch: PackingBatch) -> str:
        """The cost of a policy in words, with the mean that comparisons report."""
        cost = self.measure(policy, batch)
        name = cost_name(self.cost)
        lost = int(num_never_started(batch).sum())
        if lost == 0:
            return f"{name} {cost:,.3f}"
        return (
            f"{name} {mean_cost_of_started(batch, self.cost):,.3f} without the {lost:,} jobs that "
            f"were lost, {cost:,.3f} if they ran after the end"
        )


def knobs(sequences: Sequence[RigidJobs], mode: TimeMode = TimeMode.STEPS) -> tuple[float, ...]:
    """The knobs that a sweep tries: 0, and values up to 1, evenly spaced on a logarithmic scale.

    The knob weighs alignment against 1 / duration. Alignment is at most the sum of the squared
    capacities. So the larger the cluster and the longer the jobs, the smaller the useful knobs.
    """
    longest = max((int(jobs.estimate.max()) for jobs in sequences if len(jobs)), default=1)
    in_units = max(float((jobs.capacity.astype(np.float64) ** 2).sum()) for jobs in sequences)
    # Below this knob, alignment adds less than a tenth of the longest job's 1 / duration.
    low = 0.1 / ((in_units if mode is TimeMode.STEPS else _LARGEST_ALIGNMENT) * longest)
    count = int(np.ceil(-np.log10(low) * _KNOBS_A_DECADE)) + 1
    return (0.0, *(float(f"{knob:.3g}") for knob in np.geomspace(low, 1.0, count)))


def tune_knob(
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    name: str = "tetris",
    num_threads: int | None = None,
) -> Tuned:
    """Tetris* with the knob that is best on the tuning sequences; of equal ones, the smallest.

    Source: DeepRM, section 4.1, which does not state its knob.
    """
    arena = _Arena(source, cost, num_threads)
    batch = arena.batch(TUNING_SEED_START, _SWEEP_FACTOR)
    tried = knobs(batch.sequences, source.config.mode)
    costs: dict[Values, float] = {
        (knob,): arena.measure(HandMadePolicy(name, PackingKind.TETRIS, (knob,)), batch)
        for knob in tried
    }
    sweep = Sweep(("knob",), costs)
    least = costs[sweep.best]
    best = HandMadePolicy(name, PackingKind.TETRIS, sweep.best)
    words = arena.words(best, batch)
    text = (
        f"{sweep.best_words} ({words}) of {len(tried)} from 0 to 1, on {len(batch)} tuning "
        "sequences"
    )
    # A knob of 0 is an end by nature: alignment does not count.
    edge = edge_warning(Knobs(("knob",), lambda _: costs, open_ended=("knob",)), 0, sweep)
    return Tuned(best, least, words, text, {"knob": sweep.best[0], "cost": least}, edge)


def cost_name(cost: Cost) -> str:
    """The cost in words, for example "mean slowdown".

    The bounded slowdown that accrues during a run is below 1 for jobs shorter than the bound,
    unlike the measure of the report; the name says so.
    """
    name = ("mean " if cost in BY_JOB else "") + cost.objective.replace("-", " ")
    return name + (" without the minimum of 1," if cost is Cost.BOUNDED_SLOWDOWN else "")


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
    """Search the parameters of the withholding rule by CMA-ES. Returns the rule with the least cost
    on the selection sequences.

    Every generation is measured on new tuning sequences, the same for all its candidates. The
    selection sequences decide which mean of the search is kept. Without `start` there are two
    searches from different points; each ends after `max_generations` or half of the budget. If the
    number of generations ends the search, the same seed gives the same rule.
    """
    problem = _WithholdingProblem(_Arena(source, cost), seed, name)
    starts = [np.asarray(start, np.float64)] if start is not None else problem.starts()
    limits = SearchLimits(budget_s / len(starts), max_generations, _SELECT_EVERY)
    best: SearchState | None = None
    before = 0
    for number, first in enumerate(starts):
        spent_s = number * limits.budget_s
        if best is not None:
            before += best.generations

        def report(state: SearchState, spent_s: float = spent_s, before: int = before) -> None:
            if progress is not None:
                whole = replace(state, generations=before + state.generations)
                progress(problem.tuned(whole), spent_s + state.seconds, whole.generations)

        best = search_parameters(
            problem,
            first,
            limits,
            continues=start is not None,
            seed=seed,
            best=best,
            progress=report,
        )
    assert best is not None
    return problem.tuned(replace(best, generations=before + best.generations))


class _WithholdingProblem:
    """The cost of the withholding rule, by its parameters."""

    def __init__(self, arena: _Arena, seed: int, name: str) -> None:
        self._arena = arena
        self._name = name
        # Every search seed has its range of sequence seeds, and every generation a new part of it.
        self._first_seed = TUNING_SEED_START + ((seed & 0xFF) << 30)
        self.selection_batch = arena.batch(SELECTION_SEED_START)
        self._fresh = self.selection_batch

    def starts(self) -> list[FloatArray]:
        """Where new searches start."""
        return start_parameters(self.selection_batch.sequences)

    def draw(self, generation: int) -> None:
        """New sequences, the same for all candidates of a generation."""
        arena = self._arena
        self._fresh = arena.batch(self._first_seed + (generation + 1) * arena.count)

    def cost(self, parameters: FloatArray) -> float:
        """Cost on the sequences of the last `draw`."""
        return self._arena.measure(_withhold(self._name, parameters), self._fresh)

    def selection(self, parameters: FloatArray) -> float:
        """Cost on the selection sequences."""
        return self._arena.measure(_withhold(self._name, parameters), self.selection_batch)

    def tuned(self, state: SearchState) -> Tuned:
        """The best rule of a search."""
        values = {
            parameter.name.lower(): round(float(state.parameters[parameter]), 4)
            for parameter in WithholdParameter
        }
        text = ", ".join(f"{key} {value:g}" for key, value in values.items())
        policy = _withhold(self._name, state.parameters)
        words = self._arena.words(policy, self.selection_batch)
        generations = counted(state.generations, "generation")
        text += f" ({words} on selection sequences, {generations} of CMA-ES)"
        card = {**values, "cost": state.cost, "generations": state.generations}
        return Tuned(policy, state.cost, words, text, card)


def start_parameters(sequences: Sequence[RigidJobs]) -> list[FloatArray]:
    """Two start points of the search.

    Both serve the shortest job first. In the first, jobs longer than most leave a little of the
    cluster free; in the second, they wait until nearly all of it is free.
    """
    estimates = np.concatenate([jobs.estimate for jobs in sequences])
    length = float(np.quantile(np.log(estimates), 0.7)) if len(estimates) else 0.0
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


def _withhold(name: str, theta: npt.ArrayLike) -> HandMadePolicy:
    return HandMadePolicy(name, PackingKind.WITHHOLD, theta)
