"""Whose row is whose: the tables of one cluster together with what its clients call their jobs, stages and slots."""

from __future__ import annotations

import numpy as np

from parcae.cluster.kernels.transitions import reset
from parcae.cluster.state import NO_STAGE, ClusterState
from parcae.errors import ProtocolError
from parcae.service.protocol import Code, TaskFailed, TaskFinished
from parcae.service.restoring import LiveJob, Picture, picture_from
from parcae.service.rows import Room, empty_state, jobs_to_keep, relaid, used
from parcae.service.sizes import alike

#: (application, job_id, stage_id)
StageKey = tuple[str, int, int]


def no_cluster() -> ClusterState:
    """The state before anything is known."""
    state = empty_state(alike(1), Room(1, 1, 1))
    reset(state)
    return state


class Roster:
    """A cluster's tables and names.

    Args:
        state: the tables.
        jobs: the jobs in them.
        slots: the number of every executor row's slot.
    """

    def __init__(self, state: ClusterState, jobs: list[LiveJob], slots: list[int]) -> None:
        self._by_key = {job.key: job for job in jobs}
        self.by_row = {job.row: job for job in jobs}  # also jobs that have ended, until their rows are given back
        self.slots = slots
        self._executor_of = {slot: executor for executor, slot in enumerate(slots)}
        self._set(state)

    def _set(self, state: ClusterState) -> None:
        self.state = state
        self.now = state.now.view(np.ndarray)[0]

    @property
    def clock_ms(self) -> int:
        """The clients' clock, as far as it was heard."""
        return int(self.now["clock_ms"])

    @property
    def jobs(self) -> list[LiveJob]:
        """Jobs in the system, in order of arrival."""
        return [self.by_row[int(row)] for row in self.state.active[: int(self.now["num_active"])]]

    def add(self, job: LiveJob) -> None:
        """A job is in the system."""
        self._by_key[job.key] = self.by_row[job.row] = job

    def remove(self, job: LiveJob) -> None:
        """A job has ended; its id may be used again."""
        del self._by_key[job.key]

    def has_job(self, application: str, job_id: int) -> bool:
        """Whether the job is in the system."""
        return (application, job_id) in self._by_key

    def find(self, key: tuple[str, int]) -> LiveJob | None:
        """The job (application, job_id), or None where it is not in the system."""
        return self._by_key.get(key)

    def job(self, application: str, job_id: int) -> LiveJob:
        """The client's job.

        Raises:
            ProtocolError: it is not in the system.
        """
        job = self._by_key.get((application, job_id))
        if job is None:
            raise ProtocolError(Code.UNKNOWN_JOB, f"job {job_id} is not in the system")
        return job

    def executor(self, slot: int) -> int:
        """The slot's row.

        Raises:
            ProtocolError: there is no such slot.
        """
        executor = self._executor_of.get(slot)
        if executor is None:
            raise ProtocolError(Code.UNKNOWN_SLOT, f"slot {slot} is not one of the {len(self.slots)} slots of this cluster")
        return executor

    def executor_on(self, application: str, event: TaskFinished | TaskFailed) -> tuple[LiveJob, int, int, int]:
        """The job, the stage's position and row, and the executor, which runs a task of it.

        Raises:
            ProtocolError: it does not, or one of them is unknown.
        """
        job, executor = self.job(application, event.job_id), self.executor(event.slot)
        position = job.position.get(event.stage_id)
        if position is None:
            raise ProtocolError(Code.UNKNOWN_STAGE, f"job {event.job_id} has no stage {event.stage_id}")
        stage = self.start(job) + position
        if self.state.executors.stage[executor] != stage:
            raise ProtocolError(
                Code.WRONG_SLOT, f"slot {event.slot} does not run a task of stage {event.stage_id} of job {event.job_id}"
            )
        return job, position, stage, executor

    def start(self, job: LiveJob) -> int:
        """First row of the stages that the job's client knows."""
        return int(self.state.jobs.stage_start[job.row]) + job.num_hidden

    def owner(self, stage: int) -> LiveJob:
        """The job of a stage's row."""
        return self.by_row[int(self.state.stages.job[stage])]

    def stage_id(self, stage: int) -> int:
        """What its client calls a stage."""
        job = self.owner(stage)
        return job.stages[stage - self.start(job)].stage_id

    def stage_key(self, stage: int) -> StageKey | None:
        """What tells the stage from all others; None for NO_STAGE."""
        if stage == NO_STAGE:
            return None
        job = self.owner(stage)
        return job.application, job.job_id, self.stage_id(stage)

    def stage_row(self, application: str, job_id: int, stage_id: int) -> int:
        """The row of a client's stage; NO_STAGE where it is not in the system."""
        job = self._by_key.get((application, job_id))
        if job is None or stage_id not in job.position:
            return NO_STAGE
        return self.start(job) + job.position[stage_id]

    def stage_words(self, stage: int) -> str:
        """A stage for people."""
        if stage == NO_STAGE:
            return "idle"
        job = self.owner(stage)
        return f"{job.name or job.job_id} / {self.stage_id(stage)}"

    def picture(self) -> Picture:
        """What is known now, as the clients would say it."""
        jobs = self.jobs
        names = {self.start(job) + position: (job, stage) for job in jobs for position, stage in enumerate(job.stages)}
        return picture_from(self.state, self.slots, jobs, names)

    def num_edges(self, job: LiveJob) -> int:
        """Edges of the job's DAG."""
        start = self.start(job)
        return int(self.state.stages.num_children[start : start + len(job.stages)].sum())

    def make_room(self, more: Room) -> None:
        """Give rows of ended jobs back, or let the tables grow, where `more` would not fit."""
        room = Room.of(self.state)
        if not room.holds(used(self.state) + more):
            keep = jobs_to_keep(self.state)
            jobs = [self.by_row[row] for row in keep]
            wanted = Room(len(keep), sum(job.num_rows for job in jobs), sum(map(self.num_edges, jobs))) + more
            self._relay(keep, room if room.holds(wanted + wanted) else room.doubled_to_hold(wanted))

    def widen(self, job: LiveJob, num_stages: int, num_edges: int) -> None:
        """Leave blank rows behind the job's stages."""
        self.make_room(Room(0, num_stages, num_edges))
        self._relay(jobs_to_keep(self.state), Room.of(self.state), {job.row: (num_stages, num_edges)})

    def _relay(self, keep: list[int], room: Room, extra: dict[int, tuple[int, int]] | None = None) -> None:
        state, moved = relaid(self.state, keep, room, extra)
        kept = [self.by_row[row] for row in keep]
        for job in kept:
            job.row = int(moved[job.row])
        self.by_row = {job.row: job for job in kept}
        self._set(state)
