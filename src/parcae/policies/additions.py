"""What a name adds to a policy of the world of cores: a guard, pools and priorities.

POLICY+pools:FILE+priorities:FILE+guard:FACTOR; every part may be left out, in any order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import PolicyError
from parcae.cluster.state import ClusterState
from parcae.policies.compiled import PlaysRuns
from parcae.policies.orders.policy import job_pools, pool_rows
from parcae.simulation.kernels.playing import Simulation, Simulations
from parcae.workloads.job import Workload
from parcae.workloads.pools import DEFAULT_POOL, PoolSpec, read_allocation
from parcae.workloads.tables import priorities_of, read_priorities


@dataclass
class Guarded(PlaysRuns):
    """A policy of the world of cores with the guard (`parcae.cluster.kernels.guard`).

    Args:
        name: name in tables and reports.
        policy: the policy whose orders are guarded; it must have the compiled methods `play` and
            `play_many`.
        factor: upper bound of (a job's time in the system / its time under fair sharing), > 1.

    Raises:
        PolicyError: the factor is not a finite number above 1, or the policy is not compiled.

    Example: `Guarded("srpt+guard:1.1", srpt, 1.1)`.
    """

    name: str
    policy: Any
    factor: float

    def __post_init__(self) -> None:
        if not 1.0 < self.factor < float("inf"):
            raise PolicyError(
                f"policy {self.name!r}: the guard's factor must be a finite number above 1, "
                "e.g. +guard:1.1"
            )
        if not hasattr(self.policy, "play"):
            raise PolicyError(
                f"policy {self.name!r}: in a simulation only a compiled policy can be guarded, "
                "and neither plan nor a policy in Python is one; leave the guard out"
            )

    @property
    def kernels(self) -> tuple[Any, Any, Any]:
        """No kernel to plan; functions that play the policy's runs under the guard."""
        return None, self._play, self._play_many

    def arguments_for(self, state: ClusterState) -> tuple[Any, ...]:
        """No further arguments: the policy has its own."""
        return ()

    def _play(self, simulation: Simulation) -> int:
        # The kernels apply the guard to the policy's orders if this factor is set.
        now = simulation.state.now
        now.guard[:] = self.factor
        try:
            return int(self.policy.play(simulation))
        finally:
            # The tables may serve another policy next.
            now.guard[:] = 0.0

    def _play_many(self, simulations: Simulations, first: int, last: int) -> None:
        now = simulations.states.now
        now.guard[first:last] = self.factor
        try:
            self.policy.play_many(simulations, first, last)
        finally:
            now.guard[first:last] = 0.0


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
    """Return the tables of tenants."""
    names = pool_of or [pools[0].name] * len(workload.jobs)
    table, row_of = pool_rows([replace(pool, mode="FIFO") for pool in pools], "pools")
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


#: What begins an addition. In a path, as in runs+guard2/best.safetensors, it is part of a name: the
#: word goes on, or a slash or the suffix of a checkpoint follows before the next colon.
_MARK = re.compile(r"\+(guard|pools|priorities)(?![A-Za-z_./-]|[^:]*(?:/|\.safetensors$))")
_HELP = {
    "guard": "write a factor above 1 after the guard, e.g. srpt+guard:1.1",
    "pools": "write an allocation file after the pools, e.g. srpt+pools:fairscheduler.xml",
    "priorities": "write a CSV file after the priorities, e.g. srpt+priorities:priorities.csv",
}
#: Suffixes of allocation files.
POOL_FILES = (".json", ".xml")


@dataclass(frozen=True)
class PolicyText:
    """A policy's name, and what is added to the policy.

    Args:
        name: the policy.
        guard: factor of the guard; None: no guard.
        pools: path of the allocation file; "": no pools.
        priorities: path of the file of priorities; "": no priorities.
    """

    name: str
    guard: float | None = None
    pools: str = ""
    priorities: str = ""

    @property
    def has_tenants(self) -> bool:
        """Whether pools or priorities are kept."""
        return bool(self.pools or self.priorities)

    def describe(self) -> str:
        """The additions in words, such as ", pools p.xml, guard 1.1"; or no text."""
        words = (
            f", pools {self.pools}" if self.pools else "",
            f", priorities {self.priorities}" if self.priorities else "",
            "" if self.guard is None else f", guard {self.guard:g}",
        )
        return "".join(words)


def split_policy(text: str) -> PolicyText:
    """Split a text into the policy and its additions.

    Example: `split_policy("srpt+guard:1.1")` is `PolicyText("srpt", guard=1.1)`.
    """
    name, *parts = _MARK.split(text)
    values: dict[str, str] = {}
    # The parts alternate: a mark, and the text up to the next one.
    for mark, value in zip(parts[::2], parts[1::2], strict=True):
        if mark in values:
            raise PolicyError(f"policy {text!r} has more than one {mark}; write only one")
        if not value.startswith(":") or not value[1:] or not name:
            raise PolicyError(f"policy {text!r}: {_HELP[mark]}")
        values[mark] = value[1:]
    pools = values.get("pools", "")
    if pools and not pools.endswith(POOL_FILES):
        raise PolicyError(
            f"policy {text!r}: the pools' file is an XML or JSON file; {_HELP['pools']}"
        )
    if own_pools(name) and (pools or "priorities" in values):
        raise PolicyError(
            f"policy {text!r} orders by its own pools; write fair+pools:FILE for pools in which "
            "jobs share equally or by priority"
        )
    guard = _factor(text, values["guard"]) if "guard" in values else None
    return PolicyText(name, guard, pools, values.get("priorities", ""))


def own_pools(name: str) -> str:
    """The allocation file of a policy `fair:FILE`; "" for any other policy."""
    is_fair = name.startswith("fair:") and name.endswith(POOL_FILES)
    return name.removeprefix("fair:") if is_fair else ""


def split_guard(text: str) -> tuple[str, float | None]:
    """Split the text of a policy for a live cluster, where Spark keeps pools and priorities.
    Returns the policy, and the factor of its guard (None without a guard).
    """
    parts = split_policy(text)
    if parts.has_tenants:
        raise PolicyError(
            f"policy {text!r}: in Spark the plugin keeps pools and priorities itself "
            f"(docs/tenants.md); name the policy without them: {parts.name}"
        )
    return parts.name, parts.guard


def _factor(text: str, value: str) -> float:
    """The factor of a guard."""
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not math.isfinite(factor) or factor <= 1.0:
        raise PolicyError(f"policy {text!r}: {_HELP['guard']}")
    return factor
