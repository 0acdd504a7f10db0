"""From a picture of the cluster (who runs what, which tasks are done) to its state, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from parcae.cluster.kernels.serving import drain_global_pool, place_idle, place_moving, place_running, restore_stage
from parcae.cluster.kernels.transitions import job_arrived, reset
from parcae.cluster.state import NO_JOB, ClusterState
from parcae.errors import ConfigError, ProtocolError
from parcae.service.jobs import DurationBook, JobRows
from parcae.service.open_jobs import NUM_HIDDEN, hide
from parcae.service.protocol import Code, JobMessage, StageMessage, Sync
from parcae.service.rows import Room, empty_state
from parcae.service.sizes import SlotSizes


@dataclass
class LiveJob:
    """A job in the system: whose it is, what its client called it, and its row."""

    application: str
    job_id: int
    name: str
    arrival_ms: int
    row: int
    stages: list[StageMessage]  # by position
    is_learned: list[bool]
    is_open: bool = False
    worked_ms: int = 0  # of its tasks that were seen to finish
    is_seen_whole: bool = True  # whether all of its tasks so far were
    position: dict[int, int] = field(init=False)  # stage_id -> position

    def __post_init__(self) -> None:
        self.index()

    def index(self) -> None:
        """Bring `position` up to date with `stages`."""
        self.position = {stage.stage_id: position for position, stage in enumerate(self.stages)}

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from others."""
        return self.application, self.job_id

    @property
    def num_hidden(self) -> int:
        """Rows of stages before those of `stages`."""
        return NUM_HIDDEN if self.is_open else 0

    @property
    def num_rows(self) -> int:
        """Rows of stages, the hidden one included."""
        return self.num_hidden + len(self.stages)


@dataclass(frozen=True)
class PlacedSlot:
    """A slot and what it does; `job_id` and `stage_id` are those of `application`."""

    slot: int
    state: str
    application: str | None = None
    job_id: int | None = None
    stage_id: int | None = None
    started_ms: int = 0


@dataclass(frozen=True)
class Picture:
    """All that a state is made from; jobs in order of arrival."""

    slots: tuple[PlacedSlot, ...]
    jobs: tuple[tuple[str, JobMessage], ...]  # application, job


def picture_of(application: str, sync: Sync, book: DurationBook) -> Picture:
    """What a client says of its cluster, checked; stages of jobs that the book knows are in the profile's order.

    Raises:
        ProtocolError: the message contradicts itself; it says where.
    """
    jobs = {job.job_id: job for job in sync.jobs}
    if len(jobs) < len(sync.jobs):
        raise ProtocolError(Code.DUPLICATE_JOB, "two jobs have one job_id")
    if len({slot.slot for slot in sync.slots}) < len(sync.slots):
        raise ProtocolError(Code.DUPLICATE_SLOT, "two slots have one number")
    running = Counter((s.job_id, s.stage_id) for s in sync.slots if s.state == "running")
    for job in sync.jobs:
        _check_progress(job, running)
    return Picture(
        tuple(
            _placed(application, slot.slot, slot.state, slot.job_id, slot.stage_id, jobs, sync.clock_ms) for slot in sync.slots
        ),
        tuple((application, book.as_profiled(job)) for job in sorted(sync.jobs, key=lambda job: job.arrival_ms)),
    )


def _check_progress(job: JobMessage, running: Counter[tuple[int | None, int | None]]) -> None:
    stages = {stage.stage_id: stage for stage in job.stages}
    if not job.is_open and all(stage.finished >= stage.tasks for stage in job.stages):
        raise ProtocolError(Code.BAD_JOB, f"job {job.job_id}: all of its tasks are finished; leave it out")
    for stage in job.stages:
        begun = stage.finished + running[job.job_id, stage.stage_id]
        if begun > stage.tasks:
            raise ProtocolError(
                Code.BAD_JOB, f"job {job.job_id}, stage {stage.stage_id}: {begun} of {stage.tasks} tasks finished or running"
            )
        for parent in stage.parents:
            if begun and parent in stages and stages[parent].finished < stages[parent].tasks:
                raise ProtocolError(
                    Code.BAD_JOB, f"job {job.job_id}, stage {stage.stage_id} has begun before its parent {parent} was done"
                )


def _placed(
    application: str, slot: int, state: str, job_id: int | None, stage_id: int | None, jobs: dict[int, JobMessage], clock_ms: int
) -> PlacedSlot:
    if state == "idle":
        return PlacedSlot(slot, state, application if job_id in jobs else None, job_id if job_id in jobs else None)
    if job_id is None or job_id not in jobs:
        raise ProtocolError(Code.UNKNOWN_JOB, f"slot {slot} is {state} for job {job_id}, which is not among the jobs")
    if stage_id not in {stage.stage_id for stage in jobs[job_id].stages}:
        raise ProtocolError(
            Code.UNKNOWN_STAGE, f"slot {slot} is {state} for stage {stage_id} of job {job_id}, which has none such"
        )
    return PlacedSlot(slot, state, application, job_id, stage_id, clock_ms)


def _right_of_way(placed: PlacedSlot) -> int:
    """Who runs a task has the slot; who waits for it to come gives way, and who only lets it idle even more."""
    return {"running": 3, "moving": 2}.get(placed.state, 0 if placed.application is None else 1)


