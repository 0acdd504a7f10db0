"""Orders: how a policy controls the world of cores, and the interface of policies that plan.

An order stays in force until another one replaces it. It gives every job (and, if the policy wants,
every stage) a tier, a weight and a limit. Between plans the dispatcher assigns every free core by
it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Observation
from parcae.cluster.state import (
    JOB_ORDER,
    MAX_POOLS,
    NOT_YET,
    POOL,
    STAGE_ORDER,
    UNLIMITED,
    ClusterState,
)


class Orders(NamedTuple):
    """The order of every job and stage, by row.

    A runnable stage is served by (tier, running tasks of its job / weight, job, rank, stage),
    smallest first; its tier is added to its job's tier. If there are several pools, pools are
    compared first, as in Spark's fair scheduler.

    Args:
        jobs: JOB_ORDER[num_jobs]: tier, weight (0: first come), limit, pool.
        stages: STAGE_ORDER[num_stages]: tier, rank, limit.
        pools: POOL[num_pools]; a single row if no pools are used.
        wake_ms: int64[1]: latest time of the next plan, in ms; NOT_YET: at the next event.

    Example: `orders = first_come(observation); orders.jobs.tier[job] = -1.0` serves that job before
    all others.
    """

    jobs: Any
    stages: Any
    pools: Any
    wake_ms: Any


@runtime_checkable
class Planner(Protocol):
    """A policy of the world of cores: it plans orders."""

    name: str

    def plan(self, observation: Observation) -> Orders:
        """Return the orders from now on."""


@runtime_checkable
class Remembers(Protocol):
    """A planner that keeps something from one plan to the next, within one run."""

    def restart(self) -> None:
        """Forget the last run: a new one begins."""


def first_come(observation: Observation) -> Orders:
    """Return orders that serve jobs, and a job's stages, by row: Spark's FIFO."""
    return blank_orders(len(observation.jobs), len(observation.stages))


def blank_orders(num_jobs: int, num_stages: int) -> Orders:
    """Return first-come orders for the given numbers of jobs and stages."""
    jobs = np.zeros(num_jobs, JOB_ORDER).view(np.recarray)
    stages = np.zeros(num_stages, STAGE_ORDER).view(np.recarray)
    jobs.limit[:] = UNLIMITED
    stages.limit[:] = UNLIMITED
    return Orders(jobs, stages, one_pool(), np.full(1, NOT_YET, np.int64))


def one_pool() -> Any:
    """The table of a single pool of mode FIFO, which has no effect: POOL[1]."""
    pools = np.zeros(1, POOL).view(np.recarray)
    pools.weight[:] = 1.0
    return pools


def put(orders: Orders, state: ClusterState) -> None:
    """Write orders into the state's tables; `accept_orders` then puts them into force."""
    if not isinstance(orders, Orders):
        raise PolicyError(f"plan() returned {orders!r}; return Orders")
    num_jobs = int(state.now.num_jobs[0])
    num_stages = int(state.now.num_stages[0])
    if len(orders.jobs) < num_jobs or len(orders.stages) < num_stages:
        raise PolicyError(
            f"orders for {len(orders.jobs)} jobs and {len(orders.stages)} stages, "
            f"but there are {num_jobs} and {num_stages}"
        )
    if not 1 <= len(orders.pools) <= MAX_POOLS:
        raise PolicyError(f"orders with {len(orders.pools)} pools; there may be 1 to {MAX_POOLS}")
    state.job_orders[:num_jobs] = orders.jobs[:num_jobs]
    state.stage_orders[:num_stages] = orders.stages[:num_stages]
    state.pools[: len(orders.pools)] = orders.pools
    state.now.num_pools[0] = len(orders.pools)
    state.now.wake_ms[0] = orders.wake_ms[0]


def objection_to_orders(state: ClusterState) -> str:
    """Return the first error of the orders in the state's tables, or "" if they are valid.

    The rules are those of `accept_orders`.
    """
    pools = state.pools[: int(state.now.num_pools[0])]
    # A single pool in mode FIFO is not used, so its row need not be valid.
    for row, pool in enumerate(pools if len(pools) > 1 or pools.is_fair[0] else ()):
        if not 0 < pool.weight < np.inf or pool.min_share < 0:
            return (
                f"pool {row} has weight {pool.weight} and minimum share {pool.min_share}; "
                f"make the weight > 0 and the share >= 0"
            )
    for job in state.active[: int(state.now.num_active[0])]:
        order = state.job_orders[job]
        first = int(state.jobs.stage_start[job])
        if np.isnan(order.tier):
            return f"job {job} has tier NaN; a tier must be a number"
        if not 0 <= order.weight < np.inf:
            return f"job {job} has weight {order.weight}; it must be a number >= 0 (0: first come)"
        if order.limit < 0:
            return f"job {job} has limit {order.limit}; it must be >= 0 (UNLIMITED: none)"
        if not 0 <= order.pool < len(pools):
            return f"job {job} is in pool {order.pool}; the orders define pools 0..{len(pools) - 1}"
        for index in range(int(state.jobs.num_stages[job])):
            stage = state.stage_orders[first + index]
            where = f"stage {index} of job {job}"
            if math.isnan(stage.rank) or math.isnan(float(order.tier) + float(stage.tier)):
                return (
                    f"{where} has tier {order.tier} + {stage.tier} and rank {stage.rank}; "
                    f"they must be numbers (not NaN)"
                )
            if stage.limit < 0:
                return f"{where} has limit {stage.limit}; it must be >= 0 (UNLIMITED: none)"
    return ""


def orders_of(state: ClusterState) -> Orders:
    """Return the state's order tables themselves, for a compiled planner to write into."""
    return Orders(state.job_orders, state.stage_orders, state.pools, state.now.wake_ms)
