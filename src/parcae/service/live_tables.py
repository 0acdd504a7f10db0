"""`LiveTables`: the cluster's tables of a live cluster, and the jobs that their rows belong to.

Rows of ended jobs are released, and the policy's virtual runs move along.

Terms: a *row* is an index into the cluster's tables, a *position* is an index into the stages that
the client has listed for a job.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from parcae.cluster.kernels.serving import resize
from parcae.cluster.state import ClusterState
from parcae.service.jobs import DurationModel, RecurringJob
from parcae.service.policies import Planning, PolicyFor
from parcae.service.protocol import OrdersMessage
from parcae.service.tables import (
    FIRST_ROOM,
    Room,
    empty_state,
    grown,
    kept_jobs,
    repack,
    room_of,
    stages_of,
    with_more_cores,
)

#: A cluster with more jobs or stages than this is large.
_MANY = Room(1_000, 4_000, 0)


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
    """A job in the system."""

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
    positions: dict[int, int] = field(init=False)
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.list_stages(self.stage_ids, self.parents)

    def list_stages(self, stage_ids: list[int], parents: list[tuple[int, ...]]) -> None:
        """Set the ids and the parents of all stages that the client has listed, by position."""
        self.stage_ids = stage_ids
        self.parents = parents
        self.positions = {stage_id: position for position, stage_id in enumerate(stage_ids)}

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
    """A job that ended successfully."""

    application: str
    job_id: str
    name: str
    took_ms: int


@dataclass(frozen=True)
class LiveSettings:
    """How the state of a live cluster is kept."""

    num_cores: int | None = None
    follows_simulator: bool = False
    room: Room = FIRST_ROOM


#: The settings for one application, which reports its cores.
ALONE = LiveSettings()


class LiveTables:
    """The tables of one cluster, with room for the jobs that its applications report."""

    def __init__(
        self, policy_for: PolicyFor, duration_model: DurationModel, settings: LiveSettings
    ) -> None:
        self._policy_for = policy_for
        self._duration_model = duration_model
        self._settings = settings
        self.jobs: dict[tuple[str, str], LiveJob] = {}
        self.by_row: dict[int, LiveJob] = {}
        self.own: dict[str, dict[str, LiveJob]] = {}  # by application, in order of arrival
        # By application; a new one when the orders may have changed.
        self._cached_orders: dict[str, OrdersMessage] = {}
        self._measured: ClusterState | None = None  # the state that `_num_bytes` is of
        self._num_bytes = 0
        self._begin(settings.num_cores or 1, 0)

    def _begin(self, num_cores: int, clock_ms: int) -> None:
        """Replace everything by an empty cluster."""
        state = empty_state(num_cores, self._settings.room)
        state.now["is_corrected"][0] = 1
        state.now["guess_ms"][0] = self._duration_model.typical_task_ms
        state.now["clock_ms"][0] = state.now["accounted_ms"][0] = clock_ms
        self.jobs.clear()
        self.by_row.clear()
        self.own.clear()
        self._gone = list[int]()  # rows of jobs that went without a trace
        self._cached_orders = {}
        self._reveals: deque[int] = deque()
        self._use(state)
        self.planning = Planning(self._policy_for, num_cores, room_of(state))
        self.planning.begin(state)

    def _use(self, state: ClusterState) -> None:
        """Take new tables into use."""
        self.state = state
        # Columns as plain arrays, which are faster to read than attributes of a record array.
        self._now, self._job, self._stage, self._job_order = (
            {name: np.asarray(table)[name] for name in table.dtype.names}
            for table in (state.now, state.jobs, state.stages, state.job_orders)
        )

    @property
    def clock_ms(self) -> int:
        """The cluster's clock."""
        return int(self._now["clock_ms"][0])

    @property
    def num_cores(self) -> int:
        """Number of cores of the cluster, at least 1."""
        return int(self._now["num_executors"][0])

    @property
    def num_bytes(self) -> int:
        """The size of the tables."""
        if self._measured is not self.state:
            self._measured = self.state
            runs = [table for run in self.planning.runs for table in run]
            self._num_bytes = sum(table.nbytes for table in (*self.state, *runs))
        return self._num_bytes

    @property
    def is_large(self) -> bool:
        """Whether the cluster has so many jobs or stages that a plan may take milliseconds."""
        return self.num_jobs > _MANY.jobs or int(self._now["num_stages"][0]) > _MANY.stages

    @property
    def num_jobs(self) -> int:
        """Number of jobs in the system."""
        return int(self._now["num_active"][0])

    @property
    def num_running(self) -> int:
        """Number of running tasks."""
        active = self.state.active[: self.num_jobs]
        return int(self._job["num_attached"][active].sum())

    def stage_row(self, job: LiveJob, position: int) -> int:
        """The row of the stage at a position of the job."""
        return int(self._job["stage_start"][job.row]) + job.num_hidden + position

    def _task_counts(self, row: int) -> tuple[int, int, int]:
        """Numbers of all, of started and of finished tasks of the stage in a row."""
        names = ("num_tasks", "num_started", "num_finished")
        num_tasks, num_started, num_finished = (int(self._stage[name][row]) for name in names)
        return num_tasks, num_started, num_finished

    def _make_room(self, more: Room, job: LiveJob | None = None) -> None:
        """Make room for more rows; with `job`, the stages must directly follow those of the job."""
        room = room_of(self.state)
        used = Room(*(int(self._now[name][0]) for name in ("num_jobs", "num_stages", "num_edges")))
        if job is not None:
            if job.row + 1 < used.jobs:  # the rows up to the next job's are free
                room = room._replace(stages=int(self._job["stage_start"][job.row + 1]))
            used = used._replace(stages=self._rows_of(job.row).stop)
        if not room.covers(used.plus(more)):
            self._repack(more, job)

    def _repack(self, more: Room, job: LiveJob | None = None) -> None:
        """Release the rows of ended jobs and make room for more; half of the tables stays free."""
        kept = kept_jobs(self.state, self.planning.runs, self._gone)
        self._gone.clear()
        # An open job gets as many free rows behind its stages as it has stages, plus two.
        open_rows = [row for row, live in self.by_row.items() if live.is_open]
        counts = self._job["num_stages"][kept]
        spare = np.where(np.isin(kept, open_rows), counts + 2, 0)
        if job is not None:
            spare[kept == job.row] += more.stages
        num_edges = int(self._stage["num_children"][stages_of(self.state, kept)].sum())
        needed = Room(
            # Who has taken more than the split may keep an account without a job.
            max(2 * (len(kept) + more.jobs), int(self._now["num_accounts"][0])),
            2 * (int(counts.sum() + spare.sum()) + more.stages),
            2 * (num_edges + more.edges) + 2,
        )
        room = grown(self._settings.room, needed)
        repacked = repack(self.state, kept, spare, room)
        self._use(repacked.state)
        self.planning.moved(repacked, room)
        for live in self.jobs.values():
            live.row = int(repacked.jobs[live.row])
        self.by_row = {live.row: live for live in self.jobs.values()}
        self._reveals = deque(int(repacked.stages[row]) for row in self._reveals)

    def _rows_of(self, row: int) -> range:
        start = int(self._job["stage_start"][row])
        return range(start, start + int(self._job["num_stages"][row]))

    def _resize(self, num_cores: int) -> None:
        if num_cores == self.num_cores:
            return
        # Rows are added but never removed: `resize` decides which of them stand for a core.
        if num_cores > len(self.state.executors):
            self._use(with_more_cores(self.state, num_cores))
        resize(self.state, num_cores)
        self.planning.resize(num_cores)
