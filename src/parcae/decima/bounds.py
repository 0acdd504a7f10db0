"""The best of all orders of jobs in the simplified setting of Decima's Appendix H."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.compiled.kernels import inlined, kernel, row_of
from parcae.base.errors import ConfigError
from parcae.cluster.kernels.tables import stages_of
from parcae.cluster.state import NO_STAGE, NOT_YET, select
from parcae.decima.heuristics.decisions import in_order
from parcae.simulation.bounds import shortest_task_ms
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.simulator import SimulatorBatch, check_status
from parcae.workloads.durations import TaskDurations
from parcae.workloads.workload import JobSequence

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
_COMPLETE = int(Status.COMPLETE)
_BAD = int(Status.BAD_DECISION)
#: The rank of a job that is not ordered yet.
UNORDERED = 1e9


class OrderSearch(NamedTuple):
    """The state of the search. Row d of a table belongs to the simulator with d ordered jobs."""

    rank: Any  # float64[num_jobs + 1, num_jobs], smallest first; UNORDERED = no place yet
    jobs: Any  # int64[num_jobs + 1, num_jobs], the next jobs to try, the most promising first
    num_jobs: Any  # int64[num_jobs + 1], number of jobs to try
    next_job: Any  # int64[num_jobs + 1], number of jobs already tried
    depth: Any  # int64[1], number of ordered jobs; -1 = search complete, -2 = not begun
    best_ms: Any  # float64[1], sum of JCTs of the best order
    best_rank: Any  # float64[num_jobs], the best order
    num_orders: Any  # int64[1], number of complete orders that were simulated
    num_beginnings: Any  # int64[1], number of prefixes that were simulated
    task_ms: Any  # float64[num_stages], least duration of a stage's task
    path_ms: Any  # float64[num_stages], least time from a stage's start to its job's end
    left_ms: Any  # float64[num_jobs], workspace of the bound: remaining work by job
    finish_ms: Any  # float64[num_jobs], workspace of the bound: remaining critical path by job


@kernel
def _copy(blocks, source, target):  # type: ignore[no-untyped-def]
    """Copy a simulator from row `source` to row `target`.

    `blocks` are the tables of all simulators, each viewed as int64[num_simulators, size].
    """
    for block in blocks:
        for column in range(block.shape[1]):
            block[target, column] = block[source, column]


@kernel
def _sort(values, count):  # type: ignore[no-untyped-def]
    """Sort the first `count` values in place. Kernels allocate nothing, so no library sort."""
    for row in range(1, count):
        value = values[row]
        place = row
        while place > 0 and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value


@kernel
def _least_sum_ms(seen, search):  # type: ignore[no-untyped-def]
    """A lower bound on the sum of JCTs of every continuation, under any policy.

    The i-th completion is not earlier than in a schedule that treats all unstarted work as
    divisible and serves the shortest remaining job first. It is also not earlier than the i-th
    smallest critical path of the jobs. Reads the cluster state; writes the search's workspace.
    """
    now = seen.now
    stages = seen.stages
    count = now.num_active[0]
    for position in range(count):
        work_ms = 0.0
        longest_ms = 0.0
        for stage in stages_of(seen, seen.active[position]):
            work_ms += (stages.num_tasks[stage] - stages.num_started[stage]) * search.task_ms[stage]
            if stages.num_started[stage] == 0:
                longest_ms = max(longest_ms, search.path_ms[stage])
        search.left_ms[position] = work_ms
        search.finish_ms[position] = longest_ms
    _sort(search.left_ms, count)
    _sort(search.finish_ms, count)
    total = now.job_ms[0] + count * (now.clock_ms[0] - now.accounted_ms[0]) + 0.0
    shared_ms = 0.0
    for position in range(count):
        shared_ms += search.left_ms[position] / now.num_executors[0]
        total += max(shared_ms, search.finish_ms[position])
    return total


@kernel
def _run(state, future, tables, rank):  # type: ignore[no-untyped-def]
    """Run until the order needs its next job (NEEDS_DECISION), or to the end. Return the Status.

    Changes the cluster state and the future; reads the duration tables and the ranks.
    """
    while True:
        stage, limit, executor_class, hold_ms = in_order(state, rank)
        if stage != NO_STAGE and rank[state.stages.job[stage]] == UNORDERED:
            return _NEEDS_DECISION
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
        if status != _NEEDS_DECISION:
            return status


@inlined
def _eagerness(state, job):  # type: ignore[no-untyped-def]
    """Sort key of the jobs to try: remaining work, infinite for jobs that have not arrived."""
    return state.jobs.remaining_ms[job] if job < state.now.num_jobs[0] else math.inf


@kernel
def _branch(state, search, depth):  # type: ignore[no-untyped-def]
    """List the jobs that may come next, by remaining work. Writes row `depth` of the search."""
    count = 0
    for job in range(search.best_rank.shape[0]):
        is_over = job < state.now.num_jobs[0] and state.jobs.completion_ms[job] != NOT_YET
        if is_over or search.rank[depth, job] != UNORDERED:
            continue
        place = count
        while place > 0 and _eagerness(state, search.jobs[depth, place - 1]) > _eagerness(
            state, job
        ):
            search.jobs[depth, place] = search.jobs[depth, place - 1]
            place -= 1
        search.jobs[depth, place] = job
        count += 1
    search.num_jobs[depth] = count
    search.next_job[depth] = 0


@kernel
def search_orders(  # type: ignore[no-untyped-def]
    states, futures, blocks, tables, search, max_beginnings
):
    """Continue the search for at most `max_beginnings` further prefixes. Returns a Status:
    COMPLETE, NEEDS_DECISION (the search is not complete) or an error.

    Reads and changes the simulators (row d: d ordered jobs) and the search's tables.
    """
    if search.depth[0] == -2:
        state = row_of(states, 0)
        future = row_of(futures, 0)
        status = start(state, future, tables)
        if status != _NEEDS_DECISION:
            return status
        search.depth[0] = 0
        _branch(state, search, 0)
    until = search.num_beginnings[0] + max_beginnings
    while search.depth[0] >= 0 and search.num_beginnings[0] < until:
        depth = search.depth[0]
        # All branches of this depth are done: go back to the one above.
        if search.next_job[depth] == search.num_jobs[depth]:
            search.depth[0] = depth - 1
            continue
        job = search.jobs[depth, search.next_job[depth]]
        search.next_job[depth] += 1
        search.num_beginnings[0] += 1
        _copy(blocks, depth, depth + 1)
        for other in range(search.best_rank.shape[0]):
            search.rank[depth + 1, other] = search.rank[depth, other]
        search.rank[depth + 1, job] = depth
        state = row_of(states, depth + 1)
        future = row_of(futures, depth + 1)
        status = _run(state, future, tables, search.rank[depth + 1])
        # A run that is complete while jobs are active has stalled: the policy must not do that.
        if status == _COMPLETE and state.now.num_active[0] > 0:
            return _BAD
        if status == _COMPLETE:
            search.num_orders[0] += 1
            if state.now.job_ms[0] < search.best_ms[0]:
                search.best_ms[0] = state.now.job_ms[0]
                for other in range(search.best_rank.shape[0]):
                    search.best_rank[other] = search.rank[depth + 1, other]
        elif status != _NEEDS_DECISION:
            return status
        # Go deeper only if some continuation could beat the best order.
        elif _least_sum_ms(state, search) < search.best_ms[0]:
            _branch(state, search, depth + 1)
            search.depth[0] = depth + 1
    return _COMPLETE if search.depth[0] < 0 else _NEEDS_DECISION


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
