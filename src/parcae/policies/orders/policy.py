"""`OrderPolicy`: policies that plan by a formula, as policy objects.

They are the orders of stock Spark and the size-based orders of the literature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from parcae.base.arrays import AnyArray, Float64Array, Int64Array, RecordArray
from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.kernels.accounts import IS_RECIPROCAL, IS_WORK
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import MAX_POOLS, POOL, allocate_virtual
from parcae.policies.compiled import CompiledPlanner
from parcae.policies.names import OLD_JOBS_POOLS
from parcae.policies.orders.kernels import (
    GITTINS_AGES_PER_UNIT,
    GITTINS_SIGMAS_PER_UNIT,
    Formula,
    OrderKind,
    PlanTables,
)
from parcae.simulation.config import SimulationConfig
from parcae.workloads.pools import DEFAULT_POOL, Allocation, PoolSpec, read_allocation
from parcae.workloads.workload import Workload

#: The pools of Spark without an allocation file: those that jobs name, and `default`, in which task
#: sets share equally since Spark 3.4 (SPARK-42157; FIFO before).
_NO_FILE = {
    "": Allocation((PoolSpec(DEFAULT_POOL, mode="FAIR"),), source="no allocation file"),
    OLD_JOBS_POOLS: Allocation((PoolSpec(DEFAULT_POOL),), source="no allocation file"),
}


def read_pools(
    path: str, workload: Workload
) -> tuple[tuple[PoolSpec, ...], tuple[str, ...], tuple[str, ...]]:
    """The pools of an allocation file (a key of `_NO_FILE`: of Spark without one) and those that
    jobs name beside them, the pool of every job, and the names of the pools that the file lacks.
    """
    names = [job.name for job in workload.jobs]
    recorded = [job.pool or None for job in workload.jobs]
    file = _NO_FILE.get(path) or read_allocation(path)
    allocation = file.with_pools(filter(None, recorded))
    allocation.check_used(names, recorded)
    made = tuple(pool.name for pool in allocation.pools[len(file.pools) :])
    return allocation.all_pools, allocation.pools_of(names, recorded), made


def pool_rows(pools: Sequence[PoolSpec], source: str) -> tuple[RecordArray, dict[str, int]]:
    """Return the table of pools, and the row of every pool by its name."""
    if len(pools) > MAX_POOLS:
        raise ConfigError(f"{source}: {len(pools)} pools; at most {MAX_POOLS} can be simulated")
    if len(pools) == 1:
        # The dispatcher uses pools only if there are several. With an empty second pool, it uses
        # a single one, too.
        pools = (*pools, PoolSpec(f"not {pools[0].name}"))
    row_of = {pool.name: row for row, pool in enumerate(pools)}
    table = np.zeros(len(pools), POOL)
    table["weight"] = [pool.weight for pool in pools]
    table["min_share"] = [pool.min_share for pool in pools]
    table["is_fair"] = [pool.mode == "FAIR" for pool in pools]
    for rank, name in enumerate(sorted(row_of)):
        table["name_rank"][row_of[name]] = rank
    return table, row_of


#: The table ends at this spread and this age (in median sizes).
_LARGEST_SIGMA = 3.0
_LARGEST_AGE = 10.0
#: Quanta of service over which the index is maximised, in units of the median size.
_QUANTA = np.geomspace(0.01, 50.0, 120)


@lru_cache(maxsize=1)
def gittins_index() -> Float64Array:
    """Return the table of the Gittins index of a log-normal size with median 1.

    The result is float64[num_sigmas, num_ages], by spread (sigma) and age a (service so far):

    index(a) = max over quanta d of P(S - a <= d | S > a) / E[min(S - a, d) | S > a].

    Source: Gittins, Glazebrook and Weber, "Multi-armed bandit allocation indices" (2011),
    chapter 3.

    Example: a size that is known exactly (spread 0) has index 1 / (1 - age).
    """
    sigmas = (
        np.arange(round(_LARGEST_SIGMA * GITTINS_SIGMAS_PER_UNIT) + 1) / GITTINS_SIGMAS_PER_UNIT
    )
    ages = (np.arange(round(_LARGEST_AGE * GITTINS_AGES_PER_UNIT)) + 0.5) / GITTINS_AGES_PER_UNIT
    table = np.empty((len(sigmas), len(ages)))
    for row, sigma in enumerate(sigmas):
        table[row] = [_index(max(sigma, 0.02), age) for age in ages]
    return table


def _index(sigma: float, age: float) -> float:
    """The index of one spread and age, for a size with median 1."""
    grid = np.concatenate([[0.0], _QUANTA])
    # Survival functions, since differences of probabilities near 1 would be lost to rounding.
    survival = ndtr(-np.log(age + grid) / sigma)
    # The lower bounds here and below avoid divisions by 0 at ages that are hardly ever reached.
    alive = max(survival[0], 1e-300)
    ends = survival[0] - survival[1:]
    # E[min(S - a, d); S > a] = integral of P(S > a + t) over t in 0..d.
    served = np.cumsum(0.5 * (survival[1:] + survival[:-1]) * np.diff(grid))
    return float(np.max((ends / alive) / np.maximum(served / alive, 1e-12)))


def gittins_tables(workload: Workload, config: SimulationConfig) -> dict[str, AnyArray]:
    """Return the tables `sigma` and `index` for `plan_tables`.

    The spread of a recurring job's size is that of its simulated runs if the config's estimate
    error is "log"; otherwise it is the config's estimate error. The last row is for jobs
    that the profile does not know: the spread of sizes over all jobs of the workload.
    """
    sizes = np.log([max(1.0, job.work_ms) for job in workload.jobs])
    unknown = float(sizes.std()) if len(sizes) > 1 else 1.0
    if config.estimate_error == "log":
        known = workload.runs.sigma
    else:
        known = np.full(len(workload.jobs), config.estimate_error)
    return {"sigma": np.append(known, unknown), "index": gittins_index()}


def plan_tables(
    *,
    pool_of: Int64Array | None = None,
    pools: RecordArray | None = None,
    sigma: Float64Array | None = None,
    index: Float64Array | None = None,
    deadline_ms: Float64Array | None = None,
) -> PlanTables:
    """Return the tables of a policy by formula. Tables that are left out get one row of zeros.

    Args:
        pool_of: int64[num_profiles + 1], row in `pools` of every recurring job; last: other jobs.
        pools: POOL[num_pools].
        sigma: float64[num_profiles + 1], spread of the log of a recurring job's size.
        index: float64[num_sigmas, num_ages], Gittins index by spread and age.
        deadline_ms: float64[num_profiles + 1], deadline of every recurring job after its arrival;
            inf: it has none; last: other jobs.
    """
    return PlanTables(
        np.zeros(1, np.int64) if pool_of is None else pool_of,
        (np.zeros(1, POOL) if pools is None else pools).view(np.recarray),
        np.zeros(1) if sigma is None else sigma,
        np.zeros((1, 1)) if index is None else index,
        np.zeros(1) if deadline_ms is None else deadline_ms,
    )


def pool_tables(pools: tuple[PoolSpec, ...], job_pools: tuple[str, ...], source: str) -> PlanTables:
    """Return the tables of Spark's fair scheduler with pools."""
    table, row_of = pool_rows(pools, source)
    rows = [*(row_of[name] for name in job_pools), row_of.get(DEFAULT_POOL, 0)]
    return plan_tables(pool_of=np.array(rows, np.int64), pools=table)


