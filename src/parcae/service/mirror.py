"""`Mirror`: the state of a live cluster, kept up to date by the messages of its applications.

Events apply the same transitions as in the simulator, and orders are planned when a plan is due.
One `ClusterState` of the world of cores holds the jobs of one application, or of all applications
that share a cluster. All checks of an event come before its first change to the state.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ProtocolError
from parcae.base.texts import MS_PER_S
from parcae.cluster.kernels.accounts import advance_clock, enter_account
from parcae.cluster.kernels.cores import (
    can_plan,
    complete_stage,
    note_stall,
    reveal_stage,
    reveal_stages,
    set_counts,
)
from parcae.cluster.kernels.serving import (
    add_stage,
    durations_changed,
    hide_stage,
    job_ended,
    rerun_tasks,
    stages_added,
    tasks_ended,
    tasks_started,
)
from parcae.cluster.kernels.transitions import job_arrived
from parcae.cluster.state import NO_STAGE, NOT_YET, UNLIMITED
from parcae.service.jobs import (
    DurationModel,
    JobRows,
    RecurringJob,
    check_executed,
    checked_order,
    parents_by_index,
)
from parcae.service.live_tables import ALONE, Counts, EndedJob, LiveJob, LiveSettings, LiveTables
from parcae.service.policies import PolicyFor, TimedPlan
from parcae.service.protocol import (
    MOST_STAGES,
    Code,
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    JobOrder,
    OrdersMessage,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StageOrder,
    StagesAdded,
    StateMessage,
    TasksReported,
    arriving,
)
from parcae.service.tables import NOTHING, Room, with_more_cores
from parcae.service.turns import paced
from parcae.workloads.job import bare_name

#: Infinite tiers are sent as this number: JSON has no infinity.
_LARGEST_TIER = 1e300
#: Largest difference between the clocks of applications that share a cluster.
_MOST_SKEW_MS = 60_000
#: Most jobs in the system, stages and edges of one application.
MOST = Room(20_000, 50_000, 200_000)
#: Most tasks that run at once in one cluster.
MOST_RUNNING = 1 << 18
#: Of more tasks than this in a report, those that have also finished take up no row for a core.
_MANY_TASKS = 1_000
#: What a job, a stage and an edge take up beside the tables, and what an ended job does, in bytes.
_BYTES = Room(4_000, 1_000, 100)
_BYTES_ENDED = 600
#: If jobs went without a trace that are more than one in so many of the others, rows are released.
_MANY_GONE = 4
#: Number of ended jobs per application that are remembered: late events of them are ignored.
_REMEMBERED = 4_096
#: What is known of the jobs of a message that is about to be taken, by their identity.
Prepared = dict[int, tuple[RecurringJob, JobRows]]


class Mirror(LiveTables):
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
        super().__init__(policy_for, duration_model, settings)
        #: Held while a request, or an application that leaves, changes the mirror. Who only looks
        #: does not wait for it.
        self.lock = threading.Lock()
        self.counts = counts or Counts()
        self._on_plan = on_plan
        self._on_end = on_end
        self._now_s = now_s
        self._heard_s = 0.0  # when an application last reported its clock
        # The cluster's clock, and the service's, when only one application was there.
        self._alone = 0, 0.0
        self._planned_ms = -1
        # By application: its clock, the cluster's clock minus it, and what its jobs take up.
        self._clocks: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        self._used: dict[str, Room] = {}
        #: What was looked up for the next message before it is taken, if anything was.
        self.prepared: Prepared = {}
        self._ended: dict[str, OrderedDict[str, None]] = {}
        # Jobs that `derive` must bring up to date. It looks at all stages of a job, so it does this
        # once for stages that end or change one after another, as skipped ones do.
        self._underived: dict[tuple[str, str], LiveJob] = {}

    # -- requests ----------------------------------------------------------------------------------

    def prepare(self, application: str, message: StateMessage | Events) -> Prepared:
        """Look up the jobs of a request, to be taken with it: it takes long and changes nothing."""
        prepared: Prepared = {}
        for job in paced(arriving(message)):
            with contextlib.suppress(ProtocolError):  # it will be refused when it arrives
                prepared[id(job)] = self._looked_up(application, job)
        return prepared

    def _looked_up(self, application: str, job: JobMessage) -> tuple[RecurringJob, JobRows]:
        recurring = self._duration_model.look_up(application, job.names, job.stages)
        return recurring, self._duration_model.rows(job, recurring)

    def take_state(self, application: str, message: StateMessage, *, is_whole: bool = True) -> None:
        """Replace everything about the application by the contents of the message.

        Without `is_whole` more is to come before the next plan, unless another application has one.
        """
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
        self._cached_orders = {}
        self.reserve(message.jobs)
        # Rows must be in order of arrival: policies break ties by it.
        for job in paced(sorted(message.jobs, key=lambda one: one.arrival_ms)):
            self._job_arrived(application, job)
        self._now["is_plan_due"][0] = 1
        if is_whole:
            self.settle()

    def take_events(self, application: str, message: Events, *, is_whole: bool = True) -> None:
        """Apply the events of a message in order, then plan if a plan is due.

        Without `is_whole` more is to come before the next plan, unless another application has one.
        """
        last_ms = self._clocks.get(application, 0)
        if message.clock_ms < last_ms:
            raise ProtocolError(
                Code.CLOCK, f"the clock went backwards, from {last_ms} to {message.clock_ms} ms"
            )
        self._clocks[application] = message.clock_ms
        self._set_clock(application)
        if message.cores is not None and self._settings.num_cores is None:
            self._resize(max(1, message.cores))
        for position, event in enumerate(paced(message.events)):
            try:
                self._fire(application, event)
            except ProtocolError as error:
                raise ProtocolError(error.code, f"event {position}: {error}") from None
        self._derive_all()
        # When it follows the simulator, an empty message reveals the next waiting stage.
        if self._settings.follows_simulator and not message.events and self._reveals:
            reveal_stage(self.state, self._reveals.popleft())
        elif not message.events or not self._settings.follows_simulator:
            self._wake()
        if is_whole:
            self.settle()

    def reserve(self, jobs: Iterable[JobMessage]) -> None:
        """Make room for all jobs at once: tables that grow are copied."""
        needed = NOTHING
        for job in paced(jobs):
            num_rows = 2 * len(job.stages) + 3 if job.is_open else len(job.stages)
            needed = needed.plus(Room(1, num_rows, sum(len(one.parents) for one in job.stages)))
        self._make_room(Room(*map(min, needed, MOST)))

    def drop(self, application: str, most: int | None = None) -> bool:
        """Remove jobs of the application without a trace. Returns whether all are gone."""
        self._derive_all()  # a message that was refused has not done it
        gone = list(islice(self.own.get(application, {}).values(), most))
        for job in paced(gone):
            job_ended(self.state, job.row)
            self._take_out(job)
            self._gone.append(job.row)
        return most is None or len(gone) < most

    def forget(self, application: str) -> None:
        """Forget the application and its jobs; the caller must `settle` afterwards."""
        self.drop(application)
        tables = (self._cached_orders, self._ended, self._clocks, self._offsets, self._used)
        for table in cast("tuple[dict[str, Any], ...]", tables):
            table.pop(application, None)
        if not self.jobs and self._gone:
            self._begin(self.num_cores, self.clock_ms)
        elif _MANY_GONE * len(self._gone) > len(self.jobs):  # of few, rows are released later
            self._repack(NOTHING)

    def bytes_of(self, application: str) -> int:
        """What an application takes up in memory, about; of tables that it shares, its rows."""
        used = self._used.get(application, NOTHING)
        taken = sum(count * size for count, size in zip(used, _BYTES, strict=True))
        num_ended = len(self._ended.get(application, ()))
        tables = self.num_bytes if self._settings.num_cores is None else 0
        learned = self._duration_model.own(application).num_bytes
        return tables + taken + learned + num_ended * _BYTES_ENDED

    def _offset_of(self, application: str) -> int:
        """The cluster's clock minus that of the application, in ms."""
        return self._offsets.get(application, 0)

    def _set_clock(self, application: str) -> None:
        """Advance the cluster's clock to that of an application.

        Clocks of applications that share the cluster may differ a little. One that lags by more
        counts on from here: it would not advance the cluster's clock any more. So does one that has
        gained more on the service's own clock since an application was alone: it would advance the
        clock of the others.
        """
        clock_ms = self._clocks[application] + self._offset_of(application)
        now_s = self._now_s()
        if self._settings.num_cores is not None:
            lag_ms = self.clock_ms - clock_ms
            silent_ms = round(MS_PER_S * (now_s - self._alone[1]))
            excess_ms = clock_ms - self._alone[0] - silent_ms - _MOST_SKEW_MS
            if len(self._clocks) == 1:
                self._alone = max(clock_ms, self.clock_ms), now_s
            elif lag_ms > _MOST_SKEW_MS or excess_ms > 0:
                change_ms = lag_ms if lag_ms > 0 else -excess_ms
                self._offsets[application] = self._offset_of(application) + change_ms
                self._cached_orders = {}
                clock_ms += change_ms
        advance_clock(self.state, max(clock_ms, self.clock_ms))
        self._heard_s = now_s

    def _wake(self) -> None:
        """Make a plan due if the wake-up time of the policy has come."""
        wake_ms = int(self._now["wake_ms"][0])
        if wake_ms != NOT_YET and self.clock_ms >= max(wake_ms, self._planned_ms + 1):
            self._cached_orders = {}
            self._now["wake_ms"][0] = NOT_YET
            self._now["is_plan_due"][0] = 1

    # -- events ------------------------------------------------------------------------------------

    def _fire(self, application: str, event: Event) -> None:
        """Apply one event; `_derive_all` must follow the last one."""
        if not isinstance(event, StageEnded | StageChanged):
            self._derive_all()
        self.counts.events += 1
        # Reports of tasks alone do not change orders.
        if not isinstance(event, TasksReported):
            self._cached_orders = {}
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
            return
        if isinstance(event, StagesAdded):
            self._stages_added(job, event.stages)
            return
        position = job.positions.get(event.stage_id)
        if position is None:
            raise ProtocolError(
                Code.UNKNOWN_STAGE, f"job {job.job_id} has no stage {event.stage_id}"
            )
        if isinstance(event, StageBegunAgain):
            self._stage_begun_again(job, position, event.tasks)
        elif position in job.ended:
            return  # a late event of a stage that has ended
        elif isinstance(event, TasksReported):
            self._tasks_reported(job, position, event)
        elif isinstance(event, StageEnded):
            self._stage_ended(job, position)
        else:
            self._stage_changed(job, position, event.tasks)

    def _job_arrived(self, application: str, message: JobMessage) -> None:
        """Add a job, which may have been in the system for long."""
        job_id = message.job_id
        if (application, job_id) in self.jobs or job_id in self._ended.get(application, ()):
            raise ProtocolError(Code.DUPLICATE_JOB, f"job {job_id} has arrived before")
        prepared = self.prepared.pop(id(message), None)
        recurring, rows = prepared or self._looked_up(application, message)
        self._claim(application, Room(1, len(message.stages), len(rows.children)))
        count = len(rows.specs)
        # An open job gets as many free rows as it has stages, plus two, for stages to come.
        spare = count + 2 if message.is_open else 0
        self._make_room(Room(1, count + spare, len(rows.children)))
        arrival_ms = min(message.arrival_ms + self._offset_of(application), self.clock_ms)
        row = job_arrived(
            self.state, rows.specs, rows.children, 0, count, rows.profile, arrival_ms, 1.0
        )
        self._now["num_stages"][0] += spare
        job = LiveJob(
            application,
            job_id,
            int(row),
            arrival_ms,
            message.is_open,
            recurring,
            [stage.stage_id for stage in message.stages],
            rows.parents,
        )
        self.jobs[job.key] = self.by_row[job.row] = job
        self.own.setdefault(application, {})[job_id] = job
        if self._now["keeps_accounts"][0]:
            enter_account(self.state, job.row, _user_of(job), 1.0)
        # The stages without parents are runnable, or wait for their turn.
        start = int(self._job["stage_start"][job.row])
        if job.is_open:
            hide_stage(self.state, start)
        self._reveals.extend(start + root for root in rows.roots)
        if not self._settings.follows_simulator:
            reveal_stages(self.state, job.row, np.array(self._reveals, np.int64))
            self._reveals.clear()
        self._catch_up(job, [message.stages[position] for position in rows.order])

    def _take_out(self, job: LiveJob) -> None:
        """Remove a job from those in the system."""
        del self.jobs[job.key], self.by_row[job.row], self.own[job.application][job.job_id]
        if not self.own[job.application]:
            del self.own[job.application]

    def _claim(self, application: str, more: Room) -> None:
        """Count more jobs, stages and edges of an application, unless they are too many."""
        used = self._used.get(application, NOTHING).plus(more)
        num_applications = max(1, len(self._clocks))
        total = more.plus(*self._used.values())
        # On a shared cluster every plan is about all jobs; each application may have its share.
        share = Room(*(most // num_applications for most in MOST))
        if not (MOST.covers(used) and (MOST.covers(total) or share.covers(used))):
            raise ProtocolError(
                Code.TOO_LARGE,
                f"application {application} has {used.jobs} jobs with {used.stages} stages and "
                f"{used.edges} edges; at most {MOST.jobs}, {MOST.stages} and {MOST.edges} are "
                f"scheduled, by {num_applications} together",
            )
        self._used[application] = used

    def _catch_up(self, job: LiveJob, stages: Iterable[StageMessage]) -> None:
        """Apply the progress that new stages already had when they were reported."""
        for stage in stages:
            if not (stage.started or stage.is_ended):
                continue
            job.is_seen_whole = False
            position = job.positions[stage.stage_id]
            if job.key not in self.jobs:
                return  # the stages before completed the job
            if stage.started:
                self._derive_all()
                self._count_tasks(job, position, stage)
            if stage.is_ended and job.key in self.jobs and position not in job.ended:
                self._stage_ended(job, position)
        self._derive_all()

    def _tasks_reported(self, job: LiveJob, position: int, event: TasksReported) -> None:
        """Refuse more starts than the stage has tasks, and more ends than tasks are running."""
        num_tasks, started, finished = self._task_counts(self.stage_row(job, position))
        num_running = started + event.started - finished
        num_ended = event.finished + event.failed
        where = f"job {job.job_id}, stage {event.stage_id}"
        if started + event.started > num_tasks:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {event.started} more tasks started, but {started} of {num_tasks} had "
                "already",
            )
        if num_ended > num_running:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {num_ended} tasks ended, but only {num_running} were running",
            )
        check_executed(where, event.finished, event.executed_ms)
        self.counts.finished_tasks += event.finished
        self.counts.failed_tasks += event.failed
        if event.finished:
            self._duration_model.tasks_finished(
                job.recurring, position, event.finished, event.executed_ms
            )
        self._count_tasks(job, position, event, event.failed)

    def _count_tasks(
        self, job: LiveJob, position: int, told: TasksReported | StageMessage, failed: int = 0
    ) -> None:
        """Apply started, finished and failed tasks of a stage, in this order."""
        row = self.stage_row(job, position)
        finished = told.finished
        if told.started:
            finished -= self._start_tasks(row, told.started, finished)
        if told.finished or failed:
            tasks_ended(self.state, row, finished, failed, told.executed_ms)
            job.worked_ms += told.executed_ms
        has_all = self._stage["num_finished"][row] == self._stage["num_tasks"][row]
        if told.finished and has_all and not self._settings.follows_simulator:
            self._complete(job, position)

    def _start_tasks(self, row: int, started: int, finished: int) -> int:
        """Start tasks. Returns how many of the `finished` ones among them are counted as such."""
        if self._stage["num_parents_unsaturated"][row] > 0:
            # The stage runs, so it is runnable even if its parents have not ended here.
            self._stage["num_parents_unfinished"][row] = 0
            reveal_stage(self.state, row)
            if row in self._reveals:
                self._reveals.remove(row)
        passed = min(started, finished) if started > _MANY_TASKS else 0
        if passed:
            num_tasks, num_started, num_finished = self._task_counts(row)
            set_counts(self.state, row, num_tasks, num_started + passed, num_finished + passed)
            job = self._stage["job"][row]
            self._job["remaining_ms"][job] -= passed * self._stage["task_ms"][row]
        left = started - passed
        # More tasks may run than the cluster has cores: then rows are added that stand for none.
        while left:
            left -= int(tasks_started(self.state, row, left))
            if left:
                num_rows = min(MOST_RUNNING, 2 * len(self.state.executors) + left)
                if num_rows == len(self.state.executors):
                    raise ProtocolError(
                        Code.TOO_LARGE, f"more than {MOST_RUNNING} tasks run in one cluster"
                    )
                self._use(with_more_cores(self.state, num_rows))
        return passed

    def _complete(self, job: LiveJob, position: int) -> None:
        """End a stage whose tasks have all finished, and the job if it was the last stage."""
        self._cached_orders = {}
        job.ended.add(position)
        complete_stage(self.state, self.stage_row(job, position))
        if self._job["completion_ms"][job.row] != NOT_YET:
            self._derive_all()
            self._remove(job)

    def _stage_ended(self, job: LiveJob, position: int) -> None:
        """End a stage that may have unfinished tasks: it was skipped or cancelled."""
        row = self.stage_row(job, position)
        num_tasks, _, finished = self._task_counts(row)
        running = int(self._stage["num_bound"][row])
        if finished < num_tasks:
            if running:
                tasks_ended(self.state, row, 0, running, 0)
            if finished == 0:  # skipped: count it as one task without work
                self._stage["task_ms"][row] = 0.0
            set_counts(self.state, row, max(1, finished), max(1, finished), max(1, finished))
            # When its parents end later, they must not reveal the stage again.
            for name in ("num_parents_unsaturated", "num_parents_unfinished"):
                self._stage[name][row] = 0
            self._underived[job.key] = job
        self._complete(job, position)

    def _stage_changed(self, job: LiveJob, position: int, num_tasks: int) -> None:
        row = self.stage_row(job, position)
        _, started, finished = self._task_counts(row)
        if num_tasks < started:
            raise ProtocolError(
                Code.BAD_JOB,
                f"job {job.job_id}: a stage changed to {num_tasks} tasks, but {started} have "
                "already started",
            )
        set_counts(self.state, row, num_tasks, started, finished)
        self._underived[job.key] = job
        if finished == num_tasks:
            self._complete(job, position)

    def _stage_begun_again(self, job: LiveJob, position: int, num_again: int) -> None:
        row = self.stage_row(job, position)
        _, _, finished = self._task_counts(row)
        # A stage that ended may have ended before all of its tasks had run.
        if num_again > finished and position not in job.ended:
            raise ProtocolError(
                Code.BAD_JOB,
                f"job {job.job_id}: {num_again} finished tasks of a stage must run again, but only "
                f"{finished} have finished",
            )
        job.ended.discard(position)
        job.is_seen_whole = False
        if finished:
            rerun_tasks(self.state, row, min(finished, num_again))
        if num_again > finished:
            num_tasks, started, left = self._task_counts(row)
            set_counts(self.state, row, num_tasks + num_again - finished, started, left)
        if self._stage["task_ms"][row] == 0.0:
            self._stage["task_ms"][row] = job.recurring.guess_ms
        self._derive(job)

    def _stages_added(self, job: LiveJob, stages: tuple[StageMessage, ...]) -> None:
        num_old = len(job.stage_ids)
        ids = [*job.stage_ids, *(stage.stage_id for stage in stages)]
        if len(ids) > MOST_STAGES:  # `state` could not hold the job
            raise ProtocolError(
                Code.TOO_LARGE,
                f"job {job.job_id} has {len(ids)} stages; at most {MOST_STAGES} are scheduled",
            )
        parents = [*job.parents, *parents_by_index(job.job_id, ids, stages)]
        num_edges = sum(map(len, parents[num_old:]))
        self._claim(job.application, Room(0, len(stages), num_edges))
        # New stages, parents before children.
        new = [place for place in checked_order(job.job_id, parents) if place >= num_old]
        task_ms = self._duration_model.durations(job.recurring, stages, num_old)
        self._make_room(Room(0, len(stages), sum(map(len, parents)) + len(parents)), job)
        for stage, of_stage, duration_ms in zip(stages, parents[num_old:], task_ms, strict=True):
            num_unfinished = sum(parent not in job.ended for parent in of_stage)
            add_stage(self.state, job.row, stage.tasks, duration_ms, num_unfinished)
        job.list_stages(ids, parents)
        children: dict[int, list[int]] = {}
        for place in range(num_old, len(ids)):
            for parent in parents[place]:
                children.setdefault(parent, []).append(self.stage_row(job, place))
        for parent, rows in children.items():
            self._add_children(self.stage_row(job, parent), rows)
        self._derive(job)
        hidden = self._rows_of(job.row).start if job.is_open else NO_STAGE
        for run in self.planning.runs:
            stages_added(self.state, run, job.row, self.stage_row(job, num_old), hidden)
        # New stages whose parents have all ended are runnable at once.
        free = [
            row
            for place in new
            if not self._stage["num_parents_unfinished"][row := self.stage_row(job, place)]
        ]
        reveal_stages(self.state, job.row, np.array(free, np.int64))
        self._catch_up(job, [stages[place - num_old] for place in new])

    def _add_children(self, row: int, new: list[int]) -> None:
        """Give a stage more children.

        The edges of one parent must be contiguous, so the parent gets a new range at the end of the
        table.
        """
        start = int(self._stage["child_start"][row])
        count = int(self._stage["num_children"][row])
        first = int(self._now["num_edges"][0])
        rows = [*self.state.children[start : start + count].tolist(), *new]
        self.state.children[first : first + len(rows)] = rows
        self._stage["child_start"][row] = first
        self._stage["num_children"][row] = len(rows)
        self._now["num_edges"][0] = first + len(rows)

    def _derive_all(self) -> None:
        """Bring up to date what stages that ended or changed have left behind."""
        for job in self._underived.values():
            self._derive(job)
        self._underived.clear()

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
        self._take_out(job)
        gone = Room(-1, -len(job.stage_ids), -sum(map(len, job.parents)))
        self._used[job.application] = self._used[job.application].plus(gone)
        ended = self._ended.setdefault(job.application, OrderedDict())
        ended[job.job_id] = None
        if len(ended) > _REMEMBERED:
            ended.popitem(last=False)
        if is_failed:
            return
        self.counts.finished_jobs += 1
        if self._on_end is not None:
            took_ms = self.clock_ms - job.arrival_ms
            self._on_end(EndedJob(*job.key, job.name, took_ms))

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
        self._cached_orders = {}
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
        return _ordered(self.by_row[row], *(self._job_order[name][row] for name in _JOB_ORDER))

    def jobs_of(self, application: str) -> list[LiveJob]:
        """The jobs of an application in the system, in order of arrival."""
        return list(self.own.get(application, {}).values())

    def orders(self, application: str) -> OrdersMessage:
        """The standing order of an application's jobs."""
        return self.drafted(application)()

    def stages_of(self, application: str) -> dict[str, list[int]]:
        """By job id, the ids of the stages that have not ended."""
        return {
            job.job_id: [
                stage_id for stage_id, place in job.positions.items() if place not in job.ended
            ]
            for job in self.jobs_of(application)
        }

    def drafted(self, application: str) -> Callable[[], OrdersMessage]:
        """The standing order of an application's jobs as it is now, to be worded later.

        To word it takes long, and meanwhile others may change the mirror.
        """
        cache = self._cached_orders
        if application in cache:
            cached = cache[application]
            return lambda: cached
        jobs = self.jobs_of(application)
        ids = [job.stage_ids for job in jobs]
        rows = np.array([job.row for job in jobs], np.int64)
        of_jobs = [self._job_order[name][rows].tolist() for name in _JOB_ORDER]
        of_stages = self._set_stages(jobs, rows)
        tiers = self._job_order["tier"][self.state.active[: self.num_jobs]]
        other_tier = _finite(tiers.max()) if len(tiers) else 0.0
        wake_ms = self.on_clock_of(application, self.wake_ms)

        def worded() -> OrdersMessage:
            columns = zip(jobs, *of_jobs, strict=True)
            cache[application] = orders = OrdersMessage(
                seq=None,
                jobs=tuple(_ordered(*one) for one in paced(columns)),
                stages=tuple(
                    StageOrder(
                        job_id=jobs[at].job_id,
                        stage_id=ids[at][position],
                        tier=_finite(tier),
                        rank=_finite(rank),
                        limit=_limit(limit),
                    )
                    for at, position, tier, rank, limit in paced(of_stages)
                ),
                other_tier=other_tier,
                wake_ms=wake_ms,
            )
            return orders

        return worded

    def _set_stages(
        self, jobs: list[LiveJob], rows: npt.NDArray[np.int64]
    ) -> list[tuple[int, int, float, float, int]]:
        """Of the stages of jobs that have not ended and whose order differs from the default: which
        job and position, and the order.
        """
        orders = np.asarray(self.state.stage_orders)[: int(self._now["num_stages"][0])]
        is_set = (orders["tier"] != 0.0) | (orders["rank"] != 0.0) | (orders["limit"] != UNLIMITED)
        found = np.flatnonzero(is_set)
        if not len(found) or not jobs:
            return []
        # Behind an open job there are rows of no stage.
        first = self._job["stage_start"][rows]
        at = np.maximum(0, np.searchsorted(first, found, "right") - 1)
        position = found - first[at] - np.array([job.num_hidden for job in jobs])[at]
        is_own = (position >= 0) & (position < np.array([len(job.stage_ids) for job in jobs])[at])
        found, at, position = found[is_own], at[is_own], position[is_own]
        columns = (orders[name][found] for name in ("tier", "rank", "limit"))
        each = zip(*(column.tolist() for column in (at, position, *columns)), strict=True)
        return [one for one in each if one[1] not in jobs[one[0]].ended]


def _user_of(job: LiveJob) -> int:
    """The number of the job's user: messages name nobody, so it is that of its recurring name."""
    name = bare_name(job.name) if job.recurring.names else ""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


_JOB_ORDER = ("tier", "weight", "limit")


def _ordered(job: LiveJob, tier: Any, weight: Any, limit: Any) -> JobOrder:
    return JobOrder(
        job_id=job.job_id, tier=_finite(tier), weight=float(weight), limit=_limit(limit)
    )


def _finite(value: Any) -> float:
    return float(min(_LARGEST_TIER, max(-_LARGEST_TIER, value)))


def _limit(value: Any) -> int | None:
    """A limit as it is sent; None for one that no cluster reaches."""
    return None if value >= MOST_RUNNING else int(value)
