"""A workload and a sequence of arrivals as the flat tables that the event loop runs on."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import STAGE_SPEC, World
from parcae.errors import WorkloadError
from parcae.workloads.guess import guess_task_ms
from parcae.workloads.job import JobSpec, TaskDurations, Wave, Workload

LARGEST_SAMPLE_MS = np.iinfo(np.int32).max


class DurationMode(StrEnum):
    """Which of a list's samples a task takes."""

    SAMPLED = "sampled"  # one at random
    FIRST = "first"  # the first: a deterministic run
    MEAN = "mean"  # the mean, rounded half up: a deterministic run
    LISTED = "listed"  # task i of a stage takes sample i: a recorded run


class Interpolation(StrEnum):
    """Which measured level of parallelism stands for n executors between levels a < n < b."""

    LINEAR = "linear"  # b with probability (n - a) / (b - a)
    INVERTED = "inverted"  # b with probability (b - n) / (b - a), as in the released code
    LOWER = "lower"  # always a: deterministic


DURATION_LAW = np.dtype(
    [
        ("list_row", "i8"),
        ("num_levels", "i8"),
        ("grid_row", "i8"),
        ("top", "i8"),
        ("is_listed", "i8"),  # task i takes sample i
    ],
    align=True,
)
DURATION_LIST = np.dtype([("start", "i8"), ("count", "i8"), ("adds_warmup", "i8")], align=True)
GRID = np.dtype([("lower", "i8"), ("upper", "i8"), ("span", "i8"), ("weight", "i8")], align=True)


class WorkloadTables(NamedTuple):
    """A workload, flat. Rows of stages are counted over all jobs of the workload."""

    job_first_stage: Any  # int64[num_jobs + 1]
    specs: Any  # STAGE_SPEC[num_stages], what a scheduler may know
    guesses: Any  # STAGE_SPEC[num_stages], the same where it does not know the job
    spec_children: Any  # int64[num_edges], child stages within the job
    laws: Any  # DURATION_LAW[num_stages]
    lists: Any  # DURATION_LIST: row list_row + wave * num_levels + level
    grids: Any  # GRID: row grid_row + min(number of executors, top)
    samples: Any  # int32[num_samples], ms
    job_first_root: Any  # int64[num_jobs + 1]
    roots: Any  # int64[num_roots], parentless stages within the job, in the order in which Spark submits them


def _grid(levels: tuple[int, ...], interpolation: Interpolation) -> npt.NDArray[np.void]:
    """GRID rows for 0..levels[-1] executors: lower and upper level, and the odds (weight / span) of the upper.

    Source: Decima, section 6.2; decima-sim's wave lookup for what lies outside the levels.
    """
    grid = np.zeros(levels[-1] + 1, GRID)
    executors = np.arange(levels[-1] + 1)
    position = np.searchsorted(levels, executors, side="right") - 1
    lower = np.clip(position, 0, len(levels) - 1)
    exact = (executors <= levels[0]) | np.isin(executors, levels)
    upper = np.where(exact, lower, np.minimum(lower + 1, len(levels) - 1))
    at = np.asarray(levels)
    grid["lower"] = lower
    grid["upper"] = upper
    grid["span"] = np.where(exact, 1, at[upper] - at[lower])
    if interpolation is not Interpolation.LOWER:
        weight = (
            executors - at[lower]
            if interpolation is Interpolation.LINEAR
            else at[upper] - executors
        )
        grid["weight"] = np.where(exact, 0, weight)
    return grid


class _Builder:
    def __init__(self, mode: DurationMode, interpolation: Interpolation, world: World) -> None:
        self.mode = mode
        self.interpolation = interpolation
        self.world = world
        self.samples: list[npt.NDArray[np.int32]] = []
        self.num_samples = 0
        self.lists: list[tuple[int, int, int]] = []
        self.grids: list[npt.NDArray[np.void]] = []
        self.grid_rows: dict[tuple[int, ...], int] = {}
        self.num_grid_rows = 0
        self.laws: dict[int, tuple[int, int, int, int, int]] = {}

    def _add_samples(self, samples: npt.NDArray[np.int64]) -> tuple[int, int]:
        if samples.size == 0:
            return 0, 0
        if samples.max() > LARGEST_SAMPLE_MS:
            raise WorkloadError(
                f"a task of {samples.max()} ms is longer than the simulator's limit of 24 days"
            )
        if self.mode is DurationMode.FIRST:
            samples = samples[:1]
        elif self.mode is DurationMode.MEAN:
            samples = np.floor(samples.mean(keepdims=True) + 0.5)
        start = self.num_samples
        self.samples.append(samples.astype(np.int32))
        self.num_samples += len(samples)
        return start, len(samples)

    def _grid_row(self, levels: tuple[int, ...]) -> int:
        if levels not in self.grid_rows:
            self.grid_rows[levels] = self.num_grid_rows
            self.grids.append(_grid(levels, self.interpolation))
            self.num_grid_rows += levels[-1] + 1
        return self.grid_rows[levels]

    def law(self, durations: TaskDurations) -> tuple[int, int, int, int, int]:
        """The law's row; the wave rule is resolved here: which list stands in for an empty one."""
        known = self.laws.get(id(durations))
        if known is not None:
            return known
        if self.world is World.CORES:
            return self._pooled_law(durations)
        at = {wave: [self._add_samples(s) for s in durations.by_wave(wave)] for wave in Wave}
        row = len(self.lists)
        for fresh, first in zip(at[Wave.FRESH], at[Wave.FIRST], strict=True):
            self.lists.append((*fresh, 0) if fresh[1] else (*first, 1))
        later = [
            first if first[1] else fresh
            for first, fresh in zip(at[Wave.FIRST], at[Wave.FRESH], strict=True)
        ]
        self.lists.extend((*stand_in, 0) for stand_in in later)
        self.lists.extend(
            (*(rest if rest[1] else stand_in), 0)
            for rest, stand_in in zip(at[Wave.REST], later, strict=True)
        )
        law = (
            row,
            len(durations.levels),
            self._grid_row(durations.levels),
            durations.levels[-1],
            self._is_listed,
        )
        self.laws[id(durations)] = law
        return law

    @property
    def _is_listed(self) -> int:
        return int(self.mode is DurationMode.LISTED)

    def _pooled_law(self, durations: TaskDurations) -> tuple[int, int, int, int, int]:
        """World of cores: every task draws from all samples of its stage, wherever and beside whatever it runs.

        There a core is warm, no executor belongs to a job, and a task contends with all that runs in the application: waves and
        the parallelism of a job, by which the samples were sorted, mean nothing.
        """
        samples = np.concatenate([*durations.first, *durations.rest, *durations.fresh])
        row = len(self.lists)
        self.lists.extend([(*self._add_samples(samples), 0)] * len(Wave))
        law = (row, 1, self._grid_row((1,)), 1, self._is_listed)
        self.laws[id(durations)] = law
        return law


