"""Which Spark jobs of a log belong together: a SQL execution with all that it started, or one Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from parcae.workloads.spark.application import ApplicationLog, SqlRecord, StageRecord
from parcae.workloads.spark.events import JobStart


@dataclass(eq=False)
class JobGroup:
    """Spark jobs that make up one job: a SQL execution with all that it started, or one Spark job."""

    jobs: list[JobStart]
    executions: list[SqlRecord] = field(default_factory=list)

    def is_ended(self, log: ApplicationLog) -> bool:
        """Whether the log holds the ends of all its Spark jobs and SQL executions."""
        return all(job.job_id in log.job_results for job in self.jobs) and all(
            e.is_ended for e in self.executions
        )

    def is_successful(self, log: ApplicationLog) -> bool:
        """By the execution where it says so (it may cancel Spark jobs and succeed), else by its Spark jobs.

        Only of a group that has ended.
        """
        told = [execution.is_success for execution in self.executions]
        if told and all(is_success is not None for is_success in told):
            return all(told)
        return all(log.job_results[job.job_id] for job in self.jobs)


def first_listing_job(log: ApplicationLog) -> dict[int, int]:
    """For every stage the first Spark job that lists it (later ones that share it find it skipped)."""
    owner: dict[int, int] = {}
    for job_id in sorted(log.jobs):
        for info in log.jobs[job_id].stages:
            owner.setdefault(info.stage_id, job_id)
    return owner


def job_groups(log: ApplicationLog) -> Iterator[JobGroup]:
    """Spark jobs by root SQL execution; a Spark job without one is on its own."""
    by_root: dict[int, JobGroup] = {}
    for job_id in sorted(log.jobs):
        job = log.jobs[job_id]
        root = _root_execution(job, log)
        if root is None:
            yield JobGroup([job])
        else:
            by_root.setdefault(root, JobGroup([])).jobs.append(job)
    for execution in log.sql.values():
        root = execution.root_id if execution.root_id in log.sql else execution.execution_id
        if root in by_root:
            by_root[root].executions.append(execution)
    yield from by_root.values()


def _root_execution(job: JobStart, log: ApplicationLog) -> int | None:
    for name in ("spark.sql.execution.root.id", "spark.sql.execution.id"):
        value = job.properties.get(name, "")
        if value.isdecimal() and len(value) < 19:
            execution = log.sql.get(int(value))
            return execution.root_id if execution and execution.root_id in log.sql else int(value)
    return None


def submission_ms(group: JobGroup, stages: Iterable[StageRecord]) -> int | None:
    """When a group was submitted, in ms of the wall clock; None where the log does not say.

    `stages` are the group's that ran: they tell where its jobs do not (Spark 1.x).
    """
    times = [job.submission_ms for job in group.jobs] + [
        execution.time_ms for execution in group.executions
    ]
    known = [ms for ms in times if ms >= 0] or [
        stage.submission_ms for stage in stages if stage.submission_ms >= 0
    ]
    return min(known, default=None)


def completion_ms(
    group: JobGroup, log: ApplicationLog, stages: Iterable[StageRecord]
) -> int | None:
    """When the last of a group's Spark jobs and SQL executions ended, in ms of the wall clock; None where unknown.

    `stages` are the group's that ran: they tell where its jobs do not.
    """
    times = [log.job_end_ms.get(job.job_id, -1) for job in group.jobs] + [
        execution.end_ms for execution in group.executions
    ]
    known = [ms for ms in times if ms > 0] or [
        stage.completion_ms for stage in stages if stage.completion_ms > 0
    ]
    return max(known, default=None)
