"""From events to a DAG: skipped stages, broadcasts, sampling jobs, attempts, slots and waves."""

from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest

from parcae.workloads.durations import Wave
from parcae.workloads.spark_log.application import ApplicationLog, TaskColumns
from parcae.workloads.spark_log.dag import JobRun, job_runs
from parcae.workloads.spark_log.durations import level_bucket, place_tasks
from parcae.workloads.spark_log.events import Outcome, parse_event
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    plan_node,
    ran,
    sql_end,
    sql_start,
    stage_completed,
    stage_info,
    task_end,
)

IN_SQL = {"spark_sql_execution_id": "0"}


def _log(events: list[dict[str, Any]]) -> ApplicationLog:
    log = ApplicationLog("log")
    for event in events:
        if (record := parse_event(orjson.dumps(event))) is not None:
            log.add(record)
    return log


def _only_run(events: list[dict[str, Any]]) -> JobRun:
    (run,) = job_runs(_log(events), None, Counter())
    return run


def _parents(run: JobRun) -> list[tuple[set[int], set[int]]]:
    return [(set(stage.parents), set(stage.control_parents)) for stage in run.stages]


def test_a_skipped_stage_is_the_one_with_the_same_highest_rdd_that_ran_before() -> None:
    scan = stage_info(0, 2, rdd=7)
    skipped = stage_info(1, 2, rdd=7)
    last = stage_info(2, 1, (1,), rdd=9)
    events = [
        executor(),
        sql_start(0, 0),
        job_start(0, 0, [scan], **IN_SQL),
        *ran(scan, 0, 10),
        job_end(0),
    ]
    events += [
        job_start(1, 20, [skipped, last], **IN_SQL),
        *ran(last, 20, 30),
        job_end(1),
        sql_end(0),
    ]
    assert _parents(_only_run(events)) == [(set(), set()), ({0}, set())]


def test_a_stage_waits_for_its_parents_where_the_clock_stepped_back() -> None:
    scan = stage_info(0, 1, rdd=7)
    join = stage_info(1, 1, (0,), rdd=8)
    skipped = stage_info(2, 1, (0,), rdd=8)
    last = stage_info(3, 1, (2,), rdd=9)
    events = [
        executor(),
        sql_start(0, 1_000),
        job_start(0, 1_000, [scan, join], **IN_SQL),
        *ran(scan, 1_000, 1_100),
        *ran(join, 700, 800),
        job_end(0),
        job_start(1, 400, [skipped, last], **IN_SQL),
        *ran(last, 400, 500),
        job_end(1),
        sql_end(0),
    ]
    assert _parents(_only_run(events)) == [(set(), set()), ({0}, set()), ({1}, set())]


def test_a_stage_without_tasks_is_bridged() -> None:
    first = stage_info(0, 1)
    empty = stage_info(1, 0, (0,))
    last = stage_info(2, 1, (1,))
    events = [executor(), job_start(0, 0, [first, empty, last]), *ran(first, 0, 10)]
    events += [stage_completed(empty, 10, 10), *ran(last, 10, 20), job_end(0)]
    assert _parents(_only_run(events)) == [(set(), set()), ({0}, set())]


def test_a_parent_that_ran_is_not_replaced_and_a_skipped_one_by_the_last_before() -> None:
    first, again, later = (stage_info(stage, 1, rdd=0) for stage in (0, 1, 5))
    reader = stage_info(2, 1, (0,))
    skipped = stage_info(3, 1, rdd=0)
    last = stage_info(4, 1, (3, 2))
    events = [executor(), job_start(0, 0, [first, again, reader, skipped, last, later])]
    for row, info in enumerate((first, again, reader, last, later)):
        events += ran(info, 10 * row, 10 * row + 10)
    data = [parents for parents, _ in _parents(_only_run([*events, job_end(0)]))]
    assert data == [set(), set(), {0}, {1, 2}, set()]


def test_stages_of_unknown_rdds_and_parents_that_no_job_lists_are_left_out() -> None:
    def unknown(stage: int) -> dict[str, Any]:
        info = {**stage_info(stage, 1), "RDD Info": []}
        del info["Parent IDs"]
        return info

    ran_first, skipped = unknown(0), unknown(1)
    last = stage_info(2, 1, (1, 99))
    events = [executor(), job_start(0, 0, [ran_first, skipped, last]), *ran(ran_first, 0, 10)]
    events += [*ran(last, 10, 20), job_end(0)]
    assert _parents(_only_run(events)) == [(set(), set()), (set(), {0})]


