"""From events to a DAG: skipped stages, broadcasts, sampling jobs, attempts, slots and waves."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from parcae.workloads.durations import Wave
from parcae.workloads.spark_log.application import (
    ApplicationLog,
    Outcome,
    StageInfo,
    StageRecord,
    TaskColumns,
)
from parcae.workloads.spark_log.dag import JobRun, StageRun, job_runs
from parcae.workloads.spark_log.durations import (
    StageSamples,
    level_bucket,
    place_tasks,
    stage_samples,
)
from parcae.workloads.spark_log.events import add_event
from parcae.workloads.spark_log.losses import CheckedLog, LeftOut
from parcae.workloads.spark_log.naming import Choice
from parcae.workloads.spark_log.profile import filled, merge_runs
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    plan_node,
    ran,
    settings,
    sql_end,
    sql_start,
    stage_completed,
    stage_info,
    task_end,
    whole_job,
)

IN_SQL = {"spark_sql_execution_id": "0"}


def _log(events: list[dict[str, Any]]) -> ApplicationLog:
    log = ApplicationLog("log")
    for event in events:
        add_event(log, orjson.dumps(event))
    return log


def _runs(events: list[dict[str, Any]], left_out: LeftOut | None = None) -> list[JobRun]:
    return job_runs(CheckedLog(_log(events)), None, left_out or LeftOut(), Choice())[0]


def _only_run(events: list[dict[str, Any]]) -> JobRun:
    (run,) = _runs([executor(), *events])
    return run


def _dropped(events: list[dict[str, Any]]) -> dict[str, int]:
    """Why the jobs of a log are left out; all of them are."""
    left_out = LeftOut()
    assert filled(_runs([executor(), *events], left_out), left_out) == []
    return left_out.num_jobs


def _parents(events: list[dict[str, Any]]) -> list[tuple[set[int], set[int]]]:
    stages = _only_run(events).stages
    return [(set(stage.parents), set(stage.control_parents)) for stage in stages]


def _data_parents(events: list[dict[str, Any]]) -> list[set[int]]:
    return [data for data, _ in _parents(events)]


def _query(*events: dict[str, Any], time: int = 0) -> list[dict[str, Any]]:
    return [sql_start(0, time), *events, sql_end(0)]


def _samples(run: JobRun) -> list[int]:
    found: list[int] = np.concatenate(run.stages[0].samples.by_wave).tolist()
    return sorted(found)


def test_a_stage_waits_for_its_parents_where_the_clock_stepped_back() -> None:
    scan, join = stage_info(0, 1, rdd=7), stage_info(1, 1, (0,), rdd=8)
    skipped, last = stage_info(2, 1, (0,), rdd=8), stage_info(3, 1, (2,), rdd=9)
    jobs = whole_job(0, 1_000, (scan, 1_000, 1_100), (join, 700, 800), **IN_SQL)
    jobs += whole_job(1, 400, skipped, (last, 400, 500), **IN_SQL)
    expected = [(set(), set()), ({0}, set()), ({1}, set())]
    assert _parents(_query(*jobs, time=1_000)) == expected


def test_a_stage_without_tasks_is_bridged() -> None:
    first, empty, last = stage_info(0, 1), stage_info(1, 0, (0,)), stage_info(2, 1, (1,))
    events = whole_job(0, 0, (first, 0, 10), empty, (last, 10, 20))
    events.insert(-1, stage_completed(empty, 10, 10))
    assert _parents(events) == [(set(), set()), ({0}, set())]


def test_a_parent_that_ran_is_not_replaced_and_a_skipped_one_by_the_last_before() -> None:
    first, again, later = (stage_info(stage, 1, rdd=0) for stage in (0, 1, 5))
    reader, skipped = stage_info(2, 1, (0,)), stage_info(3, 1, rdd=0)
    last = stage_info(4, 1, (3, 2))
    stages = (first, again, reader, last, later)
    times = [(info, 10 * row, 10 * row + 10) for row, info in enumerate(stages)]
    events = whole_job(0, 0, *times[:3], skipped, *times[3:])
    assert _data_parents(events) == [set(), set(), {0}, {1, 2}, set()]


def test_stages_of_unknown_rdds_are_left_out() -> None:
    def unknown(stage: int) -> dict[str, Any]:
        info = {**stage_info(stage, 1), "RDD Info": []}
        del info["Parent IDs"]
        return info

    last = stage_info(2, 1, (1,))
    events = whole_job(0, 0, (unknown(0), 0, 10), unknown(1), (last, 10, 20))
    assert _parents(events) == [(set(), set()), (set(), {0})]


def test_a_job_of_skipped_stages_only_is_dropped() -> None:
    events = whole_job(0, 0, stage_info(0, 1))
    assert _dropped(events) == {"ran no stage (everything was skipped or empty)": 1}


def test_runs_are_in_order_of_submission_with_their_first_pool() -> None:
    events = [executor(cores=8), sql_start(0, 100)]
    for job, pool in enumerate(({}, {"spark_scheduler_pool": "p"}, {"spark_scheduler_pool": "q"})):
        events += whole_job(job, 100, (stage_info(job, 1), 100, 110), **IN_SQL, **pool)
    events += [sql_end(0), *whole_job(7, 20, (stage_info(7, 1), 20, 30))]
    runs = _runs(events)
    assert [(run.submission_ms, run.pool) for run in runs] == [(20, ""), (100, "p")]


def test_a_pool_in_the_settings_is_that_of_jobs_of_sql_only() -> None:
    pool = {"spark.scheduler.pool": "p"}
    outside = whole_job(0, 0, (stage_info(0, 1), 0, 10))
    # Spark copies the settings into the properties of these jobs.
    in_sql = whole_job(1, 20, (stage_info(1, 1), 20, 30), **IN_SQL, spark_scheduler_pool="p")
    events = [settings(pool), executor(), *outside, *_query(*in_sql, time=20)]
    runs = _runs(events)
    assert [(run.submission_ms, run.pool) for run in runs] == [(0, ""), (20, "p")]


def _broadcast_events(plan: dict[str, Any]) -> list[dict[str, Any]]:
    small, big, last = stage_info(0, 1), stage_info(1, 2), stage_info(2, 1, (1,))
    events = whole_job(0, 0, (small, 0, 10, (50,)), **IN_SQL)
    events += whole_job(1, 11, (big, 11, 20, (51,)), (last, 20, 30, (52,)), **IN_SQL)
    return [sql_start(0, 0, plan), *events, sql_end(0)]


def _broadcast(metric: int, text: str = "") -> dict[str, Any]:
    return plan_node("BroadcastExchange", plan_node("Scan", metric=metric), metric=90, text=text)


def _join(side: dict[str, Any], of: str = "Scan", metric: int = 51) -> dict[str, Any]:
    return plan_node("BroadcastHashJoin", plan_node(of), side, metric=metric)


def _aggregate(below: dict[str, Any]) -> dict[str, Any]:
    return plan_node("HashAggregate", plan_node("Exchange", below, metric=91), metric=52)


def _filter(metric: int | None = None) -> dict[str, Any]:
    below = plan_node("Subquery", plan_node("Scan", metric=50))
    return plan_node("Filter", below, metric=metric)


_NAMED = "BroadcastExchange [plan_id=4]"
_REUSED = plan_node("ReusedExchange", text=f"ReusedExchange [x], {_NAMED}")
_EXCHANGED_JOIN = plan_node("Exchange", _join(_broadcast(50, _NAMED)))


@pytest.mark.parametrize(
    ("plan", "data"),
    [
        (_aggregate(_join(_broadcast(50))), [set(), {0}, {1}]),
        # The nearest operators above a subquery that ran.
        (_aggregate(_filter()), [set(), set(), {0, 1}]),
        (_aggregate(_filter(metric=77)), [set(), set(), {0, 1}]),
        # A broadcast that ran after its reader gives no edge.
        (_join(_broadcast(52)), [set(), set(), {1}]),
        # A reused broadcast feeds its second reader, too.
        (
            plan_node("BroadcastHashJoin", _EXCHANGED_JOIN, _REUSED, metric=52),
            [set(), {0}, {0, 1}],
        ),
    ],
    ids=["broadcast", "subquery", "operators-that-ran-nowhere", "backwards", "reused"],
)
def test_what_the_driver_passes_on_feeds_the_stages_of_its_readers(
    plan: dict[str, Any], data: list[set[int]]
) -> None:
    assert _data_parents(_broadcast_events(plan)) == data


def test_control_edges_lead_to_the_job_submitted_next_and_to_stages_soon_after_it() -> None:
    """Rows in order of submission: sample, beside it, first, soon, too late, the first's job."""
    sample, beside, first, same_job, soon, late = (stage_info(stage, 1) for stage in range(6))
    last = stage_info(6, 1, (1, 2, 3, 4, 5))
    jobs = whole_job(0, 0, (sample, 0, 10), (beside, 9, 30), **IN_SQL)
    jobs += whole_job(1, 10, (first, 10, 30), (same_job, 200, 250), **IN_SQL)
    jobs += whole_job(2, 60, (soon, 60, 90), **IN_SQL)
    jobs += whole_job(3, 61, (late, 61, 90), **IN_SQL)
    jobs += whole_job(9, 300, (last, 300, 310), **IN_SQL)
    controls = [control for _, control in _parents([executor(cores=8), *_query(*jobs)])]
    assert controls == [set(), set(), {0}, {0}, set(), {0}, set()]


