"""What is known of a job that a client submits: its rows, and how long its tasks take.

Durations come from the profile, by the first of the job's names that it knows; else from what was
learned of jobs of that name; else they are guessed by the bytes that the job reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import NO_PROFILE, STAGE_SPEC, World
from parcae.errors import ProtocolError
from parcae.service.learned import Learned
from parcae.service.protocol import Code, JobMessage, StageMessage
from parcae.simulation.config import SimulationConfig
from parcae.simulation.tables import WorkloadTables, workload_tables
from parcae.workloads.guess import guess_new_task_ms
from parcae.workloads.job import JobSpec, Workload

_Shape = tuple[tuple[int, tuple[int, ...]], ...]
#: What a task is assumed to last where there is no profile and nothing was learned.
ASSUMED_TASK_MS = 1_000.0
#: After so many tasks, whatever jobs they were of, their mean is a better guess than the profile's.
_ENOUGH_TASKS = 50
#: What an open job that outlived its estimate is assumed to bring yet, as a share of what is known.
LEFT_SHARE = 0.25
#: A job has outlived its estimate where more than so many times that is known of it.
_OUTLIVED = 1.001


@dataclass(frozen=True)
class Known:
    """What a recurring job is known by.

    Args:
        names: all of the job's names.
        rows: rows of the profile's jobs of the first name that the profile knows; empty if none.
        learned: the first name of which something was learned; "" if none.
        guess_ms: the duration that is guessed of a task of which nothing else is known.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    learned: str
    guess_ms: float

    @property
    def is_learned(self) -> bool:
        """Whether its durations are (or will be) learned: the profile does not know it."""
        return not self.rows


@dataclass(frozen=True)
class JobRows:
    """A job as `job_arrived` takes it.

    Args:
        specs: STAGE_SPEC[num_stages]; of an open job, the first is its hidden stage.
        children: int64[number of edges], child stages by index; every stage's follow each other.
        profile: row of the recurring job in the workload, or NO_PROFILE.
        roots: parentless stages by index, in the order in which Spark submits them.
    """

    specs: Any
    children: npt.NDArray[np.int64]
    profile: int
    roots: tuple[int, ...]


def parents_by_index(
    job_id: str, ids: Sequence[int], stages: Sequence[StageMessage]
) -> list[tuple[int, ...]]:
    """The parents of every stage of `stages` as positions in `ids`, ascending.

    Args:
        ids: ids of all stages of the job.

    Raises:
        ProtocolError: a stage id twice, a parent that does not exist, or counts that cannot be.
    """
    index = {stage_id: position for position, stage_id in enumerate(ids)}
    if len(index) < len(ids):
        raise ProtocolError(
            Code.DUPLICATE_STAGE, f"job {job_id}: two of its stages have one stage_id"
        )
    for stage in stages:
        where = f"job {job_id}, stage {stage.stage_id}"
        missing = [parent for parent in stage.parents if parent not in index]
        if missing:
            raise ProtocolError(
                Code.BAD_JOB, f"{where}: parent {missing[0]} is not a stage of the job"
            )
        if not stage.finished <= stage.started <= stage.tasks:
            raise ProtocolError(
                Code.BAD_JOB,
                f"{where}: {stage.finished} tasks finished and {stage.started} began, of {stage.tasks}",
            )
    return [tuple(sorted({index[parent] for parent in stage.parents})) for stage in stages]


def children_of(parents: Sequence[tuple[int, ...]]) -> list[list[int]]:
    """The children of every stage, ascending, from the parents."""
    children: list[list[int]] = [[] for _ in parents]
    for stage, own in enumerate(parents):
        for parent in own:
            children[parent].append(stage)
    return children


def topological_order(job_id: str, parents: Sequence[tuple[int, ...]]) -> list[int]:
    """Stage indices, parents before children.

    Raises:
        ProtocolError: a cycle.
    """
    children = children_of(parents)
    missing = [len(own) for own in parents]
    order = [stage for stage, count in enumerate(missing) if count == 0]
    for stage in order:
        for child in children[stage]:
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    if len(order) < len(parents):
        stuck = [stage for stage, count in enumerate(missing) if count > 0]
        raise ProtocolError(
            Code.BAD_JOB,
            f"job {job_id}: a cycle through some of its stages at positions {stuck[:20]}",
        )
    return order


