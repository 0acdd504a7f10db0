"""Workloads, and the job sequences that are drawn from them: arrivals of every kind.

All draws come from named random streams.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import BoolArray, Float64Array, Int64Array
from parcae.base.errors import ConfigError, WorkloadError, no_cluster
from parcae.base.extensions import load
from parcae.base.texts import MS_PER_HOUR, UNITS_MS
from parcae.workloads.durations import LARGEST_ARRIVAL_MS
from parcae.workloads.import_report import counted
from parcae.workloads.job import JobSpec, LoggedFaults, StageSpec, bare_name
from parcae.workloads.spread import RunTable
from parcae.workloads.tables import JobTable, as_deadlines, listed

#: The shape of a query's plan, behind a label that says more to people.
_SHAPE = re.compile(r" \[(shape-[0-9a-f]{16})\]$")
#: Key in a workload's provenance: how many cores each of its tasks takes (`spark.task.cpus`).
CORES_PER_TASK = "cores_per_task"


class HasExecutors(Protocol):
    """A cluster, as far as drawing jobs needs to know it."""

    @property
    def total_executors(self) -> int:
        """Number of executors (or cores)."""

    def for_tasks_of(self, workload: Workload) -> HasExecutors:
        """The cluster in slots for the tasks of a workload."""

    def jobs_of(self, workload: Workload) -> Workload:
        """The jobs as they are in the cluster's world."""

    @property
    def runs_vary(self) -> bool:
        """Whether runs deviate from their profiles as they did in the workload's log."""


