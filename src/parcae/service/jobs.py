"""What is known of a job that a client submits: its rows, and its durations from the profile, the message or experience."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import NO_PROFILE, STAGE_SPEC
from parcae.errors import ProtocolError
from parcae.service.learned import Learned
from parcae.service.open_jobs import NUM_HIDDEN, with_hidden
from parcae.service.protocol import Code, JobMessage, StageMessage
from parcae.service.shapes import Signature, matching_order, signature, stage_colors
from parcae.simulation.config import SimulationConfig
from parcae.simulation.tables import WorkloadTables, workload_tables
from parcae.workloads.job import JobSpec, Workload

_Shape = tuple[tuple[int, tuple[int, ...]], ...]
#: What a task is taken to last where neither profile nor experience say anything.
ASSUMED_TASK_MS = 1_000.0


@dataclass(frozen=True)
class JobRows:
    """A job as `job_arrived` takes it.

    Args:
        specs: STAGE_SPEC[num_stages]; of an open job, the first is the hidden one (see `parcae.service.open_jobs`).
        children: int64[number of edges], child stages by index; every stage's follow each other.
        profile: row of the recurring job in the workload, or NO_PROFILE.
        topological_order: positions of the client's stages, parents before children.
        is_learned: for every one of them, whether its duration is (or will be) learned from its tasks.
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
        is_learning: learn unknown durations as tasks finish; until the first one did, take them to last as long as tasks do on
            average, since a policy that is told 0 grants such a job next to nothing.
        learned: what is known already.

    Example: a job named "q9-100g" with the stages of the TPC-H profile's gets that profile's durations.
    """

    def __init__(
        self,
        workload: Workload | None,
        config: SimulationConfig | None = None,
        *,
        is_learning: bool = True,
        learned: Learned | None = None,
    ) -> None:
        config = config or SimulationConfig()
        self.workload, self.is_learning, self.learned = workload, is_learning, learned or Learned()
        self._profiles: dict[tuple[str, _Shape], int] = {}
        self._named: dict[str, list[int]] = {}
        self._shapes: dict[tuple[str, Signature], int] = {}
        self._colors: dict[int, list[bytes]] = {}
        if workload is not None:
            self._tables: WorkloadTables = workload_tables(workload, config.durations, config.interpolation)
            for row, job in reversed(list(enumerate(workload.jobs))):  # of alike jobs, the first
                self._profiles[job.name, _shape_of(job)] = row
                self._named.setdefault(job.name, []).append(row)
                colors = stage_colors([stage.num_tasks for stage in job.stages], [stage.parents for stage in job.stages])
                self._shapes[job.name, signature(colors)], self._colors[row] = row, colors

    def as_profiled(self, job: JobMessage) -> JobMessage:
        """The job with its stages in the order of the profile's job of that name and shape, where there is one.

        A client numbers the stages of a recurring job as it comes upon them, the profile as they stood in some event log.

        Raises:
            ProtocolError: the job cannot be.
        """
        if job.name not in self._named:
            return job
        assert self.workload is not None
        parents = parents_by_index(job.job_id, job.stages)
        topological_order(job.job_id, parents, children_of(parents))
        colors = stage_colors([stage.tasks for stage in job.stages], parents)
        row = self._shapes.get((job.name, signature(colors)))
        if row is None:
            return job
        known = [stage.parents for stage in self.workload.jobs[row].stages]
        first = topological_order(job.job_id, known, children_of(known))
        order = matching_order(self._colors[row], known, colors, parents, first)
        return job if order is None else job.model_copy(update={"stages": tuple(job.stages[position] for position in order)})

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
        if profile != NO_PROFILE and not job.is_open:
            return self._profiled(job, profile, order)
        task_ms, is_learned = self.durations(job.name, job.stages, is_open=job.is_open, profile=profile)
        specs = np.zeros(len(job.stages), STAGE_SPEC).view(np.recarray)
        for row, (stage, own, below) in enumerate(zip(job.stages, parents, children, strict=True)):
            start = int(specs.child_start[row - 1] + specs.num_children[row - 1]) if row else 0
            specs[row] = (stage.tasks, len(own), start, len(below), task_ms[row], 0.0, stage.cpu, stage.memory)
        for row in reversed(order):
            down = max((float(specs.downstream_ms[child]) for child in children[row]), default=0.0)
            specs.downstream_ms[row] = job.stages[row].tasks * task_ms[row] + down
        flat = np.array([child for below in children for child in below], np.int64)
        if not job.is_open:
            return JobRows(specs, flat, NO_PROFILE, order, is_learned)
        more_ms = self.expected_more_ms(job.name, float((specs.num_tasks * specs.task_ms).sum()))
        return JobRows(with_hidden(specs, more_ms), flat + NUM_HIDDEN, self._profile_named(job.name, profile), order, is_learned)

    def _profiled(self, job: JobMessage, profile: int, order: tuple[int, ...]) -> JobRows:
        """The profile's rows, with the demands of the message."""
        tables, first = self._tables, self._tables.job_first_stage
        specs = tables.specs[first[profile] : first[profile + 1]].copy()
        start, count = int(specs.child_start[0]), int(specs.num_children.sum())
        specs.child_start -= start
        specs.cpu = [stage.cpu for stage in job.stages]
        specs.memory = [stage.memory for stage in job.stages]
        return JobRows(specs, tables.spec_children[start : start + count].copy(), profile, order, (False,) * len(specs))

    def _profile_named(self, name: str, profile: int) -> int:
        """The profile's job of that name: the one of the very shape, else the only one, else NO_PROFILE."""
        named = self._named.get(name, ())
        return profile if profile != NO_PROFILE or len(named) != 1 else named[0]

    def durations(
        self, name: str, stages: Sequence[StageMessage], first: int = 0, *, is_open: bool = False, profile: int = NO_PROFILE
    ) -> tuple[list[float], tuple[bool, ...]]:
        """Mean task durations of some stages in ms (0 where nobody knows), and which of them are to be learned.

        Args:
            stages: those at the positions `first`, `first` + 1 and so on of the job.
            is_open: stages of the profile's jobs of that name are looked up one by one, by position and number of tasks.
            profile: the only row of the profile in which they are looked up, or NO_PROFILE for all of that name.
        """
        task_ms, is_learned = [], []
        for position, stage in enumerate(stages, first):
            known_ms = self._stage_ms(name, position, stage.tasks, profile) if is_open else None
            known_ms = stage.task_ms if known_ms is None else known_ms
            task_ms.append((self.learned.task_ms(name, position) or self._assumed_ms) if known_ms is None else known_ms)
            is_learned.append(self.is_learning and known_ms is None)
        return task_ms, tuple(is_learned)

    @property
    def _assumed_ms(self) -> float:
        return (self.learned.any_task_ms or ASSUMED_TASK_MS) if self.is_learning else 0.0

    def _stage_ms(self, name: str, position: int, num_tasks: int, profile: int) -> float | None:
        """What the profile says of one stage; None where it says nothing, or different things."""
        found = set()
        for row in [profile] if profile != NO_PROFILE else self._named.get(name, ()):
            start, end = (int(edge) for edge in self._tables.job_first_stage[row : row + 2])
            if position < end - start and int(self._tables.specs.num_tasks[start + position]) == num_tasks:
                found.add(float(self._tables.specs.task_ms[start + position]))
        return found.pop() if len(found) == 1 else None

    def expected_more_ms(self, name: str, known_ms: float) -> float:
        """Work that stages to come of an open job are likely to bring.

        Args:
            known_ms: work of the stages that are known: tasks x mean durations.

        Returns:
            what the profile's jobs of that name take on average, else the last runs of that name, less what is known; 0 at least.
        """
        rows = self._named.get(name, ())
        total_ms = sum(map(self._work_ms, rows)) / len(rows) if rows else self.learned.run_ms(name)
        return max(0.0, total_ms - known_ms)

    def job_finished(self, name: str, worked_ms: int | None) -> None:
        """An open job is over; its tasks took `worked_ms` together, or None where not all of them were seen."""
        if self.is_learning and worked_ms is not None:
            self.learned.add_run(name, worked_ms)

    def _work_ms(self, row: int) -> float:
        start, end = (int(edge) for edge in self._tables.job_first_stage[row : row + 2])
        specs = self._tables.specs[start:end]
        return float((specs.num_tasks * specs.task_ms).sum())


def _shape_of(job: JobSpec) -> _Shape:
    return tuple((stage.num_tasks, stage.parents) for stage in job.stages)
