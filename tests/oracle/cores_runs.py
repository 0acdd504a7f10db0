"""Sets of the plain-Python oracle, run by the kernels of the world of cores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from parcae.base.compiled.kernels import row_of
from parcae.cluster.observation import Observation, observe
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import POOL
from parcae.policies.additions import TenantPolicy, tenants
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.kernels.cores_loop import follow_orders, start_cores
from parcae.simulation.kernels.playing import Simulation, Simulations
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.pools import Mode, PoolSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.oracle.spark_world import Job, Pool, RandomSet, World, fair_key
from tests.oracle.spark_world import Stage as OracleStage

KINDS = {
    "fifo": OrderKind.FIFO,
    "fifo-spark-jobs": OrderKind.FIFO_SPARK_JOBS,
    "fair": OrderKind.FAIR,
    "fair-pools": OrderKind.POOLS,
    "sjf": OrderKind.SJF,
    "srpt": OrderKind.SRPT,
    "edf": OrderKind.EDF,
}

#: Few random sets by default, more in the slow suite.
random_seeds = pytest.mark.parametrize(
    "seeds", [range(25), pytest.param(range(25, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)


def job_spec(
    name: str, task_ms: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]] = ()
) -> JobSpec:
    """A job whose tasks take what is listed."""
    stages = []
    for row, tasks in enumerate(task_ms):
        samples = np.array(tasks, np.int64)
        durations = TaskDurations((1,), (samples,), (samples,), (samples,))
        parents = tuple(parent for parent, child in edges if child == row)
        stages.append(
            StageSpec(len(tasks), durations, parents, mean_task_ms=sum(tasks) / len(tasks))
        )
    return JobSpec(name, tuple(stages))


def sequence_of(jobs: Sequence[Job]) -> JobSequence:
    """The jobs, which arrive in the order of their positions, or follow one another."""
    specs = tuple(job_spec(f"job-{i:03d}", job.task_ms, job.edges) for i, job in enumerate(jobs))
    arrivals = np.array([job.arrival_ms for job in jobs], np.int64)
    assert (np.diff(arrivals) >= 0).all()
    follows = [-1 if job.follows is None else job.follows for job in jobs]
    return JobSequence(
        Workload("set", specs),
        np.arange(len(jobs)),
        arrivals,
        follows=np.array(follows),
        pause_ms=np.array([job.pause_ms for job in jobs]),
    )


def in_sessions(drawn: RandomSet, rng: random.Random) -> RandomSet:
    """Some jobs arrive after the end of another; the others at their times."""
    free = list(range(len(drawn.jobs)))
    for position, job in enumerate(drawn.jobs):
        before = [other for other in free if other < position]
        if before and rng.random() < 0.8:
            job.follows = rng.choice(before)
            job.pause_ms = rng.choice([0, 0, 1, 10, 50])
            free.remove(job.follows)
    return drawn


def config_of(cores: int) -> SimulationConfig:
    """So many cores; task i of a stage takes its listed duration i."""
    return SimulationConfig(
        world=WorldName.CORES,
        num_executors=cores,
        durations=DurationMode.LISTED,
        corrects_estimates=False,
    )


def pool_table(pools: dict[str, Pool], used: Sequence[str]) -> tuple[Any, list[str]]:
    """(POOL rows, their names)."""
    names = sorted({*pools, *used})
    table = np.zeros(len(names), POOL).view(np.recarray)
    for row, name in enumerate(names):
        pool = pools.get(name, Pool())
        table.weight[row] = pool.weight
        table.min_share[row] = pool.min_share
        table.is_fair[row] = pool.mode == "FAIR"
        table.name_rank[row] = row
    return table, names


def deadline_table(jobs: Sequence[Job]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The deadlines of the jobs after arrival, by row; infinite where there is none."""
    known = [np.inf if job.deadline_ms is None else job.deadline_ms for job in jobs]
    return np.array([*known, np.inf], np.float64)


def policy_of(order: str, jobs: Sequence[Job], pools: dict[str, Pool]) -> OrderPolicy:
    """The policy of that order; `fair-pools` with the set's pools, `edf` with its deadlines."""
    if order == "edf":
        return OrderPolicy(order, KINDS[order], plan_tables(deadline_ms=deadline_table(jobs)))
    if order != "fair-pools":
        return OrderPolicy(order, KINDS[order], plan_tables())
    table, names = pool_table(pools, [job.pool for job in jobs])
    pool_of = np.array([*(names.index(job.pool) for job in jobs), 0], np.int64)
    return OrderPolicy(order, KINDS[order], plan_tables(pool_of=pool_of, pools=table))


