"""The live cluster's state: messages fire the simulator's own transitions, and the policy is asked where executors wait.

A slot of a client is an executor row, its job a job row; the rows are this module's business alone. Everything that a client
can get wrong is checked before anything changes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parcae.cluster.decision import Policy
from parcae.cluster.kernels.decisions import apply_decision, hold_ended
from parcae.cluster.kernels.serving import durations_changed, job_ended
from parcae.cluster.kernels.transitions import continue_stage, executor_arrived, job_arrived, offer_pool, reset, stage_exhausted
from parcae.cluster.state import NO_JOB, NO_STAGE, NOT_YET, ClusterState, CommandKind
from parcae.errors import ProtocolError
from parcae.service.deciding import Counts, Decided, Decider
from parcae.service.jobs import DurationBook, children_of, parents_by_index, topological_order
from parcae.service.protocol import (
    Code,
    Command,
    Commands,
    Event,
    Events,
    JobArrived,
    JobEnded,
    JobMessage,
    SlotArrived,
    StageMessage,
    StagesAdded,
    StageSlots,
    Sync,
    TaskFailed,
    TaskFinished,
)
from parcae.service.restoring import LiveJob, Picture, merged, picture_from, picture_of, restore
from parcae.service.rows import Room, empty_state, fill_added_stages, jobs_to_keep, relaid, used

PolicyFor = Callable[[int], Policy]


@dataclass(frozen=True)
class DecisionRecord:
    """One answered question in the client's words; `job` and `stage_id` are None where executors were let idle."""

    clock_ms: int
    wall_s: float
    source_job: str | None
    num_source: int
    application: str | None
    job_id: int | None
    job: str | None
    stage_id: int | None
    limit: int
    hold_ms: int
    num_slots: int
    took_ms: float
    is_fallback: bool
    choices: tuple[tuple[str, float], ...]  # what else there was, with its probability


