"""The live cluster's state: messages fire the simulator's own transitions, and orders are planned where a plan is due.

One `ClusterState` of the world of cores holds the jobs of one application, or of all that share a
cluster. Everything that a client can get wrong is checked before an event changes anything.
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
    begin_again,
    durations_changed,
    foretell_fair,
    hide,
    job_over,
    resize,
    set_counts,
    stages_joined,
    tasks_began,
    tasks_left,
)
from parcae.cluster.kernels.transitions import job_arrived
from parcae.cluster.state import NO_JOB, NOT_YET, UNLIMITED, ClusterState, VirtualRun
from parcae.errors import ProtocolError
from parcae.service.jobs import DurationBook, JobRows, Known, parents_by_index, topological_order
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
    TasksTold,
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

#: Ended jobs of an application that are remembered: what is told of them late is ignored.
_REMEMBERED = 4_096
#: JSON knows no infinity.
_LARGEST_TIER = 1e300


@dataclass
class Counts:
    """What happened since the service began."""

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
        row: of the cluster's tables.
        known: what its durations are looked up by.
        stage_ids: of the client's stages, by position.
        parents: positions of their parents.
        worked_ms: durations of its finished tasks, together.
        is_seen_whole: all of its tasks were seen to end.
    """

    application: str
    job_id: str
    row: int
    arrival_ms: int
    is_open: bool
    known: Known
    stage_ids: list[int]
    parents: list[tuple[int, ...]]
    worked_ms: int = 0
    is_seen_whole: bool = True
    positions: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)  # positions of stages that have ended

    @property
    def key(self) -> tuple[str, str]:
        """Application and job id."""
        return self.application, self.job_id

    @property
    def name(self) -> str:
        """How people call it."""
        return self.known.names[-1] if self.known.names else self.job_id

    @property
    def num_hidden(self) -> int:
        """Rows before those of its client's stages."""
        return int(self.is_open)


@dataclass(frozen=True)
class EndedJob:
    """A job that ended well: how long it took, and how long it would have taken under fair sharing (a forecast)."""

    application: str
    job_id: str
    name: str
    clock_ms: int
    took_ms: int
    fair_ms: float | None


