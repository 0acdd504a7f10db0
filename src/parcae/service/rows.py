"""Room in the tables: rows of finished jobs are given back, and tables grow; nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.kernels.serving import durations_changed
from parcae.cluster.kernels.tables import count_schedulable_stage
from parcae.cluster.state import NO_JOB, NO_PROFILE, NO_STAGE, NOT_YET, ClusterState, ExecutorClass, allocate, select
from parcae.service.protocol import StageMessage

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Room:
    """How many jobs, stages and edges the tables hold."""

    jobs: int = 64
    stages: int = 1_024
    edges: int = 2_048

    @classmethod
    def of(cls, state: ClusterState) -> Room:
        """The room of a state's tables."""
        return cls(len(state.jobs), len(state.stages), len(state.children))

    def holds(self, other: Room) -> bool:
        """Whether `other` fits."""
        return self.jobs >= other.jobs and self.stages >= other.stages and self.edges >= other.edges

    def doubled_to_hold(self, other: Room) -> Room:
        """Every table doubled until twice `other` fits, so that rows are not given back all the time."""

        def grown(size: int, wanted: int) -> int:
            while size < 2 * wanted:
                size *= 2
            return size

        return Room(grown(self.jobs, other.jobs), grown(self.stages, other.stages), grown(self.edges, other.edges))

    def __add__(self, other: Room) -> Room:
        return Room(self.jobs + other.jobs, self.stages + other.stages, self.edges + other.edges)


def empty_state(classes: tuple[ExecutorClass, ...], room: Room) -> ClusterState:
    """A cluster without jobs."""
    return select(allocate(1, classes, room.jobs, room.stages, room.edges), 0)


def used(state: ClusterState) -> Room:
    """The rows that are filled."""
    now = state.now[0]
    return Room(int(now.num_jobs), int(now.num_stages), int(now.num_edges))


def jobs_to_keep(state: ClusterState) -> list[int]:
    """Jobs in the system, and those that something still refers to (an executor on its way, a commitment, an idle slot)."""
    now, num_jobs = state.now[0], int(state.now.num_jobs[0])
    keep = state.jobs.completion_ms[:num_jobs] == NOT_YET
    commitments = state.commitments[: now.num_commitment_rows]
    commitments = commitments[commitments["count"] > 0]
    sources_jobs = _job_of_source(state, commitments.source)
    holds = state.holds[: now.num_holds]
    stages = [state.executors.stage, state.executors.destination, commitments.stage, holds.stage]
    jobs = [state.executors.job, commitments.source_job, sources_jobs]
    jobs += [state.stages.job[rows[rows != NO_STAGE]] for rows in stages]
    for rows in jobs:
        keep[rows[rows != NO_JOB]] = True
    return [int(job) for job in np.flatnonzero(keep)]


def _job_of_source(state: ClusterState, source: Any) -> Rows:
    num_pools = (len(state.jobs) + 1) * len(state.classes)
    rows = np.asarray(source, np.int64) // len(state.classes)
    stage = np.clip(rows - len(state.jobs) - 1, 0, len(state.stages) - 1)
    jobs: Rows = np.where(np.asarray(source) < num_pools, rows - 1, state.stages.job[stage])
    return jobs


@dataclass
class _Move:
    """Where rows go: old row to new row, with -1 to -1."""

    jobs: Rows
    stages: Rows


def relaid(
    state: ClusterState, keep: list[int], room: Room, extra: Mapping[int, tuple[int, int]] | None = None
) -> tuple[ClusterState, Rows]:
    """The same cluster in other tables: only the jobs `keep` (ascending), in their order.

    Args:
        extra: job to (number of stages, number of edges): blank rows left behind its own, which the caller fills.

    Returns:
        the state, and int64[num_jobs + 1]: the new row of every old job (NO_JOB for those that are gone; the last is NO_JOB,
        so that it can be indexed by NO_JOB).
    """
    extra = extra or {}
    fresh = empty_state(tuple(ExecutorClass(int(c.num_executors), float(c.cpu), float(c.memory)) for c in state.classes), room)
    move = _Move(np.full(len(state.jobs) + 1, NO_JOB), np.full(len(state.stages) + 1, NO_STAGE))
    next_stage = next_edge = 0
    for row, job in enumerate(keep):
        more_stages, more_edges = extra.get(job, (0, 0))
        num_stages, num_edges = _copy_job(state, fresh, job, row, next_stage, next_edge, move)
        next_stage, next_edge = next_stage + num_stages + more_stages, next_edge + num_edges + more_edges
    _copy_executors(state, fresh, move)
    _copy_commitments(state, fresh, move)
    _copy_now(state, fresh, move, (len(keep), next_stage, next_edge))
    return fresh, move.jobs


def _copy_job(
    state: ClusterState, fresh: ClusterState, job: int, row: int, stage: int, edge: int, move: _Move
) -> tuple[int, int]:
    first, count = int(state.jobs.stage_start[job]), int(state.jobs.num_stages[job])
    old, new = slice(first, first + count), slice(stage, stage + count)
    first_edge, num_edges = int(state.stages.child_start[first]), int(state.stages.num_children[old].sum())
    fresh.jobs[row] = state.jobs[job]
    fresh.jobs.stage_start[row] = stage
    fresh.stages[new] = state.stages[old]
    fresh.stages.job[new] = row
    fresh.stages.child_start[new] += edge - first_edge
    fresh.children[edge : edge + num_edges] = state.children[first_edge : first_edge + num_edges] + (stage - first)
    sources, fresh_sources = _by_owner(state), _by_owner(fresh)
    fresh_sources[row + 1] = sources[job + 1]
    old_row, new_row = len(state.jobs) + 1, len(fresh.jobs) + 1
    fresh_sources[new_row + stage : new_row + stage + count] = sources[old_row + first : old_row + first + count]
    move.jobs[job] = row
    move.stages[old] = np.arange(stage, stage + count)
    return count, num_edges


