"""`Mirror`: the state of a live cluster, kept up to date by the messages of its applications.

Events apply the same transitions as in the simulator, and orders are planned when a plan is due.
One `ClusterState` of the world of cores holds the jobs of one application, or of all applications
that share a cluster. All checks of an event come before its first change to the state.

Terms: a *row* is an index into the cluster's tables, a *position* is an index into the stages that
the client has listed for a job.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parcae.cluster.kernels.cores import complete_stage, reveal_stage
from parcae.cluster.kernels.serving import (
    add_stage,
    durations_changed,
    hide_stage,
    job_ended,
    rerun_tasks,
    resize,
    set_counts,
    stages_added,
    tasks_ended,
    tasks_started,
    update_virtual_run,
)
from parcae.cluster.kernels.transitions import job_arrived
from parcae.cluster.state import NO_JOB, NOT_YET, UNLIMITED, ClusterState, VirtualRun
from parcae.errors import ProtocolError
from parcae.service.jobs import (
    DurationModel,
    JobRows,
    RecurringJob,
    parents_by_index,
    topological_order,
)
from parcae.service.policies import Plan, Planning, PolicyFor
from parcae.service.protocol import (
    Code,
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    JobOrder,
    Orders,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StageOrder,
    StagesAdded,
    State,
    TasksReported,
)
from parcae.service.tables import (
    FIRST_ROOM,
    Repacked,
    Room,
    copy_virtual,
    empty_state,
    grown,
    kept_jobs,
    new_virtual,
    repack,
    room_of,
    with_more_cores,
)

#: Number of ended jobs per application that are remembered: late events of them are ignored.
_REMEMBERED = 4_096
#: Infinite tiers are sent as this number: JSON has no infinity.
_LARGEST_TIER = 1e300


@dataclass
class Counts:
    """Counters since the start of the service."""

    events: int = 0
    plans: int = 0
    fallbacks: int = 0
    failed_tasks: int = 0
    finished_tasks: int = 0
    finished_jobs: int = 0
    failed_jobs: int = 0
    states: int = 0


@dataclass(eq=False)
class LiveJob:
    """A job in the system.

    Args:
        application: id of its application.
        job_id: the client's id of the job.
        row: row in the cluster's tables.
        arrival_ms: when it arrived.
        is_open: the client may still add stages.
        recurring: where its durations are looked up.
        stage_ids: the client's stage ids, by position.
        parents: positions of the parents, by position.
        worked_ms: sum of the durations of its finished tasks.
        is_seen_whole: the service has seen all of its tasks end so far.
        positions: position by stage id.
        ended: positions of the stages that have ended.
    """

    application: str
    job_id: str
    row: int
    arrival_ms: int
    is_open: bool
    recurring: RecurringJob
    stage_ids: list[int]
    parents: list[tuple[int, ...]]
    worked_ms: int = 0
    is_seen_whole: bool = True
    positions: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    @property
    def key(self) -> tuple[str, str]:
        """Application and job id."""
        return self.application, self.job_id

    @property
    def name(self) -> str:
        """Name for people: the last of its names, or its id."""
        return self.recurring.names[-1] if self.recurring.names else self.job_id

    @property
    def num_hidden(self) -> int:
        """Number of hidden stages, whose rows come before those of the client's stages."""
        return int(self.is_open)


@dataclass(frozen=True)
class EndedJob:
    """A job that ended successfully.

    Args:
        clock_ms: when it ended.
        took_ms: its completion time.
        fair_ms: its estimated completion time under fair sharing, or None without an estimate.
    """

    application: str
    job_id: str
    name: str
    clock_ms: int
    took_ms: int
    fair_ms: float | None


