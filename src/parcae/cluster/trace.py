"""What happened in one run: the append-only record that metrics, reports and plots are computed from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.cluster.state import ExecutorClass

Int64Array = npt.NDArray[np.int64]

#: Completion time of a job that had not completed when the run ended.
NOT_COMPLETED = -1

#: One row a task that ran: rows of jobs, stages (index within the job), tasks (index within the stage), executors.
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

#: One row a decision; `source_job` is -1 for the global pool, `job` and `stage` are -1 where nothing was chosen.
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


@dataclass(frozen=True, eq=False)
class Trace:
    """The record of one run of `num_jobs` jobs on `num_executors` executors; times in simulated ms.

    Args:
        policy: the policy's name.
        num_executors: executors of the cluster.
        job_names: the recurring job's name of every job, in order of arrival.
        arrival_ms: int64[num_jobs].
        completion_ms: int64[num_jobs]; NOT_COMPLETED where the run ended first.
        executed_ms: int64[num_jobs], executor time that the job's tasks took (work inflation included).
        num_moves: int64[num_jobs], executors that moved to the job from elsewhere.
        clock_ms: when the run ended (the last event, which may come after the last completion).
        num_decisions, num_events, num_tasks: how often the policy was asked, events fired, tasks run.
        tasks: TASK_RECORD[num_tasks] in order of start, or None unless recorded.
        decisions: DECISION_RECORD[num_decisions], or None unless recorded.
        classes: the executor classes; executors are numbered class by class. Empty where no executor's size is known.
    """

    policy: str
    num_executors: int
    job_names: tuple[str, ...]
    arrival_ms: Int64Array
    completion_ms: Int64Array
    executed_ms: Int64Array
    num_moves: Int64Array
    clock_ms: int
    num_decisions: int
    num_events: int
    num_tasks: int
    tasks: npt.NDArray[np.void] | None = None
    decisions: npt.NDArray[np.void] | None = None
    classes: tuple[ExecutorClass, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every job completed."""
        return bool((self.completion_ms != NOT_COMPLETED).all())

    @property
    def class_of_executor(self) -> Int64Array:
        """The class of every executor, int64[num_executors]; all 0 where no executor's size is known."""
        counts = [c.num_executors for c in self.classes] or [self.num_executors]
        return np.repeat(np.arange(len(counts)), counts)

    def decision_trace_sha256(self) -> str:
        """Digest of all decisions, as the released simulator's conformance runs take it.

        The SHA-256 over the concatenated `repr` of [clock as a float, source job, num_source, size of the schedulable
        set, job, stage, executors committed]. The decisions must have been recorded.
        """
        digest = hashlib.sha256()
        if self.decisions is not None:
            for clock_ms, *rest in self.decisions.tolist():
                digest.update(repr([float(clock_ms), *rest]).encode())
        return digest.hexdigest()