def test_a_stage_that_takes_no_time_waits_for_itself_in_no_graph() -> None:
    events = whole_job(0, 0, (stage_info(0, 1), 5, 5), (stage_info(1, 1), 5, 9))
    assert _parents(events) == [(set(), set()), (set(), {0})]


def test_the_successful_attempt_of_a_task_counts_and_only_once() -> None:
    info = stage_info(0, 2)
    ends = [
        task_end(0, 0, 0, 10, reason="ExceptionFailure"),
        task_end(0, 1, 0, 90, reason="TaskKilled"),
        task_end(0, 0, 10, 30),
        task_end(0, 1, 30, 70, Speculative=True),
        task_end(0, 1, 30, 75),
    ]
    events = [job_start(0, 0, [info]), *ends, stage_completed(info, 0, 90), job_end(0)]
    assert _samples(_only_run(events)) == [20, 40]
    log = _log(events)
    assert log.count_attempts(log.tasks()) == {
        "failed": 1,
        "killed": 1,
        "lost with their executor": 0,
        "ended by lost shuffle data": 0,
        "speculative": 1,
    }


def test_a_task_whose_output_is_lost_ran_once_before() -> None:
    info = stage_info(0, 4)
    events = [executor(), executor("2"), job_start(0, 0, [info])]
    ends = [task_end(0, part, 0, 50) for part in (0, 1)]
    lost = [{**end, "Task End Reason": {"Reason": "Resubmitted"}} for end in ends]
    others = [task_end(0, part, 0, 100, "2") for part in (2, 3)]
    again = [task_end(0, part, 100, 140, "2") for part in (0, 1)]
    done = [stage_completed(info, 0, 140), job_end(0)]
    plain = _log([*events, *ends, *others, *again, *done])
    log = _log([*events, *ends, *lost, *others, *again, *done])
    for one, other in zip(log.tasks(), plain.tasks(), strict=True):
        assert one.tolist() == other.tolist()
    of_plain = plain.count_attempts(plain.tasks())
    assert log.count_attempts(log.tasks()) == {**of_plain, "lost with their executor": 2}


