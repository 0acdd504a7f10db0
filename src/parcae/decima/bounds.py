"""Lower bounds on average JCT and makespan that no schedule can beat.

`lower_bounds` computes bounds for a job sequence. `simplified` builds the setting of Decima's
Appendix H.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.cluster.state import select
from parcae.decima.order_search import UNORDERED, OrderSearch, search_orders
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.simulator import check_status
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.durations import TaskDurations, Wave
from parcae.workloads.job import JobSpec, StageSpec


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


def simplified(
    sequence: JobSequence, config: SimulationConfig
) -> tuple[JobSequence, SimulationConfig]:
    """The setting of Decima's Appendix H: no waves, no delays, no slowdown at high parallelism.

    Every task takes its stage's mean duration, independent of wave and parallelism. Executors move
    without delay.

    Example: `best_job_order(*simplified(sequence, config), seed=0)`; see
    `parcae.decima.bounds`.
    """
    plain = sequence.workload.with_stages(
        lambda s: replace(s, durations=TaskDurations.constant(max(1, round(s.mean_task_ms))))
    )
    cluster = config.model_copy(update={"moving_delay_ms": 0, "warmup_delay_ms": 0})
    return JobSequence(plain, sequence.job_index, sequence.arrival_ms), cluster


FloatArray = npt.NDArray[np.float64]
#: Largest number of jobs that the search accepts.
MAX_ORDERED_JOBS = 12
#: Number of simulated prefixes between two progress reports.
_PROGRESS = 2_000


@dataclass(frozen=True)
class BestOrder:
    """The best order of an exhaustive search.

    Args:
        order: positions of the jobs in the job sequence, in the order of service.
        average_jct_ms: the average JCT under this order.
        num_orders: number of orders that were simulated to the end. A lower bound ruled out all
            other orders by one of their prefixes.
        num_beginnings: number of prefixes of orders that were simulated.
    """

    order: tuple[int, ...]
    average_jct_ms: float
    num_orders: int
    num_beginnings: int


def best_job_order(
    sequence: JobSequence,
    config: SimulationConfig,
    seed: int,
    progress: Callable[[int, float], None] | None = None,
) -> BestOrder:
    """Find the best order of the jobs (Decima, Appendix H).

    An order gives all executors to the first job that can use them. The search is exhaustive:
    orders with a common prefix share its simulation, and the search drops a prefix only if a lower
    bound on every continuation exceeds the best order so far.

    The paper also turns off waves, start-up delays and slowdowns at high parallelism; see
    `parcae.decima.bounds.simplified`. With these effects, giving all executors to one job is a
    poor rule, and other policies may beat the best order. The bound ignores delays, so it then
    rules out fewer prefixes. In the simplified setting, ten TPC-H jobs take one second; trying all
    3.6 million orders would take about an hour.
    """
    check_orders(sequence.num_jobs, config)
    num_jobs = sequence.num_jobs
    # One simulator for each depth of the search: row d has d ordered jobs.
    batch = SimulatorBatch([sequence] * (num_jobs + 1), config, [seed] * (num_jobs + 1))
    blocks = tuple(
        _as_block(table)
        for tables in (batch.states, batch.futures)
        for table in tables
        if table.size
    )
    search = _begin(sequence, config)
    status = Status.NEEDS_DECISION
    while status is Status.NEEDS_DECISION:
        status = Status(
            search_orders(batch.states, batch.futures, blocks, batch.tables, search, _PROGRESS)
        )
        if progress is not None:
            progress(int(search.num_beginnings[0]), float(search.best_ms[0]) / num_jobs)
    # Turns an error status into an exception.
    if status is not Status.COMPLETE:
        check_status(int(status), select(batch.states, 0), sequence)
    order = tuple(int(job) for job in np.argsort(search.best_rank, kind="stable"))
    average_jct_ms = float(search.best_ms[0]) / num_jobs
    return BestOrder(
        order, average_jct_ms, int(search.num_orders[0]), int(search.num_beginnings[0])
    )


def check_orders(num_jobs: int, config: SimulationConfig) -> None:
    """Check that all orders of so many jobs can be searched."""
    if config.end_ms is not None or config.mean_episode_ms is not None:
        raise ConfigError(
            "the exhaustive search compares completed runs: leave out end_ms and mean_episode_ms"
        )
    if num_jobs > MAX_ORDERED_JOBS:
        orders = math.factorial(min(num_jobs, 20))
        raise ConfigError(
            f"{num_jobs} jobs have {orders:,} orders or more; "
            f"the exhaustive search takes at most {MAX_ORDERED_JOBS} jobs"
        )


def _as_block(table: Any) -> npt.NDArray[np.int64]:
    """View a table of all simulators as int64[num_simulators, size], without copying."""
    return np.asarray(table).view(np.int64).reshape(len(table), -1)


def _begin(sequence: JobSequence, config: SimulationConfig) -> OrderSearch:
    """The tables of a search that has not begun."""
    num_jobs = sequence.num_jobs
    task_ms, path_ms = _least_ms(sequence, config.total_executors)
    table = np.zeros((num_jobs + 1, num_jobs), np.int64)
    # One entry for each depth of the search.
    column = np.zeros(num_jobs + 1, np.int64)
    return OrderSearch(
        rank=np.full((num_jobs + 1, num_jobs), UNORDERED),
        jobs=table,
        num_jobs=column.copy(),
        next_job=column,
        depth=np.full(1, -2, np.int64),
        best_ms=np.full(1, np.inf),
        best_rank=np.zeros(num_jobs),
        num_orders=np.zeros(1, np.int64),
        num_beginnings=np.zeros(1, np.int64),
        task_ms=task_ms,
        path_ms=path_ms,
        left_ms=np.zeros(num_jobs),
        finish_ms=np.zeros(num_jobs),
    )


def _least_ms(sequence: JobSequence, num_executors: int) -> tuple[FloatArray, FloatArray]:
    """For every stage of every job, its shortest task and its shortest path to the job's end.
    Returns float64[num_stages], ms of the shortest task; float64[num_stages], ms of the path.
    """
    task_ms = list[float]()
    path_ms = list[float]()
    for job in sequence.jobs:
        shortest = [shortest_task_ms(stage) for stage in job.stages]
        task_ms += shortest
        waves = [
            math.ceil(stage.num_tasks / num_executors) * ms
            for stage, ms in zip(job.stages, shortest, strict=True)
        ]
        path_ms += job.downstream_ms(waves)
    return np.array(task_ms, np.float64), np.array(path_ms, np.float64)
