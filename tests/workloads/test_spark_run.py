"""Event logs as what happened: jobs, their outcomes, cores over time."""

from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import FormatError
from parcae.workloads.archive import BUNDLED
from parcae.workloads.recorded_run import NO_JOB, NOT_COMPLETED, JobOutcome, RecordedRun
from parcae.workloads.spark_log.application import ApplicationLog, Outcome
from parcae.workloads.spark_log.events import add_event
from parcae.workloads.spark_log.run import read_spark_run
from tests.conftest import shared_data
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    job_end,
    job_start,
    ran,
    removed,
    small_log,
    sql_end,
    sql_start,
    stage_info,
    task_end,
    to_bytes,
    whole_job,
)

EXAMPLE = BUNDLED / "example-event-log.zstd"


def _read(tmp_path: Path, events: list[dict[str, Any]] | bytes, **options: Any) -> RecordedRun:
    (tmp_path / "log").write_bytes(events if isinstance(events, bytes) else to_bytes(events))
    return read_spark_run([tmp_path / "log"], **options)


def _parsed(**changes: Any) -> Any:
    """The columns of a task of 100 ms with those metrics, or without any."""
    metrics = changes.pop("metrics", None)
    event = task_end(0, 0, 1_000, 1_100, **changes)
    del event["Task Metrics"]
    if metrics is not None:
        event["Task Metrics"] = metrics
    log = ApplicationLog("log")
    add_event(log, to_bytes([event]).splitlines()[1])
    return log.tasks()


@pytest.mark.parametrize(
    ("metrics", "busy_ms"),
    [
        # A core deserializes and runs; the driver records the end later.
        ({"Executor Deserialize Time": 5, "Executor Run Time": 80}, 85),
        # Never longer than the log's own span.
        ({"Executor Deserialize Time": 5, "Executor Run Time": 300}, 100),
        ({"Result Size": 9, "Executor Run Time": 60, "Executor Deserialize Time": 7}, 67),
        ({"Executor Deserialize Time": 0, "Executor Run Time": 0}, 100),
        (None, 100),
    ],
)
def test_a_core_is_busy_for_deserializing_and_running(
    metrics: dict[str, int] | None, busy_ms: int
) -> None:
    tasks = _parsed(metrics=metrics)
    assert (tasks.busy_ms, tasks.outcome) == (busy_ms, Outcome.SUCCESS)
    assert _parsed(metrics=metrics, reason="ExecutorLostFailure").busy_ms == busy_ms


def test_jobs_have_times_since_the_first_submission_and_numbers_within_their_name(
    tmp_path: Path,
) -> None:
    events: list[dict[str, Any]] = [executor(cores=1)]
    for run, end in ((0, 650), (1, 2_000)):
        stage = stage_info(run, 2)
        events += [job_start(run, 500 + 1_000 * run, [stage], spark_jobGroup_id="report")]
        events += [*ran(stage, 500 + 1_000 * run, end), job_end(run, end_ms=end)]
    log = _read(tmp_path, events)
    assert [(job.key, job.submission_ms, job.completion_ms) for job in log.jobs] == [
        (("report", 1), 0, 150),
        (("report", 2), 1_000, 1_500),
    ]
    assert (log.makespan_ms, log.task_ms, log.num_tasks) == (1_500, 650, 4)
    assert (log.num_cores, log.core_ms) == (1, 1_500)
    assert log.core_utilization == pytest.approx(650 / 1_500)
    assert log.tasks["job"].tolist() == [0, 0, 1, 1]
    assert log.tasks["start_ms"].tolist() == [0, 75, 1_000, 1_250]


def test_a_query_completes_with_its_sql_execution(tmp_path: Path) -> None:
    query = whole_job(0, 20, (stage_info(0, 1), 20, 90), spark_sql_execution_id="7")
    query[-1]["Completion Time"] = 95
    events = [executor(), sql_start(7, 0), *query, {**sql_end(7), "time": 140}]
    assert _read(tmp_path, events).jobs[0].jct_ms == 140


def test_failed_and_unfinished_jobs_are_distinguished(tmp_path: Path) -> None:
    stages = [stage_info(number, 1) for number in range(3)]
    starts = [job_start(n, 10 * n, [stages[n]], spark_jobGroup_id="j") for n in range(3)]
    events = [executor(), *starts, *ran(stages[0], 0, 40), job_end(0, end_ms=45)]
    run = _read(tmp_path, [*events, job_end(1, "JobFailed", 60)])
    outcomes = [JobOutcome.COMPLETED, JobOutcome.FAILED, JobOutcome.UNFINISHED]
    assert [job.outcome for job in run.jobs] == outcomes
    assert [job.completion_ms for job in run.jobs] == [45, 60, NOT_COMPLETED]
    assert run.makespan_ms == 60


