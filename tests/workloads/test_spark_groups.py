"""Which Spark jobs and SQL executions are one job, how it ended, and when."""

from __future__ import annotations

import pytest

from parcae.workloads.spark_log.application import ApplicationLog, SqlRecord
from parcae.workloads.spark_log.events import JobStart
from parcae.workloads.spark_log.naming import JobGroup, completion_ms, job_groups, submission_ms
from parcae.workloads.spark_log.plan import SqlPlan


def _job(job_id: int, submission_ms: int = 0, **properties: str) -> JobStart:
    named = {f"spark.sql.execution.{name}": value for name, value in properties.items()}
    return JobStart(job_id, submission_ms, named, ())


def _execution(
    execution_id: int,
    root_id: int,
    is_success: bool | None = None,
    time_ms: int = 0,
    end_ms: int = -1,
    is_ended: bool = True,
) -> SqlRecord:
    plan = SqlPlan()
    return SqlRecord(execution_id, root_id, "", time_ms, plan, None, is_ended, is_success, end_ms)


@pytest.mark.parametrize(
    ("of_jobs", "of_executions", "is_successful"),
    [
        ((True, True), (), True),
        ((True, False), (), False),
        ((False, True), (True, True), True),
        ((True, True), (True, False), False),
        # The log lacks a result of the executions: the Spark jobs decide.
        ((True, True), (False, None), True),
        ((True, False), (True, None), False),
    ],
)
def test_every_part_must_succeed_and_executions_with_results_decide(
    of_jobs: tuple[bool, ...], of_executions: tuple[bool | None, ...], is_successful: bool
) -> None:
    log = ApplicationLog("log", job_results=dict(enumerate(of_jobs)))
    executions = [_execution(number, 0, result) for number, result in enumerate(of_executions)]
    assert JobGroup([_job(0), _job(1)], executions).is_successful(log) is is_successful


def test_a_group_has_ended_with_its_last_job_and_execution() -> None:
    jobs = [_job(0), _job(1)]
    both = ApplicationLog("log", job_results={0: True, 1: False})
    executions = [_execution(0, 0), _execution(1, 0, is_ended=False)]
    assert JobGroup(jobs, executions[:1]).is_ended(both)
    assert not JobGroup(jobs, executions).is_ended(both)
    assert not JobGroup(jobs, executions[:1]).is_ended(ApplicationLog("log", job_results={0: True}))


def test_subqueries_belong_to_the_group_of_their_root() -> None:
    executions = (_execution(4, 4), _execution(5, 4), _execution(6, 9))
    log = ApplicationLog(
        "log",
        jobs={
            3: _job(3, id="5"),
            0: _job(0),
            1: _job(1, **{"root.id": "4", "id": "5"}),
            2: _job(2, id="6"),
            7: _job(7),
        },
        sql={one.execution_id: one for one in executions},
    )
    groups = [
        ([job.job_id for job in group.jobs], [one.execution_id for one in group.executions])
        for group in job_groups(log)
    ]
    # The root of execution 6 is not in the log: it is a group by itself.
    assert groups == [([0], []), ([7], []), ([1, 3], [4, 5]), ([2], [6])]


def test_a_group_takes_from_its_first_submission_to_its_last_end() -> None:
    log = ApplicationLog("log", job_end_ms={0: 50, 1: 70})
    jobs = [_job(0, 20), _job(1, 10)]
    group = JobGroup(jobs, [_execution(0, 0, time_ms=5, end_ms=60)])
    assert (submission_ms(group, ()), completion_ms(group, log, ())) == (5, 70)
    # -1 stands for a time that the log does not contain.
    unknown = JobGroup([_job(0, -1), _job(2, 10)], [])
    assert (submission_ms(unknown, ()), completion_ms(unknown, log, ())) == (10, 50)
    assert submission_ms(JobGroup([_job(0, -1)]), ()) is None
    assert completion_ms(JobGroup([_job(2)]), log, ()) is None
