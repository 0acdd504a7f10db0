"""The best of all orders of jobs in the simplified setting of Decima's Appendix H."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parcae.base.compiled.kernels import kernel
from parcae.base.errors import ConfigError
from parcae.cluster.state import NO_STAGE, NOT_YET
from parcae.decima.heuristics.decisions import in_order
from parcae.simulation.bounds import least_paths_ms, shortest_task_ms
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import start, step
from parcae.simulation.simulator import SimulatorBatch, check_status
from parcae.workloads.durations import TaskDurations
from parcae.workloads.workload import JobSequence

_NEEDS_DECISION = int(Status.NEEDS_DECISION)
#: The rank of a job that is not ordered yet.
_UNORDERED = 1e9
#: Largest number of jobs that the search accepts.
MAX_ORDERED_JOBS = 12
#: Number of simulated prefixes between two progress reports.
_PROGRESS = 2_000
#: Called with the number of simulated prefixes, and the average JCT of the best order so far.
_Progress = Callable[[int, float], None]


@kernel
def _run(state, future, tables, rank):  # type: ignore[no-untyped-def]
    """Run until the order needs its next job (NEEDS_DECISION), or to the end. Return the Status.

    Changes the cluster state and the future; reads the duration tables and the ranks.
    """
    while True:
        stage, limit, executor_class, hold_ms = in_order(state, rank)
        if stage != NO_STAGE and rank[state.stages.job[stage]] == _UNORDERED:
            return _NEEDS_DECISION
        status = step(state, future, tables, stage, limit, executor_class, hold_ms)
        if status != _NEEDS_DECISION:
            return status


class _OrderSearch:
    """A search of all orders, depth first. Row d of a table belongs to the run of d ordered jobs.

    `rank` are the places of the jobs, smallest first.
    """

    def __init__(
        self, sequence: JobSequence, config: SimulationConfig, seed: int, progress: _Progress
    ) -> None:
        self._sequence = sequence
        self._progress = progress
        rows = sequence.num_jobs + 1
        self._batch = batch = SimulatorBatch([sequence] * rows, config, [seed] * rows)
        # Every table as int64[rows, size], to be copied from row to row.
        self._blocks = [
            np.asarray(table).view(np.int64).reshape(rows, -1)
            for table in (*batch.states, *batch.futures)
            if table.size
        ]
        self._rank = np.full((rows, sequence.num_jobs), _UNORDERED)
        self._first_stage = np.cumsum([0, *(len(job.stages) for job in sequence.jobs[:-1])])
        # Of every stage, its shortest task, and the least time from its start to its job's end.
        self._task_ms = np.array([shortest_task_ms(s) for job in sequence.jobs for s in job.stages])
        executors = config.total_executors
        self._path_ms = np.concatenate([least_paths_ms(job, executors) for job in sequence.jobs])
        self.best_ms = math.inf
        self.best_rank = self._rank[0]
        self.num_beginnings = 0

    def run(self) -> None:
        """Search all orders."""
        status = start(self._batch.state(0), self._batch.future(0), self._batch.tables)
        self._checked(status, 0)
        self._extend(0)
        self._report()

    def _report(self) -> None:
        self._progress(self.num_beginnings, self.best_ms / self._sequence.num_jobs)

    def _checked(self, status: int, row: int) -> Status:
        return check_status(int(status), self._batch.state(row), self._sequence)

    def _extend(self, depth: int) -> None:
        """Try every job that may come next, the one with the least remaining work first."""
        for job in self._next_jobs(depth):
            self.num_beginnings += 1
            for block in self._blocks:
                block[depth + 1] = block[depth]
            self._rank[depth + 1] = self._rank[depth]
            self._rank[depth + 1, job] = depth
            state, future = self._batch.state(depth + 1), self._batch.future(depth + 1)
            status = _run(state, future, self._batch.tables, self._rank[depth + 1])
            if self._checked(status, depth + 1) is Status.COMPLETE:
                if state.now.job_ms[0] < self.best_ms:
                    self.best_ms = float(state.now.job_ms[0])
                    self.best_rank = self._rank[depth + 1].copy()
            # Go deeper only if some continuation could beat the best order.
            elif self._least_sum_ms(state) < self.best_ms:
                self._extend(depth + 1)
            if self.num_beginnings % _PROGRESS == 0:
                self._report()

    def _next_jobs(self, depth: int) -> list[int]:
        """The jobs that have no place yet and are not over; those to come are the last ones."""
        state = self._batch.state(depth)
        num_arrived = int(state.now.num_jobs[0])
        jobs = state.jobs
        remaining_ms = [*jobs.remaining_ms[:num_arrived].tolist()]
        remaining_ms += [math.inf] * (self._sequence.num_jobs - num_arrived)
        return sorted(
            (
                job
                for job in np.flatnonzero(self._rank[depth] == _UNORDERED).tolist()
                if job >= num_arrived or jobs.completion_ms[job] == NOT_YET
            ),
            key=remaining_ms.__getitem__,
        )

    def _least_sum_ms(self, state: Any) -> float:
        """A lower bound on the sum of JCTs of every continuation, under any policy.

        The i-th completion is not earlier than in a schedule that treats all unstarted work as
        divisible and serves the shortest remaining job first. It is also not earlier than the i-th
        smallest critical path of the jobs.
        """
        now = state.now
        stages = state.stages[: len(self._task_ms)]
        work_ms = (stages.num_tasks - stages.num_started) * self._task_ms
        path_ms = np.where(stages.num_started == 0, self._path_ms, 0.0)
        active = state.active[: now.num_active[0]]
        left_ms = np.sort(np.add.reduceat(work_ms, self._first_stage)[active])
        longest_ms = np.sort(np.maximum.reduceat(path_ms, self._first_stage)[active])
        ends_ms = np.maximum(np.cumsum(left_ms) / now.num_executors[0], longest_ms)
        open_ms = len(active) * (now.clock_ms[0] - now.accounted_ms[0])
        return float(now.job_ms[0] + open_ms + ends_ms.sum())


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


@dataclass(frozen=True)
class BestOrder:
    """The best order of an exhaustive search.

    Args:
        order: positions of the jobs in the job sequence, in the order of service.
        average_jct_ms: the average JCT under this order.
        num_beginnings: number of prefixes of orders that were simulated. A lower bound ruled out
            all others.
    """

    order: tuple[int, ...]
    average_jct_ms: float
    num_beginnings: int


def best_job_order(
    sequence: JobSequence,
    config: SimulationConfig,
    seed: int,
    progress: _Progress = lambda count, best_ms: None,
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
    search = _OrderSearch(sequence, config, seed, progress)
    search.run()
    order = tuple(int(job) for job in np.argsort(search.best_rank, kind="stable"))
    return BestOrder(order, search.best_ms / sequence.num_jobs, search.num_beginnings)


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