def merged(told: Picture, others: Picture) -> tuple[Picture, list[PlacedSlot]]:
    """The picture of a shared cluster from what one application tells and what is known of the others.

    A slot is with one application at most. Where two say that it is with them (one was away while the service gave its slots
    to others, or the service is new and meets them one by one) the stronger claim counts, and of two alike that of the others.

    Returns:
        the picture, and the claims that do not count.
    """
    slots = {placed.slot: placed for placed in told.slots}
    lost = []
    for known in others.slots:
        claim = slots.get(known.slot, known)
        winner, loser = (claim, known) if _right_of_way(claim) > _right_of_way(known) else (known, claim)
        slots[known.slot] = winner
        if loser is not winner and loser.application is not None and loser.application != winner.application:
            lost.append(loser)
    jobs = sorted([*told.jobs, *others.jobs], key=lambda pair: pair[1].arrival_ms)
    return Picture(tuple(slots.values()), tuple(jobs)), lost


def restore(
    picture: Picture, sizes: SlotSizes, clock_ms: int, book: DurationBook, room: Room, *, is_exact: bool = False
) -> tuple[ClusterState, list[LiveJob]]:
    """The state that a picture shows. Its pools have yet to be offered.

    Args:
        room: of the tables, at least; grown where it does not suffice unless `is_exact`.

    Raises:
        ProtocolError: a job that cannot be, or slots of too many sizes.
    """
    rows = [book.rows(job.model_copy(update={"stages": sizes.demanded(own, job.stages)})) for own, job in picture.jobs]
    wanted = Room(len(rows), sum(len(r.specs) for r in rows), sum(len(r.children) for r in rows))
    fits = room.holds(wanted) if is_exact else room.holds(wanted + wanted)
    state = _empty_cluster(picture, sizes, room if fits else room.doubled_to_hold(wanted))
    state.now.clock_ms[0] = state.now.accounted_ms[0] = clock_ms
    running = Counter((s.application, s.job_id, s.stage_id) for s in picture.slots if s.state == "running")
    live = [
        _restore_job(state, application, job, own, running, clock_ms)
        for (application, job), own in zip(picture.jobs, rows, strict=True)
    ]
    by_key = {job.key: job for job in live}
    for executor, placed in enumerate(picture.slots):
        _place(state, executor, placed, by_key)
    return state, live


def _empty_cluster(picture: Picture, sizes: SlotSizes, room: Room) -> ClusterState:
    """A cluster without jobs, whose executors have yet to be placed."""
    classes, class_of = sizes.classes([placed.slot for placed in picture.slots])
    try:
        state = empty_state(classes, room)
    except ConfigError as error:
        raise ProtocolError(Code.BAD_SLOT, f"slots of {len(classes)} sizes ({error}); round their cpu and memory") from None
    reset(state)
    drain_global_pool(state)
    state.executors.executor_class = class_of
    return state


def _restore_job(
    state: ClusterState,
    application: str,
    job: JobMessage,
    rows: JobRows,
    running: Counter[tuple[str | None, int | None, int | None]],
    clock_ms: int,
) -> LiveJob:
    arrival_ms = min(job.arrival_ms, clock_ms)
    row = int(job_arrived(state, rows.specs, rows.children, 0, len(rows.specs), rows.profile, arrival_ms, 1.0))
    live = LiveJob(
        application, job.job_id, job.name, arrival_ms, row, list(job.stages), list(rows.is_learned), is_open=job.is_open
    )
    if job.is_open:
        hide(state, row)
    start = int(state.jobs.stage_start[row]) + live.num_hidden
    for position in rows.topological_order:
        stage = job.stages[position]
        num_running = running[application, job.job_id, stage.stage_id]
        if stage.finished or num_running:
            restore_stage(state, start + position, stage.finished, num_running, 0)
        live.is_seen_whole &= stage.finished == 0
    return live


def _place(state: ClusterState, executor: int, placed: PlacedSlot, jobs: dict[tuple[str, int], LiveJob]) -> None:
    if placed.application is None or placed.job_id is None:
        place_idle(state, executor, NO_JOB)
        return
    job = jobs[placed.application, placed.job_id]
    if placed.state == "idle" or placed.stage_id is None:
        place_idle(state, executor, job.row)
        return
    stage = int(state.jobs.stage_start[job.row]) + job.num_hidden + job.position[placed.stage_id]
    if placed.state == "running":
        place_running(state, executor, stage, placed.started_ms)
    else:
        place_moving(state, executor, stage)


def picture_from(
    state: ClusterState, slots: Sequence[int], jobs: Iterable[LiveJob], stage_names: dict[int, tuple[LiveJob, StageMessage]]
) -> Picture:
    """The picture of a state: what `restore` makes it from again. Commitments and idle slots that wait are not in it."""
    told = []
    for job in jobs:
        start = int(state.jobs.stage_start[job.row]) + job.num_hidden
        stages = tuple(
            stage.model_copy(update={"finished": int(state.stages.num_finished[start + position])})
            for position, stage in enumerate(job.stages)
        )
        message = JobMessage(job_id=job.job_id, name=job.name, arrival_ms=job.arrival_ms, is_open=job.is_open, stages=stages)
        told.append((job.application, message))
    by_row = {job.row: job for job in jobs}
    placed = tuple(_placed_from(state, executor, slot, by_row, stage_names) for executor, slot in enumerate(slots))
    return Picture(placed, tuple(told))


def _placed_from(
    state: ClusterState,
    executor: int,
    slot: int,
    jobs: dict[int, LiveJob],
    stage_names: dict[int, tuple[LiveJob, StageMessage]],
) -> PlacedSlot:
    executors = state.executors
    for kind, stage in (("running", int(executors.stage[executor])), ("moving", int(executors.destination[executor]))):
        if stage in stage_names:
            job, message = stage_names[stage]
            started_ms = int(executors.started_ms[executor])
            return PlacedSlot(slot, kind, job.application, job.job_id, message.stage_id, started_ms)
    owner = jobs.get(int(executors.job[executor]))
    if owner is None:
        return PlacedSlot(slot, "idle")
    return PlacedSlot(slot, "idle", owner.application, owner.job_id)