def _by_owner(state: ClusterState) -> Any:
    """SOURCE[1 + number of jobs + number of stages, number of classes]: the sources of the global pool, of jobs and of stages."""
    return state.sources.reshape(-1, len(state.classes))


def _copy_executors(state: ClusterState, fresh: ClusterState, move: _Move) -> None:
    fresh.executors[:] = state.executors
    fresh.executors.job = move.jobs[state.executors.job]
    fresh.executors.stage = move.stages[state.executors.stage]
    fresh.executors.destination = move.stages[state.executors.destination]
    _by_owner(fresh)[0] = _by_owner(state)[0]
    fresh.source_count[:] = state.source_count
    fresh.classes[:] = state.classes


def _moved_source(state: ClusterState, fresh: ClusterState, source: Rows, move: _Move) -> Rows:
    num_pools, num_classes = len(state.jobs) + 1, len(state.classes)
    owner, executor_class = np.divmod(source, num_classes)
    job = move.jobs[np.clip(owner, 0, num_pools - 1) - 1]
    stage = move.stages[np.clip(owner - num_pools, -1, len(state.stages) - 1)]
    moved: Rows = num_classes * np.where(owner < num_pools, job + 1, len(fresh.jobs) + 1 + stage) + executor_class
    return moved


def _copy_commitments(state: ClusterState, fresh: ClusterState, move: _Move) -> None:
    count = int(state.now.num_commitment_rows[0])
    fresh.commitments[:count] = state.commitments[:count]
    live = np.flatnonzero(state.commitments["count"][:count] > 0)
    old = state.commitments[live]
    fresh.commitments.source[live] = _moved_source(state, fresh, np.asarray(old.source), move)
    fresh.commitments.source_job[live] = move.jobs[old.source_job]
    fresh.commitments.stage[live] = move.stages[old.stage]


def _copy_now(state: ClusterState, fresh: ClusterState, move: _Move, filled: tuple[int, int, int]) -> None:
    fresh.now[0] = state.now[0]
    now, num_holds = fresh.now, int(state.now.num_holds[0])
    now.num_jobs[0], now.num_stages[0], now.num_edges[0] = filled
    now.source_job[0] = move.jobs[state.now.source_job[0]]
    now.source[0] = _moved_source(state, fresh, np.asarray(state.now.source), move)[0]
    num_active = int(now.num_active[0])
    fresh.active[:num_active] = move.jobs[state.active[:num_active]]
    fresh.holds[:num_holds] = state.holds[:num_holds]
    fresh.holds.stage[:num_holds] = move.stages[state.holds.stage[:num_holds]]


def fill_added_stages(
    state: ClusterState,
    job: int,
    stages: Sequence[StageMessage],
    parents: Sequence[tuple[int, ...]],
    children: Sequence[Sequence[int]],
    task_ms: Sequence[float],
    num_hidden: int = 0,
) -> None:
    """Fill the blank rows behind a job's stages.

    Args:
        num_hidden: rows of the job before those of `stages`; a job that has any keeps its profile, of which it was a part before.
        stages, parents, children: of the whole job, by position; the old ones first.
        task_ms: known mean durations of the new ones.
    """
    jobs, table, start = state.jobs, state.stages, int(state.jobs.stage_start[job]) + num_hidden
    num_old, num_all = int(jobs.num_stages[job]) - num_hidden, len(stages)
    edge = int(table.child_start[start])
    for position, below in enumerate(children):
        table.child_start[start + position], table.num_children[start + position] = edge, len(below)
        state.children[edge : edge + len(below)] = [start + child for child in below]
        edge += len(below)
    for position in range(num_old, num_all):
        _fill_stage(state, job, start + position, stages[position], task_ms[position - num_old])
    for position in range(num_old, num_all):
        _link_stage(state, job, start + position, [start + parent for parent in parents[position]])
    was_open = bool(jobs.num_unsaturated[job] > 0)
    jobs.num_stages[job] = num_hidden + num_all
    jobs.num_unsaturated[job] += num_all - num_old
    jobs.num_unstarted[job] += num_all - num_old
    if num_hidden == 0:
        jobs.profile[job] = NO_PROFILE
    state.now.num_open[0] += 0 if was_open else 1
    durations_changed(state, job)


def _fill_stage(state: ClusterState, job: int, stage: int, message: StageMessage, task_ms: float) -> None:
    table = state.stages  # the row is blank: all zero
    table.num_tasks[stage], table.job[stage], table.task_ms[stage] = message.tasks, job, task_ms
    table.cpu[stage], table.memory[stage] = message.cpu, message.memory
    table.frontier_rank[stage], table.hold_from_ms[stage], table.hold_until_ms[stage] = -1, NOT_YET, NOT_YET
    fits = (state.classes.cpu >= message.cpu) & (state.classes.memory >= message.memory)
    table.fits[stage] = sum(1 << int(row) for row in np.flatnonzero(fits))


def _link_stage(state: ClusterState, job: int, stage: int, parents: list[int]) -> None:
    table, jobs = state.stages, state.jobs
    table.num_parents_unsaturated[stage] = sum(int(table.is_saturated[parent] == 0) for parent in parents)
    table.num_parents_unfinished[stage] = sum(int(table.num_finished[parent] < table.num_tasks[parent]) for parent in parents)
    if table.num_parents_unfinished[stage] == 0:
        table.frontier_rank[stage] = jobs.num_joined[job]
        jobs.num_joined[job] += 1
    if table.num_parents_unsaturated[stage] == 0:
        count_schedulable_stage(state, stage, 1)