def spark_roots(parents: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Parentless stages in the order in which Spark submits them: depth first from the final stages.

    Source: Spark, DAGScheduler.submitStage (missing parents by ascending id).
    """
    children = children_of(parents)
    order: list[int] = []
    seen: set[int] = set()
    pending = [stage for stage in reversed(range(len(parents))) if not children[stage]]
    while pending:
        stage = pending.pop()
        if stage in seen:
            continue
        seen.add(stage)
        if not parents[stage]:
            order.append(stage)
        pending.extend(reversed(parents[stage]))
    return tuple(order)


class DurationBook:
    """Task durations by recurring job: the profile's, what was learned, and guesses.

    Args:
        workload: the profile, or None where there is none.
        is_learning: learn the durations of jobs that the profile does not know as their tasks end.
        learned: what is known already.

    Example: a job named "q9-100g" with the stages of the TPC-H profile's gets that profile's durations.
    """

    def __init__(
        self, workload: Workload | None, *, is_learning: bool = True, learned: Learned | None = None
    ) -> None:
        self.workload = workload
        self.is_learning = is_learning
        self.learned = learned or Learned()
        self._profiles: dict[tuple[str, _Shape], int] = {}
        self._named: dict[str, tuple[int, ...]] = {}
        self._guess: Callable[[float], float] = lambda _: ASSUMED_TASK_MS
        if workload is not None:
            config = SimulationConfig()
            self._tables: WorkloadTables = workload_tables(
                workload, config.durations, config.interpolation, World.CORES
            )
            self._guess = guess_new_task_ms(workload)
            for row, job in reversed(list(enumerate(workload.jobs))):  # of alike jobs, the first
                self._profiles[job.name, _shape_of(job)] = row
                self._named[job.name] = (row, *self._named.get(job.name, ()))

    @property
    def typical_task_ms(self) -> float:
        """A typical task's duration by the profile."""
        return self._guess(0.0)

    def look_up(self, names: Sequence[str], stages: Sequence[StageMessage]) -> Known:
        """What is known by the names, the best first; unknown jobs are guessed by what their roots read."""
        used = tuple(name for name in names if name)
        rows = next((self._named[name] for name in used if name in self._named), ())
        learned = next((name for name in used if self.learned.knows(name)), "")
        return Known(used, rows, learned, self._guessed_ms(stages))

    def _guessed_ms(self, stages: Sequence[StageMessage]) -> float:
        if self.is_learning and self.learned.num_any_tasks >= _ENOUGH_TASKS:
            return max(1.0, self.learned.any_task_ms)
        roots = [stage for stage in stages if not stage.parents]
        num_tasks = sum(stage.tasks for stage in roots)
        return self._guess(sum(stage.input_bytes or 0 for stage in roots) / max(1, num_tasks))

    def rows(self, job: JobMessage, known: Known) -> JobRows:
        """The job's rows.

        Raises:
            ProtocolError: the job cannot be; the message says why.
        """
        parents = parents_by_index(job.job_id, [stage.stage_id for stage in job.stages], job.stages)
        order = topological_order(job.job_id, parents)
        roots = spark_roots(parents)
        shape = tuple((stage.tasks, own) for stage, own in zip(job.stages, parents, strict=True))
        profile = next(
            (row for name in known.names if (row := self._profiles.get((name, shape))) is not None),
            NO_PROFILE,
        )
        if profile != NO_PROFILE and not job.is_open:
            return self._profiled(profile, roots)
        if not job.stages and not job.is_open:
            raise ProtocolError(
                Code.BAD_JOB, f"job {job.job_id}: no stages; only an open job may have none yet"
            )
        if profile == NO_PROFILE and len(known.rows) == 1:
            profile = known.rows[0]
        task_ms = self.durations(known, job.stages)
        children = children_of(parents)
        specs = np.zeros(len(job.stages), STAGE_SPEC).view(np.recarray)
        start = 0
        for row, stage in enumerate(job.stages):
            below = children[row]
            specs[row] = (
                stage.tasks,
                len(parents[row]),
                start,
                len(below),
                task_ms[row],
                0.0,
                1.0,
                0.0,
            )
            start += len(below)
        for row in reversed(order):
            down = max((float(specs.downstream_ms[child]) for child in children[row]), default=0.0)
            specs.downstream_ms[row] = job.stages[row].tasks * task_ms[row] + down
        flat = np.array([child for below in children for child in below], np.int64)
        if not job.is_open:
            return JobRows(specs, flat, NO_PROFILE, roots)
        tasks, hidden_ms = self.hidden_stage(known, float((specs.num_tasks * specs.task_ms).sum()))
        hidden = np.zeros(1, STAGE_SPEC).view(np.recarray)
        hidden[0] = (tasks, 1, 0, 0, hidden_ms, tasks * hidden_ms, 1.0, 0.0)
        whole = np.concatenate([hidden, specs]).view(np.recarray)
        return JobRows(whole, flat + 1, profile, tuple(root + 1 for root in roots))

    def _profiled(self, profile: int, roots: tuple[int, ...]) -> JobRows:
        tables = self._tables
        first = self._tables.job_first_stage
        specs = tables.specs[first[profile] : first[profile + 1]].copy()
        start = int(specs.child_start[0])
        count = int(specs.num_children.sum())
        specs.child_start -= start
        return JobRows(specs, tables.spec_children[start : start + count].copy(), profile, roots)

    def durations(
        self, known: Known, stages: Sequence[StageMessage], first: int = 0
    ) -> list[float]:
        """Mean task durations of some stages of a job, in ms, > 0 unless the profile says 0.

        Args:
            stages: those at the positions `first`, `first` + 1 and so on of the job.
        """
        return [
            self._stage_ms(known, position, stage.tasks)
            for position, stage in enumerate(stages, first)
        ]

    def _stage_ms(self, known: Known, position: int, num_tasks: int) -> float:
        if not known.rows:
            learned_ms = self.learned.task_ms(known.learned, position) if known.learned else 0.0
            return learned_ms or known.guess_ms
        assert self.workload is not None
        all_stages = [self.workload.jobs[row].stages for row in known.rows]
        here = {
            own[position].mean_task_ms
            for own in all_stages
            if position < len(own) and own[position].num_tasks == num_tasks
        }
        if len(here) == 1:
            return here.pop()
        alike = [
            stage.mean_task_ms
            for own in all_stages
            for stage in own
            if stage.num_tasks == num_tasks
        ]
        if alike:
            return float(np.mean(alike))
        work_ms = sum(self.workload.jobs[row].work_ms for row in known.rows)
        return work_ms / sum(self.workload.jobs[row].num_tasks for row in known.rows)

    def hidden_stage(self, known: Known, known_ms: float) -> tuple[int, float]:
        """What stages to come of an open job are likely to bring: (tasks, at least one; mean duration in ms).

        Args:
            known_ms: work of the stages that are known: tasks x mean durations.

        Returns:
            what jobs of that name take in the profile, or took of late, less what is known. A job of which
            nothing is known, and one that outlived its estimate, has a share of what is known left.
        """
        total_ms = self._total_ms(known)
        task_ms = known.guess_ms
        if total_ms > 0.0 and known_ms <= _OUTLIVED * total_ms:
            left_ms = max(0.0, total_ms - known_ms)
        else:
            left_ms = LEFT_SHARE * max(known_ms, total_ms, task_ms)
        num_tasks = max(1, round(left_ms / max(1.0, task_ms)))
        return num_tasks, left_ms / num_tasks

    def _total_ms(self, known: Known) -> float:
        if known.rows:
            assert self.workload is not None
            return float(np.mean([self.workload.jobs[row].work_ms for row in known.rows]))
        return self.learned.run_ms(known.learned) if known.learned else 0.0

    def tasks_finished(self, known: Known, position: int, count: int, executed_ms: int) -> None:
        """Tasks of a job's stage ended; they took so long together."""
        if not self.is_learning:
            return
        self.learned.add_any_tasks(count, executed_ms)
        if known.is_learned:
            for name in known.names:
                self.learned.add_tasks(name, position, count, executed_ms)

    def job_finished(self, known: Known, worked_ms: int | None) -> None:
        """An open job ended well; its tasks took `worked_ms` together, or None where not all of them were seen."""
        if self.is_learning and worked_ms is not None and known.is_learned:
            for name in known.names:
                self.learned.add_run(name, worked_ms)


def _shape_of(job: JobSpec) -> _Shape:
    return tuple((stage.num_tasks, stage.parents) for stage in job.stages)