@dataclass(frozen=True, eq=False)
class Workload:
    """A named set of recurring or recorded jobs from which job sequences are drawn.

    Args:
        name: name of the workload.
        jobs: the job profiles.
        weights: relative frequency of each job, or None if all are equally frequent.
        provenance: where the workload came from and how it was made (text to text); it is saved
            with the workload.
        faults: what went wrong in the logs that it was made of; None if that is not known.

    Raises:
        WorkloadError: no jobs, or weights that are negative, not finite, all zero or not one for
            each job.
    """

    name: str
    jobs: tuple[JobSpec, ...]
    weights: tuple[float, ...] | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    faults: LoggedFaults | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "jobs", tuple(self.jobs))
        if not self.jobs:
            raise WorkloadError(
                f"workload {self.name!r} has no jobs; import or generate at least one"
            )
        if self.weights is not None:
            weights = tuple(float(w) for w in self.weights)
            are_valid = all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0
            if len(weights) != len(self.jobs) or not are_valid:
                raise WorkloadError(
                    f"workload {self.name!r}: weights must be {len(self.jobs)} numbers >= 0, "
                    "not all zero"
                )
            object.__setattr__(self, "weights", weights)

    def __repr__(self) -> str:
        counts = f"{self.num_stages:,} stages, {self.num_tasks:,} tasks"
        return f"<Workload {self.name}: {counted(len(self.jobs), 'job')}, {counts}>"

    def _repr_html_(self) -> str:
        """The facts of the workload and a picture of its jobs, for notebooks."""
        # Named, as tables and pictures belong to a layer above.
        return str(load("parcae.evaluation.described:workload_html", "page")(self))

    @property
    def num_stages(self) -> int:
        """Number of stages of all jobs."""
        return sum(len(job.stages) for job in self.jobs)

    @property
    def num_tasks(self) -> int:
        """Number of tasks of all jobs."""
        return sum(job.num_tasks for job in self.jobs)

    @cached_property
    def mean_tasks(self) -> float:
        """Expected number of tasks of one drawn job."""
        return float(np.average([job.num_tasks for job in self.jobs], weights=self.weights))

    @cached_property
    def mean_work_ms(self) -> float:
        """Expected work of one drawn job, in ms of one executor."""
        return self.expected_work_ms(runs_vary=False)

    def expected_work_ms(self, runs_vary: bool) -> float:
        """Expected work of one drawn job, in ms of one executor."""
        return float(np.average(self.works_ms(runs_vary), weights=self.weights))

    def works_ms(self, runs_vary: bool) -> Float64Array:
        """Mean work of a run of every job, in ms of one executor."""
        return self.runs.mean_work_ms if runs_vary else self.runs.work_ms

    @cached_property
    def runs(self) -> RunTable:
        """The recorded runs of all jobs."""
        return RunTable(self.jobs)

    @cached_property
    def warm(self) -> Workload:
        """The jobs as they are in the world of cores (`TaskDurations.warm`).

        Load, estimates and durations there all come from these.
        """
        stages = [stage for job in self.jobs for stage in job.stages]
        return self if all(_warm(stage) is stage for stage in stages) else self.with_stages(_warm)

    def with_stages(self, change: Callable[[StageSpec], StageSpec]) -> Workload:
        """Apply `change` to every stage; everything else of the jobs stays as it is."""
        jobs = tuple(replace(job, stages=tuple(map(change, job.stages))) for job in self.jobs)
        return replace(self, jobs=jobs)

    def draw(
        self, num_jobs: int, arrivals: str, cluster: HasExecutors, *, seed: int
    ) -> JobSequence:
        """Draw the jobs of one run, and when they arrive."""
        check_seed(seed)
        if not hasattr(cluster, "total_executors"):
            raise no_cluster(cluster)
        process = ArrivalProcess.parse(arrivals)
        streams = RandomStreams(seed)
        slots = cluster.for_tasks_of(self).total_executors
        jobs = cluster.jobs_of(self)
        drawn = draw_sequence(jobs, process, num_jobs, slots, streams, cluster.runs_vary)
        # Not `replace`, which would check the arrivals once more.
        object.__setattr__(drawn, "arrivals", arrivals)
        return drawn

    @cached_property
    def users(self) -> tuple[str, ...]:
        """Who shares with whom: the user of every job; where nobody is known, the job's pool or its
        recurring name.
        """
        return tuple(job.user or job.pool or bare_name(job.name) for job in self.jobs)

    @property
    def cores_per_task(self) -> int:
        """How many cores each task takes while it runs."""
        cores = self.provenance.get(CORES_PER_TASK, "1")
        return max(1, int(cores)) if re.fullmatch("[0-9]{1,6}", cores) else 1

    @property
    def has_spread(self) -> bool:
        """Whether it is known how runs of a job deviate from its profile."""
        return any(job.has_spread for job in self.jobs)

    @property
    def has_driver_time(self) -> bool:
        """Whether the driver's time is known of any job."""
        return any(job.driver_time is not None for job in self.jobs)

    @property
    def knows_spark_jobs(self) -> bool:
        """Whether it is known which Spark job of its job every stage belongs to."""
        return all(stage.spark_job >= 0 for job in self.jobs for stage in job.stages)

    @property
    def is_recorded(self) -> bool:
        """Whether every job has a recorded arrival time."""
        return all(job.arrival_ms is not None for job in self.jobs)

    @property
    def num_sessions(self) -> int:
        """How many sessions (closed loops) were open at once where the log is one of sessions; else
        0.
        """
        text = self.provenance.get(SESSIONS, "")
        return int(text) if text.isdecimal() else 0

    @property
    def work_factor(self) -> float:
        """All work that the logs show / that of the jobs here; 1 where nothing was left out."""
        text = self.provenance.get(WORK_FACTOR, "")
        return float(text) if re.fullmatch(r"[1-9]\d{0,8}(\.\d{1,9})?", text) else 1.0

    @property
    def session_factor(self) -> float:
        """How many times as many sessions as were open bring all the work of the logs.

        One stays alone: what it also did was never at the same time, and is in its pauses.
        """
        return self.work_factor if self.num_sessions > 1 else 1.0

    @property
    def usual_sessions(self) -> int:
        """As many sessions as bring all the work of the logs."""
        return round(self.num_sessions * self.session_factor)

    @property
    def knows_completions(self) -> bool:
        """Whether it is recorded of every job when it arrived and how long it took."""
        return self.is_recorded and all(job.recorded_ms is not None for job in self.jobs)

    @property
    def has_deadlines(self) -> bool:
        """Whether any job has a deadline."""
        return any(job.deadline_ms is not None for job in self.jobs)

    def with_deadlines(
        self, deadlines: JobTable[int] | str | Path | Mapping[str, float | str]
    ) -> Workload:
        """The same jobs with deadlines, which replace those that they had.

        Example: `workload.with_deadlines({"etl-*": "5m", "*": "1h"})`.
        """
        table = deadlines if isinstance(deadlines, JobTable) else as_deadlines(deadlines)
        jobs = tuple(replace(job, deadline_ms=table.of(job.name)) for job in self.jobs)
        if all(job.deadline_ms is None for job in jobs):
            names = listed([job.name for job in self.jobs])
            raise ConfigError(
                f"{table.source}: no deadline matches a job of workload {self.name!r}; "
                f"its jobs are {names} (add a line `*,1h` for all jobs)"
            )
        return replace(self, jobs=jobs)


