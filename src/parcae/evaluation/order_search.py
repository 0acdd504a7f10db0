"""The best order of up to twelve jobs: exhaustive, by branch and bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import select
from parcae.errors import ConfigError
from parcae.evaluation.bounds import shortest_task_ms
from parcae.evaluation.kernels import UNORDERED, OrderSearch, search_orders
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.many import SimulatorBatch
from parcae.simulation.simulator import check_status
from parcae.workloads.arrivals import JobSequence

#: The search takes at most this many jobs.
MAX_ORDERED_JOBS = 12
#: Beginnings between two words of progress.
_PROGRESS = 2_000


@dataclass(frozen=True)
class BestOrder:
    """The best order of an exhaustive search.

    Args:
        order: the jobs, first served first.
        average_jct_ms: its average JCT.
        num_orders: orders that were simulated to the end; all others begin in ways that a bound rules out.
        num_beginnings: beginnings of orders that were simulated.
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
    """The best order of the jobs, all executors to the first one that can use them (Decima, Appendix H).

    Exhaustive: orders with a common beginning share its simulation, and a beginning is given up only where a lower bound on
    all that can follow exceeds the best order found. The paper also turns off waves, start-up delays and slowdowns at high
    parallelism: see `parcae.evaluation.bounds.simplified`. With them on, giving all executors to one job is a poor rule, and
    other policies may well beat the best order; the bound, which knows no delays, then rules out less. Measured in the
    simplified setting: a second for ten TPC-H jobs, where trying all 3.6 million orders takes about an hour.

    Args:
        progress: called with (beginnings simulated, the best average JCT so far in ms) now and then.

    Raises:
        ConfigError: too many jobs, or a run that ends before its jobs do.
    """
    if config.end_ms is not None or config.mean_episode_ms is not None:
        raise ConfigError(
            "the exhaustive search compares completed runs; leave out end_ms and mean_episode_ms"
        )
    num_jobs = sequence.num_jobs
    if num_jobs > MAX_ORDERED_JOBS:
        orders = math.factorial(min(num_jobs, 20))
        raise ConfigError(
            f"{num_jobs} jobs have {orders:,} orders or more; the exhaustive search takes at most {MAX_ORDERED_JOBS} jobs"
        )
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
    if status is not Status.COMPLETE:
        check_status(int(status), select(batch.states, 0), sequence)
    order = tuple(int(job) for job in np.argsort(search.best_rank, kind="stable"))
    average_jct_ms = float(search.best_ms[0]) / num_jobs
    return BestOrder(
        order, average_jct_ms, int(search.num_orders[0]), int(search.num_beginnings[0])
    )


def _as_block(table: Any) -> npt.NDArray[np.int64]:
    """The same memory as int64[num_simulators, size]."""
    return np.asarray(table).view(np.int64).reshape(len(table), -1)


def _begin(sequence: JobSequence, config: SimulationConfig) -> OrderSearch:
    num_jobs = sequence.num_jobs
    executors = config.total_executors
    task_ms = list[float]()
    path_ms = list[float]()
    for job in sequence.jobs:
        least = [shortest_task_ms(stage) for stage in job.stages]
        task_ms += least
        waves = [
            math.ceil(stage.num_tasks / executors) * ms
            for stage, ms in zip(job.stages, least, strict=True)
        ]
        path_ms += job.downstream_ms(waves)
    table = np.zeros((num_jobs + 1, num_jobs), np.int64)
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
        task_ms=np.array(task_ms, np.float64),
        path_ms=np.array(path_ms, np.float64),
        left_ms=np.zeros(num_jobs),
        finish_ms=np.zeros(num_jobs),
    )