@dataclass
class GivenOrders:
    """A planner in plain Python: what the jobs say of tiers, weights, limits and pools.

    Args:
        jobs: by row.
        ranks: of every job's stages; all 0 if empty.
        pools: Spark's pools, where they are used.
    """

    jobs: Sequence[Job]
    ranks: Sequence[Sequence[float]] = ()
    pools: dict[str, Pool] | None = None
    name: str = "given"
    num_plans: int = field(default=0, init=False)

    def plan(self, observation: Observation) -> Orders:
        """The same order every time, for all jobs that arrived."""
        self.num_plans += 1
        orders = blank_orders(len(observation.jobs), len(observation.stages))
        if self.pools is not None:
            table, names = pool_table(self.pools, [job.pool for job in self.jobs])
            orders = orders._replace(pools=table)
            for row, job in enumerate(self.jobs):
                orders.jobs.pool[row] = names.index(job.pool)
        for row in observation.active_jobs:
            self._write_job(orders, int(row), observation.stages_of(int(row)))
        return orders

    def _write_job(self, orders: Orders, row: int, stages: range) -> None:
        job = self.jobs[row]
        orders.jobs.tier[row] = job.tier
        orders.jobs.weight[row] = job.weight or 0.0
        if job.limit is not None:
            orders.jobs.limit[row] = job.limit
        for index, stage in enumerate(stages):
            if job.stage_tiers is not None:
                orders.stages.tier[stage] = job.stage_tiers[index]
            if job.limits is not None and (limit := job.limits[index]) is not None:
                orders.stages.limit[stage] = limit
            if self.ranks:
                orders.stages.rank[stage] = self.ranks[row][index]


@dataclass
class PlayedOrders:
    """The orders of the jobs, written into the tables of a run that the kernels play.

    Args:
        jobs: by row.
        ranks: of every job's stages.
    """

    jobs: Sequence[Job]
    ranks: Sequence[Sequence[float]]
    name: str = "played"

    def play(self, simulation: Simulation) -> int:
        """Play the run; its pools stay as they are."""
        planner = GivenOrders(self.jobs, self.ranks)
        state = simulation.state
        status = start_cores(*simulation)
        while status == Status.NEEDS_DECISION:
            orders = planner.plan(observe(state))
            pools = state.job_orders.pool.copy()
            state.job_orders[: len(orders.jobs)] = orders.jobs
            state.job_orders.pool[:] = pools
            state.stage_orders[: len(orders.stages)] = orders.stages
            status = follow_orders(*simulation)
        return int(status)

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Play the runs, one after another."""
        for row in range(first, last):
            state, future = row_of(simulations.states, row), row_of(simulations.futures, row)
            simulations.status[row] = self.play(Simulation(state, future, simulations.tables))


def among_tenants(policy: Any, jobs: Sequence[Job], pools: dict[str, Pool]) -> TenantPolicy:
    """The policy inside the pools and priorities of the jobs."""
    names = sorted({*pools, *(job.pool for job in jobs)})
    specs = [_spec(name, pools.get(name, Pool())) for name in names]
    priorities = [job.priority for job in jobs]
    kept = tenants(sequence_of(jobs).workload, specs, [job.pool for job in jobs], priorities)
    return TenantPolicy(f"{policy.name} among tenants", policy, kept)


def _spec(name: str, pool: Pool) -> PoolSpec:
    mode: Mode = "FAIR" if pool.mode == "FAIR" else "FIFO"
    return PoolSpec(name, pool.weight, pool.min_share, mode)


def orders_key(planner: GivenOrders) -> Any:
    """The oracle's key of the same order: (tier, running / weight, job, rank, stage).

    If there are several pools, the pool comes first.
    """

    def key(world: World, stage: OracleStage) -> tuple[Any, ...]:
        job = world.jobs[stage.job]
        tier = job.tier + (0.0 if job.stage_tiers is None else job.stage_tiers[stage.index])
        share = 0.0 if not job.weight else world.running_of_job(stage.job) / job.weight
        rank = planner.ranks[stage.job][stage.index] if planner.ranks else 0.0
        inside: tuple[Any, ...] = (tier, share, stage.job, rank, stage.index)
        if planner.pools is None:
            return inside
        pool = planner.pools.get(job.pool, Pool())
        running = world.running_of_pool(job.pool)
        outside = fair_key(running, pool.min_share, pool.weight, job.pool)
        if pool.mode == "FAIR":
            inside = fair_key(stage.running, 0, 1, f"TaskSet_{stage.id}.0")
        return (outside, *inside)

    return key


def run_kernels(cores: int, jobs: Sequence[Job], policy: Any, *, record: bool = False) -> Any:
    """The trace of the set under a policy."""
    return simulate(sequence_of(jobs), policy, config_of(cores), 1, record=record)


def starts(trace: Any) -> list[tuple[int, int, int]]:
    """Every start as the oracle writes it: (ms, job, stage), in order of the starts."""
    return [(int(row["start_ms"]), int(row["job"]), int(row["stage"])) for row in trace.tasks]
