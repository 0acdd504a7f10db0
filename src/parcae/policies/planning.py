"""`CompiledPlanner`: the base class of policies that plan orders with compiled kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import ClusterState
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


class CompiledPlanner(ABC):
    """A policy of the world of cores whose kernels plan orders, and simulate whole runs.

    A subclass provides its kernels and their further arguments. The kernels are called as
    `plan(observation, orders, *arguments)`, `play(state, future, tables, *arguments)` and
    `play_many(states, futures, tables, *arguments_of_many, first, last, status)`.
    """

    name: str
    _arguments: tuple[Any, ...] | None = None
    _room: tuple[int, int] = (0, 0)

    @property
    @abstractmethod
    def kernels(self) -> tuple[Any, Any, Any]:
        """The kernels `plan`, `play` and `play_many`."""

    @abstractmethod
    def arguments(self, num_jobs: int, num_stages: int) -> tuple[Any, ...]:
        """Return the kernels' further arguments, with empty tables of this size."""

    def arguments_of_many(self, num_jobs: int, num_stages: int, num_runs: int) -> tuple[Any, ...]:
        """Return the further arguments of `play_many`, for runs that one thread simulates in turn.

        Args:
            num_jobs: most jobs of a run.
            num_stages: most stages of a run.
            num_runs: number of runs.
        """
        del num_runs
        return self.arguments(num_jobs, num_stages)

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """Return the blank orders that the kernel `plan` writes to."""
        return blank_orders(num_jobs, num_stages)

    def plan(self, observation: Observation) -> Orders:
        """Return the orders that hold from now on.

        Policies with a virtual run keep it between calls. They expect the observations of a single
        run, in order of time.
        """
        num_jobs = len(observation.jobs)
        num_stages = len(observation.stages)
        # A live cluster's tables grow. Larger tables start with an empty virtual run.
        if self._arguments is None or self._room[0] < num_jobs or self._room[1] < num_stages:
            self._arguments = self.arguments(num_jobs, num_stages)
            self._room = (num_jobs, num_stages)
        orders = self.empty_orders(num_jobs, num_stages)
        self.kernels[0](observation, orders, *self._arguments)
        return orders

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Simulate a whole run in one compiled call.

        Args:
            state: the cluster; modified in place.
            future: the simulator's events; modified in place.
            tables: the workload's duration tables.

        Returns:
            The `Status` in which the run stopped.
        """
        arguments = self.arguments(len(state.jobs), len(state.stages))
        return int(self.kernels[1](state, future, tables, *arguments))

    def play_many(
        self,
        states: ClusterState,
        futures: Future,
        tables: WorkloadTables,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Simulate the runs `first` to `last - 1` of many, one after another.

        Args:
            states: the clusters of all simulators (one more leading axis); modified in place.
            futures: their events; modified in place.
            tables: the workload's duration tables.
            first: first simulator to run.
            last: one past the last simulator to run.
            status: int64[num_simulators]; receives the `Status` of every run.
        """
        arguments = self.arguments_of_many(
            states.jobs.shape[1], states.stages.shape[1], len(status)
        )
        self.kernels[2](states, futures, tables, *arguments, first, last, status)
