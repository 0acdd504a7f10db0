"""`Sharing`: how many executors of a shared cluster each application should have.

All cores of the cluster are assigned anew, by the order in force, to the tasks that run or could
start. An application should have as many executors as it needs for the cores assigned to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from parcae.base.errors import ConfigError
from parcae.cluster.kernels.serving import share_out_cores
from parcae.service.mirror import Mirror
from parcae.service.protocol import OrdersMessage


@dataclass
class Sharing:
    """Divides the executors of one cluster among all applications.

    Raises:
        ConfigError: the cluster is too small for one executor.

    Example: `Sharing(num_cores=20, executor_cores=2)` divides ten executors.
    """

    num_cores: int
    executor_cores: int = 1
    moving_delay_ms: int = 0
    #: How many executors every application should have, by the last `share_out`.
    executors: dict[str, int] = field(default_factory=dict, init=False)
    _taken_ms: dict[str, int] = field(default_factory=dict, init=False)
    # When an executor that an application waits for may be taken, by the cluster's clock.
    _wake_ms: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.executor_cores < 1 or self.num_cores < self.executor_cores:
            raise ConfigError(
                f"--cores {self.num_cores} --executor-cores {self.executor_cores}: the cluster "
                "must have at least the cores of one executor"
            )

    @property
    def num_executors(self) -> int:
        """Number of executors that fit into the cluster."""
        return self.num_cores // self.executor_cores

    def report_cores(self, application: str, cores: int) -> None:
        """Record the cores that a new application already has.

        It keeps those executors until they are taken; later reports change nothing.
        """
        self.executors.setdefault(
            application, min(self.num_executors, cores // self.executor_cores)
        )

    def forget(self, application: str) -> None:
        """Remove an application that ended; its executors become free."""
        self.executors.pop(application, None)
        self._taken_ms.pop(application, None)

    def completed(
        self, worded: Callable[[], OrdersMessage], mirror: Mirror, application: str
    ) -> Callable[[], OrdersMessage]:
        """The application's orders with its executors, and with when to share out again."""
        # Without an event the executors would stay where they are when the moving delay is over.
        wakes = (mirror.wake_ms, self._wake_ms)
        wake_ms = min((at_ms for at_ms in wakes if at_ms is not None), default=None)
        also = {
            "executors": self.executors.get(application, 0),
            "wake_ms": mirror.on_clock_of(application, wake_ms),
        }
        return lambda: worded().model_copy(update=also)

    def share_out(self, mirror: Mirror) -> None:
        """Compute the number of executors of every application, and remember it.

        An application loses executors only if another one has a right to them. It assigns every
        core of the cluster, so it is called once for a request, not for each application.
        """
        wanted, served = self._wanted(mirror)
        names = list(dict.fromkeys([*wanted, *self.executors]))
        goal = self._goal(names, wanted, served)
        given = {name: self.executors.get(name, 0) for name in names}
        free = self._cut_excess(names, given, goal)
        self._wake_ms = None
        for name in names:
            while given[name] < goal[name]:
                if free <= 0 and not self._take(names, given, goal, name, mirror.clock_ms):
                    break
                free = max(0, free - 1)
                given[name] += 1
        self.executors = given

    def _cut_excess(self, names: list[str], given: dict[str, int], goal: dict[str, int]) -> int:
        """Take back what applications report beyond the cluster's size, from the last ones first.
        Returns the number of free executors.
        """
        free = self.num_executors - sum(given.values())
        for name in reversed(names):
            cut = max(0, min(-free, given[name] - goal[name]))
            given[name] -= cut
            free += cut
        return free

    def _wanted(self, mirror: Mirror) -> tuple[dict[str, int], set[str]]:
        """What the order in force means for the applications. Returns executors that each
        application could use, by the order of their first jobs; the applications that must get at
        least one executor.
        """
        state = mirror.state
        cores = np.zeros(len(state.jobs), np.int64)
        stages = np.zeros(len(state.stages), np.int64)
        share_out_cores(state, self.num_cores, cores, stages, np.zeros(len(state.jobs), np.int64))
        names = list(mirror.own)
        rows = np.array(
            [job.row for jobs in mirror.own.values() for job in jobs.values()], np.int64
        )
        owner = np.repeat(np.arange(len(names)), [len(jobs) for jobs in mirror.own.values()])
        orders = np.asarray(state.job_orders)[rows]
        by_order = owner[np.lexsort((rows, orders["tier"]))].tolist()
        counts = np.bincount(owner, cores[rows], len(names)).astype(np.int64).tolist()
        wanted = {names[one]: counts[one] for one in dict.fromkeys(by_order)}
        served = {names[one] for one in set(owner[orders["limit"] > 0].tolist())}
        # Round up: an application may need a part of its last executor only.
        executors = {name: -(-count // self.executor_cores) for name, count in wanted.items()}
        return executors, served

    def _goal(self, names: list[str], wanted: dict[str, int], served: set[str]) -> dict[str, int]:
        """Divide all executors: first one to each that is served, then the rest in order."""
        goal = dict.fromkeys(names, 0)
        for name in [name for name in names if name in served][: self.num_executors]:
            goal[name] = 1
        free = self.num_executors - sum(goal.values())
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
        """Take an executor from the last application that has more than its goal. Returns whether
        one could be taken. If not, `_wake_ms` says when one may be.
        """
        refused = list[int]()
        for name in reversed(names):
            if name == taker or given[name] <= goal[name]:
                continue
            last_ms = self._taken_ms.get(name, clock_ms - self.moving_delay_ms)
            free_ms = last_ms + self.moving_delay_ms
            if free_ms <= clock_ms:
                given[name] -= 1
                if self.moving_delay_ms:
                    self._taken_ms[name] = clock_ms
                return True
            refused.append(free_ms)
        if self._wake_ms is not None:
            refused.append(self._wake_ms)
        self._wake_ms = min(refused, default=None)
        return False
