"""Policies with compiled kernels as objects: they decide or plan live, and simulate whole runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np

from parcae.base.compiled.kernels import as_many
from parcae.cluster.kernels.policies import decide, plan
from parcae.cluster.observation import Decision, Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import ClusterState, VirtualRun
from parcae.simulation.kernels.playing import Simulation, Simulations, play_many


class PlaysRuns(ABC):
    """A policy of a cluster whose kernels simulate whole runs.

    The kernels are those of the type of its tables (`parcae.cluster.kernels.policies`).
    """

    name: str
    #: The tables of a policy that decides or plans live, and the cluster's size that they are for.
    _kept: Any = None
    _room: tuple[int, ...] = ()

    @abstractmethod
    def tables_for(self, num_jobs: int, num_stages: int, num_classes: int = 1) -> Any:
        """Return the policy's named tuple, with empty tables for a cluster of this size."""

    def play(self, simulation: Simulation) -> int:
        """Simulate a whole run in one compiled call. Returns the `Status` in which it stopped."""
        state, future, tables = simulation
        # One run is compiled as many: a second kernel would take as long to compile as the first.
        simulations = Simulations(as_many(state), as_many(future), tables, np.zeros(1, np.int64))
        self.play_many(simulations, 0, 1)
        return int(simulations.status[0])

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many, one after another."""
        play_many(simulations, self.tables_for(*size_of(simulations.states)), first, last)

    def unwrapped(self, simulation: Simulation) -> tuple[PlaysRuns, Simulation]:
        """The policy and the tables with which one run is played in several calls."""
        return self, simulation

    def restart(self) -> None:
        """Forget the last run: a new one begins."""
        # Policies may be frozen.
        self.__dict__["_kept"] = None

    def _tables(self, observation: Observation) -> Any:
        """The tables that are kept from one call to the next."""
        size = size_of(observation)
        # A live cluster's tables grow. Larger tables start empty.
        if self._kept is None or any(a > b for a, b in zip(size, self._room, strict=True)):
            self.__dict__["_kept"] = self.tables_for(*size)
            self.__dict__["_room"] = size
        return self._kept


def size_of(state: ClusterState | Observation) -> tuple[int, int, int]:
    """Numbers of jobs, stages and executor classes that tables have room for; of many clusters,
    those of one.
    """
    return state.jobs.shape[-1], state.stages.shape[-1], state.classes.shape[-1]


class CompiledDecider(PlaysRuns):
    """A policy with a kernel that decides."""

    def decide(self, observation: Observation) -> Decision:
        """Return the decision for one scheduling event.

        What is computed for one decision may be kept for the next ones: the observations must be
        those of one run after another, each in order of time.
        """
        return Decision(*map(int, decide(observation, self._tables(observation))))


def virtual_runs(tables: Any) -> Iterator[VirtualRun]:
    """The virtual runs in a policy's tables, which may contain named tuples of tables."""
    if isinstance(tables, VirtualRun):
        yield tables
    elif isinstance(tables, tuple):
        for part in tables:
            yield from virtual_runs(part)


class CompiledPlanner(PlaysRuns):
    """A policy of the world of cores with a kernel that plans orders.

    Policies with a virtual run keep it between plans. They expect the observations of a single run,
    in order of time, see `restart`.
    """

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """Return the blank orders that the kernel writes to."""
        return blank_orders(num_jobs, num_stages)

    def plan(self, observation: Observation) -> Orders:
        """Return the orders that hold from now on."""
        orders = self.empty_orders(len(observation.jobs), len(observation.stages))
        plan(observation, orders, self._tables(observation))
        return orders