def test_a_job_of_skipped_stages_only_is_dropped() -> None:
    dropped = Counter[str]()
    events = [executor(), job_start(0, 0, [stage_info(0, 1)]), job_end(0)]
    assert job_runs(_log(events), None, dropped) == []
    assert dropped == {"ran no stage (everything was skipped or empty)": 1}


def test_runs_are_in_order_of_submission_with_their_first_pool() -> None:
    pools = ({}, {"spark_scheduler_pool": "p"}, {"spark_scheduler_pool": "q"})
    events = [executor(cores=8), sql_start(0, 100)]
    for job, pool in enumerate(pools):
        info = stage_info(job, 1)
        start = job_start(job, 100, [info], **IN_SQL, **pool)
        events += [start, *ran(info, 100, 110), job_end(job)]
    early = stage_info(7, 1)
    events += [sql_end(0), job_start(7, 20, [early]), *ran(early, 20, 30), job_end(7)]
    runs = job_runs(_log(events), None, Counter())
    assert [(run.submission_ms, run.pool) for run in runs] == [(20, ""), (100, "p")]


def test_a_pool_in_the_settings_is_that_of_jobs_of_sql_only() -> None:
    pool = {"spark.scheduler.pool": "p"}
    settings = {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": pool}
    outside, in_sql = stage_info(0, 1), stage_info(1, 1)
    events = [settings, executor(), job_start(0, 0, [outside]), *ran(outside, 0, 10), job_end(0)]
    # Spark copies the settings into the properties of these jobs.
    start = job_start(1, 20, [in_sql], **IN_SQL, spark_scheduler_pool="p")
    events += [sql_start(0, 20), start, *ran(in_sql, 20, 30), job_end(1), sql_end(0)]
    runs = job_runs(_log(events), None, Counter())
    assert [(run.submission_ms, run.pool) for run in runs] == [(0, ""), (20, "p")]


def _broadcast_events(plan: dict[str, Any]) -> list[dict[str, Any]]:
    small = stage_info(0, 1)
    big = stage_info(1, 2)
    last = stage_info(2, 1, (1,))
    events = [
        executor(),
        sql_start(0, 0, plan),
        job_start(0, 0, [small], **IN_SQL),
        *ran(small, 0, 10, (50,)),
    ]
    events += [job_end(0), job_start(1, 11, [big, last], **IN_SQL), *ran(big, 11, 20, (51,))]
    return [*events, *ran(last, 20, 30, (52,)), job_end(1), sql_end(0)]


def test_a_broadcast_feeds_the_stage_of_its_join() -> None:
    small = plan_node("BroadcastExchange", plan_node("Scan", metric=50), metric=90)
    join = plan_node("BroadcastHashJoin", plan_node("Scan"), small, metric=51)
    plan = plan_node("HashAggregate", plan_node("Exchange", join, metric=91), metric=52)
    assert _parents(_only_run(_broadcast_events(plan))) == [
        (set(), set()),
        ({0}, set()),
        ({1}, set()),
    ]


def test_a_subquery_feeds_the_nearest_operators_above_that_ran() -> None:
    condition = plan_node("Filter", plan_node("Subquery", plan_node("Scan", metric=50)))
    plan = plan_node("HashAggregate", plan_node("Exchange", condition), metric=52)
    assert _parents(_only_run(_broadcast_events(plan))) == [
        (set(), set()),
        (set(), set()),
        ({0, 1}, set()),
    ]


def test_operators_that_ran_in_no_stage_are_passed_over() -> None:
    condition = plan_node("Filter", plan_node("Subquery", plan_node("Scan", metric=50)), metric=77)
    plan = plan_node("HashAggregate", plan_node("Exchange", condition), metric=52)
    assert _parents(_only_run(_broadcast_events(plan)))[2] == ({0, 1}, set())


def test_a_broadcast_that_ran_after_its_reader_gives_no_edge() -> None:
    small = plan_node("BroadcastExchange", plan_node("Scan", metric=52), metric=90)
    plan = plan_node("BroadcastHashJoin", plan_node("Scan"), small, metric=51)
    data = [parents for parents, _ in _parents(_only_run(_broadcast_events(plan)))]
    assert data == [set(), set(), {1}]


def test_a_reused_broadcast_feeds_its_second_reader_too() -> None:
    small = plan_node(
        "BroadcastExchange", plan_node("Scan", metric=50), text="BroadcastExchange [plan_id=4]"
    )
    first = plan_node("BroadcastHashJoin", plan_node("Scan"), small, metric=51)
    again = plan_node("ReusedExchange", text="ReusedExchange [x], BroadcastExchange [plan_id=4]")
    plan = plan_node("BroadcastHashJoin", plan_node("Exchange", first), again, metric=52)
    assert _parents(_only_run(_broadcast_events(plan))) == [
        (set(), set()),
        ({0}, set()),
        ({0, 1}, set()),
    ]


def test_a_sampling_job_gets_a_control_edge_to_what_is_submitted_next() -> None:
    run = _only_run(_broadcast_events(plan_node("Sort")))
    assert _parents(run) == [(set(), set()), (set(), {0}), ({1}, set())]


def test_control_edges_lead_to_the_job_submitted_next_and_to_stages_soon_after_it() -> None:
    """Rows in order of submission: sample, beside it, first, soon, too late, the first's job."""
    sample, beside, first, same_job, soon, late = (stage_info(stage, 1) for stage in range(6))
    last = stage_info(6, 1, (1, 2, 3, 4, 5))
    times = {0: (0, 10), 1: (9, 30), 2: (10, 30), 3: (200, 250), 4: (60, 90), 5: (61, 90)}
    events = [executor(cores=8), sql_start(0, 0)]
    for row, stages in enumerate(([sample, beside], [first, same_job], [soon], [late])):
        events.append(job_start(row, times[stages[0]["Stage ID"]][0], stages, **IN_SQL))
        events += [event for info in stages for event in ran(info, *times[info["Stage ID"]])]
        events.append(job_end(row))
    events += [job_start(9, 300, [last], **IN_SQL), *ran(last, 300, 310), job_end(9), sql_end(0)]
    controls = [control for _, control in _parents(_only_run(events))]
    assert controls == [set(), set(), {0}, {0}, set(), {0}, set()]


def test_a_stage_that_takes_no_time_waits_for_itself_in_no_graph() -> None:
    quick = stage_info(0, 1)
    last = stage_info(1, 1)
    events = [executor(), job_start(0, 0, [quick, last]), *ran(quick, 5, 5), *ran(last, 5, 9)]
    assert _parents(_only_run([*events, job_end(0)])) == [(set(), set()), (set(), {0})]


def test_stages_that_run_at_the_same_time_get_no_control_edge() -> None:
    left = stage_info(0, 1)
    right = stage_info(1, 1)
    last = stage_info(2, 1, (0, 1))
    events = [
        executor(),
        job_start(0, 0, [left, right, last]),
        *ran(left, 0, 10),
        *ran(right, 1, 12),
    ]
    run = _only_run([*events, *ran(last, 12, 20), job_end(0)])
    assert _parents(run) == [(set(), set()), (set(), set()), ({0, 1}, set())]


def test_the_successful_attempt_of_a_task_counts_and_only_once() -> None:
    info = stage_info(0, 2)
    events = [executor(), job_start(0, 0, [info])]
    events += [
        task_end(0, 0, 0, 10, reason="ExceptionFailure"),
        task_end(0, 1, 0, 90, reason="TaskKilled"),
    ]
    events += [
        task_end(0, 0, 10, 30),
        task_end(0, 1, 30, 70, Speculative=True),
        task_end(0, 1, 30, 75),
    ]
    log = _log([*events, stage_completed(info, 0, 90), job_end(0)])
    (run,) = job_runs(log, None, Counter())
    assert sorted(np.concatenate(run.stages[0].samples.by_wave).tolist()) == [20, 40]
    assert log.count_attempts() == {
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
    assert log.count_attempts() == {**plain.count_attempts(), "lost with their executor": 2}


def test_a_job_without_a_successful_task_is_dropped() -> None:
    info = stage_info(0, 1)
    dropped = Counter[str]()
    events = [executor(), job_start(0, 0, [info]), task_end(0, 0, 0, 5, reason="TaskKilled")]
    assert job_runs(_log([*events, stage_completed(info, 0, 5), job_end(0)]), None, dropped) == []
    assert dropped == {"had a stage without a successful task in the log": 1}


END_IS_MISSING = {"had a stage whose end is missing in the log": 1}


def _two_stages() -> list[dict[str, Any]]:
    """A Spark job of two stages of 2 and 1 tasks."""
    first = stage_info(0, 2)
    last = stage_info(1, 1, (0,))
    start = job_start(0, 0, [first, last])
    return [executor(), start, *ran(first, 0, 40), *ran(last, 40, 50), job_end(0)]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_job_with_a_stage_whose_end_was_lost_is_dropped(lost: int) -> None:
    events = [
        event
        for event in _two_stages()
        if event["Event"] != "SparkListenerStageCompleted"
        or event["Stage Info"]["Stage ID"] != lost
    ]
    dropped = Counter[str]()
    assert job_runs(_log(_two_stages()), None, Counter())
    assert job_runs(_log(events), None, dropped) == []
    assert dropped == END_IS_MISSING


def _retried(is_end_logged: bool) -> list[dict[str, Any]]:
    """A stage whose first attempt failed to fetch; two of its tasks ended in the second one."""
    info = stage_info(0, 3)
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 2}
    failed = stage_completed(info, 0, 10, **{"Failure Reason": "FetchFailed"})
    again = [{**task_end(0, i, 20, 30), "Stage Attempt ID": 1} for i in (0, 1)]
    end = [stage_completed(retry, 20, 30)] if is_end_logged else []
    late = task_end(0, 2, 5, 25)
    start = job_start(0, 0, [info])
    return [executor(cores=3), start, failed, late, *again, *end, job_end(0)]


def test_a_job_with_a_retry_whose_end_was_lost_is_dropped() -> None:
    dropped = Counter[str]()
    assert job_runs(_log(_retried(is_end_logged=False)), None, dropped) == []
    assert dropped == END_IS_MISSING
    (run,) = job_runs(_log(_retried(is_end_logged=True)), None, Counter())
    assert run.stages[0].num_tasks == 3


def test_a_stage_that_was_cancelled_with_its_first_attempt_is_no_missing_end() -> None:
    cancelled = stage_info(0, 2)
    done = stage_info(1, 1)
    events = [
        executor(),
        sql_start(0, 0),
        job_start(0, 0, [cancelled], **IN_SQL),
        task_end(0, 0, 0, 10),
        stage_completed(cancelled, 0, 12, **{"Failure Reason": "cancelled"}),
        job_end(0, "JobFailed"),
        job_start(1, 20, [done], **IN_SQL),
        *ran(done, 20, 30),
        job_end(1),
        sql_end(0),
    ]
    assert len(_only_run(events).stages) == 1


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
    assert len(job_runs(_log(_two_queries()), None, Counter())) == 2
    events = [event for event in _two_queries() if event.get("Submission Time") != 0]
    lost_one = [
        event
        for event in _two_queries()
        if event["Event"] != "SparkListenerJobStart" or event["Job ID"] != 2
    ]
    dropped = Counter[str]()
    (run,) = job_runs(_log(lost_one), None, dropped)
    assert run.submission_ms == 0
    assert dropped == {"had a Spark job whose start is missing in the log": 1}
    # All Spark jobs of the first query lost their start: nothing is left of it.
    assert [run.submission_ms for run in job_runs(_log(events), None, Counter())] == [100]


def test_a_retried_stage_keeps_the_task_count_of_its_first_attempt() -> None:
    info = stage_info(0, 3)
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 1}
    events = [executor(), job_start(0, 0, [info]), *ran(info, 0, 30)[:-1]]
    events += [
        stage_completed(info, 0, 30, **{"Failure Reason": "fetch failed"}),
        task_end(0, 2, 40, 50),
    ]
    run = _only_run([*events, stage_completed(retry, 40, 50), job_end(0)])
    assert run.stages[0].num_tasks == 3
    assert sum(wave.size for wave in run.stages[0].samples.by_wave) == 3


