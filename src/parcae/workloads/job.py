"""The data model of a workload: stages and jobs (DAGs of stages).

All objects are immutable and check their values when they are created.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from parcae.base.arrays import Int64Array
from parcae.base.errors import WorkloadError
from parcae.base.loader import shown
from parcae.base.texts import MS_PER_HOUR
from parcae.workloads import durations as limits
from parcae.workloads.durations import TaskDurations

Parents = Sequence[Collection[int]]


def children_of(parents: Parents) -> list[list[int]]:
    """The children of each node, ascending."""
    children: list[list[int]] = [[] for _ in parents]
    for node, node_parents in enumerate(parents):
        for parent in node_parents:
            children[parent].append(node)
    return children


def topological_order(parents: Parents) -> tuple[list[int], list[int]]:
    """The nodes, parents before children (Kahn's algorithm). Returns the order, and the nodes that
    are missing in it: those on a cycle or behind one.
    """
    children = children_of(parents)
    missing = [len(node_parents) for node_parents in parents]
    order = [node for node, count in enumerate(missing) if count == 0]
    # `order` grows while the loop runs over it: it is also the queue of nodes to visit.
    for node in order:
        for child in children[node]:
            missing[child] -= 1
            if missing[child] == 0:
                order.append(child)
    return order, [node for node, count in enumerate(missing) if count > 0]


def spark_roots(parents: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Stages without parents in Spark's submission order: depth first from the final stages.

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


def longest_paths(
    children: Sequence[Sequence[int]], order: Sequence[int], weights: Sequence[float]
) -> list[float]:
    """For every node the largest sum of weights over the paths that start there.

    The weight of the node itself is included.
    """
    longest = [0.0] * len(children)
    for node in reversed(order):
        longest[node] = weights[node] + max((longest[child] for child in children[node]), default=0)
    return longest


def refined_classes(parents: Parents, labels: Sequence[object]) -> list[int]:
    """A number per node, equal for nodes with equal label, ancestors and descendants.

    Classes are refined by those of parents and children until none is split (Weisfeiler-Leman). The
    numbers are ranks within the DAG, so they can be compared between DAGs of the same shape.
    """
    children = children_of(parents)
    numbers = _ranks(labels)
    for _ in parents:
        refined = _ranks(
            [
                (
                    numbers[node],
                    sorted(numbers[parent] for parent in node_parents),
                    sorted(numbers[child] for child in children[node]),
                )
                for node, node_parents in enumerate(parents)
            ]
        )
        # No class was split, so another round would not split any.
        if max(refined) == max(numbers):
            break
        numbers = refined
    return numbers


def _ranks(keys: Sequence[object]) -> list[int]:
    rank = {text: position for position, text in enumerate(sorted({repr(key) for key in keys}))}
    return [rank[repr(key)] for key in keys]


@dataclass(frozen=True)
class LoggedFaults:
    """Counts over all event logs of a workload; `parcae ... --faults log` simulates their rates.

    Raises:
        WorkloadError: a count is negative or not finite, or more attempts failed than there were.
    """

    num_attempts: int
    num_failed: int = 0
    num_speculative: int = 0
    num_lost_executors: int = 0
    executor_ms: float = 0.0
    executor_cores: int = 0
    num_restarts: int = 0
    restarts_ms: float = 0.0

    def __post_init__(self) -> None:
        values = [float(value) for value in vars(self).values()]
        if not all(0 <= value < math.inf for value in values):
            raise WorkloadError("a count of faults is negative or not finite")
        if self.num_failed > self.num_attempts:
            raise WorkloadError(
                f"{self.num_failed} of {self.num_attempts} attempts of tasks cannot have failed"
            )

    @property
    def failure_rate(self) -> float:
        """Share of the attempts that failed."""
        return self.num_failed / self.num_attempts if self.num_attempts else 0.0

    @property
    def lost_per_hour(self) -> float:
        """Losses per executor and hour."""
        if self.executor_ms <= 0:
            return 0.0
        return self.num_lost_executors / (self.executor_ms / MS_PER_HOUR)

    @property
    def restart_ms(self) -> float:
        """Mean time from a loss to the next new executor; 0 if none came."""
        return self.restarts_ms / self.num_restarts if self.num_restarts else 0.0

    def __str__(self) -> str:
        """The counts and rates in words."""
        hours = self.executor_ms / MS_PER_HOUR
        return (
            f"failed attempts: {self.num_failed:,} of {self.num_attempts:,} "
            f"({self.failure_rate:.2%}); lost executors: {self.num_lost_executors:,} in "
            f"{hours:,.1f} executor hours; speculative copies: {self.num_speculative:,}"
        )


def combined(counts: Sequence[LoggedFaults]) -> LoggedFaults:
    """The counts of several applications together; cores are those of the longest-running one."""
    longest = max(counts, key=lambda one: one.executor_ms)
    sums = {name: sum(getattr(one, name) for one in counts) for name in vars(longest)}
    return LoggedFaults(**{**sums, "executor_cores": longest.executor_cores})


def _is_amount(value: float) -> bool:
    """Whether a value is a finite number >= 0."""
    return 0 <= value <= sys.float_info.max


@dataclass(frozen=True, eq=False)
class DriverTime:
    """The time of a job's recorded runs in which none of its tasks could run: planning, listing
    files, broadcasts, adaptive planning between stages, launching, collecting results.

    Args:
        gap_ms: int64[num_runs, num_stages], from the ends of a stage's parents (the submission of
            the job if it has none) to its submission.
        lag_ms: int64[num_runs, num_stages], from a stage's submission until its tasks may start,
            while a core is free.
        tail_ms: int64[num_runs], from the end of the last stage to that of the job.

    Raises:
        WorkloadError: negative times, times beyond 24 days, or shapes that do not fit.
    """

    gap_ms: Int64Array
    lag_ms: Int64Array
    tail_ms: Int64Array

    def __post_init__(self) -> None:
        for name in ("gap_ms", "lag_ms", "tail_ms"):
            array = np.array(getattr(self, name), np.int64)
            if array.size and not 0 <= array.min() <= array.max() <= np.iinfo(np.int32).max:
                raise WorkloadError(
                    f"driver time: {name} is from 0 ms to 24 days, not {array.min()} to "
                    f"{array.max()} ms"
                )
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.gap_ms.shape != self.lag_ms.shape or self.gap_ms.shape[:1] != self.tail_ms.shape:
            raise WorkloadError("driver time: gaps and lags are needed for every run and stage")
        if not self.tail_ms.size:
            raise WorkloadError("driver time needs at least one run")


def no_driver_time(num_stages: int) -> DriverTime:
    """One run whose driver takes no time."""
    none = np.zeros((1, num_stages), np.int64)
    return DriverTime(none, none, np.zeros(1, np.int64))


@dataclass(frozen=True, eq=False)
class StageSpec:
    """One stage: `num_tasks` similar tasks that may run in parallel once all parents are complete.

    Args:
        num_tasks: number of tasks, >= 1.
        durations: task durations in ms.
        parents: indices of the parent stages within the job.
        cpu: cores that one task needs.
        memory: memory that one task needs, in the workload's unit (normalised: 1 is the largest
            executor).
        name: name of the stage in its source.
        mean_task_ms: the mean task duration that a scheduler may know; -1 (the default) stands for
            the mean of all samples.
        duration_sigma: spread of the stage's mean task duration over the runs of the recurring job:
            standard deviation of its logarithm around the median, after the factor of the whole run
            (`JobSpec.work_sigma`) is divided out. 0: not known.
        input_bytes: bytes that a run of the stage reads on average (input and shuffle). 0: not
            known.
        spark_job: which of the job's Spark jobs the stage belongs to, from 0 in order of
            submission: Spark's FIFO numbers a Spark job when its first stage is submitted. -1: not
            known; each stage counts as one of its own.

    Raises:
        WorkloadError: no tasks, or a demand, mean duration, sigma or number of bytes that is
            negative or not finite.
    """

    num_tasks: int
    durations: TaskDurations
    parents: tuple[int, ...] = ()
    cpu: float = 1.0
    memory: float = 0.0
    name: str = ""
    mean_task_ms: float = -1.0
    duration_sigma: float = 0.0
    input_bytes: float = 0.0
    spark_job: int = -1

    def __post_init__(self) -> None:
        if self.num_tasks > limits.MOST_TASKS:
            raise WorkloadError(
                f"stage {self.name!r}: {shown(self.num_tasks)} tasks; a stage has at most "
                f"{limits.MOST_TASKS:,}"
            )
        if not self.num_tasks >= 1 or int(self.num_tasks) != self.num_tasks:
            raise WorkloadError(
                f"stage {self.name!r}: an empty stage ({self.num_tasks} tasks); "
                "a stage needs >= 1 task"
            )
        object.__setattr__(self, "num_tasks", int(self.num_tasks))
        object.__setattr__(self, "parents", tuple(sorted({int(p) for p in self.parents})))
        if self.mean_task_ms == -1.0:
            object.__setattr__(self, "mean_task_ms", self.durations.mean_ms)
        for what, value in (
            ("cpu demand", self.cpu),
            ("memory demand", self.memory),
            ("mean task duration", self.mean_task_ms),
            ("duration sigma", self.duration_sigma),
            ("number of input bytes", self.input_bytes),
        ):
            if not _is_amount(value):
                raise WorkloadError(
                    f"stage {self.name!r}: the {what} is {value}; it must be a number >= 0"
                )

    @property
    def work_ms(self) -> float:
        """Work of the stage: number of tasks x mean task duration, in ms of one executor."""
        return self.num_tasks * self.mean_task_ms


@dataclass(frozen=True, eq=False)
class JobSpec:
    """A job: a DAG of stages.

    Args:
        name: the recurring job's name, e.g. "q9-100g".
        stages: the stages; a stage's index is its position here.
        arrival_ms: the recorded arrival time, or None.
        work_sigma: spread of the total work over the runs of the recurring job: standard deviation
            of its logarithm around the median, so that a run's work is median x lognormal(0,
            work_sigma). 0: no spread, or not known.
        num_runs: number of runs from which the profile was made.
        pool: Spark's scheduler pool that the job ran in; "" where none was set.
        user: the person who ran the job, as the server or the application named them; "" where
            nobody did.
        queue: YARN's queue of its application; "" elsewhere.
        session: number of the session (closed loop) of the recorded run, in which the next query
            comes only after this one has ended; -1 for none.
        pauses_ms: the recorded pauses, in ms, from the end of the job before it in its session to
            its own arrival, of every run that has one.
        deadline_ms: how long after its arrival a run should have completed, in ms; None: at any
            time. It is a goal and no property of the job, so workload files and fingerprints leave
            it out.
        driver_time: the driver's time in the recorded runs; None: not known, none is played.
        recorded_ms: how long a recorded run took, from its arrival to its end; None: not known.
        scan_bytes: bytes of the files that a run's scans read on average, times the share of the
            columns that each scan read; threefold if the run writes rows. 0: not known.
        run_factors: float64[num_runs, num_stages], work of a stage in each of the runs / in the
            profile; empty where the runs are not kept.

    Raises:
        WorkloadError: no stages, driver time of other stages, a negative arrival, a deadline that
            is not above 0, a sigma that is negative or not finite, no runs, a parent that does not
            exist, or a cycle (the message names its stages).

    Example: a two-stage job with 3 + 1 tasks of one second has work 4000 ms and critical path 2000
    ms.
    """

    name: str
    stages: tuple[StageSpec, ...]
    arrival_ms: int | None = None
    work_sigma: float = 0.0
    num_runs: int = 1
    pool: str = ""
    user: str = ""
    queue: str = ""
    session: int = -1
    pauses_ms: tuple[int, ...] = ()
    deadline_ms: int | None = None
    driver_time: DriverTime | None = None
    recorded_ms: int | None = None
    run_factors: Any = ()
    scan_bytes: float = 0.0
    #: Stage indices, parents before children.
    topological_order: tuple[int, ...] = field(init=False, repr=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages:
            raise WorkloadError(f"job {self.name!r} has no stages; a job needs at least one")
        if self.arrival_ms is not None:
            if not 0 <= self.arrival_ms <= limits.LARGEST_ARRIVAL_MS:
                raise WorkloadError(
                    f"job {self.name!r} arrives at {shown(self.arrival_ms)} ms; a time is from 0 "
                    f"to {limits.LARGEST_ARRIVAL_MS:g} ms"
                )
            # A plain number, as in files: the fingerprint has it as text.
            object.__setattr__(self, "arrival_ms", int(self.arrival_ms))
        object.__setattr__(self, "pauses_ms", tuple(map(int, self.pauses_ms)))
        if not all(0 <= pause_ms <= limits.LARGEST_ARRIVAL_MS for pause_ms in self.pauses_ms):
            raise WorkloadError(
                f"job {self.name!r}: a pause is from 0 to {limits.LARGEST_ARRIVAL_MS:g} ms"
            )
        if self.deadline_ms is not None and not self.deadline_ms > 0:
            raise WorkloadError(
                f"job {self.name!r}: the deadline is {self.deadline_ms} ms after arrival; "
                "it must be above 0"
            )
        if not _is_amount(self.work_sigma):
            raise WorkloadError(
                f"job {self.name!r}: the work sigma is {self.work_sigma}; it must be a number >= 0"
            )
        if not _is_amount(self.scan_bytes):
            raise WorkloadError(
                f"job {self.name!r}: {self.scan_bytes} scanned bytes; it must be a number >= 0"
            )
        object.__setattr__(self, "work_sigma", float(self.work_sigma))
        if self.num_runs < 1:
            raise WorkloadError(
                f"job {self.name!r}: a profile of {self.num_runs} runs; it needs at least one"
            )
        shape = (len(self.run_factors) and self.num_runs, len(self.stages))
        factors = np.array(self.run_factors, np.float64)
        if factors.size != math.prod(shape) or not ((factors >= 0) & (factors < math.inf)).all():
            raise WorkloadError(
                f"job {self.name!r}: the factors of its runs must be {self.num_runs} x "
                f"{len(self.stages)} numbers >= 0"
            )
        factors.flags.writeable = False
        object.__setattr__(self, "run_factors", factors.reshape(shape))
        for index, stage in enumerate(self.stages):
            for parent in stage.parents:
                if not 0 <= parent < len(self.stages):
                    raise WorkloadError(
                        f"job {self.name!r}, stage {index}: parent {parent} does not exist "
                        f"(0..{len(self.stages) - 1})"
                    )
        if self.driver_time and self.driver_time.gap_ms.shape[1:] != (len(self.stages),):
            raise WorkloadError(
                f"job {self.name!r}: driver time of {self.driver_time.gap_ms.shape[1]} stages for "
                f"{len(self.stages)}"
            )
        order, stuck = topological_order([stage.parents for stage in self.stages])
        if stuck:
            raise WorkloadError(
                f"job {self.name!r} has a cycle through some of its stages {stuck}; "
                "a job must be a DAG"
            )
        object.__setattr__(self, "topological_order", tuple(order))
        if self.work_ms > limits.LARGEST_WORK_MS:
            raise WorkloadError(
                f"job {self.name!r} has {self.work_ms:g} ms of work; at most "
                f"{limits.LARGEST_WORK_MS:g} ms can be summed"
            )

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Indices of the child stages of every stage."""
        return tuple(map(tuple, children_of([stage.parents for stage in self.stages])))

    @property
    def num_tasks(self) -> int:
        """Number of tasks of all stages."""
        return sum(stage.num_tasks for stage in self.stages)

    @cached_property
    def work_ms(self) -> float:
        """Total work: the sum over stages of tasks x mean task duration, in ms of one executor."""
        return float(sum(stage.work_ms for stage in self.stages))

    @property
    def has_spread(self) -> bool:
        """Whether it is known how its runs deviate from the profile."""
        return self.work_sigma > 0 or any(stage.duration_sigma > 0 for stage in self.stages)

    def downstream_ms(self, stage_ms: Sequence[float]) -> tuple[float, ...]:
        """For every stage the largest sum of `stage_ms` over the paths that start at this stage.

        The stage itself is included: its downstream sum is its `stage_ms` plus the largest
        downstream sum of its children.
        """
        return tuple(longest_paths(self.children, self.topological_order, stage_ms))

    @cached_property
    def critical_path_ms(self) -> float:
        """Longest path through the DAG, counting one mean task per stage.

        Without the driver's time this is the duration of the job on unlimited executors.
        """
        return max(self.downstream_ms([stage.mean_task_ms for stage in self.stages]))

    @cached_property
    def driver_ms(self) -> float:
        """By how much the mean of the driver's time makes the longest path longer."""
        if (driver := self.driver_time) is None:
            return 0.0
        waits_ms = (driver.gap_ms + driver.lag_ms).mean(axis=0).tolist()
        pairs = zip(self.stages, waits_ms, strict=True)
        path_ms = max(self.downstream_ms([stage.mean_task_ms + ms for stage, ms in pairs]))
        return path_ms + float(driver.tail_ms.mean()) - self.critical_path_ms

    def ideal_ms(self, num_executors: float, has_driver: bool = True) -> float:
        """How long the job takes alone on the cluster, as if its work were divisible: max(critical
        path, work / executors), both with mean task durations, and the driver's time.
        """
        tasks_ms = max(self.critical_path_ms, self.work_ms / num_executors)
        return tasks_ms + self.driver_ms if has_driver else tasks_ms

    @cached_property
    def average_width(self) -> float:
        """Total work / critical path: how many executors the job can use on average.

        Source: Duan & Wu, section III.
        """
        path_ms = self.critical_path_ms
        return self.work_ms / path_ms if path_ms > 0 else float(self.num_tasks)

    def at(self, arrival_ms: int | None) -> JobSpec:
        """The same job with another arrival time."""
        return replace(self, arrival_ms=arrival_ms)


#: What the importer adds to the name of a job with the name of another job, but a different DAG.
_NUMBER = re.compile(r" \(\d+\)$")


def bare_name(name: str) -> str:
    """The name of a job without the number that the importer adds.

    A job may itself be called "name (2)", so this is a guess unless there is a job "name", too.
    """
    return _NUMBER.sub("", name)
