"""Tables of a live cluster that grow when needed and release the rows of ended jobs.

Rows are in order of arrival. Some ended jobs keep their rows: the latest jobs, from which policies
learn how estimates err and how much work arrives, and the jobs that have not ended in a virtual run
of fair sharing. Open jobs have free rows behind their stages, for stages to come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.cluster.kernels.dispatch import refresh_contender
from parcae.cluster.kernels.transitions import reset
from parcae.cluster.state import (
    NO_JOB,
    NO_STAGE,
    NOT_YET,
    ClusterState,
    ExecutorClass,
    VirtualRun,
    World,
    allocate,
    allocate_virtual,
    select,
)
from parcae.service.pieces import make_way

Rows = npt.NDArray[np.int64]
#: Number of latest jobs that keep their rows: the guard learns from 128 and the job before them.
_LATEST = 130
#: Number of ended jobs that keep their rows for a virtual run; if there are more, the oldest go.
_MOST_VIRTUAL = 1_000
_ROOM_JOBS = 256
_ROOM_STAGES = 1_024
_ROOM_EDGES = 1_024


class Room(NamedTuple):
    """The size of the tables: numbers of jobs, stages and edges."""

    jobs: int
    stages: int
    edges: int

    def covers(self, other: Room) -> bool:
        """Whether the other size fits into this one."""
        return all(mine >= theirs for mine, theirs in zip(self, other, strict=True))


#: Size of the tables of a new cluster.
FIRST_ROOM = Room(_ROOM_JOBS, _ROOM_STAGES, _ROOM_EDGES)


def empty_state(num_cores: int, room: Room) -> ClusterState:
    """A new cluster of the world of cores without jobs."""
    cores = ExecutorClass(max(1, num_cores), float("inf"), float("inf"))
    state = select(allocate(1, (cores,), *room, World.CORES), 0)
    reset(state)
    return state


def room_of(state: ClusterState) -> Room:
    """The size of the state's tables."""
    return Room(len(state.jobs), len(state.stages), len(state.children))


class Repacked(NamedTuple):
    """New tables, and the new row of every old row (NO_JOB or NO_STAGE if it was released)."""

    state: ClusterState
    jobs: Rows  # int64[old number of jobs], new row of each job
    stages: Rows  # int64[old number of stages], new row of each stage


def kept_jobs(
    state: ClusterState, runs: list[VirtualRun], is_dropped: Callable[[int], bool]
) -> Rows:
    """The rows of the jobs that must stay, ascending."""
    num_jobs = int(state.now.num_jobs[0])
    keeps = np.asarray(state.jobs["completion_ms"][:num_jobs]) == NOT_YET
    is_member = np.zeros(num_jobs, bool)
    for run in runs:
        is_member[run.jobs["member"][: int(run.now.num_members[0])]] = True
    # Ended jobs that still take part in a virtual run.
    late = np.flatnonzero(is_member & ~keeps)
    keeps[late[-_MOST_VIRTUAL:]] = True
    keeps[max(0, num_jobs - _LATEST) :] = True
    rows = np.flatnonzero(keeps)
    return np.array([row for row in rows.tolist() if not is_dropped(row)], np.int64)


def repack(state: ClusterState, kept: Rows, spare: Callable[[int], int], room: Room) -> Repacked:
    """Copy the cluster with some of its jobs into new tables."""
    new = empty_state(len(state.executors), room)
    job_map, stage_map, num_stages = _new_rows(state, kept, spare)
    _copy_rows(state, new, job_map, stage_map)
    num_edges = _copy_edges(state, new, stage_map)
    new.now[0] = state.now[0]
    new.now.num_jobs[0] = len(kept)
    new.now.num_stages[0] = num_stages
    new.now.num_edges[0] = num_edges
    new.sources[0] = state.sources[0]
    for name in ("pools", "classes"):
        getattr(new, name)[:] = getattr(state, name)
    _copy_executors(state, new, job_map, stage_map)
    _copy_guard_run(state, new, job_map, stage_map)
    _copy_active(state, new, job_map)
    return Repacked(new, job_map, stage_map)


def _new_rows(
    state: ClusterState, kept: Rows, spare: Callable[[int], int]
) -> tuple[Rows, Rows, int]:
    """The new row of every old job and of every old stage, and the number of new stage rows."""
    job_map = np.full(int(state.now.num_jobs[0]), NO_JOB, np.int64)
    stage_map = np.full(int(state.now.num_stages[0]), NO_STAGE, np.int64)
    job_map[kept] = np.arange(len(kept))
    starts = state.jobs["stage_start"]
    counts = state.jobs["num_stages"]
    next_stage = 0
    for row in kept.tolist():
        make_way()
        count = int(counts[row])
        start = int(starts[row])
        stage_map[start : start + count] = np.arange(next_stage, next_stage + count)
        next_stage += count + spare(row)
    return job_map, stage_map, next_stage