class Mirror:
    """One cluster, mirrored from the messages of one application or of several.

    Args:
        policy_for: who plans.
        book: what is known of durations.
        num_cores: of a cluster that applications share; None where the application tells them.
        follows_simulator: plan and reveal stages at the very moments at which the simulator does. It asks for a plan
            only where a core is idle: it starts no task before the plan. A live cluster does not wait, so that by
            default every plan that is due is made at once.
        counts: where to count.
        foretells: keep a virtual run of fair sharing, by which ended jobs are measured (`on_end`).
        on_plan: told of every plan.
        on_end: told of every job that ended well.
    """

    def __init__(
        self,
        policy_for: PolicyFor,
        book: DurationBook,
        *,
        num_cores: int | None = None,
        follows_simulator: bool = False,
        counts: Counts | None = None,
        foretells: bool = False,
        on_plan: Callable[[Mirror, Plan], None] | None = None,
        on_end: Callable[[EndedJob], None] | None = None,
        room: Room = FIRST_ROOM,
    ) -> None:
        self._policy_for = policy_for
        self._book = book
        self._room = room
        self._shared_cores = num_cores
        self._follows = follows_simulator
        self.counts = counts or Counts()
        self._foretells = foretells
        self._on_plan = on_plan
        self._on_end = on_end
        self.jobs: dict[tuple[str, str], LiveJob] = {}
        self.by_row: dict[int, LiveJob] = {}
        self._ended: dict[str, OrderedDict[str, None]] = {}
        self._clocks: dict[str, int] = {}
        self._told: dict[str, tuple[int, Orders]] = {}
        self._version = 0  # changes with whatever orders tell of
        self._planned_ms = -1
        self._begin(num_cores or 1, 0)

    # -- the tables --------------------------------------------------------------------------------

    def _begin(self, num_cores: int, clock_ms: int) -> None:
        """An empty cluster."""
        state = empty_state(num_cores, self._room)
        state.now["is_corrected"][0] = 1
        state.now["guess_ms"][0] = self._book.typical_task_ms
        state.now["clock_ms"][0] = state.now["accounted_ms"][0] = clock_ms
        self.jobs.clear()
        self.by_row.clear()
        self._version += 1
        self._reveals: deque[int] = deque()
        self._use(state)
        self.planning = Planning(self._policy_for, num_cores, room_of(state))
        state.now["guard"][0] = self.planning.guard
        self.fair_run: VirtualRun | None = new_virtual(room_of(state)) if self._foretells else None

    def _use(self, state: ClusterState) -> None:
        self.state = state
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
        """Cores of the cluster, at least 1."""
        return int(self._now["num_executors"][0])

    @property
    def num_running(self) -> int:
        """Tasks that run."""
        active = self.state.active[: int(self._now["num_active"][0])]
        return int(self._job["num_attached"][active].sum())

    def stage_row(self, job: LiveJob, position: int) -> int:
        """The row of a client's stage by its position in the job."""
        return int(self._job["stage_start"][job.row]) + job.num_hidden + position

    def _runs(self) -> list[VirtualRun]:
        state = self.state
        own = VirtualRun(state.virtual_now, state.virtual_jobs, state.virtual_stages)
        return [own, *self.planning.runs, *([self.fair_run] if self.fair_run is not None else [])]

    def _make_room(self, jobs: int, stages: int, edges: int, job: LiveJob | None = None) -> None:
        """Room for so many more; the stages behind those of `job`, where it is given."""
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
        """Give the rows of ended jobs back, and make room for more; after that at least half of it is free."""
        state = self.state
        kept = kept_jobs(state, self._runs(), is_dropped)
        counts = self._job["num_stages"]

        def spare(row: int) -> int:
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
        for job in self.jobs.values():
            job.row = int(repacked.jobs[job.row])
        self.by_row = {job.row: job for job in self.jobs.values()}
        self._reveals = deque(int(repacked.stages[row]) for row in self._reveals)

    # -- requests ----------------------------------------------------------------------------------

    def take_state(self, application: str, message: State) -> None:
        """Forget what was known of the application, and take what it says.

        Raises:
            ProtocolError: the message contradicts itself; of the application nothing is known then.
        """
        self.forget(application)
        self._clocks[application] = message.clock_ms
        self._set_clock(message.clock_ms)
        if self._shared_cores is None:
            self._begin(max(1, message.cores), message.clock_ms)
        self.counts.states += 1
        self._version += 1
        for job in sorted(message.jobs, key=lambda one: one.arrival_ms):
            self._job_arrived(application, job)
        self._now["is_plan_due"][0] = 1
        self.settle()

    def take_events(self, application: str, message: Events) -> None:
        """Fire a message's events in order, and plan where that is due.

        Raises:
            ProtocolError: an event that cannot be, with its position; those before it were fired.
        """
        last_ms = self._clocks.get(application, 0)
        if message.clock_ms < last_ms:
            raise ProtocolError(
                Code.CLOCK, f"the clock runs backwards, from {last_ms} to {message.clock_ms} ms"
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
        if self._follows and not message.events and self._reveals:
            reveal_stage(self.state, self._reveals.popleft())
        elif not message.events or not self._follows:
            self._wake()
        self.settle()

    def forget(self, application: str) -> None:
        """The application's jobs are gone, as if they had never been; the caller settles."""
        gone = [job for job in self.jobs.values() if job.application == application]
        self._told.pop(application, None)
        self._ended.pop(application, None)
        self._clocks.pop(application, None)
        if not gone:
            return
        rows = {job.row for job in gone}
        for job in gone:
            job_over(self.state, job.row)
            del self.jobs[job.key], self.by_row[job.row]
        if self.jobs:
            self._repack(Room(0, 0, 0), is_dropped=rows.__contains__)
        else:
            self._begin(self.num_cores, self.clock_ms)

    def _set_clock(self, clock_ms: int) -> None:
        self._now["clock_ms"][0] = max(clock_ms, self.clock_ms)

    def _resize(self, num_cores: int) -> None:
        if num_cores == self.num_cores:
            return
        if num_cores > len(self.state.executors):
            self._use(with_more_cores(self.state, num_cores))
        resize(self.state, num_cores)
        self.planning.resize(num_cores)

    def _wake(self) -> None:
        """Plan again where the policy asked for it."""
        wake_ms = int(self._now["wake_ms"][0])
        if wake_ms != NOT_YET and self.clock_ms >= max(wake_ms, self._planned_ms + 1):
            self._version += 1
            self._now["wake_ms"][0] = NOT_YET
            self._now["is_plan_due"][0] = 1

    # -- plans -------------------------------------------------------------------------------------

    @property
    def _can_plan(self) -> bool:
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
        """Nothing runs, limits hold all back that could, and time has passed since the last plan."""
        now = self._now
        is_idle = now["num_idle"][0] == now["num_executors"][0] and now["num_schedulable"][0] > 0
        return bool(
            is_idle and self.state.contest[1] == NO_JOB and self.clock_ms > self._planned_ms
        )

    def settle(self) -> None:
        """Plan where that is due."""
        if self._can_plan:
            self.make_plan()

    def make_plan(self) -> None:
        """Plan now."""
        plan = self.planning.plan(self.state)
        self._planned_ms = self.clock_ms
        self._version += 1
        self.counts.plans += 1
        self.counts.fallbacks += plan.is_fallback
        if self._on_plan is not None:
            self._on_plan(self, plan)

    @property
    def wake_ms(self) -> int | None:
        """When the policy wants to plan again."""
        wake_ms = int(self._now["wake_ms"][0])
        return None if wake_ms == NOT_YET else max(wake_ms, self._planned_ms + 1)

    def orders_by_job(self) -> list[tuple[LiveJob, JobOrder]]:
        """Every job in the system with its order, in order of arrival."""
        active = self.state.active[: int(self._now["num_active"][0])].tolist()
        tiers, weights, limits = (
            np.asarray(self.state.job_orders)[name] for name in ("tier", "weight", "limit")
        )
        found = []
        for row in active:
            job = self.by_row[row]
            tier = _finite(tiers[row])
            weight = float(weights[row])
            found.append(
                (
                    job,
                    JobOrder(
                        job_id=job.job_id, tier=tier, weight=weight, limit=_limit(limits[row])
                    ),
                )
            )
        return found

    def orders(self, application: str) -> Orders:
        """The standing order of an application's jobs."""
        version, known = self._told.get(application, (-1, None))
        if known is not None and version == self._version:
            return known
        orders = self._fresh_orders(application)
        self._told[application] = self._version, orders
        return orders

    def _fresh_orders(self, application: str) -> Orders:
        by_job = self.orders_by_job()
        own = [(job, order) for job, order in by_job if job.application == application]
        return Orders(
            seq=None,
            jobs=tuple(order for _, order in own),
            stages=tuple(self._stage_orders(job for job, _ in own)),
            other_tier=max((order.tier for _, order in by_job), default=0.0),
            wake_ms=self.wake_ms,
        )

    def _stage_orders(self, jobs: Iterable[LiveJob]) -> Iterable[StageOrder]:
        orders = np.asarray(self.state.stage_orders)
        tiers = orders["tier"]
        ranks = orders["rank"]
        limits = orders["limit"]
        used = int(self._now["num_stages"][0])
        is_told = (tiers[:used] != 0.0) | (ranks[:used] != 0.0) | (limits[:used] != UNLIMITED)
        if not is_told.any():
            return
        for job in jobs:
            first = self.stage_row(job, 0)
            for position in np.flatnonzero(is_told[first : first + len(job.stage_ids)]).tolist():
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
        """Fire one event.

        Raises:
            ProtocolError: the event cannot be. Nothing is changed.
        """
        self.counts.events += 1
        self._version += not isinstance(event, TasksTold)
        if isinstance(event, JobArrived):
            self._job_arrived(application, event.job)
            return
        job = self.jobs.get((application, event.job_id))
        if job is None:
            if event.job_id in self._ended.get(application, ()):
                return  # told late
            raise ProtocolError(Code.UNKNOWN_JOB, f"job {event.job_id} is not in the system")
        if isinstance(event, JobEnded):
            self._job_ended(job, event.is_failed)
        elif isinstance(event, StagesAdded):
            self._stages_added(job, event.stages)
        else:
            self._stage_event(job, self._position(job, event.stage_id), event)

    def _stage_event(self, job: LiveJob, position: int, event: Event) -> None:
        if isinstance(event, TasksTold):
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
        known = self._book.look_up(message.names, message.stages)
        rows = self._book.rows(message, known)
        parents = parents_by_index(
            message.job_id, [stage.stage_id for stage in message.stages], message.stages
        )
        num_stages = len(rows.specs)
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
            known,
            [stage.stage_id for stage in message.stages],
            parents,
        )
        job.positions = {stage_id: position for position, stage_id in enumerate(job.stage_ids)}
        self.jobs[key] = self.by_row[row] = job
        start = int(self._job["stage_start"][row])
        if job.is_open:
            hide(self.state, start)
        self._reveals.extend(start + root for root in rows.roots)
        if not self._follows:
            self._reveal_all()
        self._catch_up(job, message.stages, topological_order(job.job_id, parents))

    def _arrive(self, rows: JobRows, arrival_ms: int, spare: int) -> int:
        count = len(rows.specs)
        row = int(
            job_arrived(
                self.state, rows.specs, rows.children, 0, count, rows.profile, arrival_ms, 1.0
            )
        )
        self._now["num_stages"][0] += spare
        return row

    def _reveal_all(self) -> None:
        while self._reveals:
            row = self._reveals.popleft()
            if self._stage["num_parents_unsaturated"][row] > 0:
                reveal_stage(self.state, row)

    def _catch_up(
        self, job: LiveJob, stages: tuple[StageMessage, ...], order: Iterable[int]
    ) -> None:
        """What stages had done already when they were told of."""
        for position in order:
            stage = stages[position]
            if stage.started or stage.is_ended:
                job.is_seen_whole = False
            own = self._position(job, stage.stage_id)
            if job.key not in self.jobs:
                return  # all of it was done
            if stage.started:
                self._count_tasks(job, own, stage.started, stage.finished, 0, stage.executed_ms)
            if stage.is_ended and job.key in self.jobs:
                self._stage_ended(job, own)

    def _tasks(self, job: LiveJob, position: int, event: TasksTold) -> None:
        if position in job.ended:
            return  # told late, of a stage that was cancelled
        row = self.stage_row(job, position)
        num_tasks, started, finished = (
            int(self._stage[n][row]) for n in ("num_tasks", "num_started", "num_finished")
        )
        where = f"job {job.job_id}, stage {event.stage_id}"
        if started + event.started > num_tasks:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {event.started} tasks more than the {started} of {num_tasks} that began",
            )
        if event.finished + event.failed > started + event.started - finished:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {event.finished + event.failed} tasks ended where {started + event.started - finished} run",
            )
        self.counts.finished_tasks += event.finished
        self.counts.failed_tasks += event.failed
        if event.finished:
            self._book.tasks_finished(job.known, position, event.finished, event.executed_ms)
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
        row = self.stage_row(job, position)
        if started and self._stage["num_parents_unsaturated"][row] > 0:
            self._stage["num_parents_unfinished"][row] = (
                0  # it runs, whatever is known of its parents
            )
            reveal_stage(self.state, row)
            if row in self._reveals:
                self._reveals.remove(row)
        while started:
            begun = int(tasks_began(self.state, row, started))
            started -= begun
            if started:
                self._use(with_more_cores(self.state, 2 * len(self.state.executors) + started))
        if finished or failed:
            tasks_left(self.state, row, finished, failed, executed_ms)
            job.worked_ms += executed_ms
        if (
            finished
            and not self._follows
            and self._stage["num_finished"][row] == self._stage["num_tasks"][row]
        ):
            self._complete(job, position)

    def _complete(self, job: LiveJob, position: int) -> None:
        """All tasks of the stage have finished."""
        self._version += 1
        job.ended.add(position)
        complete_stage(self.state, self.stage_row(job, position))
        if self._job["completion_ms"][job.row] != NOT_YET:
            self._remove(job)

    def _stage_ended(self, job: LiveJob, position: int) -> None:
        if position in job.ended:
            return
        row = self.stage_row(job, position)
        finished = int(self._stage["num_finished"][row])
        running = int(self._stage["num_bound"][row])
        if finished < self._stage["num_tasks"][row]:
            if running:
                tasks_left(self.state, row, 0, running, 0)
            if finished == 0:  # skipped: one task of no work
                self._stage["task_ms"][row] = 0.0
            set_counts(self.state, row, max(1, finished), max(1, finished), max(1, finished))
            self._stage["num_parents_unsaturated"][row] = 0
            self._stage["num_parents_unfinished"][row] = 0  # its parents do not reveal it any more
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
                f"job {job.job_id}: a stage of {num_tasks} tasks, of which {started} have begun",
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
            begin_again(self.state, row, min(finished, num_tasks))
        if num_tasks > finished:  # a stage that had ended before all of its tasks had run
            counts = [
                int(self._stage[name][row]) for name in ("num_tasks", "num_started", "num_finished")
            ]
            set_counts(self.state, row, counts[0] + num_tasks - finished, counts[1], counts[2])
        if self._stage["task_ms"][row] == 0.0:
            self._stage["task_ms"][row] = job.known.guess_ms
        self._derive(job)

    def _derive(self, job: LiveJob) -> None:
        """Tasks or durations of the job's stages changed: derive what depends on them, work to come first."""
        if job.is_open:
            rows = self._rows_of(job.row)
            stages = self._stage
            known = slice(rows.start + 1, rows.stop)
            known_ms = float((stages["num_tasks"][known] * stages["task_ms"][known]).sum())
            tasks, task_ms = self._book.hidden_stage(job.known, known_ms)
            stages["num_tasks"][rows.start] = tasks
            stages["task_ms"][rows.start] = task_ms
        durations_changed(self.state, job.row)

    def _stages_added(self, job: LiveJob, stages: tuple[StageMessage, ...]) -> None:
        ids = [*job.stage_ids, *(stage.stage_id for stage in stages)]
        parents = [*job.parents, *parents_by_index(job.job_id, ids, stages)]
        order = topological_order(job.job_id, parents)
        num_old = len(job.stage_ids)
        task_ms = self._book.durations(job.known, stages, num_old)
        degrees = sum(len(own) for own in parents)
        self._make_room(0, len(stages), degrees + len(ids), job)
        first = self.stage_row(job, num_old)
        for stage, own, duration_ms in zip(stages, parents[num_old:], task_ms, strict=True):
            num_unfinished = sum(parent not in job.ended for parent in own)
            add_stage(self.state, job.row, stage.tasks, duration_ms, num_unfinished)
        job.stage_ids = ids
        job.parents = parents
        job.positions = {stage_id: position for position, stage_id in enumerate(ids)}
        self._link(job, num_old)
        self._derive(job)
        for run in self._runs():
            stages_joined(self.state, run, job.row, first)
        for position in order:
            row = self.stage_row(job, position)
            if position >= num_old and self._stage["num_parents_unfinished"][row] == 0:
                reveal_stage(self.state, row)
        self._catch_up(
            job, stages, [position - num_old for position in order if position >= num_old]
        )

    def _link(self, job: LiveJob, first_new: int) -> None:
        """Write the edges to the stages from the position `first_new` on; a stage's edges follow each other."""
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
        job_over(self.state, job.row)
        if is_failed:
            self.counts.failed_jobs += 1
        else:
            self._book.job_finished(job.known, job.worked_ms if is_whole else None)
        self._remove(job, is_failed=is_failed)

    def _remove(self, job: LiveJob, *, is_failed: bool = False) -> None:
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
        """How long the job would have taken under fair sharing, as far as that can be foretold."""
        if self.fair_run is None:
            return None
        foretell_fair(self.state, self.fair_run)
        return max(1.0, float(self.fair_run.jobs["end_ms"][job.row]) - job.arrival_ms)


def _finite(value: Any) -> float:
    return float(min(_LARGEST_TIER, max(-_LARGEST_TIER, value)))


def _limit(value: Any) -> int | None:
    return None if value >= _LARGEST_LIMIT else int(value)


#: Limits beyond this are none.
_LARGEST_LIMIT = 1 << 53