def test_executors_count_while_they_are_there(tmp_path: Path) -> None:
    stage = stage_info(0, 1)
    late = {**executor("2", 4), "Timestamp": 100}
    events = [executor("1", 2), job_start(0, 0, [stage]), late, *ran(stage, 0, 200)]
    run = _read(tmp_path, [*events, removed("2", 150), job_end(0, end_ms=200)])
    assert (run.num_cores, run.core_ms) == (6, 2 * 200 + 4 * 50)
    assert run.core_utilization == pytest.approx(200 / 600)


def test_where_the_log_does_not_tell_the_cores_their_use_is_unknown(tmp_path: Path) -> None:
    stage = stage_info(0, 1)
    events = [job_start(0, 0, [stage]), *ran(stage, 0, 200), job_end(0, end_ms=200)]
    run = _read(tmp_path, events)
    assert (run.num_cores, run.core_ms, run.core_utilization) == (1, None, None)


def test_an_application_that_never_had_an_executor_leaves_the_use_of_cores_known(
    tmp_path: Path,
) -> None:
    (tmp_path / "worked").write_bytes(small_log(runs=1, start=application_start("worked")))
    (tmp_path / "waited").write_bytes(to_bytes([application_start("waited")]))
    run = read_spark_run([tmp_path])
    assert run.applications == ("waited", "worked")
    assert (run.core_ms, run.core_utilization) == (150, 1.0)


def test_the_tasks_of_jobs_without_the_key_are_no_job_s_but_keep_cores_busy() -> None:
    run = read_spark_run([EXAMPLE], key="spark.jobGroup.id")
    assert len(run.jobs) == 18
    assert {job.outcome for job in run.jobs} == {JobOutcome.COMPLETED}
    assert (run.tasks["job"] == NO_JOB).sum() == len(run.tasks) - run.num_tasks == 3
    assert run.notes == ("Left out 3 jobs that did not carry the property 'spark.jobGroup.id'.",)
    assert run.num_cores == 2
    same_core = run.tasks["core"][1:] == run.tasks["core"][:-1]
    assert not (same_core & (run.tasks["start_ms"][1:] < run.tasks["finish_ms"][:-1])).any()


def test_real_logs_of_spark_1_2_to_3_3_are_read_one_by_one_and_as_one_run() -> None:
    folder = shared_data("spark-event-logs")
    runs = [read_spark_run([path]) for path in sorted(folder.iterdir())]
    assert [len(run.jobs) for run in runs] == [1, 1, 1, 1, 3, 1, 2, 2]
    assert [job.outcome.value for job in runs[4].jobs] == ["completed", "failed", "completed"]
    for run in runs:
        assert 0 < run.task_ms <= run.num_cores * run.makespan_ms
        assert all(0 <= job.submission_ms <= job.completion_ms for job in run.jobs)
    together = read_spark_run([folder])
    assert (len(together.jobs), len(together.applications)) == (12, 8)
    assert together.num_tasks == sum(run.num_tasks for run in runs)


def test_a_torn_log_gives_what_it_holds(tmp_path: Path) -> None:
    run = _read(tmp_path, small_log(runs=3)[:-30])
    assert [job.outcome.value for job in run.jobs] == ["completed", "completed", "unfinished"]
    assert run.notes == ("1 truncated last line ignored; complete lines were kept.",)


@pytest.mark.parametrize(
    ("data", "key", "message"),
    [
        (to_bytes([executor()]), None, "no completed job in .*log .the log contains no job at all"),
        (
            to_bytes([executor(), job_start(0, 0, [stage_info(0, 1)])]),
            None,
            "no completed job in .*log .1 unfinished",
        ),
        (
            small_log(),
            "nobody",
            r"in .*log \(3 jobs did not carry the property 'nobody'\).*--key",
        ),
        (small_log() + b"{damaged}\n" * 9, None, "rows could not be read"),
    ],
)
def test_what_is_no_log_of_completed_jobs_is_refused(
    tmp_path: Path, data: bytes, key: str | None, message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        _read(tmp_path, data, key=key)
