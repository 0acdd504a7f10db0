"""How far from ideal: lower bounds that no schedule can beat, and the best order of up to ten jobs by exhaustive search."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

from parcae.errors import ConfigError
from parcae.policies.catalog import order_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, StageSpec, Wave

#: The exhaustive search takes at most this many jobs (10! orders).
MAX_ORDERED_JOBS = 10


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of one sequence, in ms."""

    average_jct_ms: float
    makespan_ms: float
    explanation: str = (
        "each job alone on the whole cluster with its shortest measured durations, and all jobs together as divisible work on "
        "all executors, shortest remaining first"
    )


def _shortest_ms(stage: StageSpec) -> int:
    """The shortest duration that any task of the stage can have, at any wave and parallelism."""
    return min(int(samples.min()) for wave in Wave for samples in stage.durations.by_wave(wave) if samples.size)


def alone_ms(job: JobSpec, num_executors: int) -> float:
    """A lower bound on the job's duration alone: its best case on all executors.

    The larger of the critical path (with ceil(tasks / executors) waves of each stage) and work / executors, both with the
    shortest measured durations.
    """
    shortest = [_shortest_ms(stage) for stage in job.stages]
    waves = [math.ceil(s.num_tasks / num_executors) * ms for s, ms in zip(job.stages, shortest, strict=True)]
    return max(max(job.downstream_ms(waves)), least_work_ms(job) / num_executors)


def least_work_ms(job: JobSpec) -> float:
    """The job's work with the shortest measured durations, in ms of one executor."""
    return float(sum(stage.num_tasks * _shortest_ms(stage) for stage in job.stages))


def _srpt_completion_ms(arrival_ms: list[int], work_ms: list[float], speed: int) -> list[float]:
    """Completion times under shortest remaining processing time of divisible work on one machine of a speed.

    It minimises the sum of completion times over all schedules of divisible work, which real ones are a special case of.
    """
    order = sorted(range(len(arrival_ms)), key=lambda j: arrival_ms[j])
    completion, waiting = [0.0] * len(order), list[tuple[float, int]]()
    clock, row = 0.0, 0
    while row < len(order) or waiting:
        if not waiting:
            clock = max(clock, float(arrival_ms[order[row]]))
        while row < len(order) and arrival_ms[order[row]] <= clock:
            heapq.heappush(waiting, (work_ms[order[row]] / speed, order[row]))
            row += 1
        left, job = heapq.heappop(waiting)
        until = float(arrival_ms[order[row]]) if row < len(order) else math.inf
        if clock + left <= until:
            clock += left
            completion[job] = clock
        else:
            heapq.heappush(waiting, (left - (until - clock), job))
            clock = until
    return completion


def lower_bounds(sequence: JobSequence, num_executors: int) -> Bounds:
    """Bounds on average JCT and makespan that hold for every schedule of the sequence.

    Example: two jobs of one 10 s task each on one executor: average JCT at least 15 s, makespan at least 20 s.
    """
    arrival = [int(ms) for ms in sequence.arrival_ms]
    alone = {id(job): alone_ms(job, num_executors) for job in sequence.workload.jobs}
    work = {id(job): least_work_ms(job) for job in sequence.workload.jobs}
    shared = _srpt_completion_ms(arrival, [work[id(job)] for job in sequence.jobs], num_executors)
    by_sharing = sum(c - a for c, a in zip(shared, arrival, strict=True)) / len(arrival)
    by_alone = sum(alone[id(job)] for job in sequence.jobs) / len(arrival)
    last_alone = max(a + alone[id(job)] for a, job in zip(arrival, sequence.jobs, strict=True))
    return Bounds(max(by_sharing, by_alone), max(max(shared), last_alone) - arrival[0])


@dataclass(frozen=True)
class BestOrder:
    """The best order of an exhaustive search."""

    order: tuple[int, ...]
    average_jct_ms: float
    num_orders: int


def best_job_order(
    sequence: JobSequence, config: SimulationConfig, seed: int, progress: Callable[[int, int], None] | None = None
) -> BestOrder:
    """Try every order of the jobs, all executors to the first unfinished one, and keep the best (Decima, Appendix H).

    Raises:
        ConfigError: more than ten jobs.
    """
    if sequence.num_jobs > MAX_ORDERED_JOBS:
        raise ConfigError(
            f"{sequence.num_jobs} jobs have {math.factorial(min(sequence.num_jobs, 20)):,} orders or more; the exhaustive search "
            f"takes at most {MAX_ORDERED_JOBS} jobs"
        )
    total = math.factorial(sequence.num_jobs)
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    for row, order in enumerate(itertools.permutations(range(sequence.num_jobs)), 1):
        trace = simulate(sequence, order_policy(order), config, seed)
        best = min(best, (float((trace.completion_ms - trace.arrival_ms).mean()), order))
        if progress is not None and (row % 500 == 0 or row == total):
            progress(row, total)
    return BestOrder(best[1], best[0], total)
