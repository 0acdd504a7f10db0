"""Tune hand-made packing policies on sequences that no comparison uses.

`tune_knob` sweeps the parameter of Tetris*. `tune_withholding` searches the parameters of the
withholding rule by CMA-ES. `resolve_packing` makes policies of names, and tunes where a name lacks
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import Float64Array
from parcae.evaluation.comparison import tuned_last
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
from parcae.rigid.metrics import (
    BY_JOB,
    mean_cost_of_started,
    num_never_started,
    require_ranking,
    typical_cost,
)
from parcae.rigid.policies.catalog import (
    ANY_SETTING,
    UNGUARDED,
    PackingSetting,
    earned,
    make_packing_policy,
)
from parcae.rigid.policies.policy import HandMadePolicy, PackingPolicy
from parcae.rigid.policies.scores import PackingKind, WithholdParameter
from parcae.rigid.sources import PackingSource, RigidLogSource, origins
from parcae.rigid.world import PackingBatch
from parcae.workloads.import_report import counted
from parcae.workloads.workload import SELECTION_SEED_START, TUNING_SEED_START

#: Policies that are tuned for the setting of the comparison, before it runs.
TUNED = ("tetris", "withhold")
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


@dataclass(frozen=True)
class RigidTuning:
    """How policies are tuned.

    Args:
        source: the source of the tuning sequences.
        cost: the cost to minimise.
        budget_s: largest duration of a search, in seconds.
        where: description of the sequences, for the settings.
    """

    source: PackingSource
    cost: Cost
    budget_s: float = 120.0
    where: str = ""

    def __post_init__(self) -> None:
        require_ranking(self.cost)

    @property
    def count(self) -> int:
        """Number of sequences that measure one value."""
        return _NUM_PIECES if self.source.config.mode is TimeMode.EXACT else _NUM_SEQUENCES

    def batch(self, first_seed: int, factor: int = 1) -> PackingBatch:
        """Clusters that run the sequences of consecutive seeds."""
        seeds = range(first_seed, first_seed + self.count * factor)
        return PackingBatch(self.source.draw(seeds), self.source.config)

    def measure(
        self, policy: HandMadePolicy, batch: PackingBatch, num_threads: int | None = None
    ) -> float:
        """The cost of a policy."""
        batch.run(policy.play_many, num_threads)
        # A batch has consecutive seeds: which of them share a log does not depend on the first.
        return typical_cost(batch, self.cost, origins(self.source, range(len(batch))))

    def words(self, policy: HandMadePolicy, batch: PackingBatch) -> str:
        """The cost of a policy in words, with the mean that comparisons report."""
        cost = self.measure(policy, batch)
        name = ("mean " if self.cost in BY_JOB else "") + self.cost.objective.replace("-", " ")
        # The bounded slowdown that accrues during a run is below 1 for jobs shorter than the bound,
        # unlike the measure of the report.
        if self.cost is Cost.BOUNDED_SLOWDOWN:
            name += " without the minimum of 1,"
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
    source: PackingSource, cost: Cost = Cost.SLOWDOWN, num_threads: int | None = None
) -> Tuned:
    """Tetris* with the knob that is best on the tuning sequences; of equal ones, the smallest.

    Source: DeepRM, section 4.1, which does not state its knob.
    """
    tuning = RigidTuning(source, cost)
    batch = tuning.batch(TUNING_SEED_START, _SWEEP_FACTOR)
    costs: dict[Values, float] = {
        (knob,): tuning.measure(_tetris(knob), batch, num_threads)
        for knob in knobs(batch.sequences, source.config.mode)
    }
    sweep = Sweep(("knob",), costs)
    best = _tetris(*sweep.best)
    words = tuning.words(best, batch)
    text = (
        f"{sweep.best_words} ({words}) of {len(costs)} from 0 to 1, on {len(batch)} tuning "
        "sequences"
    )
    # A knob of 0 is an end by nature: alignment does not count.
    edge = edge_warning(Knobs(("knob",), lambda _: costs, open_ended=("knob",)), 0, sweep)
    card = {"knob": sweep.best[0], "cost": costs[sweep.best]}
    return Tuned(best, costs[sweep.best], words, text, card, edge)


def _tetris(knob: float) -> HandMadePolicy:
    return HandMadePolicy("tetris", PackingKind.TETRIS, (knob,))


def tune_withholding(
    source: PackingSource,
    cost: Cost = Cost.SLOWDOWN,
    budget_s: float = 60.0,
    *,
    max_generations: int = MAX_GENERATIONS,
    start: npt.ArrayLike | None = None,
    seed: int = 0,
    progress: Callable[[Tuned, float, int], None] | None = None,
) -> Tuned:
    """Search the parameters of the withholding rule by CMA-ES. Returns the rule with the least cost
    on the selection sequences.

    Every generation is measured on new tuning sequences, the same for all its candidates. The
    selection sequences decide which mean of the search is kept. Without `start` there are two
    searches from different points; each ends after `max_generations` or half of the budget. If the
    number of generations ends the search, the same seed gives the same rule.
    """
    problem = _WithholdingProblem(RigidTuning(source, cost), seed)
    starts = start_parameters(problem.selection_batch.sequences)
    if start is not None:
        starts = [np.asarray(start, np.float64)]
    limits = SearchLimits(budget_s / len(starts), max_generations, _SELECT_EVERY)
    best: SearchState | None = None
    before = 0
    for number, first in enumerate(starts):

        def report(state: SearchState, number: int = number, before: int = before) -> None:
            if progress is not None:
                whole = replace(state, generations=before + state.generations)
                seconds = number * limits.budget_s + state.seconds
                progress(problem.tuned(whole), seconds, whole.generations)

        best = search_parameters(
            problem,
            first,
            limits,
            continues=start is not None,
            seed=seed,
            best=best,
            progress=report,
        )
        before += best.generations
    assert best is not None
    return problem.tuned(replace(best, generations=before))


class _WithholdingProblem:
    """The cost of the withholding rule, by its parameters."""

    def __init__(self, tuning: RigidTuning, seed: int) -> None:
        self._tuning = tuning
        # Every search seed has its range of sequence seeds, and every generation a new part of it.
        self._first_seed = TUNING_SEED_START + ((seed & 0xFF) << 30)
        self.selection_batch = tuning.batch(SELECTION_SEED_START)
        self._fresh = self.selection_batch

    def draw(self, generation: int) -> None:
        """New sequences, the same for all candidates of a generation."""
        first_seed = self._first_seed + (generation + 1) * self._tuning.count
        self._fresh = self._tuning.batch(first_seed)

    def cost(self, parameters: Float64Array) -> float:
        """Cost on the sequences of the last `draw`."""
        return self._tuning.measure(_withhold(parameters), self._fresh)

    def selection(self, parameters: Float64Array) -> float:
        """Cost on the selection sequences."""
        return self._tuning.measure(_withhold(parameters), self.selection_batch)

    def tuned(self, state: SearchState) -> Tuned:
        """The best rule of a search."""
        values = {
            parameter.name.lower(): round(float(state.parameters[parameter]), 4)
            for parameter in WithholdParameter
        }
        text = ", ".join(f"{key} {value:g}" for key, value in values.items())
        policy = _withhold(state.parameters)
        words = self._tuning.words(policy, self.selection_batch)
        generations = counted(state.generations, "generation")
        text += f" ({words} on selection sequences, {generations} of CMA-ES)"
        card = {**values, "cost": state.cost, "generations": state.generations}
        return Tuned(policy, state.cost, words, text, card)


def _withhold(parameters: Float64Array) -> HandMadePolicy:
    return HandMadePolicy("withhold", PackingKind.WITHHOLD, parameters)


def start_parameters(sequences: Sequence[RigidJobs]) -> list[Float64Array]:
    """Two start points of the search.

    Both serve the shortest job first. In the first, jobs longer than most leave a little of the
    cluster free; in the second, they wait until nearly all of it is free.
    """
    estimates = np.concatenate([jobs.estimate for jobs in sequences])
    length = float(np.quantile(np.log(estimates), 0.7)) if len(estimates) else 0.0
    starts = []
    for reserve, patience, crowd, pause in ((0.3, 0.1, 0.0, 3.0), (3.0, 0.3, 0.3, 8.0)):
        values = {
            WithholdParameter.RESERVE: reserve,
            WithholdParameter.STEEPNESS: 2.0,
            WithholdParameter.LENGTH: length,
            WithholdParameter.PATIENCE: patience,
            WithholdParameter.CROWD: crowd,
            WithholdParameter.PAUSE: pause,
        }
        starts.append(np.array([values.get(one, 0.0) for one in WithholdParameter]))
    return starts


@dataclass(frozen=True)
class ResolvedPacking:
    """Policies by name, after tuning.

    Args:
        policies: in the caller's order.
        tuned: by name, the result of tuning in words.
        edges: by name, a warning if a tuned value is at the edge of those that were tried.
        also: names of results that no policy gives, after those of policies.
    """

    policies: Mapping[str, PackingPolicy]
    tuned: Mapping[str, str]
    edges: Mapping[str, str]
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names in the caller's order."""
        return (*self.policies, *self.also)

    def learned(self, what: str) -> dict[str, Any]:
        """By name, what the cards of policies say of how they learned: "curve" or "source"."""
        cards = {name: policy.card for name, policy in self.policies.items()}
        return {name: card[what] for name, card in cards.items() if card.get(what)}


