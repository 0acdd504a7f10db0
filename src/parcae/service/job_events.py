"""`JobEvents`: what the events of applications change in the tables of a live cluster.

Events apply the same transitions as in the simulator. All checks of an event come before its first
change to the state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from parcae.base.errors import ProtocolError
from parcae.cluster.kernels.cores import complete_stage, reveal_stage, set_counts
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
from parcae.cluster.state import NO_STAGE, NOT_YET
from parcae.service.jobs import (
    DurationModel,
    JobRows,
    check_executed,
    checked_order,
    parents_by_index,
)
from parcae.service.live_tables import Counts, EndedJob, LiveJob, LiveSettings, LiveTables
from parcae.service.policies import PolicyFor
from parcae.service.protocol import (
    MOST_STAGES,
    Code,
    Event,
    JobArrived,
    JobEnded,
    JobMessage,
    StageBegunAgain,
    StageChanged,
    StageEnded,
    StageMessage,
    StagesAdded,
    TasksReported,
)
from parcae.service.tables import Room, with_more_cores

#: Most jobs in the system, stages and edges of one application.
MOST = Room(20_000, 50_000, 200_000)
#: Most tasks that run at once in one cluster.
MOST_RUNNING = 1 << 18
#: Of more tasks than this in a report, those that have also finished take up no row for a core.
_MANY_TASKS = 1_000
#: Number of ended jobs per application that are remembered: late events of them are ignored.
_REMEMBERED = 4_096


class JobEvents(LiveTables):
    """The tables of one cluster, changed by events."""

    def __init__(
        self,
        policy_for: PolicyFor,
        duration_model: DurationModel,
        settings: LiveSettings,
        *,
        counts: Counts | None = None,
        on_end: Callable[[EndedJob], None] | None = None,
    ) -> None:
        super().__init__(policy_for, duration_model, settings)
        self.counts = counts or Counts()
        self._on_end = on_end
        self._ended: dict[str, OrderedDict[str, None]] = {}
        self._used: dict[str, Room] = {}  # by application
        self._offsets: dict[str, int] = {}  # cluster's clock minus that of the application, in ms
        # Jobs that `derive` must bring up to date. It looks at all stages of a job, so it does this
        # once for stages that end or change one after another, as skipped ones do.
        self._underived: dict[tuple[str, str], LiveJob] = {}

    def fire(self, application: str, event: Event) -> None:
        """Apply one event; `derive` must follow the last one."""
        if not isinstance(event, StageEnded | StageChanged):
            self.derive()
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

    def _job_arrived(self, application: str, message: JobMessage, *, is_new: bool = True) -> None:
        """Add a job; without `is_new` it may have been in the system for long."""
        if (application, message.job_id) in self.jobs or message.job_id in self._ended.get(
            application, ()
        ):
            raise ProtocolError(Code.DUPLICATE_JOB, f"job {message.job_id} has arrived before")
        self._claim(application, 1, message.stages)
        recurring = self._duration_model.look_up(message.names, message.stages)
        rows = self._duration_model.rows(message, recurring)
        stage_ids = [stage.stage_id for stage in message.stages]
        parents = parents_by_index(message.job_id, stage_ids, message.stages)
        # An open job gets as many free rows as it has stages, plus two, for stages to come.
        spare = len(rows.specs) + 2 if message.is_open else 0
        self._make_room(1, len(rows.specs) + spare, len(rows.children))
        arrival_ms = min(message.arrival_ms + self._offset_of(application), self.clock_ms)
        job = LiveJob(
            application,
            message.job_id,
            self._arrive(rows, arrival_ms, spare),
            arrival_ms,
            message.is_open,
            recurring,
            stage_ids,
            parents,
            is_late=not is_new and self._is_past(arrival_ms),
        )
        self.jobs[job.key] = self.by_row[job.row] = job
        self._reveal_roots(job, rows.roots)
        self._catch_up(job, message.stages, checked_order(job.job_id, parents))

    def _offset_of(self, application: str) -> int:
        """The cluster's clock minus that of the application, in ms."""
        return self._offsets.get(application, 0)

    def _claim(self, application: str, num_jobs: int, stages: tuple[StageMessage, ...]) -> None:
        used = self._used.get(application, Room(0, 0, 0))
        used = Room(
            used.jobs + num_jobs,
            used.stages + len(stages),
            used.edges + sum(len(set(stage.parents)) for stage in stages),
        )
        if not MOST.covers(used):
            raise ProtocolError(
                Code.TOO_LARGE,
                f"application {application} has {used.jobs} jobs with {used.stages} stages and "
                f"{used.edges} edges; at most {MOST.jobs}, {MOST.stages} and {MOST.edges} are "
                "scheduled",
            )
        self._used[application] = used

    def _release(self, job: LiveJob) -> None:
        """Count a job, its stages and edges no longer."""
        used = self._used[job.application]
        self._used[job.application] = Room(
            used.jobs - 1,
            used.stages - len(job.stage_ids),
            used.edges - sum(map(len, job.parents)),
        )

    def _reveal_roots(self, job: LiveJob, roots: tuple[int, ...]) -> None:
        """Make the stages without parents runnable, or let them wait for their turn."""
        start = int(self._job["stage_start"][job.row])
        if job.is_open:
            hide_stage(self.state, start)
        self._reveals.extend(start + root for root in roots)
        if not self._settings.follows_simulator:
            self._reveal_all()

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
        """Apply the progress that new stages already had when they were reported."""
        for index in order:
            stage = stages[index]
            if stage.started or stage.is_ended:
                job.is_seen_whole = False
            position = self._position(job, stage.stage_id)
            if job.key not in self.jobs:
                return  # the stages before completed the job
            if stage.started:
                self.derive()
                self._count_tasks(
                    job, position, stage.started, stage.finished, 0, stage.executed_ms
                )
            if stage.is_ended and job.key in self.jobs:
                self._stage_ended(job, position)
        self.derive()

    def _tasks(self, job: LiveJob, position: int, event: TasksReported) -> None:
        if position in job.ended:
            return  # a late event of a cancelled stage
        self._check_tasks(job, position, event)
        self.counts.finished_tasks += event.finished
        self.counts.failed_tasks += event.failed
        if event.finished:
            self._duration_model.tasks_finished(
                job.recurring, position, event.finished, event.executed_ms
            )
        self._count_tasks(
            job, position, event.started, event.finished, event.failed, event.executed_ms
        )

    def _check_tasks(self, job: LiveJob, position: int, event: TasksReported) -> None:
        """Refuse more starts than the stage has tasks, and more ends than tasks are running."""
        row = self.stage_row(job, position)
        num_tasks, started, finished = self._task_counts(row)
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
        passed = self._start_tasks(row, started, finished) if started else 0
        if finished or failed:
            tasks_ended(self.state, row, finished - passed, failed, executed_ms)
            job.worked_ms += executed_ms
        has_all = self._stage["num_finished"][row] == self._stage["num_tasks"][row]
        if finished and has_all and not self._settings.follows_simulator:
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
        self._pass_tasks(row, passed)
        started -= passed
        # More tasks may run than the cluster has cores: then rows are added that stand for none.
        while started:
            begun = int(tasks_started(self.state, row, started))
            started -= begun
            if started:
                num_rows = min(MOST_RUNNING, 2 * len(self.state.executors) + started)
                if num_rows == len(self.state.executors):
                    raise ProtocolError(
                        Code.TOO_LARGE, f"more than {MOST_RUNNING} tasks run in one cluster"
                    )
                self._use(with_more_cores(self.state, num_rows))
        return passed

    def _complete(self, job: LiveJob, position: int) -> None:
        """End a stage whose tasks have all finished, and the job if it was the last stage."""
        self._version += 1
        job.ended.add(position)
        complete_stage(self.state, self.stage_row(job, position))
        if self._job["completion_ms"][job.row] != NOT_YET:
            self.derive()
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
            self._underived[job.key] = job
        self._complete(job, position)

    def _stage_changed(self, job: LiveJob, position: int, num_tasks: int) -> None:
        row = self.stage_row(job, position)
        _, started, finished = self._task_counts(row)
        if position in job.ended:
            return
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

    def _stage_begun_again(self, job: LiveJob, position: int, num_tasks: int) -> None:
        row = self.stage_row(job, position)
        finished = int(self._stage["num_finished"][row])
        # A stage that ended may have ended before all of its tasks had run.
        if num_tasks > finished and position not in job.ended:
            raise ProtocolError(
                Code.BAD_JOB,
                f"job {job.job_id}: {num_tasks} finished tasks of a stage must run again, but only "
                f"{finished} have finished",
            )
        job.ended.discard(position)
        job.is_seen_whole = False
        if finished:
            rerun_tasks(self.state, row, min(finished, num_tasks))
        if num_tasks > finished:
            counts = self._task_counts(row)
            set_counts(self.state, row, counts[0] + num_tasks - finished, counts[1], counts[2])
        if self._stage["task_ms"][row] == 0.0:
            self._stage["task_ms"][row] = job.recurring.guess_ms
        self._derive(job)

    def derive(self) -> None:
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

    def _stages_added(self, job: LiveJob, stages: tuple[StageMessage, ...]) -> None:
        self._claim(job.application, 0, stages)
        ids = [*job.stage_ids, *(stage.stage_id for stage in stages)]
        if len(ids) > MOST_STAGES:  # `state` could not hold the job
            raise ProtocolError(
                Code.TOO_LARGE,
                f"job {job.job_id} has {len(ids)} stages; at most {MOST_STAGES} are scheduled",
            )
        parents = [*job.parents, *parents_by_index(job.job_id, ids, stages)]
        order = checked_order(job.job_id, parents)
        num_old = len(job.stage_ids)
        self._add_stages(job, stages, parents)
        first = self.stage_row(job, num_old)
        job.list_stages(ids, parents)
        self._link(job, num_old)
        self._derive(job)
        hidden = self._rows_of(job.row).start if job.is_open else NO_STAGE
        for run in self._runs():
            stages_added(self.state, run, job.row, first, hidden)
        # New stages whose parents have all ended are runnable at once.
        new = [position for position in order if position >= num_old]
        for position in new:
            row = self.stage_row(job, position)
            if self._stage["num_parents_unfinished"][row] == 0:
                reveal_stage(self.state, row)
        self._catch_up(job, stages, [position - num_old for position in new])

    def _add_stages(
        self, job: LiveJob, stages: tuple[StageMessage, ...], parents: list[tuple[int, ...]]
    ) -> None:
        """Add the rows of new stages; `parents` has those of all stages, the known ones first."""
        num_old = len(job.stage_ids)
        task_ms = self._duration_model.durations(job.recurring, stages, num_old)
        degrees = sum(len(stage_parents) for stage_parents in parents)
        self._make_room(0, len(stages), degrees + len(parents), job)
        for stage, stage_parents, duration_ms in zip(
            stages, parents[num_old:], task_ms, strict=True
        ):
            num_unfinished = sum(parent not in job.ended for parent in stage_parents)
            add_stage(self.state, job.row, stage.tasks, duration_ms, num_unfinished)

    def _link(self, job: LiveJob, first_new: int) -> None:
        """Write the edges to the stages from position `first_new` on."""
        children: dict[int, list[int]] = {}
        for position in range(first_new, len(job.stage_ids)):
            for parent in job.parents[position]:
                children.setdefault(parent, []).append(self.stage_row(job, position))
        for parent, new in children.items():
            self._add_children(self.stage_row(job, parent), new)

    def _add_children(self, row: int, new: list[int]) -> None:
        """Give a stage more children.

        The edges of one parent must be contiguous, so the parent gets a new range at the end of the
        table.
        """
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
        self._release(job)
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
