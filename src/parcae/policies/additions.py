"""What a name adds to a policy of the world of cores: accounts, pools and priorities.

POLICY+pools:FILE+priorities:FILE+account:FILE; every part may be left out, in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.base.errors import PolicyError
from parcae.cluster.kernels.accounts import FACTOR, FLOOR
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.policies.compiled import PlaysRuns
from parcae.policies.names import parse_name
from parcae.policies.orders.policy import pool_rows, read_pools
from parcae.policies.registry import PolicySetting, make
from parcae.simulation.config import SimulationConfig
from parcae.simulation.kernels.playing import Simulation, Simulations
from parcae.workloads.pools import DEFAULT_POOL, Mode, PoolSpec
from parcae.workloads.tables import priorities_of, read_priorities, read_user_weights
from parcae.workloads.workload import Workload


def named_policy(
    text: str,
    workload: Workload,
    config: SimulationConfig,
    arrivals: str = "batch",
    read: Callable[[Path], Checkpoint] = read_checkpoint,
) -> Any:
    """The policy for Spark jobs that a text names, with what it adds; see `registry.make`."""
    name = parse_name(text)
    policy = make(name, PolicySetting(workload, config, arrivals, read))
    if name.has_tenants:
        policy = TenantPolicy(text, policy, read_tenants(workload, name.pools, name.priorities))
    if name.account is not None:
        policy = Accounted(text, policy, user_weights(workload, name.account))
    return policy


class _Adding(PlaysRuns, ABC):
    """A policy that plays the runs of another one, with something added to their tables."""

    policy: Any

    @property
    def tier_unit_ms(self) -> float | None:
        """How the tiers of its policy state remaining work."""
        return tier_unit_ms(self.policy)

    @abstractmethod
    def extended(self, tables: Any) -> Any:
        """The workload's tables with what is added."""

    def keep(self, now: Any) -> None:
        """Let a state keep more than it does alone."""

    def release(self, now: Any) -> None:
        """Let a state keep no more: its tables may serve another policy next."""

    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Any:
        """The tables of its policy."""
        return self.policy.tables_for(num_jobs, num_stages, num_classes)

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many, with what is added."""
        now = simulations.states.now[first:last]
        self.keep(now)
        try:
            tables = self.extended(simulations.tables)
            self.policy.play_many(simulations._replace(tables=tables), first, last)
        finally:
            self.release(now)

    def unwrapped(self, simulation: Simulation) -> tuple[PlaysRuns, Simulation]:
        """The policy and the tables with which one run is played in several calls."""
        self.keep(simulation.state.now)
        tables = self.extended(simulation.tables)
        found: tuple[PlaysRuns, Simulation] = self.policy.unwrapped(
            simulation._replace(tables=tables)
        )
        return found


@dataclass
class Accounted(_Adding):
    """A policy by size under which users keep accounts (`parcae.cluster.kernels.accounts`).

    Args:
        name: name in tables and reports.
        policy: the policy whose orders are charged; it must have a compiled `play_many`, and say in
            `tier_unit_ms` how its tiers state remaining work.
        weights: float64[num_users], by the workload's users; empty: all are equal.

    Raises:
        PolicyError: the policy is not compiled, or its orders are not by size.

    Example: `Accounted("srpt+account", srpt)`.
    """

    name: str
    policy: Any
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not hasattr(self.policy, "play_many") or self.tier_unit_ms is None:
            raise PolicyError(
                f"policy {self.name!r}: accounts need a compiled order by size, such as srpt, sjf, "
                "gittins, tuned or parcae; leave the account out"
            )

    def keep(self, now: Any) -> None:
        """Let a state keep accounts and charge orders."""
        now.keeps_accounts[...] = 1
        now.account_factor[...] = FACTOR
        now.account_floor[...] = FLOOR
        now.tier_unit_ms[...] = self.tier_unit_ms

    def release(self, now: Any) -> None:
        """Let a state keep no accounts."""
        now.keeps_accounts[...] = 0
        now.account_factor[...] = 0.0

    def extended(self, tables: Any) -> Any:
        """The workload's tables, with the weights of its users."""
        if not self.weights:
            return tables
        if len(tables.user_weight) != len(self.weights):
            raise PolicyError(
                f"policy {self.name!r} has weights for {len(self.weights)} users, but the workload "
                f"has {len(tables.user_weight)}"
            )
        return tables._replace(user_weight=np.array(self.weights))


