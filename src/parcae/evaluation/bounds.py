"""Lower bounds on average JCT and makespan that no schedule can beat, and ideal references.

`lower_bounds` computes bounds for a job sequence. `best_alone_ms` and `alone_runner` measure each
job alone at its best parallelism. `simplified` builds the setting of Decima's Appendix H.
"""

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
    """Lower bounds for one job sequence, in ms, that no schedule can beat."""

    average_jct_ms: float
    makespan_ms: float
    explanation: str = (
        "each job alone on the whole cluster with its shortest measured durations, and all jobs "
        "together as divisible work on all executors, shortest remaining work first"
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
    """A lower bound on the job's duration when it runs alone on all executors, in ms.

    It is the larger of the critical path (each stage with ceil(tasks / executors) waves) and
    work / executors, both computed with the shortest measured durations.
    """
    shortest = [shortest_task_ms(stage) for stage in job.stages]
    waves = [
        math.ceil(s.num_tasks / num_executors) * ms
        for s, ms in zip(job.stages, shortest, strict=True)
    ]
    return max(max(job.downstream_ms(waves)), least_work_ms(job) / num_executors)


def least_work_ms(job: JobSpec) -> float:
    """The job's work with the shortest measured durations, in executor-milliseconds."""
    return float(sum(stage.num_tasks * shortest_task_ms(stage) for stage in job.stages))


def _srpt_completion_ms(arrival_ms: list[int], work_ms: list[float], speed: int) -> list[float]:
    """Completion times of divisible work under shortest remaining processing time (SRPT).

    The cluster counts as one machine with the speed of all executors. SRPT minimises the sum of
    completion times over all schedules of divisible work. Every real schedule is one of these, so
    the sum is a lower bound.
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
        # Run the shortest job until it ends or the next job arrives, whichever is first.
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

    Example: two jobs of one 10 s task each on one executor have an average JCT of at least 15 s and
    a makespan of at least 20 s.
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
    """Each job alone at its best parallelism: (number of executors, duration in ms).

    Unlike `lower_bounds` this accounts for work inflation: more executors may make a job slower.
    The durations come from simulated runs, so they are an ideal to compare with, not a bound.

    Args:
        num_jobs: number of jobs; the jobs are 0 .. num_jobs - 1.
        num_executors: the numbers of executors to try.
        alone: function (job, number of executors) -> duration in ms; see `alone_runner`.

    Returns:
        For every job the number of executors with the least duration, and that duration in ms.

    Example: a job that takes 9, 6, 7 s on 1, 2, 4 executors gives (2, 6000.0).
    """
    best = []
    for job in range(num_jobs):
        # Of equal durations, the smallest number of executors.
        tried = [(alone(job, count), count) for count in num_executors]
        duration_ms, count = min(tried)
        best.append((count, duration_ms))
    return best


def alone_runner(
    sequence: JobSequence, config: SimulationConfig, seed: int
) -> Callable[[int, int], float]:
    """Return a function (job, number of executors) -> duration of the job when it runs alone.

    The function simulates one run in which the job's stages are served by critical path.

    Args:
        sequence: the jobs.
        config: the cluster; the function replaces its number of executors.
        seed: seed of the task durations.

    Returns:
        A function of the job's position and a number of executors that returns ms.

    Raises:
        ConfigError: the cluster has executor classes.
    """
    if config.executor_classes:
        raise ConfigError(
            "running each job alone on a number of executors is not defined for executor classes; "
            "set num_executors in place of executor_classes"
        )
    # A run of one job ends with the job, so the run must have no end time.
    no_end = {"end_ms": None, "mean_episode_ms": None}

    def alone(job: int, num_executors: int) -> float:
        single = JobSequence(
            sequence.workload, sequence.job_index[job : job + 1], np.zeros(1, np.int64)
        )
        cluster = config.model_copy(update={**no_end, "num_executors": num_executors})
        return float(simulate(single, order_policy([0]), cluster, seed).completion_ms[0])

    return alone


def simplified(
    sequence: JobSequence, config: SimulationConfig
) -> tuple[JobSequence, SimulationConfig]:
    """The setting of Decima's Appendix H: no waves, no delays, no slowdown at high parallelism.

    Every task takes its stage's mean duration, independent of wave and parallelism. Executors move
    without delay.

    Example: `best_job_order(*simplified(sequence, config), seed=0)`; see
    `parcae.evaluation.order_search`.
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
