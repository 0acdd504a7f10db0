"""Tables of a live cluster that grow when needed and release the rows of ended jobs.

Rows are in order of arrival. Some ended jobs keep their rows: the latest jobs, from which policies
learn how estimates err and how much work arrives, and the jobs that have not ended in a virtual run
of fair sharing. Open jobs have free rows behind their stages, for stages to come.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.cluster.kernels.dispatch import refresh_contenders
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
    select,
)

Rows = npt.NDArray[np.int64]
#: Number of latest jobs that keep their rows: rules learn from 64.
_LATEST = 130
#: Number of ended jobs that keep their rows for a virtual run; if there are more, the oldest go.
_MOST_VIRTUAL = 1_000


class Room(NamedTuple):
    """The size of the tables: numbers of jobs, stages and edges."""

    jobs: int
    stages: int
    edges: int

    def covers(self, other: Room) -> bool:
        """Whether the other size fits into this one."""
        return all(mine >= theirs for mine, theirs in zip(self, other, strict=True))

    def plus(self, *others: Room) -> Room:
        """The room for all."""
        return Room(*map(sum, zip(self, *others, strict=True)))


NOTHING = Room(0, 0, 0)
#: Size of the tables of a new cluster.
FIRST_ROOM = Room(256, 1_024, 1_024)


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


def kept_jobs(state: ClusterState, runs: list[VirtualRun], dropped: Collection[int]) -> Rows:
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
    keeps[list(dropped)] = False
    return np.flatnonzero(keeps)


def ranges(starts: Rows, counts: Rows) -> Rows:
    """The numbers of several ranges, one range after the other."""
    return np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def stages_of(state: ClusterState, jobs: Rows) -> Rows:
    """The rows of the stages of some jobs."""
    columns = np.asarray(state.jobs)[jobs]
    return ranges(columns["stage_start"], columns["num_stages"])


def repack(state: ClusterState, kept: Rows, spare: Rows, room: Room) -> Repacked:
    """Copy the cluster with some of its jobs into new tables, with `spare` rows behind each job."""
    new = empty_state(len(state.executors), room)
    counts = np.asarray(state.jobs["num_stages"])[kept]
    ends = np.cumsum(counts + spare)
    starts = ends - spare - counts
    old_stages = stages_of(state, kept)
    stages = ranges(starts, counts)
    job_map = np.full(int(state.now.num_jobs[0]), NO_JOB, np.int64)
    job_map[kept] = np.arange(len(kept))
    stage_map = np.full(int(state.now.num_stages[0]), NO_STAGE, np.int64)
    stage_map[old_stages] = stages
    for name in ("jobs", "job_orders", "contenders"):
        getattr(new, name)[: len(kept)] = getattr(state, name)[kept]
    for name in ("stages", "stage_orders"):
        getattr(new, name)[stages] = getattr(state, name)[old_stages]
    new.jobs["stage_start"][: len(kept)] = starts
    new.stages["job"][stages] = np.repeat(np.arange(len(kept)), counts)
    # The edges of one parent stay contiguous.
    num_children = np.asarray(state.stages["num_children"])[old_stages]
    edges = ranges(np.asarray(state.stages["child_start"])[old_stages], num_children)
    new.children[: len(edges)] = stage_map[state.children[edges]]
    new.stages["child_start"][stages] = np.cumsum(num_children) - num_children
    new.now[0] = state.now[0]
    new.now.num_jobs[0] = len(kept)
    new.now.num_stages[0] = ends[-1] if len(kept) else 0
    new.now.num_edges[0] = len(edges)
    new.sources[0] = state.sources[0]
    num_accounts = int(state.now.num_accounts[0])
    new.accounts[:num_accounts] = state.accounts[:num_accounts]
    for name in ("pools", "classes", "executors"):
        getattr(new, name)[:] = getattr(state, name)
    for name, mapping in (("job", job_map), ("stage", stage_map)):
        column = new.executors[name]  # -1: no job, no stage
        column[column >= 0] = mapping[column[column >= 0]]
    _copy_active(state, new, job_map)
    return Repacked(new, job_map, stage_map)


def _copy_active(state: ClusterState, new: ClusterState, job_map: Rows) -> None:
    """Copy the list of active jobs, and build the winner tree of jobs anew: it holds rows."""
    active = job_map[state.active[: int(state.now.num_active[0])]]
    active = active[active != NO_JOB]
    new.active[: len(active)] = active
    new.now.num_active[0] = len(active)
    new.contenders["front"] = NO_STAGE
    refresh_contenders(new)


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