def _guesses(workload: Workload, specs: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The specs of every job as they are guessed where the job is not known."""
    guesses = specs.copy()
    first = 0
    for job, task_ms in zip(workload.jobs, guess_task_ms(workload), strict=True):
        own = slice(first, first + len(job.stages))
        guesses["task_ms"][own] = task_ms
        guesses["downstream_ms"][own] = job.downstream_ms(
            [stage.num_tasks * task_ms for stage in job.stages]
        )
        first += len(job.stages)
    return guesses


def _spec_rows(job: JobSpec, first_edge: int) -> tuple[list[tuple[Any, ...]], list[int]]:
    downstream = job.downstream_ms([stage.work_ms for stage in job.stages])
    rows: list[tuple[Any, ...]] = []
    children: list[int] = []
    for stage, own_children, down in zip(job.stages, job.children, downstream, strict=True):
        start = first_edge + len(children)
        children.extend(own_children)
        rows.append(
            (
                stage.num_tasks,
                len(stage.parents),
                start,
                len(own_children),
                stage.mean_task_ms,
                down,
                stage.cpu,
                stage.memory,
            )
        )
    return rows, children


_Key = tuple[DurationMode, Interpolation, World]
_CACHE: WeakKeyDictionary[Workload, dict[_Key, WorkloadTables]] = WeakKeyDictionary()


def workload_tables(
    workload: Workload,
    mode: DurationMode,
    interpolation: Interpolation,
    world: World = World.EXECUTORS,
) -> WorkloadTables:
    """The workload's tables, built once for each duration mode, interpolation and world.

    Raises:
        WorkloadError: a task longer than 24 days.
    """
    tables = _CACHE.setdefault(workload, {})
    key = (mode, interpolation, world)
    if key not in tables:
        tables[key] = _build(workload, *key)
    return tables[key]


def _roots(job: JobSpec) -> list[int]:
    """Parentless stages in the order in which Spark's DAGScheduler submits them: depth first from the final stages.

    Source: Spark, DAGScheduler.submitStage (missing parents by ascending id).
    """
    order: list[int] = []
    seen: set[int] = set()
    pending = [stage for stage in reversed(range(len(job.stages))) if not job.children[stage]]
    while pending:
        stage = pending.pop()
        if stage in seen:
            continue
        seen.add(stage)
        parents = job.stages[stage].parents
        if not parents:
            order.append(stage)
        pending.extend(reversed(parents))
    return order


def _build(
    workload: Workload, mode: DurationMode, interpolation: Interpolation, world: World
) -> WorkloadTables:
    builder = _Builder(mode, interpolation, world)
    specs: list[tuple[Any, ...]] = []
    children: list[int] = []
    first_stage = [0]
    laws: list[tuple[int, int, int, int, int]] = []
    roots = [_roots(job) for job in workload.jobs]
    for job in workload.jobs:
        rows, job_children = _spec_rows(job, len(children))
        specs.extend(rows)
        children.extend(job_children)
        laws.extend(builder.law(stage.durations) for stage in job.stages)
        first_stage.append(len(specs))
    stage_specs = np.array(specs, STAGE_SPEC)
    return WorkloadTables(
        np.array(first_stage, np.int64),
        stage_specs.view(np.recarray),
        _guesses(workload, stage_specs).view(np.recarray),
        np.array(children, np.int64),
        np.array(laws, DURATION_LAW).view(np.recarray),
        np.array(builder.lists, DURATION_LIST).view(np.recarray),
        np.concatenate(builder.grids).view(np.recarray),
        np.concatenate(builder.samples),
        np.cumsum([0, *(len(own) for own in roots)]),
        np.array([stage for own in roots for stage in own], np.int64),
    )