def _warm(stage: StageSpec) -> StageSpec:
    durations = stage.durations.warm
    if durations is stage.durations:
        return stage
    return replace(stage, durations=durations, mean_task_ms=durations.mean_ms)


def rows_by_name(workload: Workload) -> dict[str, tuple[int, ...]]:
    """By name, the rows of the jobs that a scheduler may see under it.

    A live cluster knows variants by the name of the job that they vary. Replays of a workload use
    the variants' own names, so these are names, too. It knows a query that has the shape of its
    plan behind a label by that shape.

    Example: the names of the jobs "etl" and "etl (2)" have the rows (0, 1) and (1,).
    """
    names = {job.name for job in workload.jobs}
    rows = defaultdict[str, list[int]](list)
    for row, job in enumerate(workload.jobs):
        rows[job.name].append(row)
        bare = bare_name(job.name)
        if bare != job.name and bare in names:
            rows[bare].append(row)
        if (shape := _SHAPE.search(bare)) and shape[1] not in names:
            rows[shape[1]].append(row)
    return {name: tuple(of_name) for name, of_name in rows.items()}


def usual_row(workload: Workload, rows: Sequence[int]) -> int:
    """The row of the job that ran most often; of several such jobs, of the one with median work."""
    weights = workload.weights or (1.0,) * len(workload.jobs)
    largest = max(weights[row] for row in rows)
    candidates = [row for row in rows if weights[row] == largest]
    candidates.sort(key=lambda row: workload.jobs[row].work_ms)
    return candidates[len(candidates) // 2]


#: The entry of a workload's provenance with the number of sessions that were open at once.
SESSIONS = "sessions"
#: Key in a workload's provenance: see `Workload.work_factor`.
WORK_FACTOR = "all_work_by_that_of_the_jobs"
#: Seed ranges. Comparisons use seeds below the first of these; tuning, training and the selection
#: of checkpoints have separate ranges, so that no two of them ever use the same seed.
TUNING_SEED_START = 1 << 40
TRAINING_SEED_START = 1 << 41
SELECTION_SEED_START = 1 << 42


def check_seed(seed: object) -> None:
    """Check the seed of a run."""
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed is {seed!r}: give 0 or more, as a whole number")


class RandomStreams:
    """Random generators of arrival times, of the jobs that arrive, of task durations, and of a
    policy's choices, all derived from one seed.

    Example: `RandomStreams(7).arrivals.exponential()` does not depend on draws from the other
    streams.
    """

    def __init__(self, seed: int) -> None:
        self.arrivals, self.jobs, self.durations, self.actions = map(
            np.random.default_rng, np.random.SeedSequence(seed).spawn(4)
        )


#: See `are_breaks`.
_BREAK_MS = MS_PER_HOUR
_BREAK_FACTOR = 20


def process_like(arrival_ms: Sequence[int]) -> str:
    """The arrival process most like these arrivals, as text: a batch, or Poisson at their rate.

    Example: jobs at 0, 1000 and 4000 ms are like "poisson:2000ms".
    """
    first_ms = min(arrival_ms, default=0)
    last_ms = max(arrival_ms, default=0)
    if first_ms == last_ms:
        return "batch"
    return f"poisson:{max(1, round((last_ms - first_ms) / (len(arrival_ms) - 1)))}ms"


def are_breaks(gaps_ms: npt.ArrayLike) -> BoolArray:
    """Which gaps are nights and the like: at least an hour, and at least 20 median gaps."""
    gaps = np.asarray(gaps_ms, np.int64)
    return gaps >= max(_BREAK_MS, int(_BREAK_FACTOR * np.median(gaps)) if gaps.size else 0)


def without_breaks(arrival_ms: Sequence[int]) -> list[int]:
    """Arrivals in ms from 0 on, as they would be without nights and weekends.

    The mean of the gaps that are no breaks (`are_breaks`) is the one at which jobs meet: a mean
    over the breaks, too, is that of an idle cluster.

    Example: jobs at 0, 2 and 4 s and again 24 hours later come at 0, 2, 4, 6 and 8 s.
    """
    gaps_ms = np.diff(np.sort(np.asarray(arrival_ms, np.int64)))
    if gaps_ms.size == 0:
        return [0] * len(arrival_ms)
    return [0, *np.cumsum(gaps_ms[~are_breaks(gaps_ms)]).tolist()]


@dataclass(frozen=True, eq=False)
class JobSequence:
    """The jobs of one run, in order of arrival.

    Args:
        workload: the job profiles.
        job_index: int64[num_jobs], the index of each job's profile in the workload.
        arrival_ms: int64[num_jobs], arrival times in ms, ascending. Jobs with arrival 0 are in the
            system at the start.
        arrivals: the arrival process that the sequence was drawn from, as text; "" if it was not
            drawn. A comparison draws further sequences in the same way.
        follows: int64[num_jobs], the earlier job of the sequence after whose end the job arrives,
            -1 for a job that arrives at its `arrival_ms`; empty without sessions. The `arrival_ms`
            of a job that follows another is when it would arrive on an empty cluster, or did in the
            log.
        pause_ms: int64[num_jobs], the time from that end to the arrival; empty without sessions.

    Raises:
        WorkloadError: no jobs, an index out of range, arrivals that are negative or not ascending,
            or a job that follows a later one or is followed by two.
    """

    workload: Workload
    job_index: Int64Array
    arrival_ms: Int64Array
    arrivals: str = ""
    follows: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    pause_ms: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        for name in ("job_index", "arrival_ms", "follows", "pause_ms"):
            array = np.array(getattr(self, name), np.int64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        shape = self.job_index.shape
        if len(shape) != 1 or shape != self.arrival_ms.shape or not self.job_index.size:
            raise WorkloadError("a sequence needs at least one job, and one arrival time for each")
        if self.job_index.min() < 0 or self.job_index.max() >= len(self.workload.jobs):
            raise WorkloadError(f"a job index is outside 0..{len(self.workload.jobs) - 1}")
        if self.arrival_ms[0] < 0 or (np.diff(self.arrival_ms) < 0).any():
            raise WorkloadError("arrival times must be >= 0 and ascending")
        if self.follows.size or self.pause_ms.size:
            self._check_sessions()

    def _check_sessions(self) -> None:
        if self.follows.shape != self.job_index.shape or self.pause_ms.shape != self.follows.shape:
            raise WorkloadError("a sequence with sessions needs a predecessor and a pause a job")
        before = self.follows[self.follows >= 0]
        is_earlier = (self.follows < np.arange(self.num_jobs)).all()
        if not is_earlier or self.follows.min() < -1 or len(set(before.tolist())) < before.size:
            raise WorkloadError("a job of a session follows one earlier job, and no two the same")
        if self.pause_ms.min() < 0 or self.pause_ms.max() > LARGEST_ARRIVAL_MS:
            raise WorkloadError(f"pauses must be from 0 to {LARGEST_ARRIVAL_MS:g} ms")

    @property
    def has_sessions(self) -> bool:
        """Whether jobs arrive after others have ended."""
        return bool((self.follows >= 0).any())

    @property
    def num_jobs(self) -> int:
        """Number of jobs that arrive."""
        return len(self.job_index)

    @property
    def nearest_process(self) -> str:
        """The arrival process, or the one most like these arrivals: a batch, or Poisson."""
        return self.arrivals or process_like(self.arrival_ms.tolist())

    @cached_property
    def jobs(self) -> tuple[JobSpec, ...]:
        """The profile of every arrival."""
        return tuple(self.workload.jobs[i] for i in self.job_index)

    @cached_property
    def num_tasks(self) -> int:
        """Number of tasks of all jobs that arrive."""
        return sum(job.num_tasks for job in self.jobs)


_ARRIVALS_HELP = (
    "write batch, poisson:25s (also ms, m, h), bursts:25s, load:0.85, trace:0.85, recorded, "
    "sessions, sessions:4 or sessions:load:0.85"
)
#: Mean number of jobs that arrive together in a process of bursts.
_MEAN_BURST = 5.0
#: Below this mean gap, rounding every gap down would make the load more than 0.5% too high. Longer
#: gaps are rounded one by one, as in all published results.
_SHORT_GAP_MS = 100.0


@dataclass(frozen=True)
class ArrivalProcess:
    """A process that generates arrival times.

    Args:
        kind: "batch" (all jobs at 0), "poisson", "bursts" (Poisson arrivals of groups of jobs,
            whose sizes are geometric with a mean of 5), "load" (Poisson with the rate that gives a
            target load), "trace" (a random piece of the recorded arrivals, rescaled to a target
            load), "recorded", "sessions" or "sessions:load" (closed loops: the next job of a
            session arrives a pause after the last one has ended).
        value: for "poisson" and "bursts" the mean gap between jobs in ms; for "load" and "trace"
            the target load, as a share of the executors' time. For "sessions" their number, 0 for
            that of the log, and for "sessions:load" the load that they bring if none ever waits.

    Example: `ArrivalProcess.parse("poisson:25s")` has kind "poisson" and value 25000.
    """

    kind: str
    value: float = 0.0

    @classmethod
    def parse(cls, text: str) -> ArrivalProcess:
        """Parse batch | poisson:25s | bursts:25s | load:0.85 | trace:0.85 | recorded | sessions |
        sessions:4 | sessions:load:0.85.
        """
        if text in ("batch", "recorded", "sessions"):
            return cls(text)
        if sessions := re.fullmatch(r"sessions:([1-9]\d{0,5})", str(text)):
            return cls("sessions", float(sessions[1]))
        timed = re.fullmatch(r"(poisson|bursts):(\d+(?:\.\d+)?)(ms|s|m|h)", str(text))
        if timed and float(timed[2]) > 0:
            return cls(timed[1], float(timed[2]) * UNITS_MS[timed[3]])
        load = re.fullmatch(r"((?:sessions:)?load|trace):(\d*\.?\d+)", str(text))
        if load and 0 < float(load[2]) <= 10:
            return cls(load[1], float(load[2]))
        raise ConfigError(f"arrivals {text!r} are not understood: {_ARRIVALS_HELP}")

    def mean_gap_ms(self, workload: Workload, num_executors: int, runs_vary: bool = False) -> float:
        """Mean time between arrivals in ms.

        For "load" and "trace" it is the mean work of a drawn job / (load x executors), with mean
        task durations. Work inflation and moving delays come on top, so that executors are busier
        than the target where parallelism inflates the work. Sessions are counted as if no job ever
        waited: (mean pause + mean duration alone) / their number.
        """
        if self.is_closed:
            cycle_ms = _cycle_ms(workload, num_executors)
            return cycle_ms / self.num_sessions(workload, num_executors, runs_vary)
        if self.kind == "load":
            return workload.expected_work_ms(runs_vary) / (self.value * num_executors)
        if self.kind == "trace":
            return recorded_work_ms(workload, runs_vary) / (self.value * num_executors)
        return self.value

    @property
    def is_closed(self) -> bool:
        """Whether jobs arrive after others have ended."""
        return self.kind.startswith("sessions")

    def replays(self, workload: Workload) -> bool:
        """Whether the recorded jobs arrive as they did, or after those that they came after."""
        is_log = self.kind == "sessions" and self.value == 0
        return self.kind == "recorded" or (is_log and workload.is_recorded)

    def num_sessions(self, workload: Workload, num_executors: int, runs_vary: bool = False) -> int:
        """The number of sessions: as given, as in the log, or as many as bring the load."""
        if self.kind == "sessions:load":
            work_ms = workload.expected_work_ms(runs_vary)
            brought = work_ms / (_cycle_ms(workload, num_executors) * num_executors)
            return max(1, round(self.value / brought)) if brought > 0 else 1
        if self.value == 0 and workload.num_sessions == 0:
            raise ConfigError(
                f"workload {workload.name!r} knows of no sessions: write how many there are, as in "
                "sessions:4"
            )
        return int(self.value) or workload.num_sessions

    def draw_gaps_ms(self, count: int, mean_gap_ms: float, rng: np.random.Generator) -> Int64Array:
        """Draw the times between jobs. Returns int64[count], in whole ms, rounded down; short gaps
        so that their sum stays right.
        """
        if self.kind != "bursts":
            gaps_ms = rng.exponential(mean_gap_ms, count)
        else:
            # A burst begins with probability 1 / mean size; the other jobs arrive with the job
            # before them. Gaps between bursts are longer by the same factor, so that the mean gap
            # stays the same.
            begins = rng.random(count) < 1 / _MEAN_BURST
            gaps_ms = begins * rng.exponential(_MEAN_BURST * mean_gap_ms, count)
        _check_last(gaps_ms.sum(), count, mean_gap_ms)
        if mean_gap_ms < _SHORT_GAP_MS:
            return np.diff(np.floor(np.cumsum(gaps_ms)), prepend=0.0).astype(np.int64)
        return np.floor(gaps_ms).astype(np.int64)


def _check_last(last_ms: float, count: int, mean_gap_ms: float) -> None:
    """Check that the last arrival, behind `count` gaps, is a time."""
    # NaN, where an infinite gap is multiplied by 0, is no time either.
    if not last_ms <= LARGEST_ARRIVAL_MS:
        raise ConfigError(
            f"{count:,} gaps of {mean_gap_ms:g} ms on average are too long; arrivals of at "
            f"most {LARGEST_ARRIVAL_MS:g} ms are times: choose shorter gaps or a higher load"
        )


def recorded_work_ms(workload: Workload, runs_vary: bool = False) -> float:
    """Mean work of the recorded jobs; each arrives once, however often others are drawn."""
    works_ms = workload.works_ms(runs_vary)
    return math.fsum(works_ms) / len(works_ms)


def draw_sequence(
    workload: Workload,
    arrivals: str | ArrivalProcess,
    num_jobs: int,
    num_executors: int,
    streams: RandomStreams,
    runs_vary: bool = False,
) -> JobSequence:
    """Draw `num_jobs` jobs by the workload's weights, and their arrival times.

    Except for recorded arrivals, the first job arrives at 0; gaps are whole ms, rounded down.

    Args:
        workload: the job profiles.
        arrivals: the arrival process, or its text as for `ArrivalProcess.parse`.
        num_jobs: number of jobs, >= 1.
        num_executors: executors of the cluster; a target load refers to them.
        streams: source of the random numbers.
        runs_vary: runs deviate from their profiles as in the log; a target load counts that.

    Raises:
        ConfigError: arrivals that cannot be parsed, or whose gaps are too long, or "recorded" or
            "trace" with more jobs than were recorded.
    """
    process = arrivals if isinstance(arrivals, ArrivalProcess) else ArrivalProcess.parse(arrivals)
    if not isinstance(num_jobs, int | np.integer) or num_jobs < 1:
        raise ConfigError(f"num_jobs is {num_jobs!r}: give a whole number of jobs, at least one")
    if process.kind == "recorded":
        return recorded_sequence(workload, num_jobs)
    if process.replays(workload):
        return _recorded_sessions(workload, num_jobs)
    gap_ms = process.mean_gap_ms(workload, num_executors, runs_vary)
    if process.kind == "trace":
        return _piece(workload, num_jobs, gap_ms, streams.arrivals)
    if workload.weights is None:
        index = streams.jobs.integers(0, len(workload.jobs), num_jobs)
    else:
        odds = np.asarray(workload.weights) / math.fsum(workload.weights)
        index = streams.jobs.choice(len(workload.jobs), size=num_jobs, p=odds)
    if process.is_closed:
        count = process.num_sessions(workload, num_executors, runs_vary)
        return _drawn_sessions(workload, index, count, streams.arrivals)
    arrival_ms = np.zeros(num_jobs, np.int64)
    if process.kind != "batch":
        arrival_ms[1:] = np.cumsum(process.draw_gaps_ms(num_jobs - 1, gap_ms, streams.arrivals))
    return JobSequence(workload, index, arrival_ms)


def recorded_sequence(workload: Workload, num_jobs: int | None = None) -> JobSequence:
    """The `num_jobs` earliest recorded arrivals, or all, in order, with the first at 0."""
    order, recorded = _recorded(workload, 1 if num_jobs is None else num_jobs)
    return JobSequence(workload, order[:num_jobs], recorded[:num_jobs] - recorded[0])


def _recorded(workload: Workload, at_least: int) -> tuple[Int64Array, Int64Array]:
    """Job indices in order of recorded arrival, and the arrivals in ms: int64[num_jobs] each."""
    if not workload.is_recorded:
        raise ConfigError(
            f"workload {workload.name!r} has no recorded arrivals; "
            "import it with `parcae workload import ... --recorded`, or draw arrivals, as in "
            "--arrivals load:0.85"
        )
    recorded = np.array([job.arrival_ms for job in workload.jobs], np.int64)
    if at_least > len(recorded):
        raise ConfigError(
            f"workload {workload.name!r} recorded {len(recorded)} jobs, not {at_least}; "
            "ask for fewer"
        )
    order = np.argsort(recorded, kind="stable")
    return order, recorded[order]


def _recorded_sessions(workload: Workload, num_jobs: int) -> JobSequence:
    """The `num_jobs` earliest recorded jobs, those of a session a pause after each other."""
    sequence = recorded_sequence(workload, num_jobs)
    follows = np.full(num_jobs, -1)
    pause_ms = np.zeros(num_jobs, np.int64)
    latest: dict[int, int] = {}
    for place, job in enumerate(sequence.jobs):
        if job.session >= 0:
            if job.pauses_ms:
                follows[place] = latest.get(job.session, -1)
                pause_ms[place] = job.pauses_ms[0]
            latest[job.session] = place
    if not latest:
        raise ConfigError(
            f"workload {workload.name!r} has no recorded sessions (queries that one after another "
            "waits for): write recorded, or how many sessions to draw, as in sessions:4"
        )
    return replace(sequence, follows=follows, pause_ms=pause_ms)


def _drawn_sessions(
    workload: Workload, index: Int64Array, count: int, rng: np.random.Generator
) -> JobSequence:
    """Deal jobs to sessions in turn; each comes a recorded pause after the one before it.

    A job without recorded pauses takes one of all the workload's; without any there are none. Jobs
    are in the order in which they would arrive if none ever waited for another session's.
    """
    of_all = np.array([ms for job in workload.jobs for ms in job.pauses_ms] or [0], np.int64)
    jobs = [workload.jobs[row] for row in index]
    pause_ms = np.array([rng.choice(np.array(job.pauses_ms or of_all)) for job in jobs], np.int64)
    # The sessions are at random places of a first pause, but for one that begins at once.
    pause_ms[0] = 0
    begin_ms = pause_ms[:count].astype(np.float64)
    begin_ms[1:] *= rng.random(len(begin_ms) - 1)
    arrival_ms = np.zeros(len(jobs), np.int64)
    arrival_ms[:count] = begin_ms
    for place in range(count, len(jobs)):
        ready_ms = arrival_ms[place - count] + round(jobs[place - count].ideal_ms(math.inf))
        arrival_ms[place] = ready_ms + pause_ms[place]
    _check_last(float(arrival_ms.max()), len(jobs), float(pause_ms.mean()))
    order = np.argsort(arrival_ms, kind="stable")
    place_of = np.append(np.argsort(order), -1)
    before = np.maximum(np.arange(len(jobs)) - count, -1)
    return JobSequence(
        workload, index[order], arrival_ms[order], "", place_of[before[order]], pause_ms[order]
    )


def _cycle_ms(workload: Workload, num_executors: int) -> float:
    """Mean time from one arrival of a session to its next, if no job ever waits."""
    of_all = [ms for job in workload.jobs for ms in job.pauses_ms] or [0]
    mean_ms = math.fsum(of_all) / len(of_all)
    cycles_ms = [
        (math.fsum(job.pauses_ms) / len(job.pauses_ms) if job.pauses_ms else mean_ms)
        + job.ideal_ms(num_executors)
        for job in workload.jobs
    ]
    return max(1.0, float(np.average(cycles_ms, weights=workload.weights)))


def _piece(
    workload: Workload, num_jobs: int, mean_gap_ms: float, rng: np.random.Generator
) -> JobSequence:
    """`num_jobs` consecutive recorded jobs from a random position on, with rescaled gaps.

    One factor gives the whole record the mean gap `mean_gap_ms`; a piece can be busier than the
    whole record. Jobs that were recorded at the same time arrive together.
    """
    order, recorded = _recorded(workload, num_jobs)
    span_ms = int(recorded[-1] - recorded[0])
    if span_ms == 0:
        raise ConfigError(
            f"workload {workload.name!r} recorded all its jobs at one time, "
            "so that the arrivals cannot be rescaled to a load; write load:..."
        )
    scale = mean_gap_ms * (len(recorded) - 1) / span_ms
    # The upper bound is exclusive: the last possible piece ends with the last job.
    first = int(rng.integers(0, len(recorded) - num_jobs + 1))
    piece = slice(first, first + num_jobs)
    arrival_ms = np.floor((recorded[piece] - recorded[first]) * scale)
    _check_last(arrival_ms[-1], num_jobs - 1, mean_gap_ms)
    return JobSequence(workload, order[piece], arrival_ms.astype(np.int64))


#: Bounds of `growth`: others are mistakes, and arrivals would overflow.
LEAST_GROWTH = 0.001
MOST_GROWTH = 1_000.0


def default_block(num_jobs: int) -> int:
    """Length of a block for this many recorded jobs: the square root, rounded up.

    A block is shorter than the record. The best length for the variance of a mean grows with the
    cube root; completion times depend on bursts, which longer blocks keep.

    Example: 100 recorded jobs are resampled in blocks of 10.
    """
    return max(1, min(num_jobs - 1, math.ceil(math.sqrt(num_jobs))))


def check_block(block: int, num_recorded: int) -> None:
    """Check that blocks of this many jobs can be drawn from a record."""
    if not 1 <= block < max(2, num_recorded):
        raise ConfigError(
            f"blocks of {block} jobs cannot be drawn from {num_recorded} recorded jobs: give "
            f"--block a number from 1 to {max(1, num_recorded - 1)}"
        )


def resampled(recorded: JobSequence, num_jobs: int, block: int, *, seed: int) -> JobSequence:
    """Draw a sequence from a recorded one, in blocks of consecutive (gap, job) pairs. Returns the
    sequence; its first job arrives at 0.

    Each job keeps the gap that was recorded before it. Blocks begin at random places, and within a
    block jobs and gaps keep their order, so that bursts of up to `block` jobs stay as they were.
    The record is closed to a circle: after its last job comes its first, whose gap is the mean gap.
    So every pair is drawn with the same probability, and the means of gaps and of work are those of
    the record. (Without the circle, the ends of the record would be drawn less often.)

    Source: Kuensch, The jackknife and the bootstrap for general stationary observations (1989), for
    moving blocks; Politis & Romano, A circular block-resampling procedure (1992), for the circle.
    """
    check_block(block, recorded.num_jobs)
    if num_jobs < 1:
        raise ConfigError(f"a run needs at least one job, not {num_jobs}")
    gaps_ms = np.diff(recorded.arrival_ms)
    mean_ms = round(float(gaps_ms.mean())) if gaps_ms.size else 0
    circle_ms = np.concatenate([[mean_ms], gaps_ms])
    num_blocks = math.ceil(num_jobs / block)
    starts = RandomStreams(seed).arrivals.integers(0, recorded.num_jobs, num_blocks)
    places = (starts[:, None] + np.arange(block)).ravel()[:num_jobs] % recorded.num_jobs
    drawn_ms = circle_ms[places]
    drawn_ms[0] = 0
    return replace(recorded, job_index=recorded.job_index[places], arrival_ms=np.cumsum(drawn_ms))


def check_growth(growth: float) -> None:
    """Check that arrivals can be divided by this number."""
    if not LEAST_GROWTH <= growth <= MOST_GROWTH:
        raise ConfigError(
            f"--growth {growth:g}: write a number from {LEAST_GROWTH:g} to {MOST_GROWTH:g}, as in "
            "1.5"
        )


def grown(sequence: JobSequence, growth: float) -> JobSequence:
    """The same jobs in a shorter time: every arrival divided by `growth`, in whole ms."""
    check_growth(growth)
    arrival_ms = np.floor(sequence.arrival_ms / growth).astype(np.int64)
    return replace(sequence, arrival_ms=arrival_ms)
