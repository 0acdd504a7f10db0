"""The record of a run on a real cluster: arrivals and completions of jobs, and the work of
cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from parcae.base.arrays import RecordArray
from parcae.workloads.describe import FIRST_RUNS_LEFT_OUT, spread_in_words
from parcae.workloads.import_report import counted
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.profile import job_of_run, merge_runs
from parcae.workloads.workload import Workload


def workload_of_runs(
    name: str, runs: Sequence[JobRun], provenance: Mapping[str, str]
) -> tuple[Workload, list[str]]:
    """A workload with every run as a separate job in order of arrival, and a note."""
    in_order = sorted(runs, key=lambda run: run.submission_ms)
    # Arrivals count from the first submission over all runs.
    start_ms = in_order[0].submission_ms
    jobs = tuple(job_of_run(run, run.submission_ms - start_ms) for run in in_order)
    span_ms = in_order[-1].submission_ms - start_ms
    note = f"Kept {counted(len(runs), 'run')} with their arrivals over {span_ms} ms."
    return Workload(name, jobs, provenance=provenance), [note]


def workload_of_jobs(
    name: str,
    runs: Sequence[JobRun],
    provenance: Mapping[str, str],
    *,
    keep_first_runs: bool = False,
) -> tuple[Workload, list[str]]:
    """A workload of the recurring jobs, weighted by their number of runs, and notes."""
    profiles = merge_runs(runs, keep_first_runs=keep_first_runs)
    # Left-out first runs count for the weights, but not for the profile.
    num_left_out = sum(profile.num_left_out for profile in profiles)
    jobs = tuple(profile.job for profile in profiles)
    merged = f"Merged {counted(len(runs), 'run')} into {counted(len(jobs), 'job')}"
    notes = [f"{merged}, matched by name, operators and DAG."]
    if any(profile.variant > 1 for profile in profiles):
        notes.append(
            "A job called 'name (2)' has the same name as another job, "
            "but another DAG or other task counts."
        )
    if num_left_out:
        notes.append(
            f"Left out {counted(num_left_out, 'first run')} of jobs that ran again in the same "
            "application: code that is not compiled yet and cold caches make them slow; "
            "--keep-first-runs keeps them."
        )
    if spread := spread_in_words(jobs):
        notes.append(f"Profiles are those of median runs; spread kept: {spread}.")
    weights = tuple(float(profile.num_runs) for profile in profiles)
    provenance = {**provenance, FIRST_RUNS_LEFT_OUT: str(num_left_out)}
    return Workload(name, jobs, weights, provenance), notes


#: Completion time of a job that had not ended when the log ended.
NOT_COMPLETED = -1
#: The job of a task that belongs to none of the run's jobs.
NO_JOB = -1

#: One row for each attempt of a task: row of its job (or NO_JOB), row of the core, and the interval
#: in which the core worked for it.
CORE_TASK = np.dtype([("job", "i8"), ("core", "i8"), ("start_ms", "i8"), ("finish_ms", "i8")])


#: The key by which jobs are matched between runs: name, and position among the jobs of that name,
#: from 1.
JobKey = tuple[str, int]


class JobOutcome(StrEnum):
    """How a job of a log ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class Arm:
    """Where in a randomised experiment a job arrived.

    Args:
        block: number of the block; blocks 2n and 2n + 1 are a pair.
        is_policy: whether the policy's order applied, not Spark's own.
        since_ms: how long before the arrival the block began.
        left_ms: how long after the arrival it ended.
        block_ms, washout_ms, seed: the experiment's settings.
    """

    block: int
    is_policy: bool
    since_ms: int
    left_ms: int
    block_ms: int
    washout_ms: int
    seed: int = 0

    @property
    def pair(self) -> tuple[int, int, int]:
        """The pair of blocks, of which one is the policy's; another seed draws others."""
        return self.block_ms, self.seed, self.block // 2


@dataclass(frozen=True)
class RecordedJob:
    """One job of a recorded run; times in ms since the run's first submission.

    Args:
        name: the recurring job's name.
        order: position among the jobs of that name in order of submission, from 1.
        submission_ms: time of submission.
        completion_ms: time of completion; NOT_COMPLETED if the job had not ended when the log
            ended.
        outcome: how it ended.
        user: the person who ran it, else who submitted the application; "" where the log does not
            say.
        arm: its place in a randomised experiment; None outside of one.
        queue: YARN's queue of the application; "" elsewhere.
    """

    name: str
    order: int
    submission_ms: int
    completion_ms: int
    outcome: JobOutcome
    user: str = ""
    arm: Arm | None = None
    queue: str = ""

    @property
    def key(self) -> JobKey:
        """The key by which the job is matched with the same job of another run."""
        return self.name, self.order

    @property
    def jct_ms(self) -> int:
        """Job completion time: completion - submission. Only for a job that ended."""
        return self.completion_ms - self.submission_ms


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """The content of one or more event logs as one run.

    All times are in ms since the first submission of a job.

    Args:
        label: the paths that were read.
        applications: names of the logs.
        jobs: the jobs in order of submission.
        tasks: CORE_TASK[num_attempts], sorted by core and start. Tasks of jobs that lack the naming
            property have NO_JOB. A row runs one task at a time: an executor has (its cores /
            `spark.task.cpus`) of them.
        num_cores: number of core rows, over all executors that ever existed.
        core_ms: total available time of all rows, from the first submission to the last
            completion, while their executors existed; None where the logs do not contain an
            executor's cores.
        notes: sentences for the user.
        cores_at_once: the most cores that were up at once; 0 where that is not known.
        num_lost_ends: number of tasks of which the logs have no end, or an impossible time: so many
            more tasks kept the cores busy.
    """

    label: str
    applications: tuple[str, ...]
    jobs: tuple[RecordedJob, ...]
    tasks: RecordArray
    num_cores: int
    core_ms: int | None
    notes: tuple[str, ...] = ()
    cores_at_once: int = 0
    num_lost_ends: int = 0

    @property
    def makespan_ms(self) -> int:
        """Last completion or failure - first submission."""
        return max(job.completion_ms for job in self.jobs)

    @property
    def num_tasks(self) -> int:
        """Number of task attempts of the run's jobs."""
        return int(np.count_nonzero(self.tasks["job"] != NO_JOB))

    @property
    def task_ms(self) -> int:
        """Time that cores worked for the run's jobs, including failed and repeated attempts."""
        job_tasks = self.tasks[self.tasks["job"] != NO_JOB]
        return int((job_tasks["finish_ms"] - job_tasks["start_ms"]).sum())

    @property
    def core_utilization(self) -> float | None:
        """Share of the cores' available time in which they worked; None where it is not known.

        It is above 1 where the log's times or cores contradict each other, and too low where ends
        of tasks are missing. Work for jobs that lack the naming property counts as well: the core
        was not free.
        """
        if not self.core_ms:
            return None
        start = np.clip(self.tasks["start_ms"], 0, self.makespan_ms)
        finish = np.clip(self.tasks["finish_ms"], 0, self.makespan_ms)
        return float((finish - start).sum()) / self.core_ms