def pools_policy(name: str, path: str, workload: Workload) -> OrderPolicy:
    """Spark's FAIR with the pools of an allocation file ("": without one) and those of jobs."""
    pools, pool_of, _ = read_pools(path, workload)
    by_spark_jobs = workload.knows_spark_jobs
    kind = OrderKind.POOLS_SPARK_JOBS if by_spark_jobs else OrderKind.POOLS
    return OrderPolicy(name, kind, pool_tables(pools, pool_of, path))


@dataclass
class OrderPolicy(CompiledPlanner):
    """A policy that plans by a formula.

    Args:
        name: name in tables and reports.
        kind: which formula.
        tables: what the formula needs besides the observation (see `plan_tables`).

    Example: `OrderPolicy("fair", OrderKind.FAIR, plan_tables())`.
    """

    name: str
    kind: OrderKind
    tables: PlanTables

    def __post_init__(self) -> None:
        # The kernels would take an unknown kind for first come, first served.
        if self.kind not in set(OrderKind):
            raise PolicyError(f"policy {self.name!r}: there is no order of kind {self.kind!r}")

    @property
    def tier_unit_ms(self) -> float | None:
        """How its tiers state remaining work (`now.tier_unit_ms`); None: they do not."""
        units = {OrderKind.SJF: IS_WORK, OrderKind.SRPT: IS_WORK, OrderKind.GITTINS: IS_RECIPROCAL}
        return units.get(self.kind)

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Formula:
        """The formula, with an empty virtual run."""
        return Formula(int(self.kind), self.tables, allocate_virtual(num_jobs, num_stages))

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """Blank orders (first come, first served), with the pools of the allocation file if any."""
        orders = blank_orders(num_jobs, num_stages)
        if self.kind in (OrderKind.POOLS, OrderKind.POOLS_SPARK_JOBS):
            orders = orders._replace(pools=self.tables.pools.copy())
        return orders
