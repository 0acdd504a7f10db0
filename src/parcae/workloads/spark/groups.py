"""Groups the Spark jobs of a log into jobs.

A job is a SQL execution with all the Spark jobs that it started, or one Spark job outside SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from parcae.workloads.spark.application import ApplicationLog, SqlRecord, StageRecord
from parcae.workloads.spark.events import JobStart
from parcae.workloads.spark.fingerprint import NAME_PROPERTY, PLAN_KEY, SHAPE_KEY


@dataclass(eq=False)
class JobGroup:
    """The Spark jobs of one job, and its SQL executions."""

    jobs: list[JobStart]
    executions: list[SqlRecord] = field(default_factory=list)

    def is_ended(self, log: ApplicationLog) -> bool:
        """Whether the log contains the ends of all its Spark jobs and SQL executions."""
        return all(job.job_id in log.job_results for job in self.jobs) and all(
            e.is_ended for e in self.executions
        )

    def is_successful(self, log: ApplicationLog) -> bool:
        """Whether the job succeeded; only for a group that has ended.

        The SQL executions decide if they have a result: an execution may cancel Spark jobs and
        succeed. Otherwise the Spark jobs decide.
        """
        results = [execution.is_success for execution in self.executions]
        if results and all(is_success is not None for is_success in results):
            return all(results)
        return all(log.job_results[job.job_id] for job in self.jobs)


def first_listing_job(log: ApplicationLog) -> dict[int, int]:
    """For every stage the first Spark job that lists it.

    Later jobs that share the stage skip it.
    """
    owner: dict[int, int] = {}
    for job_id in sorted(log.jobs):
        for info in log.jobs[job_id].stages:
            owner.setdefault(info.stage_id, job_id)
    return owner


def own_stages(group: JobGroup, owner: dict[int, int]) -> list[int]:
    """The stages of a group, each with the Spark job that lists it first."""
    return [
        info.stage_id
        for job in group.jobs
        for info in job.stages
        if owner[info.stage_id] == job.job_id
    ]


@dataclass(frozen=True, eq=False)
class LostStarts:
    """What belongs to Spark jobs whose start is missing in a log (Spark drops events under load).

    Args:
        num_jobs: number of Spark jobs that end without having started.
        num_tasks: number of ends of task attempts whose stage belongs to no Spark job.
        accumulators: the SQL metrics that these stages updated.
    """

    num_jobs: int
    num_tasks: int
    accumulators: frozenset[int]

    def touch(self, group: JobGroup) -> bool:
        """Whether such stages ran operators of the group's queries.

        Operators and stages are connected by the SQL metrics that tasks updated.
        """
        plans = (execution.plan.operators for execution in group.executions)
        return any(metric in self.accumulators for plan in plans for metric, _ in plan)


def lost_starts(log: ApplicationLog) -> LostStarts:
    """Find the Spark jobs of a log whose start is missing, and what is left of them."""
    listed = {info.stage_id for job in log.jobs.values() for info in job.stages}
    num_tasks = log.count_tasks()
    records = (record for stage_id, record in log.stages.items() if stage_id not in listed)
    return LostStarts(
        len(log.job_results.keys() - log.jobs.keys()),
        sum(num_tasks[stage_id] for stage_id in num_tasks.keys() - listed),
        frozenset().union(*(record.accumulators for record in records)),
    )


def job_groups(log: ApplicationLog) -> Iterator[JobGroup]:
    """The Spark jobs grouped by root SQL execution.

    A Spark job without a SQL execution is a group by itself.
    """
    by_root: dict[int, JobGroup] = {}
    for job_id in sorted(log.jobs):
        job = log.jobs[job_id]
        root = _root_execution(job, log)
        if root is None:
            yield JobGroup([job])
        else:
            by_root.setdefault(root, JobGroup([])).jobs.append(job)
    # Subqueries are separate executions; they belong to the group of their root.
    for execution in log.sql.values():
        root = execution.root_id if execution.root_id in log.sql else execution.execution_id
        if root in by_root:
            by_root[root].executions.append(execution)
    yield from by_root.values()


def _root_execution(job: JobStart, log: ApplicationLog) -> int | None:
    for name in ("spark.sql.execution.root.id", "spark.sql.execution.id"):
        value = job.properties.get(name, "")
        # At most 18 digits: the id fits an int64.
        if value.isdecimal() and len(value) < 19:
            execution = log.sql.get(int(value))
            return execution.root_id if execution and execution.root_id in log.sql else int(value)
    return None


def queries_without_plan(log: ApplicationLog, key: str | None) -> int:
    """The number of SQL queries that a key names by their plans, but whose plans are not logged."""
    if key not in (PLAN_KEY, SHAPE_KEY):
        return 0
    return sum(
        bool(group.executions)
        and not any(execution.plan_names for execution in group.executions)
        and not any(job.properties.get(NAME_PROPERTY) for job in group.jobs)
        for group in job_groups(log)
    )


def submission_ms(group: JobGroup, stages: Iterable[StageRecord]) -> int | None:
    """When a group was submitted, in wall-clock ms; None if the log does not contain it.

    The stages of the group that ran are used if the jobs have no submission times (Spark 1.x).
    """
    times = [job.submission_ms for job in group.jobs] + [
        execution.time_ms for execution in group.executions
    ]
    # -1 stands for a time that the log does not contain.
    known = [ms for ms in times if ms >= 0] or [
        stage.submission_ms for stage in stages if stage.submission_ms >= 0
    ]
    return min(known, default=None)


def completion_ms(
    group: JobGroup, log: ApplicationLog, stages: Iterable[StageRecord]
) -> int | None:
    """When the last of a group's Spark jobs and SQL executions ended, in wall-clock ms.

    Args:
        group: the group.
        log: the application's log.
        stages: the stages of the group that ran; used if the jobs have no completion times.

    Returns:
        The time, or None if it is not known.
    """
    times = [log.job_end_ms.get(job.job_id, -1) for job in group.jobs] + [
        execution.end_ms for execution in group.executions
    ]
    # A job that has not ended has no end time (-1).
    known = [ms for ms in times if ms > 0] or [
        stage.completion_ms for stage in stages if stage.completion_ms > 0
    ]
    return max(known, default=None)
