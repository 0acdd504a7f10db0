"""What is known of a job that a client submits: its rows, and its durations from the profile, the message or experience."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import NO_PROFILE, STAGE_SPEC
from parcae.errors import ProtocolError
from parcae.service.protocol import Code, JobMessage, StageMessage
from parcae.simulation.config import SimulationConfig
from parcae.simulation.tables import WorkloadTables, workload_tables
from parcae.workloads.job import JobSpec, Workload

_Shape = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class JobRows:
    """A job as `job_arrived` takes it.

    Args:
        specs: STAGE_SPEC[num_stages].
        children: int64[number of edges], child stages by index; every stage's follow each other.
        profile: row of the recurring job in the workload, or NO_PROFILE.
        topological_order: stage indices, parents before children.
        is_learned: for every stage, whether its duration is (or will be) learned from its tasks.
    """

    specs: Any
    children: npt.NDArray[np.int64]
    profile: int
    topological_order: tuple[int, ...]
    is_learned: tuple[bool, ...]


def parents_by_index(job_id: int, stages: Sequence[StageMessage]) -> list[tuple[int, ...]]:
    """The parents of every stage as positions in `stages`, ascending.

    Raises:
        ProtocolError: a stage id twice, a parent that does not exist, or more tasks finished than there are.
    """
    index = {stage.stage_id: position for position, stage in enumerate(stages)}
    if len(index) < len(stages):
        raise ProtocolError(Code.DUPLICATE_STAGE, f"job {job_id}: two of its stages have one stage_id")
    for stage in stages:
        missing = [parent for parent in stage.parents if parent not in index]
        if missing:
            raise ProtocolError(Code.BAD_JOB, f"job {job_id}, stage {stage.stage_id}: parent {missing[0]} does not exist")
        if stage.finished > stage.tasks:
            raise ProtocolError(
                Code.BAD_JOB, f"job {job_id}, stage {stage.stage_id}: {stage.finished} of {stage.tasks} tasks finished"
            )
    return [tuple(sorted({index[parent] for parent in stage.parents})) for stage in stages]


def children_of(parents: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The children of every stage, ascending, from the parents."""
    children: list[list[int]] = [[] for _ in parents]
    for stage, own in enumerate(parents):
        for parent in own:
            children[parent].append(stage)
    return children


def topological_order(job_id: int, parents: Sequence[tuple[int, ...]], children: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Stage indices, parents before children.

    Raises:
        ProtocolError: a cycle.
    """
    missing = [len(own) for own in parents]
    order = [stage for stage, count in enumerate(missing) if count == 0]
    for stage in order:
        for child in children[stage]:
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    if len(order) < len(parents):
        stuck = [stage for stage, count in enumerate(missing) if count > 0]
        raise ProtocolError(Code.BAD_JOB, f"job {job_id}: a cycle through some of its stages at positions {stuck[:20]}")
    return tuple(order)


class DurationBook:
    """Task durations by recurring job: the profile's, those of the message, and what was learned.

    Args:
        workload: the profile, or None where there is none.
        config: the cluster that the profile's tables are made for.
        is_learning: learn unknown durations as tasks finish.

    Example: a job named "q9-100g" with the stages of the TPC-H profile's gets that profile's durations.
    """

    def __init__(self, workload: Workload | None, config: SimulationConfig | None = None, *, is_learning: bool = True) -> None:
        config = config or SimulationConfig()
        self.workload, self.is_learning = workload, is_learning
        self._learned: dict[tuple[str, int], tuple[int, float]] = {}
        self._profiles: dict[tuple[str, _Shape], int] = {}
        if workload is not None:
            self._tables: WorkloadTables = workload_tables(workload, config.durations, config.interpolation)
            for row, job in reversed(list(enumerate(workload.jobs))):  # of alike jobs, the first
                self._profiles[job.name, _shape_of(job)] = row

    def rows(self, job: JobMessage) -> JobRows:
        """The job's rows.

        Raises:
            ProtocolError: the job cannot be; the message says why.
        """
        parents = parents_by_index(job.job_id, job.stages)
        children = children_of(parents)
        order = topological_order(job.job_id, parents, children)
        shape = tuple((stage.tasks, own) for stage, own in zip(job.stages, parents, strict=True))
        profile = self._profiles.get((job.name, shape), NO_PROFILE)
        if profile != NO_PROFILE:
            return self._profiled(job, profile, order)
        task_ms, is_learned = self._told(job)
        specs = np.zeros(len(job.stages), STAGE_SPEC).view(np.recarray)
        for row, (stage, own, below) in enumerate(zip(job.stages, parents, children, strict=True)):
            start = int(specs.child_start[row - 1] + specs.num_children[row - 1]) if row else 0
            specs[row] = (stage.tasks, len(own), start, len(below), task_ms[row], 0.0, stage.cpu, stage.memory)
        for row in reversed(order):
            down = max((float(specs.downstream_ms[child]) for child in children[row]), default=0.0)
            specs.downstream_ms[row] = job.stages[row].tasks * task_ms[row] + down
        flat = np.array([child for below in children for child in below], np.int64)
        return JobRows(specs, flat, NO_PROFILE, order, is_learned)

    def _profiled(self, job: JobMessage, profile: int, order: tuple[int, ...]) -> JobRows:
        """The profile's rows, with the demands of the message."""
        tables, first = self._tables, self._tables.job_first_stage
        specs = tables.specs[first[profile] : first[profile + 1]].copy()
        start, count = int(specs.child_start[0]), int(specs.num_children.sum())
        specs.child_start -= start
        specs.cpu = [stage.cpu for stage in job.stages]
        specs.memory = [stage.memory for stage in job.stages]
        return JobRows(specs, tables.spec_children[start : start + count].copy(), profile, order, (False,) * len(specs))

    def _told(self, job: JobMessage) -> tuple[list[float], tuple[bool, ...]]:
        task_ms = [
            stage.task_ms if stage.task_ms is not None else self.learned_ms(job.name, position)
            for position, stage in enumerate(job.stages)
        ]
        return task_ms, tuple(self.is_learning and stage.task_ms is None for stage in job.stages)

    def learned_ms(self, name: str, position: int) -> float:
        """Mean duration of the tasks of this stage so far; 0 where none is known."""
        return self._learned.get((name, position), (0, 0.0))[1]

    def dump(self) -> list[tuple[str, int, int, float]]:
        """All that was learned: (name, position, number of tasks, mean in ms)."""
        return [(name, position, count, mean) for (name, position), (count, mean) in self._learned.items()]

    def recall(self, learned: Iterable[tuple[str, int, int, float]]) -> None:
        """Take up what another book dumped."""
        self._learned.update({(str(n), int(p)): (int(count), float(mean)) for n, p, count, mean in learned})

    def learn(self, name: str, position: int, duration_ms: int) -> float:
        """Add a task of a recurring job's stage. Returns the mean so far."""
        count, mean = self._learned.get((name, position), (0, 0.0))
        mean += (duration_ms - mean) / (count + 1)
        self._learned[name, position] = count + 1, mean
        return mean


def _shape_of(job: JobSpec) -> _Shape:
    return tuple((stage.num_tasks, stage.parents) for stage in job.stages)
