"""Lower bounds on average JCT and makespan that no schedule can beat."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from parcae.base.errors import ConfigError
from parcae.workloads.durations import Wave
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence


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

    It is the larger of the critical path and work / executors, both computed with the shortest
    measured durations.
    """
    return max(max(least_paths_ms(job, num_executors)), least_work_ms(job) / num_executors)


def least_paths_ms(job: JobSpec, num_executors: int) -> tuple[float, ...]:
    """The least time from each stage's start to the job's end: ceil(tasks / executors) waves."""
    return job.downstream_ms(
        [math.ceil(s.num_tasks / num_executors) * shortest_task_ms(s) for s in job.stages]
    )


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
    if sequence.has_sessions:
        raise ConfigError(
            "bounds are for given arrivals, but those of sessions depend on the schedule: draw "
            "arrivals, as in poisson:25s"
        )
    arrival = [int(ms) for ms in sequence.arrival_ms]
    alone = {id(job): alone_ms(job, num_executors) for job in sequence.workload.jobs}
    work = {id(job): least_work_ms(job) for job in sequence.workload.jobs}
    shared = _srpt_completion_ms(arrival, [work[id(job)] for job in sequence.jobs], num_executors)
    by_sharing = sum(c - a for c, a in zip(shared, arrival, strict=True)) / len(arrival)
    by_alone = sum(alone[id(job)] for job in sequence.jobs) / len(arrival)
    last_alone = max(a + alone[id(job)] for a, job in zip(arrival, sequence.jobs, strict=True))
    return Bounds(max(by_sharing, by_alone), max(max(shared), last_alone) - arrival[0])