END_IS_MISSING = {"had a stage whose end is missing in the log": 1}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_job_with_a_stage_whose_end_was_lost_is_dropped(lost: int) -> None:
    first, last = stage_info(0, 2), stage_info(1, 1, (0,))
    whole = whole_job(0, 0, (first, 0, 40), (last, 40, 50))
    assert _only_run(whole)
    ends = [event for event in whole if event["Event"] == "SparkListenerStageCompleted"]
    assert _dropped([event for event in whole if event is not ends[lost]]) == END_IS_MISSING


def _retried(is_end_logged: bool) -> list[dict[str, Any]]:
    """A stage whose first attempt failed to fetch; two of its tasks ended in the second one."""
    info = stage_info(0, 3)
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 2}
    failed = stage_completed(info, 0, 10, **{"Failure Reason": "FetchFailed"})
    again = [{**task_end(0, i, 20, 30), "Stage Attempt ID": 1} for i in (0, 1)]
    end = [stage_completed(retry, 20, 30)] if is_end_logged else []
    late = task_end(0, 2, 5, 25)
    return [executor(cores=3), job_start(0, 0, [info]), failed, late, *again, *end, job_end(0)]


def test_a_job_with_a_retry_whose_end_was_lost_is_dropped() -> None:
    assert _dropped(_retried(is_end_logged=False)) == END_IS_MISSING
    assert _only_run(_retried(is_end_logged=True)).stages[0].num_tasks == 3


