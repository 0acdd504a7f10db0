"""What a run meant for executors of several sizes: who used which class, how much of their memory lay idle.

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
    if trace.tasks is None:
        raise ConfigError("executors by class need recorded tasks: simulate with record=True")
    return trace.tasks


def class_time_ms(trace: Trace) -> Int64Array:
    """Executor time of every class that went into the tasks of every job, int64[num_jobs, num_classes].

    Raises:
        ConfigError: the tasks were not recorded.
    """
    tasks = _tasks(trace)
    time_ms = np.zeros((len(trace.arrival_ms), max(1, len(trace.classes))), np.int64)
    np.add.at(
        time_ms,
        (tasks["job"], trace.class_of_executor[tasks["executor"]]),
        tasks["finish_ms"] - tasks["start_ms"],
    )
    return time_ms


def executors_used(trace: Trace) -> Int64Array:
    """Different executors of every class that ran tasks of every job, int64[num_jobs, num_classes].

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
    """Share of the time of each class's executors, from first arrival to last completion, in which they ran tasks.

    Raises:
        ConfigError: the tasks were not recorded.
    """
    executors = np.array([c.num_executors for c in trace.classes] or [trace.num_executors])
    return np.asarray(
        class_time_ms(trace).sum(axis=0) / np.maximum(1, executors * makespan_ms(trace)), np.float64
    )


def memory_fragmentation(trace: Trace, sequence: JobSequence) -> float | None:
    """Share of the busy executors' memory that their tasks did not need, weighed by time.

    1 - (sum over tasks of demanded memory x duration) / (sum over tasks of the executor's memory x duration).

    Returns:
        None where tasks were not recorded, or executors have no stated (finite) memory; 0 where no task took time.

    Example: a task of 0.3 for 10 s on an executor of 0.5 leaves 40% of the memory unused.
    Source: Decima, section 7.3 (memory fragmentation).
    """
    memory = np.array([c.memory for c in trace.classes])
    if trace.tasks is None or not len(memory) or not np.isfinite(memory).all():
        return None
    tasks = trace.tasks
    first = np.cumsum([0, *(len(job.stages) for job in sequence.jobs)])
    demand = np.array([stage.memory for job in sequence.jobs for stage in job.stages])
    time_ms = (tasks["finish_ms"] - tasks["start_ms"]).astype(np.float64)
    held = float((memory[trace.class_of_executor[tasks["executor"]]] * time_ms).sum())
    needed = float((demand[first[tasks["job"]] + tasks["stage"]] * time_ms).sum())
    return 1.0 - needed / held if held > 0 else 0.0


def usable_share(workload: Workload, classes: Sequence[ExecutorClass]) -> float:
    """The largest load that the classes can serve: the share of the executors' time that the work can fill at most.

    Work that needs one of a set of classes cannot exceed what these can do, for every such set (Hall's condition). At most
    1; it is less where much of the work needs large executors, of which there are few.

    Raises:
        WorkloadError: a stage that fits no class.

    Example: where half of the work fits only the larger of two classes of equal size, all is served up to a load of 1;
    where all of it does, up to 0.5.
    """
    work: dict[int, float] = {}
    weights = workload.weights or [1.0] * len(workload.jobs)
    for weight, job in zip(weights, workload.jobs, strict=True):
        for stage in job.stages:
            fits = _fits(stage, classes)
            work[fits] = work.get(fits, 0.0) + weight * stage.work_ms
    unions = {0}
    for fits in work:
        unions |= {known | fits for known in unions}
    total = math.fsum(work.values())
    executors = sum(c.num_executors for c in classes)
    share = 1.0
    for union in unions - {0}:
        needs = math.fsum(own for fits, own in work.items() if fits | union == union)
        serves = sum(c.num_executors for row, c in enumerate(classes) if union >> row & 1)
        share = min(share, (serves / executors) / (needs / total)) if needs > 0 else share
    return share


def _fits(stage: StageSpec, classes: Sequence[ExecutorClass]) -> int:
    """Bit c is set where class c is large enough."""
    fits = sum(
        1 << row for row, c in enumerate(classes) if c.cpu >= stage.cpu and c.memory >= stage.memory
    )
    if not fits:
        raise WorkloadError(
            f"stage {stage.name!r} needs {stage.cpu:g} cpu and {stage.memory:g} memory; no executor class is as large: "
            f"add one, or cut the demands with `parcae workload prepare`"
        )
    return fits