def _copy_executors(state: ClusterState, new: ClusterState, job_map: Rows, stage_map: Rows) -> None:
    new.executors[:] = state.executors
    for name, mapping in (("job", job_map), ("stage", stage_map)):
        column = new.executors[name]  # -1: no job, no stage
        column[column >= 0] = mapping[column[column >= 0]]


def _copy_guard_run(state: ClusterState, new: ClusterState, job_map: Rows, stage_map: Rows) -> None:
    for table in ("virtual_now", "virtual_jobs", "virtual_stages"):
        getattr(new, table)[:] = 0
    run = VirtualRun(new.virtual_now, new.virtual_jobs, new.virtual_stages)
    old_run = VirtualRun(state.virtual_now, state.virtual_jobs, state.virtual_stages)
    copy_virtual(old_run, run, job_map, stage_map)


def _copy_active(state: ClusterState, new: ClusterState, job_map: Rows) -> None:
    """Copy the list of active jobs, and build the winner tree of jobs anew: it holds rows."""
    active = job_map[state.active[: int(state.now.num_active[0])]]
    active = active[active != NO_JOB]
    new.active[: len(active)] = active
    new.now.num_active[0] = len(active)
    new.contest[:] = NO_JOB
    new.contenders["front"] = NO_STAGE
    for job in active.tolist():
        make_way()
        refresh_contender(new, job)


def _copy_rows(state: ClusterState, new: ClusterState, job_map: Rows, stage_map: Rows) -> None:
    jobs = np.flatnonzero(job_map >= 0)
    stages = np.flatnonzero(stage_map >= 0)
    for name in ("jobs", "job_orders", "contenders"):
        getattr(new, name)[job_map[jobs]] = getattr(state, name)[jobs]
    for name in ("stages", "stage_orders"):
        getattr(new, name)[stage_map[stages]] = getattr(state, name)[stages]
    jobs = jobs[np.asarray(state.jobs["num_stages"][jobs]) > 0]
    first = np.asarray(state.jobs["stage_start"][jobs])
    new.jobs["stage_start"][job_map[jobs]] = stage_map[first]
    new.stages["job"][stage_map[stages]] = job_map[np.asarray(state.stages["job"][stages])]


def _copy_edges(state: ClusterState, new: ClusterState, stage_map: Rows) -> int:
    """Copy the edges, those of one parent contiguously. Returns their number."""
    num_edges = 0
    starts = state.stages["child_start"]
    counts = state.stages["num_children"]
    for stage in np.flatnonzero(stage_map >= 0).tolist():
        make_way()
        count = int(counts[stage])
        start = int(starts[stage])
        row = stage_map[stage]
        new.children[num_edges : num_edges + count] = stage_map[
            state.children[start : start + count]
        ]
        new.stages["child_start"][row] = num_edges
        num_edges += count
    return num_edges


def copy_virtual(old: VirtualRun, new: VirtualRun, job_map: Rows, stage_map: Rows) -> None:
    """Copy a virtual run into new tables; jobs whose row was released leave it."""
    num_jobs = int(old.now.num_jobs[0])
    jobs = np.flatnonzero(job_map[:num_jobs] >= 0)
    stages = np.flatnonzero(stage_map >= 0)
    stages = stages[stages < len(old.stages)]
    new.jobs[job_map[jobs]] = old.jobs[jobs]
    new.stages[stage_map[stages]] = old.stages[stages]
    # `member` lists the rows of the jobs that have not ended in this run.
    rows = job_map[old.jobs["member"][: int(old.now.num_members[0])]]
    rows = rows[rows != NO_JOB]
    new.jobs["member"][: len(rows)] = rows
    new.now[0] = old.now[0]
    new.now.num_jobs[0] = len(jobs)
    new.now.num_members[0] = len(rows)


def new_virtual(room: Room) -> VirtualRun:
    """An empty virtual run."""
    return allocate_virtual(room.jobs, room.stages)


def grown(room: Room, needed: Room) -> Room:
    """The size, with every number raised to a power of two >= the needed one if it is too small."""
    return Room(
        *(max(have, 1 << (need - 1).bit_length()) for have, need in zip(room, needed, strict=True))
    )


def with_more_cores(state: ClusterState, num_rows: int) -> ClusterState:
    """The state with `num_rows` executor rows; the new rows stand for no core yet."""
    cores = ExecutorClass(num_rows, float("inf"), float("inf"))
    new = select(allocate(1, (cores,), 1, 1, 1, World.CORES), 0)
    old_rows = len(state.executors)
    new.executors[:old_rows] = state.executors
    for name in ("job", "stage", "destination"):
        new.executors[name][old_rows:] = -1
    return state._replace(
        executors=new.executors, commitments=new.commitments, commands=new.commands
    )
