"""Metrics of a run that concern its jobs: completion times, slowdown, queueing delay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parcae.base.arrays import BoolArray, Float64Array, Int64Array, RecordArray, level
from parcae.base.errors import ConfigError, WorkloadError
from parcae.base.texts import MS_PER_HOUR
from parcae.cluster.state import ExecutorClass
from parcae.cluster.trace import NOT_COMPLETED, Trace
from parcae.simulation.future import NEVER_MS
from parcae.simulation.objectives import DEADLINE_SLOWDOWN
from parcae.workloads.job import StageSpec
from parcae.workloads.workload import JobSequence, Workload


def jct_ms(trace: Trace) -> Int64Array:
    """Return the job completion times: completion - arrival, int64[num_jobs].

    For a job that was not complete at the end of the run, the time up to the end: a lower bound.
    For a job that had not arrived yet, 0.
    """
    end = np.where(trace.completion_ms == NOT_COMPLETED, trace.clock_ms, trace.completion_ms)
    # A job that had not arrived at the end of the run would have a negative time.
    return np.maximum(0, end - trace.arrival_ms)


def arrived(trace: Trace) -> BoolArray:
    """Return which jobs arrived before the run ended, bool[num_jobs].

    Metrics leave the other jobs out.
    """
    if trace.has_sessions:
        return trace.arrival_ms < NEVER_MS
    return np.arange(len(trace.arrival_ms)) < trace.num_arrived


def jct_percentiles_ms(trace: Trace, percentiles: Sequence[float]) -> tuple[float, ...]:
    """Return percentiles (0 to 100) of the completion times of the jobs that arrived.

    Percentiles are interpolated linearly between ranks.

    Example: the 50th percentile of completion times of 1, 2 and 9 seconds is 2000.
    """
    ordered = np.sort(jct_ms(trace)[arrived(trace)])
    if not len(ordered):
        raise ConfigError(
            f"no job arrived before the run ended at {trace.clock_ms:,} ms, so that it has no "
            "completion times: let it end later"
        )
    return tuple(_quantile(ordered, percentile / 100) for percentile in percentiles)


def _quantile(ordered: Int64Array, share: float) -> float:
    """Return a quantile of ascending values, as `np.quantile` does, in a tenth of its time."""
    position = share * (len(ordered) - 1)
    below = int(position)
    low = float(ordered[below])
    step = float(ordered[min(below + 1, len(ordered) - 1)]) - low
    weight = position - below
    # numpy counts from the nearer of the two values.
    return low + step * weight if weight < 0.5 else low + step - step * (1 - weight)


def ideal_ms(sequence: JobSequence, num_executors: int, has_driver: bool) -> Float64Array:
    """Return each job's ideal duration (`JobSpec.ideal_ms`), float64[num_jobs].

    `has_driver`: the world plays the driver's time.
    """
    return np.array([job.ideal_ms(num_executors, has_driver) for job in sequence.jobs])


def slowdown(trace: Trace, sequence: JobSequence) -> Float64Array:
    """Return JCT / ideal duration, float64[num_jobs], at least 1.

    Tasks may be shorter than their mean, so the ratio is clipped at 1.

    Example: a job of 10 s that completes 25 s after its arrival has slowdown 2.5.
    """
    ideal = np.maximum(1.0, ideal_ms(sequence, trace.num_executors, trace.has_driver))
    return np.maximum(1.0, jct_ms(trace) / ideal)


def bounded_slowdown(
    trace: Trace, sequence: JobSequence, bound_ms: float = 10_000.0
) -> Float64Array:
    """Return the slowdown with ideal durations of at least `bound_ms`, float64[num_jobs].

    The bound keeps very short jobs from dominating the mean.
    """
    ideal = np.maximum(bound_ms, ideal_ms(sequence, trace.num_executors, trace.has_driver))
    return np.maximum(1.0, jct_ms(trace) / ideal)


def deadlines_ms(sequence: JobSequence) -> Float64Array | None:
    """Return the deadline of every job after its arrival, float64[num_jobs].

    Infinite for a job without one; None if no job of the workload has one.
    """
    if not sequence.workload.has_deadlines:
        return None
    given = (job.deadline_ms for job in sequence.jobs)
    return np.array([np.inf if one is None else one for one in given], np.float64)


def missed_and_tardiness(trace: Trace, sequence: JobSequence) -> dict[str, float | int]:
    """Return how a run did against its deadlines; empty if the workload has none.

    A job that was not complete at the end of the run counts with the time up to the end.

    Example: of two jobs with deadlines of 5 s that take 4 and 8 s, half miss theirs; the mean
    tardiness is 1500 ms.
    """
    due_ms = deadlines_ms(sequence)
    if due_ms is None:
        return {}
    counts = arrived(trace) & np.isfinite(due_ms)
    late_ms = np.maximum(0.0, jct_ms(trace) - due_ms)[counts]
    num_jobs = int(np.count_nonzero(counts))
    return {
        "deadlines": num_jobs,
        "missed_deadline_share": float(np.count_nonzero(late_ms > 0) / max(1, num_jobs)),
        "mean_tardiness_ms": float(late_ms.sum() / max(1, num_jobs)),
    }


def last_completion_ms(trace: Trace) -> int:
    """Return when the last job completed, or the end of the run if a job did not complete."""
    return int(trace.completion_ms.max()) if trace.is_complete else trace.clock_ms


def makespan_ms(trace: Trace) -> int:
    """Return last completion - first arrival, in ms."""
    return last_completion_ms(trace) - int(trace.arrival_ms.min())


def utilization(trace: Trace) -> float:
    """Return the share of the executors' time in which they ran tasks.

    The time is that from the first arrival to the last completion; on an elastic cluster, the time
    for which cores were held. Tasks that the end of the run cut off do not count, so that the share
    of such a run is a lower bound.
    """
    fixed_ms = trace.num_executors * makespan_ms(trace)
    available = fixed_ms if trace.held_ms is None else trace.held_ms
    wasted = 0 if trace.faults is None else trace.faults.wasted_ms
    return (float(trace.executed_ms.sum()) + wasted) / available if available > 0 else 0.0


def wasted_share(trace: Trace) -> float | None:
    """Return the share of the core time of all attempts of tasks that brought no result.

    These are attempts that failed, whose executor was lost, or whose task finished elsewhere. None
    for a cluster without faults.
    """
    if trace.faults is None:
        return None
    ran_ms = float(trace.executed_ms.sum()) + trace.faults.wasted_ms
    return trace.faults.wasted_ms / ran_ms if ran_ms > 0 else 0.0


def cores_held(trace: Trace) -> float | None:
    """Return the mean number of cores up or starting during the run; None for a fixed cluster."""
    return None if trace.held_ms is None else trace.held_ms / max(1, trace.clock_ms)


def core_hours_per_job(trace: Trace) -> float | None:
    """Return the core hours held / jobs that arrived; None for a fixed cluster."""
    if trace.held_ms is None:
        return None
    num_jobs = int(np.count_nonzero(arrived(trace)))
    return trace.held_ms / MS_PER_HOUR / max(1, num_jobs)


def work_inflation(trace: Trace, sequence: JobSequence) -> float:
    """Return executor time of the completed jobs' tasks / their work with mean task durations.

    Source: Decima, section 2.2.
    """
    completed = trace.completion_ms != NOT_COMPLETED
    work = sum(job.work_ms for job, done in zip(sequence.jobs, completed, strict=True) if done)
    return float(trace.executed_ms[completed].sum()) / work if work > 0 else 1.0


def steps(up: Int64Array, down: Int64Array, amount: Any = 1) -> tuple[Int64Array, Int64Array]:
    """Return a step function that rises by `amount` at `up` and falls by it at `down`.

    Example: `steps([0, 5], [7, 9])` is ([0, 5, 7, 9], [1, 2, 1, 0]).
    """
    at = np.unique(np.concatenate([up, down]))
    return at, level(at, (up, amount), (down, -amount))


def mean_over_spans(
    times_ms: Int64Array, count: Int64Array, edges_ms: Float64Array
) -> Float64Array:
    """Return time averages of a step function over the spans between edges.

    Example: a count of 2 from 0 to 5 and 0 afterwards averages 1 over the span 0 to 10.
    """
    if len(times_ms) == 0:
        return np.zeros(len(edges_ms) - 1)
    # The integral of the step function is piecewise linear: interpolate it at the edges.
    # As floats: in KB of memory x seconds it may exceed the largest int64.
    area = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times_ms).astype(np.float64))])
    end = float(times_ms[-1])
    last = float(count[-1])
    at = np.interp(edges_ms, times_ms, area) + last * np.maximum(0.0, edges_ms - end)
    return np.asarray(np.diff(at) / np.diff(edges_ms), np.float64)


def concurrency(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return the number of jobs in the system over time: (times in ms, jobs from that time on)."""
    return steps(
        trace.arrival_ms[arrived(trace)], trace.completion_ms[trace.completion_ms != NOT_COMPLETED]
    )


