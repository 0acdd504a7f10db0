"""`Sharing`: how many executors of a shared cluster each application should have.

The rule is `parcae.simulation.allocations.Lending`, which simulations of several applications use,
too. Here is what it must know of live applications.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.serving import work_at_hand
from parcae.service.mirror import Mirror
from parcae.service.protocol import OrdersMessage
from parcae.simulation.allocations import Demand, Lending

#: How long an executor takes to start, until an application's own have shown it: so many starts are
#: assumed beside the last ones. The first executors of all start at once and may take long.
_START_MS = 5_000.0
_ASSUMED = 3
_LAST = 8
#: An executor that has not come after so many starts, or this time, is given up, for as long.
_GIVEN_UP = 3.0
_GIVEN_UP_MS = 30_000
#: An executor takes room for so long after its driver has let it go: processes end within a second,
#: pods later. YARN, whose applications are named so, keeps a container's room by itself.
_GONE_MS = 3_000.0
_GONE_YARN_MS = 1_000.0
#: While an application waits for more, the rule is asked again after this time without events.
_AGAIN_MS = 500


@dataclass
class _Executors:
    """What an application reported of its executors."""

    cores: int = 0
    #: How long the last ones took to start.
    starts_ms: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))
    #: When each executor that it was told to have and that has not come was first allowed.
    asked_ms: list[int] = field(default_factory=list)
    #: Until when no more are expected than there are.
    given_up_ms: int = -1

    @property
    def start_ms(self) -> float:
        """How long one takes to start."""
        return median([*self.starts_ms, *[_START_MS] * _ASSUMED])


@dataclass
class Sharing:
    """Divides the executors of one cluster among all applications.

    Raises:
        ConfigError: the cluster is too small for one executor.

    Example: `Sharing(num_cores=20, executor_cores=2)` divides ten executors.
    """

    num_cores: int
    executor_cores: int = 1
    #: How many executors every application should have, by the last `share_out`.
    executors: dict[str, int] = field(default_factory=dict, init=False)
    _seen: dict[str, _Executors] = field(default_factory=dict, init=False)
    #: When to ask again without an event, by the cluster's clock.
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

    @cached_property
    def _rule(self) -> Lending:
        return Lending(self.num_executors)

    def report_cores(self, application: str, cores: int, clock_ms: int) -> None:
        """Record the cores that an application has now, those of executors that go included."""
        seen = self._seen.setdefault(application, _Executors())
        came = cores // self.executor_cores - seen.cores // self.executor_cores
        seen.starts_ms += [clock_ms - asked_ms for asked_ms in seen.asked_ms[: max(0, came)]]
        del seen.asked_ms[: max(0, came)]
        seen.cores = cores

    def forget(self, application: str) -> None:
        """Remove an application that ended; its executors become free when they have gone."""
        self.executors.pop(application, None)
        self._seen.pop(application, None)

    def in_words(self, clock_ms: int) -> dict[str, str]:
        """By application, its executors, how many it should have, and what a start costs."""
        words = {}
        for name, told in self.executors.items():
            seen = self._seen[name]
            late = "; others do not come" if clock_ms < seen.given_up_ms else ""
            here = seen.cores // self.executor_cores
            words[name] = f"{here} of {told}, a start takes {seen.start_ms / MS_PER_S:.1f} s{late}"
        return words

    def lending_in_words(self, clock_ms: int) -> str:
        """What lending saves by its own estimate, or that it has stopped."""
        wait_ms = self._rule.stopped_ms - clock_ms
        if wait_ms > 0:
            return f"lost time; none for {wait_ms / MS_PER_S:.0f} s"
        share = self._rule.gain.share
        return f"{'saves' if share >= 0 else 'loses'} {abs(share):.0%} of the applications' time"

    def completed(
        self, worded: Callable[[], OrdersMessage], mirror: Mirror, application: str
    ) -> Callable[[], OrdersMessage]:
        """The application's orders with its executors, and with when to share out again."""
        wakes = (mirror.wake_ms, self._wake_ms)
        wake_ms = min((at_ms for at_ms in wakes if at_ms is not None), default=None)
        also = {
            "executors": self.executors.get(application, 0),
            "wake_ms": mirror.on_clock_of(application, wake_ms),
        }
        return lambda: worded().model_copy(update=also)

    def share_out(self, mirror: Mirror) -> None:
        """Compute the number of executors of every application, and remember it.

        It looks at all tasks of the cluster, so it is called once for a request.
        """
        demands = self._demands(mirror)
        told = self._rule.share(mirror.clock_ms, demands)
        for name, seen in self._seen.items():
            missing = max(0, told.get(name, 0) - demands[name].held)
            del seen.asked_ms[missing:]
            seen.asked_ms += [mirror.clock_ms] * (missing - len(seen.asked_ms))
        waits = any(told[name] < one.needed for name, one in demands.items())
        self._wake_ms = mirror.clock_ms + _AGAIN_MS if waits else None
        self.executors = told

    def _demands(self, mirror: Mirror) -> dict[str, Demand]:
        """What the rule knows of each application, by the order of their first messages."""
        state = mirror.state
        tasks = np.zeros(len(state.jobs), np.int64)
        work_ms = np.zeros(len(state.jobs))
        work_at_hand(state, tasks, work_ms)
        demands = {}
        for name in dict.fromkeys([*self._seen, *mirror.own]):
            seen = self._seen.setdefault(name, _Executors())
            rows = [job.row for job in mirror.own.get(name, {}).values()]
            held = seen.cores // self.executor_cores
            needed = -(-int(tasks[rows].sum()) // self.executor_cores)
            if self._is_given_up(seen, mirror.clock_ms):
                needed = min(needed, held)
                self._rule.goal[name] = min(self._rule.goal[name], held)
            demands[name] = Demand(
                min(self.num_executors, held),
                needed,
                float(work_ms[rows].sum()) / self.executor_cores,
                seen.start_ms,
                gone_ms=_GONE_YARN_MS if name.startswith("application_") else _GONE_MS,
            )
        return demands

    def _is_given_up(self, seen: _Executors, clock_ms: int) -> bool:
        """Whether executors did not come for so long that others should have them."""
        patience_ms = max(_GIVEN_UP * seen.start_ms, _GIVEN_UP_MS)
        if seen.asked_ms and clock_ms - seen.asked_ms[0] > patience_ms:
            seen.given_up_ms = clock_ms + round(patience_ms)
            seen.asked_ms.clear()
        return clock_ms < seen.given_up_ms
