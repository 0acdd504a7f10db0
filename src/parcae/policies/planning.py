"""What all policies have in common that plan by compiled kernels."""

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
    """A policy of the world of cores whose kernels plan, and play whole runs.

    A subclass names its kernels and says what they are given beside the cluster:
    `plan(observation, orders, *arguments)`, `play(state, future, tables, *arguments)` and
    `play_many(states, futures, tables, *arguments of many, first, last, status)`.
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
        """What the policy knows, with an empty memory for so many jobs and stages."""

    def arguments_of_many(self, num_jobs: int, num_stages: int, num_runs: int) -> tuple[Any, ...]:
        """The same for `num_runs` runs that one thread plays one after the other."""
        del num_runs
        return self.arguments(num_jobs, num_stages)

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """What `plan` writes into."""
        return blank_orders(num_jobs, num_stages)

    def plan(self, observation: Observation) -> Orders:
        """The orders from now on. Policies that remember expect the observations of one run, in order."""
        num_jobs = len(observation.jobs)
        num_stages = len(observation.stages)
        if self._arguments is None or self._room[0] < num_jobs or self._room[1] < num_stages:
            self._arguments = self.arguments(num_jobs, num_stages)
            self._room = (num_jobs, num_stages)
        orders = self.empty_orders(num_jobs, num_stages)
        self.kernels[0](observation, orders, *self._arguments)
        return orders

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Run a whole simulation in one compiled call. Returns a Status."""
        own = self.arguments(len(state.jobs), len(state.stages))
        return int(self.kernels[1](state, future, tables, *own))

    def play_many(
        self,
        states: ClusterState,
        futures: Future,
        tables: WorkloadTables,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Run simulators first..last-1 of many to their end; fills `status`, int64[num_simulators]."""
        own = self.arguments_of_many(states.jobs.shape[1], states.stages.shape[1], len(status))
        self.kernels[2](states, futures, tables, *own, first, last, status)
