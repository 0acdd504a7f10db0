"""How far from ideal: lower bounds that no schedule can beat."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from parcae.errors import ConfigError
from parcae.policies.catalog import order_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Wave


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of one sequence, in ms, that no schedule can beat."""

    average_jct_ms: float
    makespan_ms: float
    explanation: str = (
        "each job alone on the whole cluster with its shortest measured durations, and all jobs together as divisible work on "
        "all executors, shortest remaining first"
    )


def shortest_task_ms(stage: StageSpec) -> int:
    """The shortest duration that any task of the stage can have, at any wave and parallelism."""
    return min(
        int(samples.min())
        for wave in Wave
        for samples in stage.durations.by_wave(wave)
        if samples.size
    )


def alone_ms(job: JobSpec, num_executors: int) -> float:
    """A lower bound on the job's duration alone: its best case on all executors.

    The larger of the critical path (with ceil(tasks / executors) waves of each stage) and work / executors, both with the
    shortest measured durations.
    """
    shortest = [shortest_task_ms(stage) for stage in job.stages]
    waves = [
        math.ceil(s.num_tasks / num_executors) * ms
        for s, ms in zip(job.stages, shortest, strict=True)
    ]
    return max(max(job.downstream_ms(waves)), least_work_ms(job) / num_executors)


def least_work_ms(job: JobSpec) -> float:
    """The job's work with the shortest measured durations, in ms of one executor."""
    return float(sum(stage.num_tasks * shortest_task_ms(stage) for stage in job.stages))


def _srpt_completion_ms(arrival_ms: list[int], work_ms: list[float], speed: int) -> list[float]:
    """Completion times under shortest remaining processing time of divisible work on one machine of a speed.

    It minimises the sum of completion times over all schedules of divisible work, which real ones are a special case of.
    """
    order = sorted(range(len(arrival_ms)), key=lambda j: arrival_ms[j])
    completion = [0.0] * len(order)
    waiting = list[tuple[float, int]]()
    clock = 0.0
    row = 0
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


def best_alone_ms(
    num_jobs: int, num_executors: Sequence[int], alone: Callable[[int, int], float]
) -> list[tuple[int, float]]:
    """Each job alone at its best parallelism: (executors, duration in ms) of the least duration.

    Unlike `lower_bounds` this knows work inflation: more executors may make a job slower. It is the best of the runs
    that `alone` makes, hence an ideal to compare with rather than a bound that no schedule can beat.

    Args:
        num_jobs: jobs 0 .. num_jobs - 1.
        num_executors: the numbers of executors to try.
        alone: the duration of a job alone on a number of executors; see `alone_runner`.

    Example: a job that takes 9, 6, 7 s on 1, 2, 4 executors gives (2, 6000.0).
    """
    best = []
    for job in range(num_jobs):
        tried = [(alone(job, count), count) for count in num_executors]
        duration_ms, count = min(tried)
        best.append((count, duration_ms))
    return best


def alone_runner(
    sequence: JobSequence, config: SimulationConfig, seed: int
) -> Callable[[int, int], float]:
    """A function (job, executors) -> the job's simulated duration in ms, alone, with stages by critical path.

    Raises:
        ConfigError: executor classes, of which a number of executors does not say enough.
    """
    if config.executor_classes:
        raise ConfigError(
            "each job alone at a number of executors is not defined for executor classes; give num_executors"
        )
    free = {"end_ms": None, "mean_episode_ms": None}

    def alone(job: int, num_executors: int) -> float:
        single = JobSequence(
            sequence.workload, sequence.job_index[job : job + 1], np.zeros(1, np.int64)
        )
        cluster = config.model_copy(update={**free, "num_executors": num_executors})
        return float(simulate(single, order_policy([0]), cluster, seed).completion_ms[0])

    return alone


def simplified(
    sequence: JobSequence, config: SimulationConfig
) -> tuple[JobSequence, SimulationConfig]:
    """The setting of Decima's Appendix H: no waves, no delays, no slowdown at high parallelism.

    Every task takes its stage's mean, whatever its wave and parallelism, and executors move at once.

    Example: `best_job_order(*simplified(sequence, config), seed=0)`; see `parcae.evaluation.order_search`.
    """
    jobs = tuple(
        replace(
            job,
            stages=tuple(
                replace(s, durations=TaskDurations.constant(max(1, round(s.mean_task_ms))))
                for s in job.stages
            ),
        )
        for job in sequence.workload.jobs
    )
    plain = replace(sequence.workload, jobs=jobs)
    cluster = config.model_copy(update={"moving_delay_ms": 0, "warmup_delay_ms": 0})
    return JobSequence(plain, sequence.job_index, sequence.arrival_ms), cluster