def test_a_stage_that_was_cancelled_with_its_first_attempt_is_no_missing_end() -> None:
    cancelled = stage_info(0, 2)
    failed = [
        job_start(0, 0, [cancelled], **IN_SQL),
        task_end(0, 0, 0, 10),
        stage_completed(cancelled, 0, 12, **{"Failure Reason": "cancelled"}),
        job_end(0, "JobFailed"),
    ]
    done = whole_job(1, 20, (stage_info(1, 1), 20, 30), **IN_SQL)
    assert len(_only_run(_query(*failed, *done)).stages) == 1


def _two_queries() -> list[dict[str, Any]]:
    """Two queries of two Spark jobs each; their stages update the metrics 0 and 1, 2 and 3."""
    events = [executor()]
    for query in (0, 1):
        of_query = {"spark_sql_execution_id": str(query)}
        begin = 100 * query
        plan = plan_node("Sort", plan_node("Scan", metric=2 * query), metric=2 * query + 1)
        events.append(sql_start(query, begin, plan))
        for job in (2 * query, 2 * query + 1):
            info = stage_info(job, 1)
            events.append(job_start(job, begin, [info], **of_query))
            events += [*ran(info, begin, begin + 10, (job,)), job_end(job)]
        events.append(sql_end(query))
    return events


def test_a_query_with_a_spark_job_whose_start_was_lost_is_dropped() -> None:
    assert len(_runs(_two_queries())) == 2
    events = [event for event in _two_queries() if event.get("Submission Time") != 0]
    lost_one = [
        event
        for event in _two_queries()
        if event["Event"] != "SparkListenerJobStart" or event["Job ID"] != 2
    ]
    left_out = LeftOut()
    (run,) = _runs(lost_one, left_out)
    assert run.submission_ms == 0
    assert left_out.num_jobs == {"had a Spark job whose start is missing in the log": 1}
    # All Spark jobs of the first query lost their start: nothing is left of it.
    assert [run.submission_ms for run in _runs(events)] == [100]


def test_a_retry_without_a_submission_time_keeps_the_time_of_the_stage() -> None:
    first, second, last = stage_info(0, 1), stage_info(1, 1, (0,)), stage_info(2, 1, (1,))
    # Spark finishes an attempt at once that has nothing left to run.
    retry = {**second, "Stage Attempt ID": 1, "Number of Tasks": 0}
    ended = stage_completed(retry, 0, 25)
    del ended["Stage Info"]["Submission Time"]
    failed = stage_completed(second, 10, 20, **{"Failure Reason": "fetch failed"})
    events = [job_start(0, 0, [first, second, last]), *ran(first, 0, 10)]
    events += [*ran(second, 10, 20)[:-1], failed, ended, *ran(last, 30, 40), job_end(0)]
    assert _data_parents(events) == [set(), {0}, {1}]


