"""What event logs lack and where they contradict themselves: counted, left out, and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parcae.api.study import default_arrivals
from parcae.base.errors import FormatError
from parcae.cli.options import usual_arrivals
from parcae.evaluation.compare_logs import LogSummary, summarize_run
from parcae.evaluation.sections import lost_work_warning, setting_warnings
from parcae.evaluation.sizing import Question, Sizing, warnings
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.describe import LOST_ENDS, TASK_TIME, TASK_TIME_LEFT_OUT
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import shared_case
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    job_end,
    job_start,
    log_file,
    sql_end,
    sql_start,
    stage_completed,
    stage_info,
    task_end,
    to_bytes,
    whole_job,
)

Event = dict[str, Any]
HOUR_MS = 3_600_000


def _import(path: Path) -> tuple[Workload, str]:
    workload, report = read_spark_event_logs([path], recorded=True)
    return workload, "\n".join(report.notes)


def _compared(path: Path) -> tuple[LogSummary, str]:
    run = read_spark_run([path])
    return summarize_run(run), "\n".join(run.notes)


def _work_s(workload: Workload) -> float:
    return sum(job.work_ms for job in workload.jobs) / 1_000


def _written(tmp_path: Path, events: list[Event]) -> Path:
    return log_file(tmp_path / "log", application_start("app-1"), executor(), *events)


def _job(job: int, begin_ms: int, *infos: Event, end_ms: int = 0) -> list[Event]:
    """A job named after its number, whose stages run for a second, one after the other."""
    stages = infos or (stage_info(job, 2),)
    ran = [
        (info, begin_ms + 1_000 * row, begin_ms + 1_000 * (row + 1))
        for row, info in enumerate(stages)
    ]
    *events, _ = whole_job(job, begin_ms, *ran, spark_jobGroup_id=f"j{job}")
    return [*events, job_end(job, end_ms=end_ms or begin_ms + 1_000 * len(stages))]


def test_a_query_that_began_before_its_log_is_left_out() -> None:
    workload, notes = _import(shared_case("02-log-without-its-beginning/tail-of-log"))
    assert [(job.name, job.num_tasks) for job in workload.jobs] == [("select small", 2)]
    assert "Left out 1 job that had no beginning in the log" in notes
    assert "2.0 of 6.0 s (33%)" in notes
    compared, notes = _compared(shared_case("02-log-without-its-beginning/tail-of-log"))
    assert compared.num_jobs == 1
    assert "Left out 1 job that had no beginning in the log" in notes
    workload, notes = _import(shared_case("02-log-without-its-beginning/whole-log"))
    assert [job.num_tasks for job in workload.jobs] == [12, 2]
    assert "no beginning" not in notes


def test_a_query_without_any_event_of_sql_is_whole(tmp_path: Path) -> None:
    in_sql = {"spark_sql_execution_id": "0"}
    query = whole_job(0, 0, (stage_info(0, 2), 0, 1_000), **in_sql)
    assert len(_import(_written(tmp_path, query))[0].jobs) == 1
    others = [sql_start(1, 0), sql_end(1), *_job(1, 5_000)]
    assert len(_import(_written(tmp_path, [*query, *others]))[0].jobs) == 1


def test_missing_ends_of_tasks_are_counted_by_stage() -> None:
    path = shared_case("04-lost-task-ends/log")
    expected = (
        "5 of 11 tasks of 2 completed stages have no end in the log: 4 of 10 of stage 0, "
        "all of stage 1; shares of busy cores and loads are too low."
    )
    workload, notes = _import(path)
    assert expected in notes
    assert "had a stage without a successful task in the log: y." in notes
    assert [(job.name, job.num_tasks) for job in workload.jobs] == [("x", 10)]
    assert workload.provenance[LOST_ENDS].startswith("5 of 11 tasks")
    compared, notes = _compared(path)
    assert expected in notes
    assert compared.num_lost_ends == 5


def test_the_share_of_the_task_time_is_said_with_the_reasons_for_the_rest() -> None:
    workload, notes = _import(shared_case("05-work-of-failed-jobs/log"))
    assert (
        "The jobs have 12 of 432 s (3%) of the task time in the log; the rest: 420 s of jobs that "
        "failed."
    ) in notes
    assert workload.provenance[TASK_TIME] == "12 of 432 s (3%)"
    assert workload.provenance[TASK_TIME_LEFT_OUT] == "420 s of jobs that failed"


def test_sizes_and_reports_warn_of_work_that_is_not_in_the_workload() -> None:
    failed = (
        "spark has 12 of 432 s (3%) of the task time in its logs, not 420 s of jobs that failed: "
        "the cluster had more work than the jobs here, so loads and times are too low"
    )
    ends = "spark comes from logs in which 5 of 11 tasks of 2 completed stages have no end: "
    for name, expected in (("05-work-of-failed-jobs", failed), ("04-lost-task-ends", ends)):
        workload, _ = _import(shared_case(f"{name}/log"))
        assert lost_work_warning(workload, is_counted=False).startswith(expected)
        config = SimulationConfig(world=WorldName.CORES)
        assert any(expected in text for text in setting_warnings(workload, config, "batch"))
        question = Question(workload, (2,), arrivals="poisson:1s")
        of_size = warnings(Sizing(question, (), {}))
        assert any(expected[1:] in text for text in of_size)
    whole, _ = _import(shared_case("12-clocks-and-counts/good"))
    assert lost_work_warning(whole, is_counted=False) == ""


def test_work_of_failed_jobs_counts_in_the_load_of_a_log() -> None:
    workload, _ = _import(shared_case("05-work-of-failed-jobs/log"))
    question = Question(workload, (2,))
    assert workload.work_factor == question.speed == 432 / 12
    plain = Question(replace(workload, provenance={}), (2,))
    factor = plain.draw(0).arrival_ms[-1] / question.draw(0).arrival_ms[-1]
    assert factor == pytest.approx(432 / 12, rel=0.01)
    (counted,) = (text for text in warnings(Sizing(question, (), {})) if "420 s" in text)
    assert "so these arrive 36 times as often as in the logs" in counted
    whole, _ = _import(shared_case("12-clocks-and-counts/good"))
    assert (whole.work_factor, Question(whole, (2,)).speed) == (1, 1)


def test_jobs_that_were_not_asked_for_are_no_work_that_is_missing(tmp_path: Path) -> None:
    jobs = [_job(number, 10_000 * number) for number in range(3)]
    jobs[2][0]["Properties"]["etl.name"] = "nightly"
    path = _written(tmp_path, [event for job in jobs for event in job])
    workload, report = read_spark_event_logs([path], recorded=True, key="etl.name")
    assert [job.name for job in workload.jobs] == ["nightly"]
    assert workload.work_factor == 1
    assert any("did not carry the property 'etl.name'" in note for note in report.notes)
    # Of those that were asked for, one failed.
    jobs[1][0]["Properties"]["etl.name"] = "nightly"
    jobs[1][-1] = job_end(1, "JobFailed", 11_000)
    path = _written(tmp_path, [event for job in jobs for event in job])
    workload, _ = read_spark_event_logs([path], recorded=True, key="etl.name")
    assert workload.work_factor == 2


@pytest.mark.parametrize(("sessions", "usual", "of_size"), [(1, 1, 1), (2, 5, 5), (3, 8, 8)])
def test_sessions_bring_the_work_of_failed_jobs_but_one_stays_alone(
    sessions: int, usual: int, of_size: int
) -> None:
    """What one session also did was in its pauses, never beside its other jobs."""
    job = chain(2, 3, 1_000)
    provenance = {"sessions": str(sessions), "all_work_by_that_of_the_jobs": "2.6"}
    workload = Workload("w", (replace(job, session=0, pauses_ms=(5,)),), provenance=provenance)
    assert workload.usual_sessions == usual
    assert usual_arrivals(workload) == default_arrivals(workload) == f"sessions:{usual}"
    assert Question(workload, (2,), arrivals="sessions").drawn_arrivals == f"sessions:{of_size}"
    doubled = Question(workload, (2,), arrivals="sessions", growth=2)
    assert doubled.drawn_arrivals == f"sessions:{round(2 * sessions * workload.session_factor)}"
    assert Question(workload, (2,), arrivals="sessions:2").drawn_arrivals == "sessions:2"


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "0.5", "-2", "1e3", "2,5", "9" * 400])
def test_a_factor_that_no_import_writes_counts_as_none(text: str) -> None:
    workload = Workload("w", (chain(2, 3, 5),), provenance={"all_work_by_that_of_the_jobs": text})
    assert workload.work_factor == 1


def test_a_stage_without_any_end_is_as_in_the_nearest_run_of_its_job(tmp_path: Path) -> None:
    def run(number: int, begin_ms: int, *, is_lost: bool) -> list[Event]:
        events = whole_job(
            number,
            begin_ms,
            (stage_info(2 * number, 2), begin_ms, begin_ms + 1_000),
            (stage_info(2 * number + 1, 3, (2 * number,)), begin_ms + 1_000, begin_ms + 5_000),
            spark_jobGroup_id="etl",
        )
        return [
            event
            for event in events
            if not (
                is_lost
                and event["Event"] == "SparkListenerTaskEnd"
                and event["Stage ID"] == 2 * number + 1
            )
        ]

    both = [*run(0, 0, is_lost=False), *run(1, 10_000, is_lost=True)]
    workload, notes = _import(_written(tmp_path, both))
    assert [job.num_tasks for job in workload.jobs] == [5, 5]
    assert workload.jobs[0].work_ms == workload.jobs[1].work_ms
    assert "1 stage without any as in the job's nearest run" in notes
    alone, notes = _import(_written(tmp_path, [*run(1, 0, is_lost=True), *_job(4, 20_000)]))
    assert [job.name for job in alone.jobs] == ["j4"]
    assert "had a stage without a successful task in the log: etl." in notes


def test_a_log_of_bad_lines_is_left_out_and_the_others_have_none(tmp_path: Path) -> None:
    good = _written(tmp_path, _job(0, 0))
    (tmp_path / "bad").write_bytes(to_bytes([]) + b'{"Event":"SparkListenerJobEnd"}\n' * 9)
    workload, report = read_spark_event_logs([tmp_path])
    assert len(workload.jobs) == 1
    assert report.num_bad_rows == 0
    assert report.num_rows == len(good.read_bytes().splitlines())
    assert any(f"Left out {tmp_path}/bad: 9 of 10 rows" in note for note in report.notes)


@pytest.mark.parametrize(
    ("name", "work_s", "note"),
    [
        ("good", 48.0, ""),
        ("ends_dropped", 48.0, "12 of 24 tasks of 6 completed stages have no end in the log"),
        ("tasks_40_of_4", 48.0, "36 of 40 of stage 0"),
        ("launch_0", 40.0, "j0 (a task of stage 1 begins before its job)"),
    ],
)
def test_clocks_and_counts(name: str, work_s: float, note: str) -> None:
    path = shared_case(f"12-clocks-and-counts/{name}")
    workload, notes = _import(path)
    assert _work_s(workload) == work_s
    assert note in notes
    compared, notes = _compared(path)
    assert note in notes
    assert (compared.num_lost_ends > 0) == bool(note)
    assert compared.num_jobs == len(workload.jobs)


def test_a_cycle_of_parents_is_named() -> None:
    for read in (_import, _compared):
        with pytest.raises(FormatError, match=r"form a cycle: j0 \(0 -> 1 -> 0\), "):
            read(shared_case("12-clocks-and-counts/cycle"))


def _set_back(begin_ms: int) -> list[Event]:
    return [*_job(0, begin_ms), *_job(1, begin_ms + 2_000 - HOUR_MS), *_job(2, begin_ms + 4_000)]


def _ends_before_it_begins(begin_ms: int) -> list[Event]:
    return [*_job(0, begin_ms), *_job(1, begin_ms + 2_000, end_ms=begin_ms + 3_000 - HOUR_MS)]


def _query_ends_early(begin_ms: int) -> list[Event]:
    in_sql = {"spark_sql_execution_id": "0", "spark_jobGroup_id": "j1"}
    query = whole_job(1, begin_ms, (stage_info(1, 2), begin_ms, begin_ms + 1_000), **in_sql)
    end = {**sql_end(0), "time": begin_ms - HOUR_MS}
    return [*_job(0, begin_ms), sql_start(0, begin_ms), *query, end]


def _tasks_before_their_job(begin_ms: int) -> list[Event]:
    info = stage_info(1, 1)
    early = task_end(1, 0, begin_ms - HOUR_MS, begin_ms - HOUR_MS + 1_000)
    start = job_start(1, begin_ms, [info], spark_jobGroup_id="j1")
    end = stage_completed(info, begin_ms, begin_ms + 1_000)
    return [*_job(0, begin_ms), start, early, end, job_end(1, end_ms=begin_ms + 1_000)]


def _unknown_parent(begin_ms: int) -> list[Event]:
    return [*_job(0, begin_ms), *_job(1, begin_ms + 2_000, stage_info(1, 2, (99,)))]


def _cycle_of_three(begin_ms: int) -> list[Event]:
    # Stage 1 is behind the cycle, not on it.
    parents = {1: (4,), 2: (3,), 3: (4,), 4: (2,)}
    infos = [stage_info(stage, 2, of) for stage, of in parents.items()]
    return [*_job(0, begin_ms), *_job(1, begin_ms + 2_000, *infos)]


def _more_tasks_than_said(begin_ms: int) -> list[Event]:
    info = stage_info(1, 2)
    more = [task_end(1, 2, begin_ms + 2_000, begin_ms + 2_500)]
    start, *rest = _job(1, begin_ms + 2_000, info)
    return [*_job(0, begin_ms), start, *more, *rest]


@pytest.mark.parametrize(
    ("events", "example"),
    [
        (_set_back, "j1 (Spark job 1 begins before an earlier one)"),
        (_ends_before_it_begins, "j1 (Spark job 1 ends before it begins)"),
        (_query_ends_early, "j1 (SQL execution 0 ends before it begins)"),
        (_tasks_before_their_job, "j1 (a task of stage 1 begins before its job)"),
        (_unknown_parent, "j1 (stage 1 has the parent 99)"),
        (_cycle_of_three, "j1 (4 -> 2 -> 3 -> 4)"),
        (_more_tasks_than_said, "j1 (stage 1 has 2 tasks, 3 ended)"),
    ],
)
def test_jobs_that_contradict_themselves_are_left_out_of_import_and_comparison(
    tmp_path: Path, events: Callable[[int], list[Event]], example: str
) -> None:
    path = _written(tmp_path, events(2 * HOUR_MS))
    workload, notes = _import(path)
    assert example in notes
    names = [job.name for job in workload.jobs]
    assert "j1" not in names
    run = read_spark_run([path])
    assert [job.name for job in run.jobs] == names
    assert example in "\n".join(run.notes)
    assert run.core_utilization is not None
    assert run.core_utilization <= 1.0


def test_a_small_correction_of_the_clock_is_no_step(tmp_path: Path) -> None:
    events = [*_job(0, HOUR_MS), *_job(1, HOUR_MS - 900, end_ms=HOUR_MS - 1_800)]
    assert len(_import(_written(tmp_path, events))[0].jobs) == 2


def test_spark_jobs_that_were_numbered_in_another_order_are_no_step(tmp_path: Path) -> None:
    events = [*_job(1, HOUR_MS), *_job(0, HOUR_MS + 5_000)]
    assert len(_import(_written(tmp_path, events))[0].jobs) == 2


def test_repeated_events_count_once(tmp_path: Path) -> None:
    events = [*_job(0, 0), *_job(1, 2_000)]
    once, _ = _import(_written(tmp_path, events))
    twice, notes = _import(_written(tmp_path, [*events, *events]))
    assert "Left out 4 repeated task ends." in notes
    assert (len(twice.jobs), _work_s(twice)) == (2, _work_s(once))
    path = _written(tmp_path, [*events, *events])
    compared, notes = _compared(path)
    assert (compared.num_tasks, compared.task_s) == (4, 2.0)
    assert "Left out 4 repeated task ends." in notes


def test_two_spark_jobs_with_one_number_are_refused(tmp_path: Path) -> None:
    path = _written(tmp_path, [*_job(0, 0), *_job(0, 5_000)])
    with pytest.raises(FormatError, match="log: two Spark jobs have the number 0"):
        _import(path)
