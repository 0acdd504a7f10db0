"""The record of one run, from which metrics, reports and plots are computed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from parcae.base.arrays import Int64Array, RecordArray
from parcae.cluster.state import ExecutorClass, World

#: The completion time of a job that was not complete when the run ended.
NOT_COMPLETED = -1

#: One row per task that ran: row of the job, index of the stage within the job, index of the task
#: within the stage, row of the executor, and the times.
TASK_RECORD = np.dtype(
    [
        ("job", "i8"),
        ("stage", "i8"),
        ("task", "i8"),
        ("executor", "i8"),
        ("start_ms", "i8"),
        ("finish_ms", "i8"),
    ]
)

#: One row per decision; `source_job` is -1 for the global pool, `job` and `stage` are -1 if the
#: decision was to idle.
DECISION_RECORD = np.dtype(
    [
        ("clock_ms", "i8"),
        ("source_job", "i8"),
        ("num_source", "i8"),
        ("num_schedulable", "i8"),
        ("job", "i8"),
        ("stage", "i8"),
        ("num_executors", "i8"),
    ]
)


@dataclass(frozen=True)
class FaultCounts:
    """What went wrong in one run.

    Args:
        failed: attempts of tasks that failed.
        interrupted: attempts that ended because their executor was lost.
        lost_executors: executors lost.
        copies: copies of running tasks.
        copies_won: copies that finished first.
        wasted_ms: core time of attempts without a result.
        down_ms: core time that the cluster lacked between losses and restarts.
    """

    failed: int
    interrupted: int
    lost_executors: int
    copies: int
    copies_won: int
    wasted_ms: int
    down_ms: int


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of one run of `num_jobs` jobs on `num_executors` executors; times in simulated ms.

    Args:
        policy: the policy's name.
        num_executors: number of executors of the cluster.
        job_names: name of every job's recurring job, in order of arrival.
        arrival_ms: int64[num_jobs]; with sessions, NEVER_MS (the largest int64) for a job whose
            predecessor had not ended.
        completion_ms: int64[num_jobs]; NOT_COMPLETED if the run ended first.
        executed_ms: int64[num_jobs], executor time of the job's tasks that finished (work inflation
            included).
        num_moves: int64[num_jobs], executors that moved to the job from elsewhere.
        clock_ms: when the run ended (the last event, which may be later than the last completion).
        num_arrived: number of jobs that had arrived by then.
        num_decisions: number of decisions of the policy.
        num_events: number of events of the simulation.
        num_tasks: number of tasks that ran.
        tasks: TASK_RECORD[num_tasks] in order of start, or None if they were not recorded. A task
            that the end of the run cut off has that end as its `finish_ms`.
        decisions: DECISION_RECORD[num_decisions], or None if they were not recorded.
        classes: the executor classes; executors are numbered class by class. Empty if the sizes of
            the executors are unknown.
        faults: what went wrong, or None if the simulated cluster has no faults.
        held_ms: elastic clusters: core time that was held, that is of cores up or starting; None if
            the size was fixed.
        started: several applications on one cluster: executors that were started; else None.
        world: the rules by which executors were assigned; in the world of cores each is a core.
        has_sessions: whether jobs arrived after others had ended, so that arrivals depend on the
            policy; jobs are then in the order of the sequence.
        has_driver: whether the driver took time, in which a job runs no task and holds no core.
    """

    policy: str
    num_executors: int
    job_names: tuple[str, ...]
    arrival_ms: Int64Array
    completion_ms: Int64Array
    executed_ms: Int64Array
    num_moves: Int64Array
    clock_ms: int
    num_arrived: int
    num_decisions: int
    num_events: int
    num_tasks: int
    tasks: RecordArray | None = None
    decisions: RecordArray | None = None
    classes: tuple[ExecutorClass, ...] = ()
    faults: FaultCounts | None = None
    held_ms: int | None = None
    started: int | None = None
    world: World = World.EXECUTORS
    has_sessions: bool = False
    has_driver: bool = False

    @property
    def unit(self) -> str:
        """What runs a task, for titles and axes: "executor" or "core"."""
        return "core" if self.world is World.CORES else "executor"

    @property
    def is_complete(self) -> bool:
        """Whether every job completed."""
        return bool((self.completion_ms != NOT_COMPLETED).all())

    @property
    def class_of_executor(self) -> Int64Array:
        """The class of every executor, int64[num_executors]; all 0 if the sizes are unknown."""
        counts = [c.num_executors for c in self.classes] or [self.num_executors]
        return np.repeat(np.arange(len(counts)), counts)

    def decision_trace_sha256(self) -> str:
        """Digest of all decisions, as in the conformance runs of the released simulator.

        The SHA-256 over the concatenated `repr` of [clock as a float, source job, num_source, size
        of the schedulable set, job, stage, executors committed]. The decisions must have been
        recorded.
        """
        digest = hashlib.sha256()
        if self.decisions is not None:
            for clock_ms, *rest in self.decisions.tolist():
                digest.update(repr([float(clock_ms), *rest]).encode())
        return digest.hexdigest()
