"""`PlaysRuns`: the base class of policies whose kernels simulate whole runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from parcae.base.compiled.kernels import row_of
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.cluster.state import ClusterState, VirtualRun
from parcae.simulation.kernels.playing import Simulation, Simulations


class PlaysRuns(ABC):
    """A policy of a cluster whose kernels simulate whole runs.

    A subclass provides its kernels and their further arguments. The kernels are called as
    `play(simulation, *arguments_for(simulation.state))` and
    `play_many(simulations, *arguments_for_many(simulations.states), first, last)`.
    """

    name: str

    @property
    @abstractmethod
    def kernels(self) -> tuple[Any, Any, Any]:
        """The kernels: `decide` or `plan`, `play`, and `play_many` (None: `play` run by run)."""

    @abstractmethod
    def arguments_for(self, state: ClusterState) -> tuple[Any, ...]:
        """Return the further arguments of `play`, with empty tables that fit the cluster.

        `state` may be of many clusters; then the tables are for runs that are played in turn.
        """

    def arguments_for_many(self, states: ClusterState) -> tuple[Any, ...]:
        """Return the further arguments of `play_many`."""
        return self.arguments_for(states)

    def play(self, simulation: Simulation) -> int:
        """Simulate a whole run in one compiled call. Returns the `Status` in which it stopped."""
        return int(self.kernels[1](simulation, *self.arguments_for(simulation.state)))

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many, one after another."""
        play_many = self.kernels[2]
        if play_many is not None:
            play_many(simulations, *self.arguments_for_many(simulations.states), first, last)
            return
        states, futures, tables, status = simulations
        for row in range(first, last):
            status[row] = self.play(Simulation(row_of(states, row), row_of(futures, row), tables))


def virtual_runs(arguments: Any) -> Iterator[VirtualRun]:
    """The virtual runs in the arguments of a policy: tables, or nested tuples of tables."""
    if hasattr(arguments, "virtual_now"):
        yield VirtualRun(arguments.virtual_now, arguments.virtual_jobs, arguments.virtual_stages)
    elif isinstance(arguments, tuple):
        for part in arguments:
            yield from virtual_runs(part)


class CompiledPlanner(PlaysRuns):
    """A policy of the world of cores whose kernels plan orders, and simulate whole runs.

    The first of its kernels is called as `plan(observation, orders, *arguments)`.
    """

    _arguments: tuple[Any, ...] | None = None
    _room: tuple[int, int] = (0, 0)

    @abstractmethod
    def arguments(self, num_jobs: int, num_stages: int) -> tuple[Any, ...]:
        """Return the kernels' further arguments, with empty tables of this size."""

    def arguments_for(self, state: ClusterState) -> tuple[Any, ...]:
        """The further arguments, with tables of the state's size."""
        return self.arguments(state.jobs.shape[-1], state.stages.shape[-1])

    def empty_orders(self, num_jobs: int, num_stages: int) -> Orders:
        """Return the blank orders that the kernel `plan` writes to."""
        return blank_orders(num_jobs, num_stages)

    def plan(self, observation: Observation) -> Orders:
        """Return the orders that hold from now on.

        Policies with a virtual run keep it between calls. They expect the observations of a single
        run, in order of time, see `restart`.
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

    def restart(self) -> None:
        """Forget the virtual run: a new run begins."""
        self._arguments = None

    @property
    def memory(self) -> VirtualRun:
        """The virtual run up to the last plan."""
        return next(virtual_runs(self._arguments))
