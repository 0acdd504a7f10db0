"""`Mirror`: the state of a live cluster, kept up to date by the messages of its applications.

Events apply the same transitions as in the simulator, and orders are planned when a plan is due.
One `ClusterState` of the world of cores holds the jobs of one application, or of all applications
that share a cluster. `live_tables` keeps its tables, `job_events` applies events to them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from parcae.base.errors import ProtocolError
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.cores import can_plan, note_stall, reveal_stage
from parcae.cluster.kernels.serving import job_ended
from parcae.cluster.state import NOT_YET, UNLIMITED
from parcae.service.job_events import MOST_RUNNING, JobEvents
from parcae.service.jobs import DurationModel
from parcae.service.live_tables import ALONE, Counts, EndedJob, LiveJob, LiveSettings
from parcae.service.pieces import make_way
from parcae.service.policies import PolicyFor, TimedPlan
from parcae.service.protocol import Code, Events, JobOrder, OrdersMessage, StageOrder, StateMessage
from parcae.service.tables import Room

#: Infinite tiers are sent as this number: JSON has no infinity.
_LARGEST_TIER = 1e300
#: Largest difference between the clocks of applications that share a cluster.
_MOST_SKEW_MS = 60_000


class Mirror(JobEvents):
    """The state of one cluster, built from the messages of one or several applications."""

    def __init__(
        self,
        policy_for: PolicyFor,
        duration_model: DurationModel,
        settings: LiveSettings = ALONE,
        *,
        counts: Counts | None = None,
        on_plan: Callable[[Mirror, TimedPlan], None] | None = None,
        on_end: Callable[[EndedJob], None] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(policy_for, duration_model, settings, counts=counts, on_end=on_end)
        #: Held while a request, or an application that leaves, changes the mirror. Who only looks
        #: does not wait for it.
        self.lock = threading.Lock()
        self._on_plan = on_plan
        self._clocks: dict[str, int] = {}
        self._now_s = now_s
        self._heard_s = 0.0  # when an application last reported its clock
        self._orders_cache: dict[
            str, tuple[int, OrdersMessage]
        ] = {}  # by application: version, orders
        self._planned_ms = -1

    # -- requests ----------------------------------------------------------------------------------

    def take_state(self, application: str, message: StateMessage) -> None:
        """Replace everything about the application by the contents of the message."""
        self.forget(application)
        if self._settings.num_cores is not None and self._clocks:
            ahead_ms = message.clock_ms - self.clock_ms
            # While nothing happens, no application reports its clock.
            silent_ms = MS_PER_S * max(0.0, self._now_s() - self._heard_s)
            is_near = -_MOST_SKEW_MS <= ahead_ms <= _MOST_SKEW_MS + silent_ms
            self._offsets[application] = 0 if is_near else -ahead_ms
        self._clocks[application] = message.clock_ms
        self._set_clock(application)
        if self._settings.num_cores is None:
            self._begin(max(1, message.cores), message.clock_ms)
        self.counts.states += 1
        self._version += 1
        # Rows must be in order of arrival: policies break ties by it.
        for job in sorted(message.jobs, key=lambda one: one.arrival_ms):
            make_way()
            self._job_arrived(application, job, is_new=False)
        self.credit_late_jobs(application)
        self._now["is_plan_due"][0] = 1
        self.settle()

    def _advance(self, application: str, clock_ms: int) -> None:
        """Set the clock to that of an application, which must not go backwards."""
        last_ms = self._clocks.get(application, 0)
        if clock_ms < last_ms:
            raise ProtocolError(
                Code.CLOCK, f"the clock went backwards, from {last_ms} to {clock_ms} ms"
            )
        self._clocks[application] = clock_ms
        self._set_clock(application)

    def take_events(self, application: str, message: Events) -> None:
        """Apply the events of a message in order, then plan if a plan is due."""
        self._advance(application, message.clock_ms)
        if message.cores is not None and self._settings.num_cores is None:
            self._resize(max(1, message.cores))
        for position, event in enumerate(message.events):
            make_way()
            try:
                self.fire(application, event)
            except ProtocolError as error:
                raise ProtocolError(error.code, f"event {position}: {error}") from None
        self.derive()
        # When it follows the simulator, an empty message reveals the next waiting stage.
        if self._settings.follows_simulator and not message.events and self._reveals:
            reveal_stage(self.state, self._reveals.popleft())
        elif not message.events or not self._settings.follows_simulator:
            self._wake()
        self.settle()

    def forget(self, application: str) -> None:
        """Remove the application's jobs without a trace; the caller must `settle` afterwards."""
        self.derive()  # a message that was refused has not done it
        gone = [job for job in self.jobs.values() if job.application == application]
        self._orders_cache.pop(application, None)
        self._ended.pop(application, None)
        self._clocks.pop(application, None)
        self._offsets.pop(application, None)
        self._used.pop(application, None)
        if not gone:
            return
        rows = {job.row for job in gone}
        for job in gone:
            make_way()
            job_ended(self.state, job.row)
            del self.jobs[job.key], self.by_row[job.row]
        if self.jobs:
            self._repack(Room(0, 0, 0), is_dropped=rows.__contains__)
        else:
            self._begin(self.num_cores, self.clock_ms)

    def _set_clock(self, application: str) -> None:
        """Advance the cluster's clock to that of an application.

        Clocks of applications that share the cluster may differ a little. One that lags by more
        counts on from here: it would not advance the cluster's clock any more.
        """
        clock_ms = self._clocks[application] + self._offset_of(application)
        lag_ms = self.clock_ms - clock_ms
        if self._settings.num_cores is not None and lag_ms > _MOST_SKEW_MS:
            self._offsets[application] = self._offset_of(application) + lag_ms
            self._version += 1
        self._now["clock_ms"][0] = max(clock_ms, self.clock_ms)
        self._heard_s = self._now_s()

    def _wake(self) -> None:
        """Make a plan due if the wake-up time of the policy has come."""
        wake_ms = int(self._now["wake_ms"][0])
        if wake_ms != NOT_YET and self.clock_ms >= max(wake_ms, self._planned_ms + 1):
            self._version += 1
            self._now["wake_ms"][0] = NOT_YET
            self._now["is_plan_due"][0] = 1

    # -- plans -------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Plan if a plan is due."""
        note_stall(self.state, self.clock_ms > self._planned_ms)
        waits = int(self._settings.follows_simulator)
        if can_plan(self.state, waits, max(waits, int(self.planning.decides))):
            self.make_plan()

    def make_plan(self) -> None:
        """Plan now, whether a plan is due or not."""
        plan = self.planning.plan(self.state)
        self._planned_ms = self.clock_ms
        self._version += 1
        self.counts.plans += 1
        self.counts.fallbacks += plan.is_fallback
        if self._on_plan is not None:
            self._on_plan(self, plan)

    @property
    def wake_ms(self) -> int | None:
        """When the policy wants to plan again, or None."""
        wake_ms = int(self._now["wake_ms"][0])
        return None if wake_ms == NOT_YET else max(wake_ms, self._planned_ms + 1)

    def on_clock_of(self, application: str, at_ms: int | None) -> int | None:
        """A time of the cluster's clock by that of an application; None stays None."""
        return None if at_ms is None else max(0, at_ms - self._offset_of(application))

    def order_of(self, row: int) -> JobOrder:
        """The order of the job in a row."""
        orders = self._job_order
        return JobOrder(
            job_id=self.by_row[row].job_id,
            tier=_finite(orders["tier"][row]),
            weight=float(orders["weight"][row]),
            limit=_limit(orders["limit"][row]),
        )

    def orders_by_job(self) -> list[tuple[LiveJob, JobOrder]]:
        """All jobs in the system with their orders, in order of arrival."""
        active = self.state.active[: self.num_jobs].tolist()
        pairs = []
        for row in active:
            make_way()
            pairs.append((self.by_row[row], self.order_of(row)))
        return pairs

    def orders(self, application: str) -> OrdersMessage:
        """The standing order of an application's jobs."""
        version, cached = self._orders_cache.get(application, (-1, None))
        if cached is not None and version == self._version:
            return cached
        orders = self._fresh_orders(application)
        self._orders_cache[application] = self._version, orders
        return orders

    def stages_of(self, application: str) -> dict[str, list[int]]:
        """By job id, the ids of the stages that have not ended."""
        return {
            job.job_id: [
                stage_id
                for position, stage_id in enumerate(job.stage_ids)
                if position not in job.ended
            ]
            for job, _ in self.orders_by_job()
            if job.application == application
        }

    def _fresh_orders(self, application: str) -> OrdersMessage:
        by_job = self.orders_by_job()
        pairs = [(job, order) for job, order in by_job if job.application == application]
        return OrdersMessage(
            seq=None,
            jobs=tuple(order for _, order in pairs),
            stages=tuple(self._stage_orders(job for job, _ in pairs)),
            other_tier=max((order.tier for _, order in by_job), default=0.0),
            wake_ms=self.on_clock_of(application, self.wake_ms),
        )

    def _stage_orders(self, jobs: Iterable[LiveJob]) -> Iterable[StageOrder]:
        """Orders of the stages that have not ended and differ from the default."""
        orders = np.asarray(self.state.stage_orders)
        tiers = orders["tier"]
        ranks = orders["rank"]
        limits = orders["limit"]
        used = int(self._now["num_stages"][0])
        is_set = (tiers[:used] != 0.0) | (ranks[:used] != 0.0) | (limits[:used] != UNLIMITED)
        if not is_set.any():
            return
        for job in jobs:
            first = self.stage_row(job, 0)
            for position in np.flatnonzero(is_set[first : first + len(job.stage_ids)]).tolist():
                if position not in job.ended:
                    row = first + position
                    yield StageOrder(
                        job_id=job.job_id,
                        stage_id=job.stage_ids[position],
                        tier=_finite(tiers[row]),
                        rank=_finite(ranks[row]),
                        limit=_limit(limits[row]),
                    )


def _finite(value: Any) -> float:
    return float(min(_LARGEST_TIER, max(-_LARGEST_TIER, value)))


def _limit(value: Any) -> int | None:
    """A limit as it is sent; None for one that no cluster reaches."""
    return None if value >= MOST_RUNNING else int(value)
