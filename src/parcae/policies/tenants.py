"""Tenants: pools and priorities that are kept, whatever the policy orders.

Between pools cores are shared as Spark's FAIR shares them: pools below their minimum share first,
then by running tasks / weight, then by name. Inside a pool, jobs of a higher priority come first,
and the policy's order (tiers, weights, limits) decides between jobs of one priority.

Source: Spark's FairSchedulingAlgorithm, for the order between pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ClusterState
from parcae.errors import PolicyError
from parcae.policies.compiled import PlaysRuns
from parcae.policies.orders.pools import job_pools, pool_rows
from parcae.simulation.kernels.simulations import Simulation, Simulations
from parcae.workloads.allocation import DEFAULT_POOL, PoolSpec, read_allocation
from parcae.workloads.job import Workload
from parcae.workloads.priorities import priorities_of, read_priorities

#: The pool of all jobs where only priorities are kept.
_ALL = (PoolSpec(DEFAULT_POOL),)


@dataclass(frozen=True, eq=False)
class Tenants:
    """The pools of a workload's jobs, and their priorities.

    Args:
        pools: POOL[num_pools], all of mode FIFO: the policy orders the jobs inside.
        job_pool: int64[num_jobs], the row of every recurring job's pool.
        job_priority: int64[num_jobs]; of two jobs of a pool, the one with the larger number is
            served first.
    """

    pools: Any
    job_pool: npt.NDArray[np.int64]
    job_priority: npt.NDArray[np.int64]


def tenants(
    workload: Workload,
    pools: Sequence[PoolSpec] = _ALL,
    pool_of: Sequence[str] = (),
    priorities: Sequence[int] = (),
) -> Tenants:
    """Return the tables of tenants.

    Args:
        workload: the recurring jobs.
        pools: the pools; only their weights and minimum shares count.
        pool_of: the pool of every recurring job; empty: the first pool for all.
        priorities: the priority of every recurring job; empty: 0 for all.

    Raises:
        ConfigError: there are more pools than can be simulated.
    """
    names = pool_of or [pools[0].name] * len(workload.jobs)
    table, row_of = pool_rows([replace(pool, mode="FIFO") for pool in pools], "pools")
    return Tenants(
        table.view(np.recarray),
        np.array([row_of[name] for name in names], np.int64),
        np.array(priorities or [0] * len(workload.jobs), np.int64),
    )


def read_tenants(workload: Workload, pools: str, priorities: str) -> Tenants:
    """Read the pools of an allocation file and a file of priorities, for a workload's jobs.

    Args:
        workload: the recurring jobs.
        pools: path of the allocation file (see `parcae.workloads.allocation`); "": one pool.
        priorities: path of the file of priorities; "": all jobs have priority 0.

    Raises:
        ConfigError: a pool or a pattern of priorities has no job, or there are too many pools.
        FormatError, OSError: a file cannot be read.
    """
    names = [job.name for job in workload.jobs]
    numbers = priorities_of(read_priorities(priorities), names) if priorities else ()
    if not pools:
        return tenants(workload, priorities=numbers)
    allocation = read_allocation(pools)
    return tenants(workload, allocation.all_pools, job_pools(allocation, workload), numbers)


@dataclass
class TenantPolicy(PlaysRuns):
    """A policy of the world of cores whose orders apply inside pools and priorities.

    Args:
        name: name in tables and reports.
        policy: the policy that orders jobs inside pools; it must have the compiled methods `play`
            and `play_many`.
        tenants: the pools and priorities of the recurring jobs.

    Raises:
        PolicyError: the policy is not compiled.

    Example: `TenantPolicy("srpt+pools:p.xml", srpt, read_tenants(workload, "p.xml", ""))`.
    """

    name: str
    policy: Any
    tenants: Tenants

    def __post_init__(self) -> None:
        if not hasattr(self.policy, "play"):
            raise PolicyError(
                f"policy {self.name!r}: only a compiled policy can have pools and priorities, and "
                "neither plan nor a policy in Python is one; leave them out"
            )

    @property
    def kernels(self) -> tuple[Any, Any, Any]:
        """No kernel to plan; functions that play the policy's runs among tenants."""
        return None, self._play, self._play_many

    def arguments_for(self, state: ClusterState) -> tuple[Any, ...]:
        """No further arguments: the policy has its own."""
        return ()

    def _play(self, simulation: Simulation) -> int:
        return int(self.policy.play(simulation._replace(tables=self._with(simulation.tables))))

    def _play_many(self, simulations: Simulations, first: int, last: int) -> None:
        tables = self._with(simulations.tables)
        self.policy.play_many(simulations._replace(tables=tables), first, last)

    def _with(self, tables: Any) -> Any:
        """The workload's tables, with the pools and priorities of its jobs."""
        if len(tables.job_pool) != len(self.tenants.job_pool):
            raise PolicyError(
                f"policy {self.name!r} has the pools of {len(self.tenants.job_pool)} recurring "
                f"jobs, but the workload has {len(tables.job_pool)}"
            )
        kept = self.tenants
        return tables._replace(
            pools=kept.pools, job_pool=kept.job_pool, job_priority=kept.job_priority
        )
