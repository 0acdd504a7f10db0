"""The best of all orders of jobs in the simplified setting of Decima's Appendix H."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.cluster.state import select
from parcae.decima.order_search import UNORDERED, OrderSearch, search_orders
from parcae.simulation.bounds import shortest_task_ms
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.simulator import check_status
from parcae.workloads.durations import TaskDurations
from parcae.workloads.workload import JobSequence


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