def test_a_retry_without_a_submission_time_keeps_the_time_of_the_stage() -> None:
    first, second, last = stage_info(0, 1), stage_info(1, 1, (0,)), stage_info(2, 1, (1,))
    # Spark finishes an attempt at once that has nothing left to run.
    retry = {**second, "Stage Attempt ID": 1, "Number of Tasks": 0}
    ended = stage_completed(retry, 0, 25)
    del ended["Stage Info"]["Submission Time"]
    events = [executor(), job_start(0, 0, [first, second, last]), *ran(first, 0, 10)]
    failed = stage_completed(second, 10, 20, **{"Failure Reason": "fetch failed"})
    events += [*ran(second, 10, 20)[:-1], failed, ended, *ran(last, 30, 40), job_end(0)]
    assert [stage.parents for stage in _only_run(events).stages] == [set(), {0}, {1}]


@pytest.mark.parametrize("has_partitions", [True, False])
def test_every_partition_counts_where_a_retry_numbers_its_tasks_anew(has_partitions: bool) -> None:
    info = stage_info(0, 3)
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 2}
    events = [executor(), job_start(0, 0, [info])]
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
    assert sorted(np.concatenate(run.stages[0].samples.by_wave).tolist()) == [10, 20, 30]


def test_a_repeated_task_whose_output_was_lost_counts_once_in_logs_without_partitions() -> None:
    info = stage_info(0, 3)
    events = [executor(), job_start(0, 0, [info])]
    events += [task_end(0, part, 10 * part, 10 * part + 10) for part in (0, 1)]
    events += [task_end(0, 2, 20, 21, reason="FetchFailed")]
    events += [stage_completed(info, 0, 21, **{"Failure Reason": "fetch failed"})]
    # The output of partition 0 is lost, too: two tasks of three run again, one of them fails once.
    again = [task_end(0, 1, 30, 31, reason="ExceptionFailure")]
    again += [task_end(0, row, 40, 60 + 10 * row) for row in (0, 1)]
    events += [{**event, "Stage Attempt ID": 1} for event in again]
    retry = {**info, "Stage Attempt ID": 1, "Number of Tasks": 2}
    run = _only_run([*events, stage_completed(retry, 30, 70), job_end(0)])
    assert sorted(np.concatenate(run.stages[0].samples.by_wave).tolist()) == [10, 10, 20]


