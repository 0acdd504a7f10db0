"""What happened on a real cluster: when every job came and went, and which core worked for it when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

#: Completion of a job that had not ended when the log did, and the job of a task that belongs to none of the run's jobs.
NOT_COMPLETED = -1
NO_JOB = -1

#: One row an attempt of a task: row of its job (or NO_JOB), row of the core, and the time in which the core worked for it.
CORE_TASK = np.dtype([("job", "i8"), ("core", "i8"), ("start_ms", "i8"), ("finish_ms", "i8")])


#: A job as it is matched between runs: its name, and which of that name it is, from 1.
JobKey = tuple[str, int]


class JobOutcome(StrEnum):
    """How a job of a log ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class RecordedJob:
    """One job as it ran; times in ms since the run's first submission.

    Args:
        name: the recurring job's name.
        order: counts the jobs of that name in order of submission, from 1.
        submission_ms: when it was submitted.
        completion_ms: when it ended; NOT_COMPLETED if it had not when the log did.
        outcome: how it ended.
    """

    name: str
    order: int
    submission_ms: int
    completion_ms: int
    outcome: JobOutcome

    @property
    def key(self) -> JobKey:
        """What it is matched by with the same job of another run."""
        return self.name, self.order

    @property
    def jct_ms(self) -> int:
        """Completion - submission, of a job that ended."""
        return self.completion_ms - self.submission_ms


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """What one or more event logs say happened; times in ms since the first submission of a job.

    Args:
        label: the paths that were read.
        applications: names of the logs.
        jobs: in order of submission.
        tasks: CORE_TASK[num_attempts] by core and start; those of jobs that lack the key have NO_JOB. A core ("slot") is
            what one task runs on: an executor has as many as its cores / `spark.task.cpus`.
        num_cores: rows of cores, of all executors that ever were.
        core_ms: time of all cores from the first submission to the last completion, while their executors were there;
            None where the logs do not tell an executor's cores.
        notes: sentences for the user.
    """

    label: str
    applications: tuple[str, ...]
    jobs: tuple[RecordedJob, ...]
    tasks: npt.NDArray[np.void]
    num_cores: int
    core_ms: int | None
    notes: tuple[str, ...] = ()

    @property
    def makespan_ms(self) -> int:
        """Last completion (or failure) - first submission."""
        return max(job.completion_ms for job in self.jobs)

    @property
    def num_tasks(self) -> int:
        """Attempts of tasks of the run's jobs."""
        return int(np.count_nonzero(self.tasks["job"] != NO_JOB))

    @property
    def task_ms(self) -> int:
        """Time that cores worked for the run's jobs, failed and repeated attempts included."""
        own = self.tasks[self.tasks["job"] != NO_JOB]
        return int((own["finish_ms"] - own["start_ms"]).sum())

    @property
    def core_utilization(self) -> float | None:
        """Share of the cores' time, from first submission to last completion, in which they worked; None where unknown.

        Work for jobs that lack the key counts, too: the core was not free.
        """
        if not self.core_ms:
            return None
        start = np.clip(self.tasks["start_ms"], 0, self.makespan_ms)
        finish = np.clip(self.tasks["finish_ms"], 0, self.makespan_ms)
        return min(1.0, float((finish - start).sum()) / self.core_ms)
