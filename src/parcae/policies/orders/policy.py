"""`OrderPolicy`: policies that plan by a formula, as policy objects.

They are the orders of stock Spark and the size-based orders of the literature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import POOL, allocate_virtual
from parcae.errors import PolicyError
from parcae.policies.orders.kernels import OrderKind, plan
from parcae.policies.orders.layout import PlanTables
from parcae.policies.orders.play import play, play_many, roll_out
from parcae.policies.planning import CompiledPlanner


def plan_tables(
    *,
    pool_of: npt.NDArray[np.int64] | None = None,
    pools: npt.NDArray[np.void] | None = None,
    sigma: npt.NDArray[np.float64] | None = None,
    index: npt.NDArray[np.float64] | None = None,
    tiers: npt.NDArray[np.float64] | None = None,
    limits: npt.NDArray[np.int64] | None = None,
    deadline_ms: npt.NDArray[np.float64] | None = None,
) -> PlanTables:
    """Return the tables of a policy by formula. Tables that are left out get one row of zeros.

    Args:
        pool_of: int64[num_profiles + 1], row in `pools` of every recurring job; last: other jobs.
        pools: POOL[num_pools].
        sigma: float64[num_profiles + 1], spread of the log of a recurring job's size.
        index: float64[num_sigmas, num_ages], Gittins index by spread and age.
        tiers: float64[num_jobs], fixed tiers of jobs, in order of arrival.
        limits: int64[num_stages], fixed limits of stages, in order of arrival.
        deadline_ms: float64[num_profiles + 1], deadline of every recurring job after its arrival;
            inf: it has none; last: other jobs.
    """
    virtual = allocate_virtual(1, 1)
    return PlanTables(
        np.zeros(1, np.int64) if pool_of is None else pool_of,
        (np.zeros(1, POOL) if pools is None else pools).view(np.recarray),
        np.zeros(1) if sigma is None else sigma,
        np.zeros((1, 1)) if index is None else index,
        np.zeros(1) if tiers is None else tiers,
        np.zeros(1, np.int64) if limits is None else limits,
        np.zeros(1) if deadline_ms is None else deadline_ms,
        virtual.now,
        virtual.jobs,
        virtual.stages,
    )


def with_memory(tables: PlanTables, num_jobs: int, num_stages: int) -> PlanTables:
    """Return the same tables with an empty virtual run.

    Args:
        tables: the policy's tables.
        num_jobs: most jobs of a run.
        num_stages: most stages of a run.
    """
    virtual = allocate_virtual(num_jobs, num_stages)
    return tables._replace(
        virtual_now=virtual.now, virtual_jobs=virtual.jobs, virtual_stages=virtual.stages
    )


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
    def kernels(self) -> tuple[Any, Any, Any]:
        """`plan`, `play` and `play_many` of the formulas."""
        return plan, play, play_many

    @property
    def roll_out(self) -> Any:
        """The kernel that plays rollouts."""
        return roll_out

    def arguments(self, num_jobs: int, num_stages: int) -> tuple[Any, ...]:
        """The formula's kind, and its tables with an empty virtual run."""
        return int(self.kind), with_memory(self.tables, num_jobs, num_stages)

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """Blank orders (first come, first served), with the pools of the allocation file if any."""
        orders = blank_orders(num_jobs, num_stages)
        if self.kind is OrderKind.POOLS:
            orders = orders._replace(pools=self.tables.pools.copy())
        return orders