def tier_unit_ms(policy: Any) -> float | None:
    """How the tiers of a policy state remaining work (`now.tier_unit_ms`); None: they do not."""
    return getattr(policy, "tier_unit_ms", None)


def user_weights(workload: Workload, path: str) -> tuple[float, ...]:
    """The weights of a workload's users, in the order of its tables; "": all are equal."""
    users = dict.fromkeys(workload.users)
    table = read_user_weights(path, users) if path else None
    return tuple((table and table.of(user)) or 1.0 for user in users)


#: The pool of all jobs where only priorities are kept.
_ALL = (PoolSpec(DEFAULT_POOL),)


@dataclass(frozen=True, eq=False)
class Tenants:
    """The pools of a workload's jobs, and their priorities.

    Args:
        pools: POOL[num_pools]; in pools of mode FIFO the policy orders the jobs inside.
        job_pool: int64[num_jobs], the row of every recurring job's pool.
        job_priority: int64[num_jobs]; of two jobs of a pool, the one with the larger number is
            served first.
    """

    pools: Any
    job_pool: Int64Array
    job_priority: Int64Array


def tenants(
    workload: Workload,
    pools: Sequence[PoolSpec] = _ALL,
    pool_of: Sequence[str] = (),
    priorities: Sequence[int] = (),
    mode: Mode = "FIFO",
) -> Tenants:
    """Return the tables of tenants; `mode` is that of all pools."""
    names = pool_of or [pools[0].name] * len(workload.jobs)
    table, row_of = pool_rows([replace(pool, mode=mode) for pool in pools], "pools")
    return Tenants(
        table.view(np.recarray),
        np.array([row_of[name] for name in names], np.int64),
        np.array(priorities or [0] * len(workload.jobs), np.int64),
    )


def read_tenants(workload: Workload, pools: str, priorities: str) -> Tenants:
    """Read the pools of an allocation file and a file of priorities, for a workload's jobs."""
    names = [job.name for job in workload.jobs]
    numbers = priorities_of(read_priorities(priorities), names) if priorities else ()
    if not pools:
        return tenants(workload, priorities=numbers)
    specs, pool_of, _ = read_pools(pools, workload)
    return tenants(workload, specs, pool_of, numbers)


def user_pools(workload: Workload, weights: str, mode: Mode) -> Tenants:
    """A pool a user, of the weights of a file."""
    pairs = zip(dict.fromkeys(workload.users), user_weights(workload, weights), strict=True)
    pools = [PoolSpec(user, weight) for user, weight in pairs]
    return tenants(workload, pools, workload.users, mode=mode)


@dataclass
class TenantPolicy(_Adding):
    """A policy of the world of cores whose orders apply inside pools and priorities.

    Args:
        name: name in tables and reports.
        policy: the policy that orders jobs inside pools; it must have a compiled `play_many`.
        tenants: the pools and priorities of the recurring jobs.

    Raises:
        PolicyError: the policy is not compiled.

    Example: `TenantPolicy("srpt+pools:p.xml", srpt, read_tenants(workload, "p.xml", ""))`.
    """

    name: str
    policy: Any
    tenants: Tenants

    def __post_init__(self) -> None:
        if not hasattr(self.policy, "play_many"):
            raise PolicyError(
                f"policy {self.name!r}: only a compiled policy can have pools and priorities, and "
                "neither plan nor a policy in Python is one; leave them out"
            )

    def extended(self, tables: Any) -> Any:
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
