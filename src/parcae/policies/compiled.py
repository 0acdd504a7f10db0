"""`PlaysRuns`: the base class of policies whose kernels simulate whole runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from parcae.cluster.state import ClusterState
from parcae.kernels import row_of
from parcae.simulation.kernels.simulations import Simulation, Simulations


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
        """Simulate a whole run in one compiled call. Returns the `Status` in which it stopped.

        Args:
            simulation: the run; modified in place.
        """
        return int(self.kernels[1](simulation, *self.arguments_for(simulation.state)))

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Simulate the runs `first` to `last - 1` of many, one after another.

        Args:
            simulations: the runs; modified in place.
            first: first simulator to run.
            last: one past the last simulator to run.
        """
        play_many = self.kernels[2]
        if play_many is not None:
            play_many(simulations, *self.arguments_for_many(simulations.states), first, last)
            return
        states, futures, tables, status = simulations
        for row in range(first, last):
            status[row] = self.play(Simulation(row_of(states, row), row_of(futures, row), tables))
