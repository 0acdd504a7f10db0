"""`workload_tables`: a workload as the flat tables that the event loop reads."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import Float64Array, Int64Array, RecordArray
from parcae.base.errors import ConfigError, WorkloadError
from parcae.cluster.orders import one_pool
from parcae.cluster.state import STAGE_SPEC, World
from parcae.workloads.durations import TaskDurations, Wave
from parcae.workloads.guess import guess_task_ms
from parcae.workloads.job import JobSpec, StageSpec, no_driver_time, spark_roots
from parcae.workloads.workload import JobSequence, Workload

#: Sigma of the error of the durations that the scheduler sees; or "log": the scheduler sees the
#: profile, and runs deviate from it as they did in the log.
EstimateError = float | Literal["log"]
#: A factor of e^10 at one sigma: with larger ones, durations would exceed the range of numbers.
LARGEST_SIGMA = 10.0


def parse_estimate_error(text: str) -> EstimateError:
    """Parse an estimate error: "log" (the workload's spread) or the sigma of a log-normal factor.

    Example: `parse_estimate_error("0.5")` is 0.5.
    """
    if text.strip() == "log":
        return "log"
    try:
        sigma = float(text)
    except ValueError:
        sigma = math.nan
    if not 0 <= sigma <= LARGEST_SIGMA:
        raise ConfigError(
            f"estimate error {text!r}: write log (the spread of the workload's own runs) or a "
            f"sigma from 0 to {LARGEST_SIGMA:g}, e.g. 0.5"
        )
    return sigma


def draw_knowledge(
    sequence: JobSequence,
    estimate_error: EstimateError,
    unknown_share: float,
    rng: np.random.Generator,
) -> Float64Array:
    """Draw, for each job, the task duration that the scheduler sees / the profiled task duration.
    Returns float64[num_jobs]: 1 means known exactly, 0 means unknown.
    """
    knowledge = np.ones(sequence.num_jobs, np.float64)
    if estimate_error != "log" and estimate_error > 0:
        knowledge[:] = rng.lognormal(0.0, estimate_error, sequence.num_jobs)
    if unknown_share > 0:
        knowledge[rng.random(sequence.num_jobs) < unknown_share] = 0.0
    return knowledge


LARGEST_SAMPLE_MS = np.iinfo(np.int32).max


class DurationMode(StrEnum):
    """Which sample of a list is the duration of a task."""

    SAMPLED = "sampled"  # a random one
    FIRST = "first"  # the first one: deterministic
    MEAN = "mean"  # the mean of all, rounded half up: deterministic
    LISTED = "listed"  # sample i for task i of the stage: repeats a recorded run


class Interpolation(StrEnum):
    """Which measured level of parallelism is used for n executors between levels a < n < b."""

    LINEAR = "linear"  # b with probability (n - a) / (b - a)
    INVERTED = "inverted"  # b with probability (b - n) / (b - a), as in the released code
    LOWER = "lower"  # always a: deterministic


#: Where the task durations of a stage are: its lists of samples and its grid rows.
STAGE_DURATIONS = np.dtype(
    [
        ("list_row", "i8"),  # first row in `lists`
        ("num_levels", "i8"),  # measured levels of parallelism
        ("grid_row", "i8"),  # first row in `grids`
        ("top", "i8"),  # largest level; more executors count as this many
        ("is_listed", "i8"),  # 1: task i takes sample i
    ],
    align=True,
)
#: A list of samples, as a range of `samples`; `adds_warmup` is 1 if the warm-up delay is added.
DURATION_LIST = np.dtype([("start", "i8"), ("count", "i8"), ("adds_warmup", "i8")], align=True)
#: Levels for one number of executors: `upper` with probability weight / span, else `lower`.
GRID = np.dtype([("lower", "i8"), ("upper", "i8"), ("span", "i8"), ("weight", "i8")], align=True)

#: World of cores: how the samples of a stage are dealt out to its tasks (`dealt_sample`).
DEAL = np.dtype(
    [
        ("num_tasks", "i8"),  # 0: every task draws from all samples
        ("first_sample", "i8"),
        ("num_samples", "i8"),
        ("per_task", "i8"),  # samples / tasks; 0 if that is no whole number
        ("group_bits", "i8"),  # 2^bits tasks that start one after another are a group
    ],
    align=True,
)
#: A recorded run is dealt out in up to four groups, as slow tasks are mostly the first ones.
_GROUPS_BITS = 2
_ONE_GROUP = 62


#: Driver time of a stage in a run; in the last row of a run the gap is the tail of the job.
DRIVER = np.dtype([("gap_ms", "i8"), ("lag_ms", "i8")], align=True)


class WorkloadTables(NamedTuple):
    """A workload as flat tables; the stages of all its jobs are numbered consecutively."""

    job_first_stage: Any  # int64[num_jobs + 1], first stage of each job
    specs: Any  # STAGE_SPEC[num_stages], what the scheduler sees of a known job
    guesses: Any  # STAGE_SPEC[num_stages], what it sees of an unknown job
    spec_children: Any  # int64[num_edges], child stages, numbered within the job
    durations: Any  # STAGE_DURATIONS[num_stages]
    deals: Any  # DEAL[num_stages]
    lists: Any  # DURATION_LIST: row list_row + wave * num_levels + level
    grids: Any  # GRID: row grid_row + min(number of executors, top)
    samples: Any  # int32[num_samples], ms
    job_first_root: Any  # int64[num_jobs + 1], first root of each job
    # int64[num_roots], stages without parents, numbered within the job, in Spark's order.
    roots: Any
    # World of cores: the pools that every order keeps, and the pool and priority of each job.
    # `parcae.policies.additions` sets them; otherwise there is one pool, and priorities are 0.
    pools: Any  # POOL[num_pools]
    job_pool: Any  # int64[num_jobs]
    job_priority: Any  # int64[num_jobs]
    # World of cores: the user of each job, as a number, and the weight of each user.
    job_user: Any  # int64[num_jobs]
    user_weight: Any  # float64[num_users]
    # World of cores, workloads with driver time (else `driver` is empty): the recorded runs of
    # every job, one after another, each with a row for every stage and one for the job.
    driver: Any  # DRIVER
    first_driver: Any  # int64[num_jobs], first row of the job's runs
    num_runs: Any  # int64[num_jobs]
    spark_job: Any  # int64[num_stages], the stage's Spark job within the job; -1: not known


def _grid(levels: tuple[int, ...], interpolation: Interpolation) -> RecordArray:
    """GRID rows for 0..levels[-1] executors.

    Source: Decima, section 6.2; decima-sim's wave lookup for numbers outside the levels.
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


#: A row of STAGE_DURATIONS or of DEAL.
_Row = tuple[int, int, int, int, int]


class _Builder:
    """Collects samples, lists and grids; a duration table used by many stages is added once."""

    def __init__(self, mode: DurationMode, interpolation: Interpolation, world: World) -> None:
        self.mode = mode
        self.interpolation = interpolation
        self.world = world
        self.samples: list[npt.NDArray[np.int32]] = []
        self.num_samples = 0
        self.lists: list[tuple[int, int, int]] = []
        self.grids: list[RecordArray] = []
        self.grid_rows: dict[tuple[int, ...], int] = {}
        self.num_grid_rows = 0
        self.rows: dict[int, _Row] = {}  # by id of the duration table
        self.ascending: dict[int, int] = {}  # first sample of the sorted ones, likewise

    def _add_samples(self, samples: Int64Array) -> tuple[int, int]:
        """Add a list of samples. Returns (start, count) in the flat table."""
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

    def durations_row(self, durations: TaskDurations) -> _Row:
        """The STAGE_DURATIONS row of a duration table, whose lists are added on the first call.

        The wave rule is applied here: it says which list replaces an empty one.
        """
        cached = self.rows.get(id(durations))
        if cached is not None:
            return cached
        if self.world is World.CORES:
            return self._pooled_row(durations)
        at = {wave: [self._add_samples(s) for s in durations.by_wave(wave)] for wave in Wave}
        row = len(self.lists)
        # Without samples of fresh executors: those of the first wave, plus the warm-up delay.
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
        result = (
            row,
            len(durations.levels),
            self._grid_row(durations.levels),
            durations.levels[-1],
            self._is_listed,
        )
        self.rows[id(durations)] = result
        return result

    @property
    def _is_listed(self) -> int:
        return int(self.mode is DurationMode.LISTED)

    def _pooled_row(self, durations: TaskDurations) -> _Row:
        """World of cores: the row with which every task draws from all samples of its stage."""
        samples = durations.all_samples
        row = len(self.lists)
        self.lists.extend([(*self._add_samples(samples), 0)] * len(Wave))
        result = (row, 1, self._grid_row((1,)), 1, self._is_listed)
        self.rows[id(durations)] = result
        return result

    def deal(self, stage: StageSpec) -> _Row:
        """The DEAL row of a stage whose duration table has a row."""
        first, count, _ = self.lists[self.rows[id(stage.durations)][0]]
        is_dealt = self.world is World.CORES and self.mode is DurationMode.SAMPLED and count > 1
        if not is_dealt:
            return (0, 0, 0, 0, 0)
        if count == stage.num_tasks:
            group_bits = max(0, count.bit_length() - _GROUPS_BITS)
            return (count, first, count, 1, group_bits)
        key = id(stage.durations)
        if key not in self.ascending:
            self.ascending[key], _ = self._add_samples(np.sort(stage.durations.all_samples))
        per_task = 0 if count % stage.num_tasks else count // stage.num_tasks
        return (stage.num_tasks, self.ascending[key], count, per_task, _ONE_GROUP)


def _guesses(workload: Workload, specs: RecordArray) -> RecordArray:
    """The specs of every job as the scheduler guesses them for an unknown job."""
    guesses = specs.copy()
    first = 0
    for job, task_ms in zip(workload.jobs, guess_task_ms(workload), strict=True):
        rows = slice(first, first + len(job.stages))
        guesses["task_ms"][rows] = task_ms
        guesses["downstream_ms"][rows] = job.downstream_ms(
            [stage.num_tasks * task_ms for stage in job.stages]
        )
        first += len(job.stages)
    return guesses


def spec_rows(job: JobSpec, first_edge: int) -> tuple[list[tuple[Any, ...]], list[int]]:
    """(STAGE_SPEC rows of the job's stages, their child stages); edges count from `first_edge`."""
    downstream = job.downstream_ms([stage.work_ms for stage in job.stages])
    rows: list[tuple[Any, ...]] = []
    children: list[int] = []
    for stage, stage_children, down in zip(job.stages, job.children, downstream, strict=True):
        start = first_edge + len(children)
        children.extend(stage_children)
        rows.append(
            (
                stage.num_tasks,
                len(stage.parents),
                start,
                len(stage_children),
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
    """The workload's tables, built once for each duration mode, interpolation and world."""
    tables = _CACHE.setdefault(workload, {})
    key = (mode, interpolation, world)
    if key not in tables:
        tables[key] = _build(workload, *key)
    return tables[key]


def _build(
    workload: Workload, mode: DurationMode, interpolation: Interpolation, world: World
) -> WorkloadTables:
    workload = workload.warm if world is World.CORES else workload
    builder = _Builder(mode, interpolation, world)
    specs: list[tuple[Any, ...]] = []
    children: list[int] = []
    first_stage = [0]
    deals: list[_Row] = []
    durations: list[_Row] = []
    roots = [spark_roots([stage.parents for stage in job.stages]) for job in workload.jobs]
    for job in workload.jobs:
        rows, job_children = spec_rows(job, len(children))
        specs.extend(rows)
        children.extend(job_children)
        durations.extend(builder.durations_row(stage.durations) for stage in job.stages)
        deals.extend(map(builder.deal, job.stages))
        first_stage.append(len(specs))
    stage_specs = np.array(specs, STAGE_SPEC)
    row_of_user = {user: row for row, user in enumerate(dict.fromkeys(workload.users))}
    return WorkloadTables(
        np.array(first_stage, np.int64),
        stage_specs.view(np.recarray),
        _guesses(workload, stage_specs).view(np.recarray),
        np.array(children, np.int64),
        np.array(durations, STAGE_DURATIONS).view(np.recarray),
        np.array(deals, DEAL).view(np.recarray),
        np.array(builder.lists, DURATION_LIST).view(np.recarray),
        np.concatenate(builder.grids).view(np.recarray),
        np.concatenate(builder.samples),
        np.cumsum([0, *(len(job_roots) for job_roots in roots)]),
        np.array([stage for job_roots in roots for stage in job_roots], np.int64),
        one_pool(),
        np.zeros(len(workload.jobs), np.int64),
        np.zeros(len(workload.jobs), np.int64),
        np.array([row_of_user[user] for user in workload.users], np.int64),
        np.ones(len(row_of_user)),
        *_driver_tables(workload, mode, world),
    )


def _driver_tables(
    workload: Workload, mode: DurationMode, world: World
) -> tuple[Any, Any, Any, Any]:
    """The last four of the tables."""
    runs = [_driver_of(job, mode) for job in workload.jobs]
    num_runs = np.array([len(of_job) for of_job in runs], np.int64)
    num_rows = num_runs * [len(job.stages) + 1 for job in workload.jobs]
    driver = np.concatenate([of_job.ravel() for of_job in runs])
    # Decima's world has its own idea of what passes between stages: moving executors.
    is_played = world is World.CORES and workload.has_driver_time
    return (
        (driver if is_played else driver[:0]).view(np.recarray),
        np.cumsum(num_rows) - num_rows,
        num_runs,
        np.array([stage.spark_job for job in workload.jobs for stage in job.stages], np.int64),
    )


def _driver_of(job: JobSpec, mode: DurationMode) -> RecordArray:
    """DRIVER[num_runs, num_stages + 1]; one run where durations are deterministic."""
    times = job.driver_time or no_driver_time(len(job.stages))
    rows = np.zeros((len(times.tail_ms), len(job.stages) + 1), DRIVER)
    rows["gap_ms"][:, :-1] = times.gap_ms
    rows["lag_ms"][:, :-1] = times.lag_ms
    rows["gap_ms"][:, -1] = times.tail_ms
    if mode is DurationMode.MEAN:
        mean = np.zeros((1, rows.shape[1]), DRIVER)
        for name in ("gap_ms", "lag_ms"):
            mean[name] = np.rint(rows[name].mean(axis=0))
        return mean
    return rows[:1] if mode in (DurationMode.FIRST, DurationMode.LISTED) else rows