def test_a_spark_job_that_was_cancelled_inside_a_successful_query_does_not_fail_it() -> None:
    good = stage_info(0, 1)
    lost = stage_info(1, 1)
    events = [
        executor(),
        sql_start(0, 0),
        job_start(0, 0, [good], **IN_SQL),
        *ran(good, 0, 10),
        job_end(0),
    ]
    events += [job_start(1, 5, [lost], **IN_SQL), job_end(1, "JobFailed"), sql_end(0)]
    assert len(_only_run(events).stages) == 1


def _columns(rows: list[tuple[int, int, int]]) -> TaskColumns:
    """Tasks (stage, launch, finish) on one executor."""
    stage, launch, finish = np.array(rows, dtype=np.int64).T
    zeros = np.zeros(len(rows), np.int64)
    busy_ms = finish - launch
    return TaskColumns(
        stage,
        np.arange(len(rows)),
        launch,
        finish,
        zeros,
        zeros + Outcome.SUCCESS,
        zeros,
        busy_ms,
        zeros,
    )


def test_waves_are_fresh_then_first_then_rest_on_each_slot() -> None:
    tasks = _columns([(0, 0, 10), (0, 0, 12), (0, 10, 20), (0, 12, 22), (1, 30, 40), (1, 30, 41)])
    placed = place_tasks(tasks, [2])
    fresh = Wave.FRESH
    first = Wave.FIRST
    rest = Wave.REST
    assert placed.wave.tolist() == [fresh, fresh, rest, rest, first, first]
    assert placed.slot.tolist()[:4] == [0, 1, 0, 1]


def test_a_task_launched_before_the_last_one_ended_stays_within_the_cores() -> None:
    placed = place_tasks(_columns([(0, 0, 100), (0, 99, 200), (0, 199, 300)]), [1])
    assert placed.slot.tolist() == [0, 0, 0]
    assert placed.wave.tolist() == [Wave.FRESH, Wave.REST, Wave.REST]


def test_unknown_cores_are_inferred_from_tasks_that_truly_overlap() -> None:
    placed = place_tasks(_columns([(0, 0, 100), (0, 0, 100), (0, 99, 200), (0, 99, 200)]), [0])
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
    settings = {"spark.task.cpus": "2"}
    environment = {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": settings}
    assert _log([environment, profile, added]).slots_of("1") == 2