class Mirror:
    """The state of one cluster, built from the messages of one or several applications.

    Args:
        policy_for: makes the policy for a number of cores.
        duration_model: estimates of task durations.
        num_cores: cores of a shared cluster; None if the application reports them.
        follows_simulator: plan and reveal stages at exactly the moments at which the simulator
            does, for tests. The simulator plans only if a core is idle, because it starts no task
            before the plan. A live cluster does not wait, so by default a plan is made as soon as
            it is due.
        counts: counters to increase; new ones by default.
        predicts_fair: keep a virtual run of fair sharing, to which ended jobs are compared.
        on_plan: called after every plan.
        on_end: called for every job that ended successfully.
        room: size of the first tables.
    """

    def __init__(
        self,
        policy_for: PolicyFor,
        duration_model: DurationModel,
        *,
        num_cores: int | None = None,
        follows_simulator: bool = False,
        counts: Counts | None = None,
        predicts_fair: bool = False,
        on_plan: Callable[[Mirror, Plan], None] | None = None,
        on_end: Callable[[EndedJob], None] | None = None,
        room: Room = FIRST_ROOM,
    ) -> None:
        self._policy_for = policy_for
        self._duration_model = duration_model
        self._room = room
        self._shared_cores = num_cores
        self._follows = follows_simulator
        self.counts = counts or Counts()
        self._predicts_fair = predicts_fair
        self._on_plan = on_plan
        self._on_end = on_end
        self.jobs: dict[tuple[str, str], LiveJob] = {}
        self.by_row: dict[int, LiveJob] = {}
        self._ended: dict[str, OrderedDict[str, None]] = {}
        self._clocks: dict[str, int] = {}
        self._orders_cache: dict[str, tuple[int, Orders]] = {}  # by application: version, orders
        self._version = 0  # increases when the orders may have changed
        self._planned_ms = -1
        self._begin(num_cores or 1, 0)

    # -- the tables --------------------------------------------------------------------------------

    def _begin(self, num_cores: int, clock_ms: int) -> None:
        """Replace everything by an empty cluster."""
        state = empty_state(num_cores, self._room)
        state.now["is_corrected"][0] = 1
        state.now["guess_ms"][0] = self._duration_model.typical_task_ms
        state.now["clock_ms"][0] = state.now["accounted_ms"][0] = clock_ms
        self.jobs.clear()
        self.by_row.clear()
        self._version += 1
        self._reveals: deque[int] = deque()
        self._use(state)
        self.planning = Planning(self._policy_for, num_cores, room_of(state))
        state.now["guard"][0] = self.planning.guard
        self.fair_run: VirtualRun | None = (
            new_virtual(room_of(state)) if self._predicts_fair else None
        )

    def _use(self, state: ClusterState) -> None:
        """Take new tables into use."""
        self.state = state
        # Columns as plain arrays, which are faster to read than attributes of a record array.
        plain = [np.asarray(table) for table in (state.now, state.jobs, state.stages)]
        self._now = {name: plain[0][name] for name in plain[0].dtype.names or ()}
        self._job = {name: plain[1][name] for name in plain[1].dtype.names or ()}
        self._stage = {name: plain[2][name] for name in plain[2].dtype.names or ()}

    @property
    def clock_ms(self) -> int:
        """The cluster's clock."""
        return int(self._now["clock_ms"][0])

    @property
    def num_cores(self) -> int:
        """Number of cores of the cluster, at least 1."""
        return int(self._now["num_executors"][0])

    @property
    def num_running(self) -> int:
        """Number of running tasks."""
        active = self.state.active[: int(self._now["num_active"][0])]
        return int(self._job["num_attached"][active].sum())

    def stage_row(self, job: LiveJob, position: int) -> int:
        """The row of the stage at a position of the job."""
        return int(self._job["stage_start"][job.row]) + job.num_hidden + position

    def _runs(self) -> list[VirtualRun]:
        """All virtual runs: the guard's, those of the policy and the one of fair sharing."""
        state = self.state
        guard_run = VirtualRun(state.virtual_now, state.virtual_jobs, state.virtual_stages)
        return [
            guard_run,
            *self.planning.runs,
            *([self.fair_run] if self.fair_run is not None else []),
        ]

    def _make_room(self, jobs: int, stages: int, edges: int, job: LiveJob | None = None) -> None:
        """Make room for more rows; with `job`, the stages must directly follow those of the job."""
        now = self._now
        room = room_of(self.state)
        used = Room(*(int(now[name][0]) for name in ("num_jobs", "num_stages", "num_edges")))
        if job is not None:
            end = int(self._job["stage_start"][job.row] + self._job["num_stages"][job.row])
            is_last = job.row + 1 == used.jobs
            free = (room.stages if is_last else int(self._job["stage_start"][job.row + 1])) - end
            if free >= stages and room.edges - used.edges >= edges:
                return
        elif room.covers(Room(used.jobs + jobs, used.stages + stages, used.edges + edges)):
            return
        self._repack(Room(jobs, stages, edges), job)

    def _repack(
        self,
        more: Room,
        job: LiveJob | None = None,
        is_dropped: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Release the rows of ended jobs and make room for more; half of the tables stays free."""
        state = self.state
        kept = kept_jobs(state, self._runs(), is_dropped)
        counts = self._job["num_stages"]

        def spare(row: int) -> int:
            """Free stage rows behind a job; an open job gets as many as it has stages, plus two."""
            live = self.by_row.get(row)
            if live is None or not live.is_open:
                return more.stages if live is not None and live is job else 0
            return int(counts[row]) + 2 + (more.stages if live is job else 0)

        num_stages = sum(int(counts[row]) + spare(row) for row in kept.tolist())
        num_edges = int(
            sum(self._stage["num_children"][s] for row in kept.tolist() for s in self._rows_of(row))
        )
        needed = Room(
            2 * (len(kept) + more.jobs),
            2 * (num_stages + more.stages),
            2 * (num_edges + more.edges) + 2,
        )
        room = grown(self._room, needed)
        repacked = repack(state, kept, spare, room)
        self._use(repacked.state)
        self.planning.moved(repacked, room)
        if self.fair_run is not None:
            run = new_virtual(room)
            copy_virtual(self.fair_run, run, repacked.jobs, repacked.stages)
            self.fair_run = run
        self._renumber(repacked)

    def _rows_of(self, row: int) -> range:
        start = int(self._job["stage_start"][row])
        return range(start, start + int(self._job["num_stages"][row]))

    def _renumber(self, repacked: Repacked) -> None:
        """Replace all rows that this object holds by their new rows."""
        for job in self.jobs.values():
            job.row = int(repacked.jobs[job.row])
        self.by_row = {job.row: job for job in self.jobs.values()}
        self._reveals = deque(int(repacked.stages[row]) for row in self._reveals)

    # -- requests ----------------------------------------------------------------------------------

    def take_state(self, application: str, message: State) -> None:
        """Replace everything about the application by the contents of the message.

        Raises:
            ProtocolError: the message contradicts itself; the caller must then `forget` the
                application.
        """
        self.forget(application)
        self._clocks[application] = message.clock_ms
        self._set_clock(message.clock_ms)
        if self._shared_cores is None:
            self._begin(max(1, message.cores), message.clock_ms)
        self.counts.states += 1
        self._version += 1
        # Rows must be in order of arrival: policies break ties by it.
        for job in sorted(message.jobs, key=lambda one: one.arrival_ms):
            self._job_arrived(application, job)
        self._now["is_plan_due"][0] = 1
        self.settle()

    def take_events(self, application: str, message: Events) -> None:
        """Apply the events of a message in order, then plan if a plan is due.

        Raises:
            ProtocolError: an event contradicts the state; the message has its position. The events
                before it were applied.
        """
        last_ms = self._clocks.get(application, 0)
        if message.clock_ms < last_ms:
            raise ProtocolError(
                Code.CLOCK, f"the clock went backwards, from {last_ms} to {message.clock_ms} ms"
            )
        self._clocks[application] = message.clock_ms
        self._set_clock(message.clock_ms)
        if message.cores is not None and self._shared_cores is None:
            self._resize(max(1, message.cores))
        for position, event in enumerate(message.events):
            try:
                self.fire(application, event)
            except ProtocolError as error:
                raise ProtocolError(error.code, f"event {position}: {error}") from None
        # When it follows the simulator, an empty message reveals the next waiting stage.
        if self._follows and not message.events and self._reveals:
            reveal_stage(self.state, self._reveals.popleft())
        elif not message.events or not self._follows:
            self._wake()
        self.settle()

    def forget(self, application: str) -> None:
        """Remove the application's jobs without a trace; the caller must `settle` afterwards."""
        gone = [job for job in self.jobs.values() if job.application == application]
        self._orders_cache.pop(application, None)
        self._ended.pop(application, None)
        self._clocks.pop(application, None)
        if not gone:
            return
        rows = {job.row for job in gone}
        for job in gone:
            job_ended(self.state, job.row)
            del self.jobs[job.key], self.by_row[job.row]
        if self.jobs:
            self._repack(Room(0, 0, 0), is_dropped=rows.__contains__)
        else:
            self._begin(self.num_cores, self.clock_ms)

    def _set_clock(self, clock_ms: int) -> None:
        """Advance the cluster's clock; clocks of applications that share it may differ a little."""
        self._now["clock_ms"][0] = max(clock_ms, self.clock_ms)

    def _resize(self, num_cores: int) -> None:
        if num_cores == self.num_cores:
            return
        # Rows are added but never removed: `resize` decides which of them stand for a core.
        if num_cores > len(self.state.executors):
            self._use(with_more_cores(self.state, num_cores))
        resize(self.state, num_cores)
        self.planning.resize(num_cores)

    def _wake(self) -> None:
        """Make a plan due if the wake-up time of the policy has come."""
        wake_ms = int(self._now["wake_ms"][0])
        if wake_ms != NOT_YET and self.clock_ms >= max(wake_ms, self._planned_ms + 1):
            self._version += 1
            self._now["wake_ms"][0] = NOT_YET
            self._now["is_plan_due"][0] = 1

    # -- plans -------------------------------------------------------------------------------------

    @property
    def _can_plan(self) -> bool:
        """Whether to plan now."""
        now = self._now
        if self._follows:
            return bool(
                now["is_plan_due"][0] and now["num_idle"][0] > 0 and now["num_schedulable"][0] > 0
            )
        if now["num_active"][0] == 0 or (self.planning.decides and now["num_schedulable"][0] == 0):
            return False
        return bool(now["is_plan_due"][0]) or self._stands_still

    @property
    def _stands_still(self) -> bool:
        """Whether limits hold back all tasks while nothing runs, after some time without a plan."""
        now = self._now
        is_idle = now["num_idle"][0] == now["num_executors"][0] and now["num_schedulable"][0] > 0
        return bool(
            is_idle and self.state.contest[1] == NO_JOB and self.clock_ms > self._planned_ms
        )

    def settle(self) -> None:
        """Plan if a plan is due."""
        if self._can_plan:
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

    def orders_by_job(self) -> list[tuple[LiveJob, JobOrder]]:
        """All jobs in the system with their orders, in order of arrival."""
        active = self.state.active[: int(self._now["num_active"][0])].tolist()
        tiers, weights, limits = (
            np.asarray(self.state.job_orders)[name] for name in ("tier", "weight", "limit")
        )
        pairs = []
        for row in active:
            job = self.by_row[row]
            tier = _finite(tiers[row])
            weight = float(weights[row])
            pairs.append(
                (
                    job,
                    JobOrder(
                        job_id=job.job_id, tier=tier, weight=weight, limit=_limit(limits[row])
                    ),
                )
            )
        return pairs

    def orders(self, application: str) -> Orders:
        """The standing order of an application's jobs."""
        version, cached = self._orders_cache.get(application, (-1, None))
        if cached is not None and version == self._version:
            return cached
        orders = self._fresh_orders(application)
        self._orders_cache[application] = self._version, orders
        return orders

    def _fresh_orders(self, application: str) -> Orders:
        by_job = self.orders_by_job()
        pairs = [(job, order) for job, order in by_job if job.application == application]
        return Orders(
            seq=None,
            jobs=tuple(order for _, order in pairs),
            stages=tuple(self._stage_orders(job for job, _ in pairs)),
            other_tier=max((order.tier for _, order in by_job), default=0.0),
            wake_ms=self.wake_ms,
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

    # -- events ------------------------------------------------------------------------------------

    def fire(self, application: str, event: Event) -> None:
        """Apply one event.

        Raises:
            ProtocolError: the event contradicts the state, which is unchanged then.
        """
        self.counts.events += 1
        # Reports of tasks alone do not change orders.
        self._version += not isinstance(event, TasksReported)
        if isinstance(event, JobArrived):
            self._job_arrived(application, event.job)
            return
        job = self.jobs.get((application, event.job_id))
        if job is None:
            if event.job_id in self._ended.get(application, ()):
                return  # a late event of a job that has ended
            raise ProtocolError(Code.UNKNOWN_JOB, f"job {event.job_id} is not in the system")
        if isinstance(event, JobEnded):
            self._job_ended(job, event.is_failed)
        elif isinstance(event, StagesAdded):
            self._stages_added(job, event.stages)
        else:
            self._stage_event(job, self._position(job, event.stage_id), event)

    def _stage_event(self, job: LiveJob, position: int, event: Event) -> None:
        if isinstance(event, TasksReported):
            self._tasks(job, position, event)
        elif isinstance(event, StageEnded):
            self._stage_ended(job, position)
        elif isinstance(event, StageChanged):
            self._stage_changed(job, position, event.tasks)
        elif isinstance(event, StageBegunAgain):
            self._stage_begun_again(job, position, event.tasks)

    @staticmethod
    def _position(job: LiveJob, stage_id: int) -> int:
        if stage_id not in job.positions:
            raise ProtocolError(Code.UNKNOWN_STAGE, f"job {job.job_id} has no stage {stage_id}")
        return job.positions[stage_id]

    def _job_arrived(self, application: str, message: JobMessage) -> None:
        key = (application, message.job_id)
        if key in self.jobs or message.job_id in self._ended.get(application, ()):
            raise ProtocolError(Code.DUPLICATE_JOB, f"job {message.job_id} has arrived before")
        recurring = self._duration_model.look_up(message.names, message.stages)
        rows = self._duration_model.rows(message, recurring)
        parents = parents_by_index(
            message.job_id, [stage.stage_id for stage in message.stages], message.stages
        )
        num_stages = len(rows.specs)
        # An open job gets as many free rows as it has stages, plus two, for stages to come.
        spare = len(rows.specs) + 2 if message.is_open else 0
        self._make_room(1, num_stages + spare, len(rows.children))
        arrival_ms = min(message.arrival_ms, self.clock_ms)
        row = self._arrive(rows, arrival_ms, spare)
        job = LiveJob(
            application,
            message.job_id,
            row,
            arrival_ms,
            message.is_open,
            recurring,
            [stage.stage_id for stage in message.stages],
            parents,
        )
        job.positions = {stage_id: position for position, stage_id in enumerate(job.stage_ids)}
        self.jobs[key] = self.by_row[row] = job
        start = int(self._job["stage_start"][row])
        if job.is_open:
            hide_stage(self.state, start)
        self._reveals.extend(start + root for root in rows.roots)
        if not self._follows:
            self._reveal_all()
        self._catch_up(job, message.stages, topological_order(job.job_id, parents))

    def _arrive(self, rows: JobRows, arrival_ms: int, spare: int) -> int:
        """Add the rows of a job, with `spare` free stage rows behind them. Returns its row."""
        count = len(rows.specs)
        row = int(
            job_arrived(
                self.state, rows.specs, rows.children, 0, count, rows.profile, arrival_ms, 1.0
            )
        )
        self._now["num_stages"][0] += spare
        return row

    def _reveal_all(self) -> None:
        """Make the waiting stages without parents runnable, unless their tasks made them so."""
        while self._reveals:
            row = self._reveals.popleft()
            if self._stage["num_parents_unsaturated"][row] > 0:
                reveal_stage(self.state, row)

    def _catch_up(
        self, job: LiveJob, stages: tuple[StageMessage, ...], order: Iterable[int]
    ) -> None:
        """Apply the progress that new stages already had when they were reported.

        Args:
            job: their job.
            stages: the new stages.
            order: indices into `stages`, parents before children.
        """
        for index in order:
            stage = stages[index]
            if stage.started or stage.is_ended:
                job.is_seen_whole = False
            position = self._position(job, stage.stage_id)
            if job.key not in self.jobs:
                return  # the stages before completed the job
            if stage.started:
                self._count_tasks(
                    job, position, stage.started, stage.finished, 0, stage.executed_ms
                )
            if stage.is_ended and job.key in self.jobs:
                self._stage_ended(job, position)

    def _tasks(self, job: LiveJob, position: int, event: TasksReported) -> None:
        if position in job.ended:
            return  # a late event of a cancelled stage
        row = self.stage_row(job, position)
        num_tasks, started, finished = (
            int(self._stage[n][row]) for n in ("num_tasks", "num_started", "num_finished")
        )
        where = f"job {job.job_id}, stage {event.stage_id}"
        if started + event.started > num_tasks:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {event.started} more tasks started, but {started} of {num_tasks} had "
                "already",
            )
        if event.finished + event.failed > started + event.started - finished:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {event.finished + event.failed} tasks ended, but only "
                f"{started + event.started - finished} were running",
            )
        self.counts.finished_tasks += event.finished
        self.counts.failed_tasks += event.failed
        if event.finished:
            self._duration_model.tasks_finished(
                job.recurring, position, event.finished, event.executed_ms
            )
        self._count_tasks(
            job, position, event.started, event.finished, event.failed, event.executed_ms
        )

    def _count_tasks(
        self,
        job: LiveJob,
        position: int,
        started: int,
        finished: int,
        failed: int,
        executed_ms: int,
    ) -> None:
        """Apply started, finished and failed tasks of a stage, in this order."""
        row = self.stage_row(job, position)
        if started and self._stage["num_parents_unsaturated"][row] > 0:
            # The stage runs, so it is runnable even if its parents have not ended here.
            self._stage["num_parents_unfinished"][row] = 0
            reveal_stage(self.state, row)
            if row in self._reveals:
                self._reveals.remove(row)
        # More tasks may run than the cluster has cores: then rows are added that stand for none.
        while started:
            begun = int(tasks_started(self.state, row, started))
            started -= begun
            if started:
                self._use(with_more_cores(self.state, 2 * len(self.state.executors) + started))
        if finished or failed:
            tasks_ended(self.state, row, finished, failed, executed_ms)
            job.worked_ms += executed_ms
        if (
            finished
            and not self._follows
            and self._stage["num_finished"][row] == self._stage["num_tasks"][row]
        ):
            self._complete(job, position)

    def _complete(self, job: LiveJob, position: int) -> None:
        """End a stage whose tasks have all finished, and the job if it was the last stage."""
        self._version += 1
        job.ended.add(position)
        complete_stage(self.state, self.stage_row(job, position))
        if self._job["completion_ms"][job.row] != NOT_YET:
            self._remove(job)

    def _stage_ended(self, job: LiveJob, position: int) -> None:
        """End a stage that may have unfinished tasks: it was skipped or cancelled."""
        if position in job.ended:
            return
        row = self.stage_row(job, position)
        finished = int(self._stage["num_finished"][row])
        running = int(self._stage["num_bound"][row])
        if finished < self._stage["num_tasks"][row]:
            if running:
                tasks_ended(self.state, row, 0, running, 0)
            if finished == 0:  # skipped: count it as one task without work
                self._stage["task_ms"][row] = 0.0
            set_counts(self.state, row, max(1, finished), max(1, finished), max(1, finished))
            self._stage["num_parents_unsaturated"][row] = 0
            # When its parents end later, they must not reveal the stage again.
            self._stage["num_parents_unfinished"][row] = 0
            self._derive(job)
        self._complete(job, position)

    def _stage_changed(self, job: LiveJob, position: int, num_tasks: int) -> None:
        row = self.stage_row(job, position)
        started = int(self._stage["num_started"][row])
        finished = int(self._stage["num_finished"][row])
        if position in job.ended:
            return
        if num_tasks < started:
            raise ProtocolError(
                Code.BAD_JOB,
                f"job {job.job_id}: a stage changed to {num_tasks} tasks, but {started} have "
                "already started",
            )
        set_counts(self.state, row, num_tasks, started, finished)
        self._derive(job)
        if finished == num_tasks:
            self._complete(job, position)

    def _stage_begun_again(self, job: LiveJob, position: int, num_tasks: int) -> None:
        row = self.stage_row(job, position)
        finished = int(self._stage["num_finished"][row])
        job.ended.discard(position)
        job.is_seen_whole = False
        if finished:
            rerun_tasks(self.state, row, min(finished, num_tasks))
        if num_tasks > finished:  # the stage ended before all of its tasks had run
            counts = [
                int(self._stage[name][row]) for name in ("num_tasks", "num_started", "num_finished")
            ]
            set_counts(self.state, row, counts[0] + num_tasks - finished, counts[1], counts[2])
        if self._stage["task_ms"][row] == 0.0:
            self._stage["task_ms"][row] = job.recurring.guess_ms
        self._derive(job)

    def _derive(self, job: LiveJob) -> None:
        """Update what depends on the numbers and durations of the job's tasks, after a change.

        The hidden stage of an open job comes first: the job's total work includes it.
        """
        if job.is_open:
            rows = self._rows_of(job.row)
            stages = self._stage
            listed = slice(rows.start + 1, rows.stop)
            known_ms = float((stages["num_tasks"][listed] * stages["task_ms"][listed]).sum())
            tasks, task_ms = self._duration_model.hidden_stage(job.recurring, known_ms)
            stages["num_tasks"][rows.start] = tasks
            stages["task_ms"][rows.start] = task_ms
        durations_changed(self.state, job.row)

    def _stages_added(self, job: LiveJob, stages: tuple[StageMessage, ...]) -> None:
        ids = [*job.stage_ids, *(stage.stage_id for stage in stages)]
        parents = [*job.parents, *parents_by_index(job.job_id, ids, stages)]
        order = topological_order(job.job_id, parents)
        num_old = len(job.stage_ids)
        task_ms = self._duration_model.durations(job.recurring, stages, num_old)
        degrees = sum(len(stage_parents) for stage_parents in parents)
        self._make_room(0, len(stages), degrees + len(ids), job)
        first = self.stage_row(job, num_old)
        for stage, stage_parents, duration_ms in zip(
            stages, parents[num_old:], task_ms, strict=True
        ):
            num_unfinished = sum(parent not in job.ended for parent in stage_parents)
            add_stage(self.state, job.row, stage.tasks, duration_ms, num_unfinished)
        job.stage_ids = ids
        job.parents = parents
        job.positions = {stage_id: position for position, stage_id in enumerate(ids)}
        self._link(job, num_old)
        self._derive(job)
        for run in self._runs():
            stages_added(self.state, run, job.row, first)
        # New stages whose parents have all ended are runnable at once.
        for position in order:
            row = self.stage_row(job, position)
            if position >= num_old and self._stage["num_parents_unfinished"][row] == 0:
                reveal_stage(self.state, row)
        self._catch_up(
            job, stages, [position - num_old for position in order if position >= num_old]
        )

    def _link(self, job: LiveJob, first_new: int) -> None:
        """Write the edges to the stages from position `first_new` on.

        The edges of one parent must be contiguous, so a parent with new children gets a new range
        at the end of the table.
        """
        children: dict[int, list[int]] = {}
        for position in range(first_new, len(job.stage_ids)):
            for parent in job.parents[position]:
                children.setdefault(parent, []).append(self.stage_row(job, position))
        for parent, new in children.items():
            row = self.stage_row(job, parent)
            start = int(self._stage["child_start"][row])
            count = int(self._stage["num_children"][row])
            end = int(self._now["num_edges"][0])
            rows = [*self.state.children[start : start + count].tolist(), *new]
            self.state.children[end : end + len(rows)] = rows
            self._stage["child_start"][row] = end
            self._stage["num_children"][row] = len(rows)
            self._now["num_edges"][0] = end + len(rows)

    def _job_ended(self, job: LiveJob, is_failed: bool) -> None:
        is_whole = job.is_seen_whole and len(job.ended) == len(job.stage_ids)
        job_ended(self.state, job.row)
        if is_failed:
            self.counts.failed_jobs += 1
        else:
            self._duration_model.job_finished(job.recurring, job.worked_ms if is_whole else None)
        self._remove(job, is_failed=is_failed)

    def _remove(self, job: LiveJob, *, is_failed: bool = False) -> None:
        """Remove an ended job and report it; its rows are released with the next repacking."""
        del self.jobs[job.key], self.by_row[job.row]
        ended = self._ended.setdefault(job.application, OrderedDict())
        ended[job.job_id] = None
        if len(ended) > _REMEMBERED:
            ended.popitem(last=False)
        if is_failed:
            return
        self.counts.finished_jobs += 1
        if self._on_end is not None:
            took_ms = self.clock_ms - job.arrival_ms
            self._on_end(EndedJob(*job.key, job.name, self.clock_ms, took_ms, self._fair_ms(job)))

    def _fair_ms(self, job: LiveJob) -> float | None:
        """Estimated completion time under fair sharing, or None without a virtual run."""
        if self.fair_run is None:
            return None
        update_virtual_run(self.state, self.fair_run)
        return max(1.0, float(self.fair_run.jobs["end_ms"][job.row]) - job.arrival_ms)


def _finite(value: Any) -> float:
    return float(min(_LARGEST_TIER, max(-_LARGEST_TIER, value)))


def _limit(value: Any) -> int | None:
    return None if value >= _LARGEST_LIMIT else int(value)


#: Limits from this on mean no limit.
_LARGEST_LIMIT = 1 << 53
