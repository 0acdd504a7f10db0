"""Metrics of a run that concern executor classes: use of every class, and unused memory.

Source: Decima, section 7.3 and Appendix G.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ExecutorClass
from parcae.cluster.trace import Trace
from parcae.errors import ConfigError, WorkloadError
from parcae.metrics.cluster import makespan_ms
from parcae.workloads.arrivals import JobSequence
from parcae.workloads.job import StageSpec, Workload

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def _tasks(trace: Trace) -> npt.NDArray[np.void]:
    """Return the recorded tasks of the run."""
    if trace.tasks is None:
        raise ConfigError(
            "metrics by executor class need recorded tasks: simulate with record=True"
        )
    return trace.tasks


def class_time_ms(trace: Trace) -> Int64Array:
    """Return the executor time that every job used of every class, int64[num_jobs, num_classes].

    Raises:
        ConfigError: the tasks were not recorded.
    """
    tasks = _tasks(trace)
    time_ms = np.zeros((len(trace.arrival_ms), max(1, len(trace.classes))), np.int64)
    # Unlike indexed addition, `np.add.at` adds every task even if a (job, class) pair repeats.
    np.add.at(
        time_ms,
        (tasks["job"], trace.class_of_executor[tasks["executor"]]),
        tasks["finish_ms"] - tasks["start_ms"],
    )
    return time_ms


def executors_used(trace: Trace) -> Int64Array:
    """Return how many different executors of every class ran tasks of every job.

    Returns:
        int64[num_jobs, num_classes].

    Raises:
        ConfigError: the tasks were not recorded.

    Example: a job that ran three tasks on one executor of class 1 used [0, 1].
    """
    tasks = _tasks(trace)
    pairs = np.unique(np.stack([tasks["job"], tasks["executor"]]), axis=1)
    used = np.zeros((len(trace.arrival_ms), max(1, len(trace.classes))), np.int64)
    np.add.at(used, (pairs[0], trace.class_of_executor[pairs[1]]), 1)
    return used


def class_utilization(trace: Trace) -> FloatArray:
    """Return the share of time in which each class's executors ran tasks, float64[num_classes].

    The time is that from the first arrival to the last completion.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    executors = np.array([c.num_executors for c in trace.classes] or [trace.num_executors])
    return np.asarray(
        class_time_ms(trace).sum(axis=0) / np.maximum(1, executors * makespan_ms(trace)), np.float64
    )


def memory_fragmentation(trace: Trace, sequence: JobSequence) -> float | None:
    """Return the share of the busy executors' memory that their tasks did not need.

    1 - (sum over tasks of demanded memory x duration) / (sum over tasks of the executor's memory x
    duration).

    Returns:
        None if the tasks were not recorded or the executors have no finite memory; 0 if no task
        took time.

    Example: a task of 0.3 for 10 s on an executor of 0.5 leaves 40% of the memory unused.
    Source: Decima, section 7.3 (memory fragmentation).
    """
    memory = np.array([c.memory for c in trace.classes])
    if trace.tasks is None or not len(memory) or not np.isfinite(memory).all():
        return None
    tasks = trace.tasks
    # Row of each job's first stage when the stages of all jobs are listed one after another.
    first = np.cumsum([0, *(len(job.stages) for job in sequence.jobs)])
    demand = np.array([stage.memory for job in sequence.jobs for stage in job.stages])
    time_ms = (tasks["finish_ms"] - tasks["start_ms"]).astype(np.float64)
    provided = float((memory[trace.class_of_executor[tasks["executor"]]] * time_ms).sum())
    needed = float((demand[first[tasks["job"]] + tasks["stage"]] * time_ms).sum())
    return 1.0 - needed / provided if provided > 0 else 0.0


def usable_share(workload: Workload, classes: Sequence[ExecutorClass]) -> float:
    """Return the largest load that the classes can serve, at most 1.

    It is the share of the executors' time that the workload's work can fill. For every set of
    classes, the work that fits only these classes cannot exceed their executor time (Hall's
    condition). The load is below 1 if much of the work needs large executors and there are few of
    them.

    Raises:
        WorkloadError: a stage fits no class.

    Example: if half of the work fits only the larger of two classes with equally many executors,
    the load can be 1; if all of the work does, 0.5.
    """
    work: dict[int, float] = {}
    weights = workload.weights or [1.0] * len(workload.jobs)
    for weight, job in zip(weights, workload.jobs, strict=True):
        for stage in job.stages:
            fits = _fits(stage, classes)
            work[fits] = work.get(fits, 0.0) + weight * stage.work_ms
    # All unions of the sets of classes that some stage fits; only these sets can limit the load.
    unions = {0}
    for fits in work:
        unions |= {union | fits for union in unions}
    total = math.fsum(work.values())
    executors = sum(c.num_executors for c in classes)
    share = 1.0
    for union in unions - {0}:
        needed = math.fsum(work_ms for fits, work_ms in work.items() if fits | union == union)
        available = sum(c.num_executors for row, c in enumerate(classes) if union >> row & 1)
        share = min(share, (available / executors) / (needed / total)) if needed > 0 else share
    return share


def _fits(stage: StageSpec, classes: Sequence[ExecutorClass]) -> int:
    """Return a bit mask: bit c is set if class c is large enough for the stage."""
    fits = sum(
        1 << row for row, c in enumerate(classes) if c.cpu >= stage.cpu and c.memory >= stage.memory
    )
    if not fits:
        raise WorkloadError(
            f"stage {stage.name!r} needs {stage.cpu:g} cpu and {stage.memory:g} memory; no "
            f"executor class is as large: add one, or cut the demands with "
            f"`parcae workload prepare`"
        )
    return fits