def resolve_packing(
    names: Sequence[str],
    tuning: RigidTuning | None,
    progress: Callable[[str], None] | None = None,
    setting: PackingSetting = ANY_SETTING,
) -> ResolvedPacking:
    """Make the policies with the given names; `tetris` and `withhold` are tuned here."""
    made: dict[str, PackingPolicy] = {}
    tuned: dict[str, str] = {}
    edges: dict[str, str] = {}
    for name in tuned_last(names, lambda name: tuning is not None and bool(tuned_policy(name))):
        base = tuned_policy(name)
        if tuning is None or base is None:
            made[name] = make_packing_policy(name, setting)
            continue
        if progress is not None:
            progress(f"tuning {name}")
        result = tune(base, tuning)
        result.policy.card = {"source": tuning.source.card()}
        made[name] = result.policy
        if name == base:
            made[name] = earned(result.policy, setting)
        tuned[name] = result.text + (f", {tuning.where}" if tuning.where else "")
        if result.edge:
            edges[name] = result.edge
    return ResolvedPacking({name: made[name] for name in dict.fromkeys(names)}, tuned, edges)


def tuned_policy(name: str) -> str | None:
    """The policy of TUNED that a name means; None if no policy is tuned for it.

    Only `withhold` takes the suffix of a policy that may withhold jobs whatever the harm: `tetris`
    withholds none.
    """
    plain = "withhold" if name == f"withhold{UNGUARDED}" else name
    return plain if plain in TUNED else None


def tune(name: str, tuning: RigidTuning, **search: Any) -> Tuned:
    """Tune a policy of TUNED."""
    if name == "tetris":
        return tune_knob(tuning.source, tuning.cost)
    return tune_withholding(tuning.source, tuning.cost, tuning.budget_s, **search)
