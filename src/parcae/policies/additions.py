"""What a name adds to a policy of the world of cores: accounts, pools and priorities.

POLICY+pools:FILE+priorities:FILE+account:FILE; every part may be left out, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.cluster.kernels.accounts import FACTOR, FLOOR
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
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


@dataclass
class Accounted:
    """A policy by size under which users keep accounts (`parcae.cluster.kernels.accounts`).

    Args:
        name: name in tables and reports.
        policy: the policy whose orders are charged; it must have the compiled methods `play` and
            `play_many`, and say in `tier_unit_ms` how its tiers state remaining work.
        weights: float64[num_users], by the workload's users; empty: all are equal.
        factor: how much of a user's overdraft counts as work left.
        floor: the least share of its work left that counts for a job.

    Raises:
        PolicyError: the policy is not compiled, or its orders are not by size.

    Example: `Accounted("srpt+account", srpt)`.
    """

    name: str
    policy: Any
    weights: tuple[float, ...] = ()
    factor: float = FACTOR
    floor: float = FLOOR

    def __post_init__(self) -> None:
        if not hasattr(self.policy, "play") or tier_unit_ms(self.policy) is None:
            raise PolicyError(
                f"policy {self.name!r}: accounts need a compiled order by size, such as srpt, sjf, "
                "gittins, tuned or parcae; leave the account out"
            )

    def play(self, simulation: Simulation) -> int:
        """Simulate a whole run with accounts. Returns the `Status` in which it stopped."""
        now = simulation.state.now
        self.keep(now)
        try:
            tables = self.weighted(simulation.tables)
            return int(self.policy.play(simulation._replace(tables=tables)))
        finally:
            keep_no_accounts(now)

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many."""
        now = simulations.states.now[first:last]
        self.keep(now)
        try:
            tables = self.weighted(simulations.tables)
            self.policy.play_many(simulations._replace(tables=tables), first, last)
        finally:
            keep_no_accounts(now)

    def unwrapped(self, simulation: Simulation) -> tuple[Any, Simulation]:
        """The policy and the tables with which one run is played in several calls."""
        self.keep(simulation.state.now)
        tables = self.weighted(simulation.tables)
        unwrapped: tuple[Any, Simulation] = self.policy.unwrapped(
            simulation._replace(tables=tables)
        )
        return unwrapped

    def keep(self, now: Any) -> None:
        """Let a state keep accounts and charge orders."""
        now.keeps_accounts[...] = 1
        now.account_factor[...] = self.factor
        now.account_floor[...] = self.floor
        now.tier_unit_ms[...] = tier_unit_ms(self.policy)

    def weighted(self, tables: Any) -> Any:
        """The workload's tables, with the weights of its users."""
        if not self.weights:
            return tables
        if len(tables.user_weight) != len(self.weights):
            raise PolicyError(
                f"policy {self.name!r} has weights for {len(self.weights)} users, but the workload "
                f"has {len(tables.user_weight)}"
            )
        return tables._replace(user_weight=np.array(self.weights))


def keep_no_accounts(now: Any) -> None:
    """Let a state keep no accounts: its tables may serve another policy next."""
    now.keeps_accounts[...] = 0
    now.account_factor[...] = 0.0


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
    job_pool: npt.NDArray[np.int64]
    job_priority: npt.NDArray[np.int64]


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
class TenantPolicy:
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
    def tier_unit_ms(self) -> float | None:
        """How the tiers of its policy state remaining work."""
        return tier_unit_ms(self.policy)

    def play(self, simulation: Simulation) -> int:
        """Simulate a whole run among tenants. Returns the `Status` in which it stopped."""
        return int(self.policy.play(simulation._replace(tables=self._with(simulation.tables))))

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many."""
        tables = self._with(simulations.tables)
        self.policy.play_many(simulations._replace(tables=tables), first, last)

    def unwrapped(self, simulation: Simulation) -> tuple[Any, Simulation]:
        """The policy and the tables with which one run is played in several calls."""
        tables = self._with(simulation.tables)
        unwrapped: tuple[Any, Simulation] = self.policy.unwrapped(
            simulation._replace(tables=tables)
        )
        return unwrapped

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