@pytest.mark.parametrize("has_partitions", [True, False])
def test_every_partition_counts_where_a_retry_numbers_its_tasks_anew(has_partitions: bool) -> None:
    info = stage_info(0, 3)
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 2}
    events = [job_start(0, 0, [info])]
    # Of three partitions, two lose their input and run again as the tasks 0 and 1.
    events += [task_end(0, 0, 0, 10, partition=0)]
    events += [task_end(0, part, 10, 11, reason="FetchFailed", partition=part) for part in (1, 2)]
    events += [stage_completed(info, 0, 11, **{"Failure Reason": "fetch failed"})]
    again = [task_end(0, row, 20, 40 + 10 * row, partition=row + 1) for row in (0, 1)]
    events += [{**event, "Stage Attempt ID": 1} for event in again]
    if not has_partitions:  # before Spark 3.3
        for event in events:
            event.get("Task Info", {}).pop("Partition ID", None)
    run = _only_run([*events, stage_completed(retry, 20, 50), job_end(0)])
    # The stage has as many tasks as at its first attempt.
    assert (run.stages[0].num_tasks, _samples(run)) == (3, [10, 20, 30])


def test_a_repeated_task_whose_output_was_lost_counts_once_in_logs_without_partitions() -> None:
    info = stage_info(0, 3)
    events = [job_start(0, 0, [info])]
    events += [task_end(0, part, 10 * part, 10 * part + 10) for part in (0, 1)]
    events += [task_end(0, 2, 20, 21, reason="FetchFailed")]
    events += [stage_completed(info, 0, 21, **{"Failure Reason": "fetch failed"})]
    # The output of partition 0 is lost, too: two tasks of three run again, one of them fails once.
    again = [task_end(0, 1, 30, 31, reason="ExceptionFailure")]
    again += [task_end(0, row, 40, 60 + 10 * row) for row in (0, 1)]
    events += [{**event, "Stage Attempt ID": 1} for event in again]
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 2}
    run = _only_run([*events, stage_completed(retry, 30, 70), job_end(0)])
    assert _samples(run) == [10, 10, 20]


def _columns(*rows: tuple[int, int, int, int]) -> TaskColumns:
    """Successful attempts on one executor: (stage, task, launch, finish)."""
    stage, task, launch, finish = np.array(rows, np.int64).T
    zeros = np.zeros(len(rows), np.int64)
    outcome = zeros + Outcome.SUCCESS
    return TaskColumns(stage, task, launch, finish, zeros, outcome, zeros, finish - launch, zeros)


def test_waves_are_fresh_then_first_then_rest_on_each_slot() -> None:
    rows = [(0, 0, 0, 10), (0, 1, 0, 12), (0, 2, 10, 20), (0, 3, 12, 22)]
    tasks = _columns(*rows, (1, 0, 30, 40), (1, 1, 30, 41))
    placed = place_tasks(tasks, [2])
    waves = (Wave.FRESH, Wave.FRESH, Wave.REST, Wave.REST, Wave.FIRST, Wave.FIRST)
    assert placed.wave.tolist() == list(waves)
    assert placed.slot.tolist()[:4] == [0, 1, 0, 1]


def test_a_task_launched_before_the_last_one_ended_stays_within_the_cores() -> None:
    placed = place_tasks(_columns((0, 0, 0, 100), (0, 1, 99, 200), (0, 2, 199, 300)), [1])
    assert placed.slot.tolist() == [0, 0, 0]
    assert placed.wave.tolist() == [Wave.FRESH, Wave.REST, Wave.REST]


def test_unknown_cores_are_inferred_from_tasks_that_truly_overlap() -> None:
    rows = [(0, 0, 0, 100), (0, 1, 0, 100), (0, 2, 99, 200), (0, 3, 99, 200)]
    placed = place_tasks(_columns(*rows), [0])
    assert sorted(placed.slot.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("slots", "level"), [(1, 1), (2, 2), (3, 3), (5, 6), (7, 8), (50, 48), (100, 96)]
)
def test_parallelism_is_bucketed_by_ratio(slots: int, level: int) -> None:
    assert level_bucket(slots) == level


def test_a_profile_without_cores_of_its_tasks_has_those_of_the_application() -> None:
    added = executor(cores=4)
    added["Executor Info"]["Resource Profile Id"] = 1
    profile = {
        "Event": "SparkListenerResourceProfileAdded",
        "Resource Profile Id": 1,
        "Task Resource Requests": {"gpu": {"Resource Name": "gpu", "Amount": 1.0}},
    }
    assert _log([settings({"spark.task.cpus": "2"}), profile, added]).slots_of("1") == 2


