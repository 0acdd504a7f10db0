"""Policies that plan by a formula, as objects: what stock Spark does, and the size-based orders of the literature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import POOL, ClusterState, allocate_virtual
from parcae.policies.orders.kernels import plan, play, play_many
from parcae.policies.orders.layout import OrderKind, PlanTables
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


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
    return tables._replace(virtual_now=virtual.now, virtual_jobs=virtual.jobs, virtual_stages=virtual.stages)


@dataclass
class OrderPolicy:
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

    def plan(self, observation: Observation) -> Orders:
        """The orders from now on. Policies that remember expect the observations of one run, in order."""
        num_jobs, num_stages = len(observation.jobs), len(observation.stages)
        if len(self.tables.virtual_stages) < num_stages or len(self.tables.virtual_jobs) < num_jobs:
            self.tables = with_memory(self.tables, num_jobs, num_stages)
        orders = blank_orders(num_jobs, num_stages)
        if self.kind is OrderKind.POOLS:
            orders = orders._replace(pools=self.tables.pools.copy())
        plan(observation, orders, int(self.kind), self.tables)
        return orders

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        own = with_memory(self.tables, len(state.jobs), len(state.stages))
        return int(play(state, future, tables, int(self.kind), own))

    def play_many(
        self,
        states: ClusterState,
        futures: Future,
        tables: WorkloadTables,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Run simulators first..last-1 of many to their end; fills `status`."""
        own = with_memory(self.tables, states.jobs.shape[1], states.stages.shape[1])
        play_many(states, futures, tables, int(self.kind), own, first, last, status)
