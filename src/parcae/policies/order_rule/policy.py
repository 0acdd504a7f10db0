"""The rule of the world of cores as a policy object."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import ClusterState, allocate_virtual
from parcae.errors import PolicyError
from parcae.policies.order_rule.kernels import plan, play, play_many
from parcae.policies.order_rule.layout import NUM_ORDER_PARAMETERS, OrderParameter, OrderRule
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


def checked_parameters(values: npt.ArrayLike) -> tuple[float, ...]:
    """The rule's parameters as numbers.

    Raises:
        PolicyError: another number of them.
    """
    theta = np.asarray(values, np.float64)
    if theta.shape != (NUM_ORDER_PARAMETERS,):
        raise PolicyError(f"the rule of the world of cores has {NUM_ORDER_PARAMETERS} parameters, not {theta.size}")
    return tuple(float(value) for value in theta)


def plain_parameters() -> tuple[float, ...]:
    """The plain order by least remaining work, with nothing tried first."""
    theta = np.zeros(NUM_ORDER_PARAMETERS)
    theta[OrderParameter.PROBE] = -10.0
    return tuple(float(value) for value in theta)


def search_start() -> tuple[float, ...]:
    """Where a search from nothing starts: as the plain order, but jobs are tried first where estimates err."""
    theta = np.array(plain_parameters())
    theta[OrderParameter.PROBE] = -0.5
    theta[OrderParameter.PROBE_ERRING] = 3.5
    return tuple(float(value) for value in theta)


def order_rule(theta: npt.ArrayLike, mean_work_ms: float, num_jobs: int, num_stages: int) -> OrderRule:
    """The rule's tables, with an empty memory for so many jobs and stages.

    Raises:
        PolicyError: another number of parameters.
    """
    scale_ms = np.array([max(1.0, mean_work_ms)])
    return OrderRule(np.array(checked_parameters(theta)), scale_ms, *allocate_virtual(num_jobs, num_stages))


@dataclass
class OrderRulePolicy:
    """The rule with its parameters, for one workload.

    Args:
        name: as it was asked for.
        parameters: by `OrderParameter`.
        mean_work_ms: mean work of the workload's jobs, in ms of one core.
    """

    name: str
    parameters: tuple[float, ...]
    mean_work_ms: float
    _memory: OrderRule | None = field(init=False, default=None, repr=False)

    def plan(self, observation: Observation) -> Orders:
        """The orders from now on; expects the observations of one run, in order."""
        num_jobs, num_stages = len(observation.jobs), len(observation.stages)
        memory = self._memory
        if memory is None or len(memory.virtual_jobs) < num_jobs or len(memory.virtual_stages) < num_stages:
            memory = self._tables(num_jobs, num_stages)
            self._memory = memory
        orders = blank_orders(num_jobs, num_stages)
        plan(observation, orders, memory)
        return orders

    def _tables(self, num_jobs: int, num_stages: int) -> OrderRule:
        return order_rule(self.parameters, self.mean_work_ms, num_jobs, num_stages)

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        return int(play(state, future, tables, self._tables(len(state.jobs), len(state.stages))))

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
        thetas = np.tile(np.asarray(self.parameters, np.float64), (len(status), 1))
        own = self._tables(states.jobs.shape[1], states.stages.shape[1])
        play_many(states, futures, tables, thetas, own, first, last, status)
