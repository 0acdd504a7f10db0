"""Figure 22: the simplified setting in which the best order of the jobs can be searched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.evaluation.bounds import MAX_ORDERED_JOBS, BestOrder, lower_bounds, simplified
from parcae.evaluation.statistics import mean_estimate, ratio_estimate
from parcae.learning.scenario import Scenario
from parcae.policies.heuristics.kernels import HeuristicKind, play_many
from parcae.simulation.config import SimulationConfig
from parcae.simulation.many import SimulatorBatch
from parcae.studies.reproduce.contest import Arena, Contender, averages_s, contest, named, with_half_width, with_interval
from parcae.studies.reproduce.learners import budget_notes, learned_contenders, train_decima, tune
from parcae.studies.reproduce.pictures import save_bars
from parcae.studies.reproduce.study import StudyRequest, StudyResult
from parcae.units import MS_PER_S
from parcae.workloads.arrivals import JobSequence

#: Orders that are simulated side by side.
_CHUNK = 512
_SEARCH, _FIRST = "exhaustive search", "sjf-cp"


def _chunks(num_jobs: int) -> Iterator[npt.NDArray[np.int64]]:
    orders = itertools.permutations(range(num_jobs))
    while chunk := list(itertools.islice(orders, _CHUNK)):
        yield np.array(chunk, np.int64)


def search_orders_many(
    sequence: JobSequence, config: SimulationConfig, seed: int, progress: Callable[[int, int], None] | None = None
) -> BestOrder:
    """The same as `parcae.evaluation.bounds.best_job_order`, with many orders side by side on all cores.

    Args:
        progress: called with (orders tried, orders) after every chunk.

    Raises:
        ConfigError: more jobs than can be searched.

    Source: Decima, Appendix H.
    """
    if sequence.num_jobs > MAX_ORDERED_JOBS:
        raise ConfigError(f"{sequence.num_jobs} jobs; the exhaustive search takes at most {MAX_ORDERED_JOBS}")
    total = math.factorial(sequence.num_jobs)
    size = min(_CHUNK, total)
    batch = SimulatorBatch([sequence] * size, config, [seed] * size)
    at_least = lower_bounds(sequence, config.total_executors).average_jct_ms
    best, tried = BestOrder((), math.inf, 0), 0
    for orders in _chunks(sequence.num_jobs):
        ranks = np.zeros((size, sequence.num_jobs))
        np.put_along_axis(ranks[: len(orders)], orders, np.arange(sequence.num_jobs, dtype=np.float64)[None, :], axis=1)

        def play(*args: object, ranks: npt.NDArray[np.float64] = ranks) -> None:
            states, futures, tables, first, last, status = args
            play_many(states, futures, tables, int(HeuristicKind.ORDER), ranks, first, last, status)

        batch.run(play)
        jobs = batch.states.jobs
        cost = (jobs.completion_ms[: len(orders)] - jobs.arrival_ms[: len(orders)]).mean(axis=1)
        row, tried = int(np.argmin(cost)), tried + len(orders)
        if float(cost[row]) < best.average_jct_ms:
            best = BestOrder(tuple(int(job) for job in orders[row]), float(cost[row]), tried)
        if progress is not None:
            progress(tried, total)
        if best.average_jct_ms <= at_least:
            break
    return BestOrder(best.order, best.average_jct_ms, tried)


def fig22(request: StudyRequest) -> StudyResult:
    """SJF-CP, tuned weighted fair, a trained policy and the best order of the jobs, without delays and waves.

    Source: Decima, Figure 22 and Appendix H.
    """
    num_jobs, num_runs = request.jobs(6, 10), request.runs(10, 3)
    drawn = Arena(request.workload, request.config, "batch", num_jobs)
    plain, cluster = simplified(drawn.sequence(request.first_seed), request.config)
    arena = Arena(plain.workload, cluster, "batch", num_jobs)
    learned, notes = _learned(request, Scenario(arena.workload, cluster, "batch", num_jobs))
    found = contest(request, arena, [*named(_FIRST, "weighted-fair:tuned", "fair"), *learned], num_runs)
    searched = [
        search_orders_many(arena.sequence(seed), cluster, seed, partial(_tell, request, seed))
        for seed in range(request.first_seed, request.first_seed + num_runs)
    ]
    best_s = [order.average_jct_ms / MS_PER_S for order in searched]
    samples = {_SEARCH: best_s, **{label: averages_s(result) for label, result in found.results.items()}}
    estimates = {label: mean_estimate(values) for label, values in samples.items()}
    ratios = {label: ratio_estimate(values, best_s) for label, values in samples.items()}
    rows = [[label, with_half_width(estimates[label]), with_interval(ratios[label])] for label in samples]
    return StudyResult(
        "a simplified setting in which the best order of the jobs can be searched",
        "SJF-CP beats tuned weighted fair, the exhaustive search beats SJF-CP, and Decima matches the search or beats it "
        "slightly, by 9% on average (Figure 22, Appendix H)",
        ("policy", "average JCT (s)", f"ratio to the {_SEARCH}"),
        rows,
        {
            "average_jct_s": samples,
            "ratio_to_search": {label: ratio.to_json() for label, ratio in ratios.items()},
            "orders": [{"order": order.order, "tried": order.num_orders} for order in searched],
            "contest": found.to_json(),
        },
        [
            "every task takes its stage's mean, executors move at once; the search tries all orders of the jobs, all executors "
            "to the first unfinished one, stages by critical path; it knows the batch, the other policies do not",
            f"{num_jobs} jobs a batch: {math.factorial(num_jobs):,} orders each{_fewer(num_jobs)}",
            *found.notes(),
            *notes,
        ],
        partial(save_bars, estimates, "average JCT (s)"),
    )


def _learned(request: StudyRequest, scenario: Scenario) -> tuple[list[Contender], list[str]]:
    """The policies of the request, or a network and a rule that are learned in this very setting, as the paper's agent is."""
    if request.policies:
        return learned_contenders(request, scenario)
    share_s = request.budget_s / 2
    made = [train_decima(request, scenario, "decima (made here)", share_s), tune(request, scenario, "rule (made here)", share_s)]
    return [policy.contender for policy in made], [*(policy.words for policy in made), *budget_notes(request)]


def _fewer(num_jobs: int) -> str:
    if num_jobs >= MAX_ORDERED_JOBS:
        return ""
    return f"; the paper has ten (--full, or --jobs {MAX_ORDERED_JOBS}), which take some half an hour a batch"


def _tell(request: StudyRequest, seed: int, tried: int, total: int) -> None:
    request.say(f"orders of the batch of seed {seed}: {tried:,} of {total:,}")
