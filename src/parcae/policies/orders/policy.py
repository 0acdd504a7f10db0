"""Policies that plan by a formula, as objects: what stock Spark does, and the size-based orders of the literature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import POOL, allocate_virtual
from parcae.policies.orders.kernels import plan, play, play_many
from parcae.policies.orders.layout import OrderKind, PlanTables
from parcae.policies.planning import CompiledPlanner


def plan_tables(
    *,
    pool_of: npt.NDArray[np.int64] | None = None,
    pools: npt.NDArray[np.void] | None = None,
    sigma: npt.NDArray[np.float64] | None = None,
    index: npt.NDArray[np.float64] | None = None,
    tiers: npt.NDArray[np.float64] | None = None,
    limits: npt.NDArray[np.int64] | None = None,
) -> PlanTables:
    """The tables of a policy by formula; what it does not use has one row."""
    virtual = allocate_virtual(1, 1)
    return PlanTables(
        np.zeros(1, np.int64) if pool_of is None else pool_of,
        (np.zeros(1, POOL) if pools is None else pools).view(np.recarray),
        np.zeros(1) if sigma is None else sigma,
        np.zeros((1, 1)) if index is None else index,
        np.zeros(1) if tiers is None else tiers,
        np.zeros(1, np.int64) if limits is None else limits,
        virtual.now,
        virtual.jobs,
        virtual.stages,
    )


def with_memory(tables: PlanTables, num_jobs: int, num_stages: int) -> PlanTables:
    """The same tables with an empty memory for so many jobs and stages."""
    virtual = allocate_virtual(num_jobs, num_stages)
    return tables._replace(
        virtual_now=virtual.now, virtual_jobs=virtual.jobs, virtual_stages=virtual.stages
    )


@dataclass
class OrderPolicy(CompiledPlanner):
    """A policy that plans by a formula.

    Args:
        name: as it was asked for.
        kind: which formula.
        tables: what it knows beside the observation.

    Example: `OrderPolicy("fair", OrderKind.FAIR, plan_tables())`.
    """

    name: str
    kind: OrderKind
    tables: PlanTables

    @property
    def kernels(self) -> tuple[Any, Any, Any]:
        """`plan`, `play` and `play_many` of the formulas."""
        return plan, play, play_many

    def arguments(self, num_jobs: int, num_stages: int) -> tuple[Any, ...]:
        """Which formula, and its tables."""
        return int(self.kind), with_memory(self.tables, num_jobs, num_stages)

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """First come, first served, in Spark's pools where they are asked for."""
        orders = blank_orders(num_jobs, num_stages)
        if self.kind is OrderKind.POOLS:
            orders = orders._replace(pools=self.tables.pools.copy())
        return orders