def busy_executors(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return the number of executors that run tasks over time."""
    if trace.tasks is None:
        raise ConfigError("executors over time need recorded tasks: simulate with record=True")
    return steps(trace.tasks["start_ms"], trace.tasks["finish_ms"])


def executors_per_job(trace: Trace, edges_ms: Float64Array) -> Float64Array:
    """Return the mean number of executors that run tasks per job in the system, by spans."""
    busy = mean_over_spans(*busy_executors(trace), edges_ms)
    jobs = mean_over_spans(*concurrency(trace), edges_ms)
    return np.asarray(np.divide(busy, jobs, out=np.zeros_like(busy), where=jobs > 0))


def executor_share(trace: Trace) -> Float64Array:
    """Return the mean number of executors that ran each job's tasks while it was in the system.

    Tasks that the end of the run cut off do not count.
    """
    end = np.where(trace.completion_ms == NOT_COMPLETED, trace.clock_ms, trace.completion_ms)
    return np.asarray(trace.executed_ms / np.maximum(1, end - trace.arrival_ms), np.float64)


def _tasks(trace: Trace) -> RecordArray:
    """Return the recorded tasks of the run."""
    if trace.tasks is None:
        raise ConfigError(
            "metrics by executor class need recorded tasks: simulate with record=True"
        )
    return trace.tasks


def class_time_ms(trace: Trace) -> Int64Array:
    """Return the executor time that every job used of every class, int64[num_jobs, num_classes]."""
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

    Example: a job that ran three tasks on one executor of class 1 used [0, 1].
    """
    tasks = _tasks(trace)
    pairs = np.unique(np.stack([tasks["job"], tasks["executor"]]), axis=1)
    used = np.zeros((len(trace.arrival_ms), max(1, len(trace.classes))), np.int64)
    np.add.at(used, (pairs[0], trace.class_of_executor[pairs[1]]), 1)
    return used


def class_utilization(trace: Trace) -> Float64Array:
    """Return the share of time in which each class's executors ran tasks, float64[num_classes].

    The time is that from the first arrival to the last completion.
    """
    executors = np.array([c.num_executors for c in trace.classes] or [trace.num_executors])
    return np.asarray(
        class_time_ms(trace).sum(axis=0) / np.maximum(1, executors * makespan_ms(trace)), np.float64
    )


def memory_fragmentation(trace: Trace, sequence: JobSequence) -> float | None:
    """Return the share of the busy executors' memory that their tasks did not need.

    1 - (sum over tasks of demanded memory x duration) / (sum over tasks of the executor's memory x
    duration).

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


@dataclass(frozen=True)
class RunSummary:
    """The metrics of one run; see `summarize` for jobs that were not complete at its end.

    Args:
        average_jct_ms: mean job completion time.
        median_jct_ms: median job completion time.
        p95_jct_ms: 95th percentile of the job completion times.
        p99_jct_ms: 99th percentile of the job completion times.
        makespan_ms: last completion - first arrival.
        last_completion_ms: when the last job completed.
        mean_slowdown: mean over jobs; see `parcae.simulation.metrics.slowdown`.
        bounded_slowdown: mean over jobs; see `parcae.simulation.metrics.bounded_slowdown`.
        utilization: share of the executors' time in which they ran tasks; see
            `parcae.simulation.metrics.utilization`.
        work_inflation: executor time of completed jobs / their work with mean task durations.
        moves: number of moves of executors between jobs.
        decisions: number of decisions of the policy.
        events: number of events of the simulation.
        tasks: number of tasks that ran.
        unfinished: jobs that had arrived but were not complete at the end of the run.
        missed_deadlines: share of jobs that took longer than DEADLINE_SLOWDOWN times their ideal
            duration.
        open_mean, open_most: jobs in the system, the mean over time and the most at once.
        fragmentation: share of the busy executors' memory that their tasks did not need; None if
            the tasks were not recorded or the executors have no stated memory.
        failed_attempts: attempts of tasks that failed; None, as the next four, without faults.
        interrupted_attempts: attempts that ended because their executor was lost.
        lost_executors: executors lost.
        speculative_copies: copies of running tasks.
        wasted_share: share of the core time of all attempts that brought no result.
        cores_held: mean number of cores that were up or starting; None, as the next, for a cluster
            of a fixed size.
        core_hours_per_job: core hours held / jobs that arrived.
        executors_started: executors that were started; None unless there are several applications.
    """

    average_jct_ms: float
    median_jct_ms: float
    p95_jct_ms: float
    p99_jct_ms: float
    makespan_ms: int
    last_completion_ms: int
    mean_slowdown: float
    bounded_slowdown: float
    utilization: float
    work_inflation: float
    moves: int
    decisions: int
    events: int
    tasks: int
    unfinished: int
    missed_deadlines: float
    open_mean: float
    open_most: int
    fragmentation: float | None = None
    failed_attempts: int | None = None
    interrupted_attempts: int | None = None
    lost_executors: int | None = None
    speculative_copies: int | None = None
    wasted_share: float | None = None
    cores_held: float | None = None
    core_hours_per_job: float | None = None
    executors_started: int | None = None

    def to_json(self) -> dict[str, float]:
        """Return the metrics by name, times in ms; unknown ones are left out."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def summarize(trace: Trace, sequence: JobSequence) -> RunSummary:
    """Compute the metrics of a run.

    For a job that was not complete at the end of the run, its time in the system up to the end is
    used, so that averages over such runs are lower bounds; `unfinished` is the number of these
    jobs. Jobs that had not arrived yet are left out.

    Example: jobs of 4 and 8 seconds that arrive together average 6000 ms with a makespan of 8000
    ms.
    """
    has_arrived = arrived(trace)
    slowdowns = slowdown(trace, sequence)[has_arrived]
    p50, p95, p99 = jct_percentiles_ms(trace, (50, 95, 99))
    faults = trace.faults
    times_ms, num_open = concurrency(trace)
    return RunSummary(
        average_jct_ms=float(jct_ms(trace)[has_arrived].mean()),
        median_jct_ms=p50,
        p95_jct_ms=p95,
        p99_jct_ms=p99,
        makespan_ms=makespan_ms(trace),
        last_completion_ms=last_completion_ms(trace),
        mean_slowdown=float(slowdowns.mean()),
        bounded_slowdown=float(bounded_slowdown(trace, sequence)[has_arrived].mean()),
        utilization=utilization(trace),
        work_inflation=work_inflation(trace, sequence),
        moves=int(trace.num_moves.sum()),
        decisions=trace.num_decisions,
        events=trace.num_events,
        tasks=trace.num_tasks,
        unfinished=int(np.count_nonzero(has_arrived & (trace.completion_ms == NOT_COMPLETED))),
        missed_deadlines=float((slowdowns > DEADLINE_SLOWDOWN).mean()),
        open_mean=float(jct_ms(trace)[has_arrived].sum() / max(1, times_ms[-1] - times_ms[0])),
        open_most=int(num_open.max()),
        fragmentation=memory_fragmentation(trace, sequence),
        failed_attempts=None if faults is None else faults.failed,
        interrupted_attempts=None if faults is None else faults.interrupted,
        lost_executors=None if faults is None else faults.lost_executors,
        speculative_copies=None if faults is None else faults.copies,
        wasted_share=wasted_share(trace),
        cores_held=cores_held(trace),
        core_hours_per_job=core_hours_per_job(trace),
        executors_started=trace.started,
    )