def test_a_task_takes_the_slot_that_became_free_last() -> None:
    placed = place_tasks(_columns((0, 0, 0, 10), (0, 1, 0, 20), (1, 0, 30, 40)), [2])
    assert placed.slot.tolist() == [0, 1, 1]


def test_of_two_attempts_that_succeed_the_first_to_finish_counts() -> None:
    placed = place_tasks(_columns((0, 0, 0, 100), (0, 0, 50, 80)), [2])
    samples = stage_samples(placed, {0: np.arange(2)}, 0)
    assert samples is not None
    assert np.concatenate(samples.by_wave).tolist() == [30]


def test_a_stage_ends_with_the_last_of_its_attempts_in_whichever_order_they_are_logged() -> None:
    log = ApplicationLog("a log")
    for attempt, start_ms, end_ms in ((1, 50, 90), (0, 10, 40)):
        info = StageInfo(3, attempt, "collect", 1, (), 0, ())
        log.add_stage(StageRecord(info, attempt, start_ms, end_ms, attempt == 1, frozenset()))
    record = log.stages[3]
    assert (record.submission_ms, record.completion_ms, record.is_success) == (10, 90, True)


def _stage(kind: str, num_tasks: int, *parents: int) -> StageRun:
    samples = tuple(
        np.array(values, np.int64) for values in ([], [num_tasks], [num_tasks] * (num_tasks - 1))
    )
    return StageRun(
        kind, kind, num_tasks, frozenset(parents), frozenset(), StageSamples(2, samples)
    )


def test_similar_stages_are_distinguished_by_the_task_counts_around_them() -> None:
    """A scan of 2 tasks is joined with one of 6 and one of 28; the order of the joins differs."""
    scans = [_stage("scan", tasks) for tasks in (2, 28, 6)]
    small = _stage("join", 64, 0, 2)
    large = _stage("join", 64, 0, 1)
    one = JobRun("q20", 0, [*scans, small, large, _stage("join", 64, 3, 4)])
    other = JobRun("q20", 100, [*scans, large, small, _stage("join", 64, 3, 4)])
    (profile,) = merge_runs([one, other], keep_first_runs=True)
    assert profile.num_runs == 2
    assert [stage.parents for stage in profile.job.stages[3:]] == [(0, 2), (0, 1), (3, 4)]
    assert profile.job.stages[1].durations.first[0].tolist() == [28, 28]


def test_jobs_do_not_depend_on_the_order_of_the_logs() -> None:
    """60 tasks are close to 40 and to 90, which are not close to each other."""
    runs = [JobRun("q", 100 * tasks, [_stage("scan", tasks)]) for tasks in (40, 60, 90)]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        profiles = merge_runs([runs[row] for row in order], keep_first_runs=True)
        assert [profile.num_runs for profile in profiles] == [2, 1]
        assert [profile.job.num_tasks for profile in profiles] == [40, 90]


def test_equal_chains_do_not_cross_where_their_counts_change() -> None:
    """Two scans, each with an aggregate behind it: which aggregate is smaller changes."""
    runs = []
    for number, (few, many) in enumerate([(3, 2), (3, 2), (2, 3), (3, 3)]):
        chains = [
            *(_stage("scan", tasks) for tasks in (10, 100)),
            _stage("aggregate", few, 0),
            _stage("aggregate", many, 1),
        ]
        runs.append(JobRun("q", 100 * number, [*chains, _stage("join", 1, 2, 3)]))
    (profile,) = merge_runs(runs, keep_first_runs=True)
    assert profile.num_runs == 4


def test_a_schema_reading_stage_leaves_the_executor_fresh_for_the_job_that_is_looked_for() -> None:
    tasks = _columns((0, 0, 0, 9), (1, 1, 10, 19), (1, 2, 20, 29), (2, 3, 30, 39))
    of_query = place_tasks(tasks, [1], ignored_stages={0}).wave.tolist()[1:]
    assert of_query == [Wave.FRESH, Wave.REST, Wave.FIRST]
    assert place_tasks(tasks, [1]).wave.tolist() == [Wave.FRESH, Wave.FIRST, Wave.REST, Wave.FIRST]