class Mirror:
    """One cluster, mirrored from the messages of one application or of several.

    Args:
        policy_for: the policy for a cluster of so many slots.
        book: what is known of durations.
        room: of the tables at first.
        is_shared: several applications share the cluster (and its clock).
        asks_again: where nothing runs although work could and the policy lets all idle, let `fair` decide: a live cluster may
            otherwise stand still for ever. The simulator waits for the next arrival instead.
        gives_up: replace a policy that fails by `fair`; not where a recording decides.
        counts: where to count.
        on_decision: told of every decision, with the policy's probabilities where it has them.
    """

    def __init__(
        self,
        policy_for: PolicyFor,
        book: DurationBook,
        *,
        room: Room | None = None,
        is_shared: bool = False,
        asks_again: bool = True,
        gives_up: bool = True,
        counts: Counts | None = None,
        on_decision: Callable[[DecisionRecord], None] | None = None,
    ) -> None:
        self._policy_for, self._book, self._room = policy_for, book, room or Room()
        self.is_shared, self._asks_again, self._is_exact_room = is_shared, asks_again, room is not None
        self.counts = counts or Counts()
        self._on_decision, self._gives_up = on_decision, gives_up
        self._members: dict[str, set[int]] = {}
        self._instant: set[str] = set()
        self._told: dict[tuple[str, int, int], int] = {}
        self.state: ClusterState = no_cluster()
        self._take_over(self.state, [], [])

    # -- what the mirror is made from --------------------------------------------------------------------------------------

    def _take_over(self, state: ClusterState, jobs: list[LiveJob], slots: list[int]) -> None:
        self._jobs = {job.key: job for job in jobs}
        self._by_row = {job.row: job for job in jobs}
        self.slots = slots
        self._executor_of = {slot: executor for executor, slot in enumerate(slots)}
        self._holder: list[str | None] = [None] * len(slots)
        self._set_state(state)
        self._decider = self._new_decider(len(slots)) if slots else None
        self._arrivals: deque[int] = deque()
        self._commands: list[tuple[str, Command]] = []
        self._touched: dict[int, None] = {}
        self._chosen: dict[tuple[str, int, int], None] = {}
        self._activity, self._stalled_at, self._stall_position = 0, -1, 0

    def _new_decider(self, num_slots: int) -> Decider:
        is_watched = self._on_decision is not None
        return Decider(self._policy_for(num_slots), num_slots, is_watched, self._gives_up, self.counts)

    def _set_state(self, state: ClusterState) -> None:
        self.state, self._now = state, state.now.view(np.ndarray)[0]

    def sync(self, application: str, message: Sync) -> None:
        """Forget what was known of the application and take what it says.

        Raises:
            ProtocolError: the message contradicts itself, or (in a shared cluster) what others say. Nothing is changed.
        """
        told = picture_of(application, message)
        others = self._others(application)
        picture = merged([told, *others]) if others else told
        clock_ms = max(message.clock_ms, int(self._now["clock_ms"])) if self.is_shared else message.clock_ms
        state, jobs = restore(picture, clock_ms, self._book, self._room, is_exact=self._is_exact_room)
        self._members[application] = {slot.slot for slot in message.slots}
        (self._instant.add if message.has_instant_moves else self._instant.discard)(application)
        self.counts.syncs += 1
        self._begin(state, jobs, picture, application)

    def _begin(self, state: ClusterState, jobs: list[LiveJob], picture: Picture, application: str | None) -> None:
        self._take_over(state, jobs, [placed.slot for placed in picture.slots])
        self._told = {key: count for key, count in self._told.items() if key[0] != application}
        for executor, placed in enumerate(picture.slots):
            self._holder[executor] = placed.application or next(
                (a for a, own in self._members.items() if placed.slot in own), None
            )
            if placed.state == "idle":
                self._touched[executor] = None
        for job in jobs:
            if state.sources.num_idle[job.row + 1]:
                self._offer(job.row)
        self._offer(NO_JOB)

    def _others(self, application: str) -> list[Picture]:
        """What is known of everyone else."""
        if not self.is_shared or not self.slots:
            return []
        picture = self.picture()
        slots = set().union(*(own for name, own in self._members.items() if name != application), set())
        kept = tuple(
            placed if placed.application != application else type(placed)(placed.slot, "idle")
            for placed in picture.slots
            if placed.slot in slots
        )
        return [Picture(kept, tuple(pair for pair in picture.jobs if pair[0] != application))]

    def leave(self, application: str) -> None:
        """The application ended, or its connection did: its jobs are gone, and the slots that only it had."""
        others = self._others(application)
        self._members.pop(application, None)
        self._instant.discard(application)
        if others and others[0].slots:
            state, jobs = restore(others[0], int(self._now["clock_ms"]), self._book, self._room)
            self._begin(state, jobs, others[0], application)
        else:
            self._told.clear()
            self._take_over(no_cluster(), [], [])

    def picture(self) -> Picture:
        """What is known now, as the clients would say it."""
        jobs = [self._by_row[int(row)] for row in self.state.active[: int(self._now["num_active"])]]
        return picture_from(self.state, self.slots, jobs, self._stage_names(jobs))

    def _stage_names(self, jobs: list[LiveJob]) -> dict[int, tuple[LiveJob, StageMessage]]:
        start = self.state.jobs.stage_start
        return {int(start[job.row]) + position: (job, stage) for job in jobs for position, stage in enumerate(job.stages)}

    # -- what happens ------------------------------------------------------------------------------------------------------

    def events(self, application: str, message: Events) -> None:
        """Fire a message's events in order.

        Raises:
            ProtocolError: an event that cannot be, with its position; those before it have been fired.
        """
        self._advance(message.clock_ms)
        for position, event in enumerate(message.events):
            if not isinstance(event, JobArrived):  # at one time, arrivals come before the ends of idle slots
                self._end_holds()
            try:
                self.fire(application, event)
            except ProtocolError as error:
                raise ProtocolError(error.code, f"event {position}: {error}") from None
        self._end_holds()

    def _advance(self, clock_ms: int) -> None:
        if not self.slots:
            raise ProtocolError(Code.RESYNC, "nothing is known of this cluster; send sync")
        if self.is_shared:
            clock_ms = max(clock_ms, int(self._now["clock_ms"]))
        if clock_ms < self._now["clock_ms"]:
            raise ProtocolError(Code.CLOCK, f"the clock runs backwards, from {self._now['clock_ms']} to {clock_ms} ms")
        self._now["clock_ms"] = clock_ms

    def fire(self, application: str, event: Event) -> None:
        """Fire one event now, and decide until nothing waits.

        Raises:
            ProtocolError: the event cannot be. Nothing is changed.
        """
        if isinstance(event, TaskFinished):
            self._task_finished(application, event)
        elif isinstance(event, JobArrived):
            self._job_arrived(application, event.job)
        elif isinstance(event, SlotArrived):
            self._slot_arrived(application, event.slot)
        elif isinstance(event, StagesAdded):
            self._stages_added(application, event)
        elif isinstance(event, JobEnded):
            self._job_ended(application, event)
        else:
            self._executor_on(application, event)
            self.counts.failed_tasks += 1
        self.counts.events += 1

    def _job(self, application: str, job_id: int) -> LiveJob:
        job = self._jobs.get((application, job_id))
        if job is None:
            raise ProtocolError(Code.UNKNOWN_JOB, f"job {job_id} is not in the system")
        return job

    def _executor(self, slot: int) -> int:
        executor = self._executor_of.get(slot)
        if executor is None:
            raise ProtocolError(Code.UNKNOWN_SLOT, f"slot {slot} is not one of the {len(self.slots)} slots of this cluster")
        return executor

    def _executor_on(self, application: str, event: TaskFinished | TaskFailed) -> tuple[LiveJob, int, int, int]:
        """The job, the stage's position and row, and the executor, which runs a task of it."""
        job, executor = self._job(application, event.job_id), self._executor(event.slot)
        position = job.position.get(event.stage_id)
        if position is None:
            raise ProtocolError(Code.UNKNOWN_STAGE, f"job {event.job_id} has no stage {event.stage_id}")
        stage = int(self.state.jobs.stage_start[job.row]) + position
        if self.state.executors.stage[executor] != stage:
            raise ProtocolError(
                Code.WRONG_SLOT, f"slot {event.slot} does not run a task of stage {event.stage_id} of job {event.job_id}"
            )
        return job, position, stage, executor

    def _task_finished(self, application: str, event: TaskFinished) -> None:
        job, position, stage, executor = self._executor_on(application, event)
        if job.is_learned[position]:
            self.state.stages.task_ms[stage] = self._book.learn(job.name, position, event.duration_ms)
            durations_changed(self.state, job.row)
        self.counts.finished_tasks += 1
        if continue_stage(self.state, executor, stage):
            self._activity += 1
            return
        self._touched[executor] = None
        stage_exhausted(self.state, executor)
        self._settle()
        if self.state.jobs.completion_ms[job.row] != NOT_YET:
            del self._jobs[job.key]
            self.counts.finished_jobs += 1

    def _slot_arrived(self, application: str, slot: int) -> None:
        executor = self._executor(slot)
        stage = int(self.state.executors.destination[executor])
        if stage == NO_STAGE or self._by_row[int(self.state.stages.job[stage])].application != application:
            raise ProtocolError(Code.WRONG_SLOT, f"slot {slot} is not on its way to a job of this application")
        self._arrive(executor)
        self._settle()

    def _arrive(self, executor: int) -> None:
        self._touched[executor] = None
        executor_arrived(self.state, executor)

    def _job_arrived(self, application: str, message: JobMessage) -> None:
        if (application, message.job_id) in self._jobs:
            raise ProtocolError(Code.DUPLICATE_JOB, f"job {message.job_id} is in the system already")
        if any(stage.finished for stage in message.stages):
            raise ProtocolError(Code.BAD_JOB, f"job {message.job_id}: only sync tells of finished tasks")
        rows = self._book.rows(message)
        self._make_room(Room(1, len(rows.specs), len(rows.children)))
        arrival_ms, num_stages = min(message.arrival_ms, int(self._now["clock_ms"])), len(rows.specs)
        row = int(job_arrived(self.state, rows.specs, rows.children, 0, num_stages, rows.profile, arrival_ms, 1.0))
        job = LiveJob(application, message.job_id, message.name, arrival_ms, row, list(message.stages), list(rows.is_learned))
        self._jobs[job.key] = self._by_row[row] = job
        self._offer(NO_JOB)

    def _make_room(self, more: Room) -> None:
        needed, room = used(self.state) + more, Room.of(self.state)
        if not room.holds(needed):
            keep = jobs_to_keep(self.state)
            rows = [self._by_row[row] for row in keep]
            edges = sum(int(self._edges(job.row)) for job in rows)
            wanted = Room(len(keep), sum(len(job.stages) for job in rows), edges) + more
            self._relay(keep, room if room.holds(wanted + wanted) else room.doubled_to_hold(wanted))

    def _edges(self, row: int) -> int:
        start, count = self.state.jobs.stage_start[row], self.state.jobs.num_stages[row]
        return int(self.state.stages.num_children[start : start + count].sum())

    def _relay(self, keep: list[int], room: Room, extra: dict[int, tuple[int, int]] | None = None) -> None:
        state, moved = relaid(self.state, keep, room, extra)
        kept = [self._by_row[row] for row in keep]
        for job in kept:
            job.row = int(moved[job.row])
        self._by_row = {job.row: job for job in kept}
        self._set_state(state)

    def _stages_added(self, application: str, event: StagesAdded) -> None:
        job = self._job(application, event.job_id)
        stages = [*job.stages, *event.stages]
        parents = parents_by_index(job.job_id, stages)
        children = children_of(parents)
        topological_order(job.job_id, parents, children)
        if any(stage.finished for stage in event.stages):
            raise ProtocolError(Code.BAD_JOB, f"job {job.job_id}: only sync tells of finished tasks")
        more = Room(0, len(event.stages), sum(map(len, children)) - self._edges(job.row))
        self._make_room(more)
        self._relay(jobs_to_keep(self.state), Room.of(self.state), {job.row: (more.stages, more.edges)})
        positions = range(len(job.stages), len(stages))
        told = [
            s.task_ms if s.task_ms is not None else self._book.learned_ms(job.name, p)
            for s, p in zip(event.stages, positions, strict=True)
        ]
        fill_added_stages(self.state, job.row, stages, parents, children, told)
        job.stages = stages
        job.is_learned += [self._book.is_learning and stage.task_ms is None for stage in event.stages]
        job.index()
        self._offer(job.row)
        self._offer(NO_JOB)

    def _job_ended(self, application: str, event: JobEnded) -> None:
        job = self._job(application, event.job_id)
        for executor in np.flatnonzero(self.state.executors.job == job.row):
            self._touched[int(executor)] = None
        job_ended(self.state, job.row)
        del self._jobs[job.key]
        self.counts.failed_jobs += event.is_failed
        self._offer(NO_JOB)

    def _end_holds(self) -> None:
        """End the idle slots whose time has come, the earliest first."""
        while (count := int(self._now["num_holds"])) > 0:
            row = int(np.argmin(self.state.holds.end_ms[:count]))
            if self.state.holds.end_ms[row] > self._now["clock_ms"]:
                return
            hold_ended(self.state, row)
            self._settle()

    # -- what is decided ---------------------------------------------------------------------------------------------------

    def _offer(self, job: int) -> None:
        offer_pool(self.state, job)
        self._settle()

    def _settle(self) -> None:
        """Decide, and let those who move at no cost arrive, until nothing waits."""
        now = self._now
        while True:
            self._collect()
            if now["num_source"] > 0:
                self._decide()
            elif self._arrivals:
                self._arrive(self._arrivals.popleft())
            elif not self._offer_stalled():
                return

    def _offer_stalled(self) -> bool:
        """Nothing runs or moves although work could: offer every pool once (as the simulator does), then let fair decide."""
        now = self._now
        if now["num_idle"] < len(self.slots) or now["num_schedulable"] == 0 or now["num_holds"] > 0:
            return False
        if self._stalled_at != self._activity:
            self._stalled_at, self._stall_position = self._activity, 0
        num_active, num_rounds = int(now["num_active"]), 2 if self._asks_again else 1
        while self._stall_position < num_rounds * (num_active + 1):
            again, position = divmod(self._stall_position, num_active + 1)
            self._stall_position += 1
            offer_pool(self.state, int(self.state.active[position]) if position < num_active else NO_JOB)
            if now["num_source"] > 0:
                if again and self._decider is not None:
                    self._decider.give_up_round(self.state)
                return True
        return False

    def _decide(self) -> None:
        assert self._decider is not None
        now = self._now
        source_job, num_source = int(now["source_job"]), int(now["num_source"])
        decided = self._decider.decide(self.state)
        if self._on_decision is not None:
            self._on_decision(self._record(decided, source_job, num_source))
        stage, limit, executor_class, hold_ms = decided.decision
        if apply_decision(self.state, stage, limit, executor_class, hold_ms) < 0:
            self._decider.give_up_round(self.state)  # cannot be after check_decision; the fallback goes on

    def _collect(self) -> None:
        """Take what the last transition commands."""
        state, count = self.state, int(self._now["num_commands"])
        for row in range(count):
            kind, executor, stage = (int(value) for value in state.commands[row].item()[:3])
            self._command(kind == CommandKind.START_TASK, executor, stage)
        self._now["num_commands"] = 0
        self._activity += count

    def _command(self, is_start: bool, executor: int, stage: int) -> None:
        job = self._by_row[int(self.state.stages.job[stage])]
        stage_id = job.stages[stage - int(self.state.jobs.stage_start[job.row])].stage_id
        holder, slot = self._holder[executor], self.slots[executor]
        if holder is not None and holder != job.application:
            self._commands.append((holder, Command(kind="release", slot=slot)))
        kind = "start" if is_start else "move"
        self._commands.append((job.application, Command(kind=kind, slot=slot, job_id=job.job_id, stage_id=stage_id)))  # type: ignore[arg-type]
        self._holder[executor] = job.application
        if is_start:
            self._chosen.pop((job.application, job.job_id, stage_id), None)
            self._chosen[job.application, job.job_id, stage_id] = None
        elif holder == job.application and holder in self._instant:
            self._arrivals.append(executor)

    def _record(self, decided: Decided, source_job: int, num_source: int) -> DecisionRecord:
        stage, source = decided.decision.stage, self._by_row.get(source_job)
        job = self._by_row[int(self.state.stages.job[stage])] if stage != NO_STAGE else None
        return DecisionRecord(
            clock_ms=int(self._now["clock_ms"]),
            wall_s=time.time(),
            source_job=source.name if source else None,
            num_source=num_source,
            application=job.application if job else None,
            job_id=job.job_id if job else None,
            job=job.name if job else None,
            stage_id=job.stages[stage - int(self.state.jobs.stage_start[job.row])].stage_id if job else None,
            limit=decided.decision.limit,
            hold_ms=decided.decision.hold_ms,
            num_slots=min(decided.decision.limit, num_source) if job else 0,
            took_ms=decided.took_ms,
            is_fallback=decided.is_fallback,
            choices=tuple((self._choice_name(row), p) for row, p in decided.probabilities),
        )

    def _choice_name(self, stage: int) -> str:
        if stage == NO_STAGE:
            return "idle"
        job = self._by_row[int(self.state.stages.job[stage])]
        stage_id = job.stages[stage - int(self.state.jobs.stage_start[job.row])].stage_id
        return f"{job.name or job.job_id} / {stage_id}"

    # -- what is told ------------------------------------------------------------------------------------------------------

    def take_commands(self) -> dict[str, Commands]:
        """What every application is to be told since the last call; `seq` is null."""
        commands: dict[str, list[Command]] = {name: [] for name in self._members}
        for name, command in self._commands:
            commands.setdefault(name, []).append(command)
        executors = self.state.executors
        for executor in self._touched:
            holder = self._holder[executor]
            if holder is not None and executors.stage[executor] == NO_STAGE and executors.destination[executor] == NO_STAGE:
                at = self._by_row.get(int(executors.job[executor]))
                job_id = at.job_id if at is not None and at.application == holder else None
                commands.setdefault(holder, []).append(Command(kind="idle", slot=self.slots[executor], job_id=job_id))
        stages = self._changed_stages()
        self._commands, self._touched, self._chosen = [], {}, {}
        wake_ms = self._wake_ms()
        return {
            name: Commands(seq=None, commands=tuple(own), stages=tuple(stages.get(name, ())), wake_ms=wake_ms)
            for name, own in commands.items()
        }

    def _changed_stages(self) -> dict[str, list[StageSlots]]:
        rows = self.state.executors.stage
        counts: dict[tuple[str, int, int], int] = {}
        for stage, count in zip(*(v.tolist() for v in np.unique(rows[rows != NO_STAGE], return_counts=True)), strict=True):
            job = self._by_row[int(self.state.stages.job[stage])]
            counts[job.application, job.job_id, job.stages[stage - int(self.state.jobs.stage_start[job.row])].stage_id] = count
        changed = {key: count for key, count in counts.items() if self._told.get(key, 0) != count}
        changed.update({key: 0 for key, count in self._told.items() if key not in counts and count})
        self._told = counts
        first = [key for key in reversed(self._chosen) if key in changed]
        told: dict[str, list[StageSlots]] = {}
        for key in [*first, *(key for key in changed if key not in self._chosen)]:
            told.setdefault(key[0], []).append(StageSlots(job_id=key[1], stage_id=key[2], slots=changed[key]))
        return told

    def _wake_ms(self) -> int | None:
        count = int(self._now["num_holds"])
        return int(self.state.holds.end_ms[:count].min()) if count else None

    def stage_row(self, application: str, job_id: int, stage_id: int) -> int:
        """The row of a client's stage; NO_STAGE where it is not in the system."""
        job = self._jobs.get((application, job_id))
        if job is None or stage_id not in job.position:
            return NO_STAGE
        return int(self.state.jobs.stage_start[job.row]) + job.position[stage_id]

    def stage_name(self, stage: int) -> tuple[str, int, int] | None:
        """(application, job_id, stage_id) of a stage's row; None for NO_STAGE."""
        if stage == NO_STAGE:
            return None
        job = self._by_row[int(self.state.stages.job[stage])]
        return job.application, job.job_id, job.stages[stage - int(self.state.jobs.stage_start[job.row])].stage_id

    @property
    def applications(self) -> list[str]:
        """Who takes part."""
        return list(self._members)

    @property
    def jobs(self) -> list[LiveJob]:
        """Jobs in the system, in order of arrival."""
        return [self._by_row[int(row)] for row in self.state.active[: int(self._now["num_active"])]]


def no_cluster() -> ClusterState:
    """The state before anything is known."""
    state = empty_state(1, Room(1, 1, 1))
    reset(state)
    return state
