"""How applications share one cluster: how many executors each should have, by the order of all jobs.

The cluster's cores are given away by the order in force, to the tasks that run or could start, as if
none were given away. An application's executors are those that hold its cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parcae.cluster.kernels.serving import hand_out
from parcae.errors import ConfigError
from parcae.service.mirror import Mirror


@dataclass
class Sharing:
    """One cluster for all applications.

    Args:
        num_cores: of the cluster.
        executor_cores: of one executor.
        moving_delay_ms: an executor is taken from an application that could use it at most this often.

    Raises:
        ConfigError: a cluster without room for one executor.

    Example: `Sharing(num_cores=20, executor_cores=2)` has ten executors to give away.
    """

    num_cores: int
    executor_cores: int = 1
    moving_delay_ms: int = 0
    _given: dict[str, int] = field(default_factory=dict, init=False)
    _taken_ms: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.executor_cores < 1 or self.num_cores < self.executor_cores:
            raise ConfigError(
                f"--cores {self.num_cores} --executor-cores {self.executor_cores}: the cluster needs room for one executor"
            )

    @property
    def num_executors(self) -> int:
        """Executors that the cluster has room for."""
        return self.num_cores // self.executor_cores

    def told_cores(self, application: str, cores: int) -> None:
        """The application says how many cores it has: it keeps those executors until they are taken."""
        self._given.setdefault(application, min(self.num_executors, cores // self.executor_cores))

    def forget(self, application: str) -> None:
        """The application is gone."""
        self._given.pop(application, None)
        self._taken_ms.pop(application, None)

    def executors_of(self, application: str, mirror: Mirror) -> int:
        """How many executors the application should have now."""
        self.share_out(mirror)
        return self._given.get(application, 0)

    def share_out(self, mirror: Mirror) -> dict[str, int]:
        """Executors by application. What an application has is taken only for one that goes first."""
        wanted, ranks, minimum = self._wanted(mirror)
        names = sorted({*wanted, *self._given}, key=lambda name: ranks.get(name, len(ranks)))
        goal = self._goal(names, wanted, minimum)
        given = {name: self._given.get(name, 0) for name in names}
        free = self.num_executors - sum(given.values())
        for name in reversed(names):  # together they said that they have more than there are
            cut = max(0, min(-free, given[name] - goal[name]))
            given[name] -= cut
            free += cut
        for name in names:
            while given[name] < goal[name]:
                if free <= 0 and not self._take(names, given, goal, name, mirror.clock_ms):
                    break
                free = max(0, free - 1)
                given[name] += 1
        self._given = given
        return given

    def _wanted(self, mirror: Mirror) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """(executors that each could use, place of its first job in the order, who must not be left without one)."""
        state = mirror.state
        cores = np.zeros(len(state.jobs), np.int64)
        hand_out(state, self.num_cores, cores, np.zeros(len(state.stages), np.int64))
        jobs = sorted(
            mirror.jobs.values(),
            key=lambda job: (float(state.job_orders["tier"][job.row]), job.row),
        )
        wanted: dict[str, int] = {}
        ranks: dict[str, int] = {}
        served: set[str] = set()
        for job in jobs:
            ranks.setdefault(job.application, len(ranks))
            wanted[job.application] = wanted.get(job.application, 0) + int(cores[job.row])
            if state.job_orders["limit"][job.row] > 0:
                served.add(job.application)
        executors = {name: -(-own // self.executor_cores) for name, own in wanted.items()}
        for name in served:
            executors[name] = max(1, executors[name])
        return executors, ranks, served

    def _goal(self, names: list[str], wanted: dict[str, int], minimum: set[str]) -> dict[str, int]:
        """As many executors as there are, first to those that must have one, then by the order."""
        goal = dict.fromkeys(names, 0)
        free = self.num_executors
        for name in names:
            if name in minimum and free > 0:
                goal[name] = 1
                free -= 1
        for name in names:
            more = min(free, max(0, wanted.get(name, 0) - goal[name]))
            goal[name] += more
            free -= more
        return goal

    def _take(
        self,
        names: list[str],
        given: dict[str, int],
        goal: dict[str, int],
        taker: str,
        clock_ms: int,
    ) -> bool:
        """Take an executor from the last application that has more than it should. Returns whether there is one."""
        for name in reversed(names):
            is_rested = (
                clock_ms - self._taken_ms.get(name, -self.moving_delay_ms) >= self.moving_delay_ms
            )
            if name != taker and given[name] > goal[name] and is_rested:
                given[name] -= 1
                if self.moving_delay_ms:
                    self._taken_ms[name] = clock_ms
                return True
        return False
