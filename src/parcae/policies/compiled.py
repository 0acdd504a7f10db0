"""`PlaysRuns`: the base class of policies whose kernels simulate whole runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ClusterState
from parcae.kernels import row_of
from parcae.simulation.future import Future
from parcae.simulation.tables import WorkloadTables


class PlaysRuns(ABC):
    """A policy of a cluster whose kernels simulate whole runs.

    A subclass provides its kernels and their further arguments. The kernels are called as
    `play(state, future, tables, *arguments_for(state))` and
    `play_many(states, futures, tables, *arguments_for_many(states), first, last, status)`.
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

    def play(self, state: ClusterState, future: Future, tables: WorkloadTables) -> int:
        """Simulate a whole run in one compiled call. Returns the `Status` in which it stopped.

        Args:
            state: the cluster; modified in place.
            future: the simulator's events; modified in place.
            tables: the workload's duration tables.
        """
        return int(self.kernels[1](state, future, tables, *self.arguments_for(state)))

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
        play_many = self.kernels[2]
        if play_many is not None:
            arguments = self.arguments_for_many(states)
            play_many(states, futures, tables, *arguments, first, last, status)
            return
        for row in range(first, last):
            state = row_of(states, row)
            status[row] = self.play(state, row_of(futures, row), tables)
