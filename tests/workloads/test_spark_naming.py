"""Names of recurring jobs: ids that Spark generates are cut, and what users wrote stays."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from parcae.base.errors import FormatError
from parcae.base.loader import chunks
from parcae.evaluation.compare_logs import compare_runs
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.import_report import counted
from parcae.workloads.spark_log.application import ApplicationLog, JobStart, SqlRecord
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.naming import (
    JobGroup,
    completion_ms,
    job_groups,
    job_name,
    submission_ms,
)
from parcae.workloads.spark_log.plan import (
    NAME_PROPERTY,
    SqlPlan,
    plan_name,
    plan_names,
    read_plan,
    shape_name,
)
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.workload import Workload, rows_by_name
from tests.conftest import REPOSITORY, shared_case
from tests.conftest import job as made
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    log_file,
    sql_end,
    sql_start,
    stage_info,
    to_bytes,
    whole_job,
)

_BATCH = "id = 0a1b2c3d-4e5f\nrunId = 9f8e-7d6c\nbatch = "


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tenant #1", "tenant #1"),
        ("#7", "#7"),
        ("scan of price#12, sum(price)#14L, größe#3", "scan of price, sum(price), größe"),
        ("orders where id = 5 and batch = 6", "orders where id = 5 and batch = 6"),
        ("runId = 3", "runId = 3"),
        (f"clicks\n{_BATCH}7", "clicks"),
        (f"clicks\n{_BATCH}init", "clicks"),
        *(
            (
                f'Streaming job from <a href="/streaming/batch/?id={ms}">[output operation 0, '
                f"batch time {time}]</a>",
                "Streaming job from [output operation 0]",
            )
            for ms, time in ((1795674120000, "06:22:00"), (1795674120500, "06:22:00.500"))
        ),
        (f"clicks<br/>{_BATCH}7".replace("\n", "<br/>"), "clicks<br/>"),
        *(
            (f"Listing leaf files and directories{what}", "Listing leaf files and directories")
            for what in (" 0 paths", " for 1 path:<br/>file:/a", " for 2004 paths:<br/>s3:/b, ...")
        ),
        ("Delta: Compute snapshot for version: 12", "Delta: Compute snapshot for version:"),
        *(
            (f"sum at {folder}app.py:15", "sum at app.py:15")
            for folder in ("", "/home/etl/", "/data2/application_17_0005/my jobs/", "C:\\jobs\\")
        ),
        ("collect at <console>:25", "collect at <console>:25"),
        ("copied at /data/t", "copied at /data/t"),
    ],
)
@pytest.mark.parametrize("key", [None, "my.key"])
def test_only_ids_that_spark_generates_are_cut(text: str, name: str, key: str | None) -> None:
    job = JobStart(0, 0, {key or "spark.jobGroup.id": text}, ())
    assert job_name(JobGroup([job]), {}, key) == name


def test_the_plugins_setting_is_not_a_name_and_other_settings_are() -> None:
    settings = {NAME_PROPERTY: "my.key", "spark.app.name": "nightly"}
    job = JobStart(0, 0, {}, ())
    assert job_name(JobGroup([job]), settings, "spark.app.name") == "nightly"
    assert job_name(JobGroup([job]), settings, NAME_PROPERTY) is None
    named = JobStart(1, 0, {NAME_PROPERTY: "report"}, ())
    assert job_name(JobGroup([named]), settings, NAME_PROPERTY) == "report"


def _changed(log: Path, folder: Path, old: str, new: str) -> Path:
    """A copy of a rolling log as one plain file, with another text in it."""
    text = b"".join(chunks(next(log.glob("*/events_1_*")))).decode()
    assert old in text
    path = folder / new.replace("/", "-")
    path.write_text(text.replace(old, new))
    return path


def test_people_and_queues_are_read_chosen_and_reported(tmp_path: Path) -> None:
    logs = [shared_case("13-yarn/client"), shared_case("13-yarn/two-attempts")]
    ann = _changed(logs[0], tmp_path, '"User":"etl"', '"User":"ann"')
    run = read_spark_run([ann, logs[1]])
    assert {(job.user, job.queue) for job in run.jobs} == {("ann", "default"), ("etl", "etl")}
    compared = compare_runs(run, run)
    assert [row.name for row in compared.users] == ["ann", "etl"]
    assert [(row.name, row.pairs) for row in compared.queues] == [("default", 3), ("etl", 3)]
    workload, report = read_spark_event_logs([ann, logs[1]], recorded=True)
    write_workload(workload, tmp_path / "kept.parcae")
    kept = read_workload(tmp_path / "kept.parcae")
    assert [(job.user, job.queue) for job in kept.jobs] == [("ann", "default")] * 3 + [
        ("etl", "etl")
    ] * 3
    shares = [note for note in report.notes if note.startswith("Task time by")]
    assert shares == [
        "Task time by user: etl 68%, ann 32%.",
        "Task time by queue: etl 68%, default 32%.",
    ]
    for chosen in ({"user": "e*"}, {"queue": "etl"}):
        kept, report = read_spark_event_logs([ann, logs[1]], recorded=True, **chosen)
        assert len(kept.jobs) == 3
        assert {job.user for job in kept.jobs} == {""}  # one account tells nobody apart
        assert (
            "Left out 1 application without a job of that user and queue (submitted by: ann; "
            "queues: default)."
        ) in report.notes
        run = read_spark_run([ann, logs[1]], **chosen)
        assert {job.user for job in run.jobs} == {"etl"}
    with pytest.raises(FormatError, match=r"submitted by: ann, etl; queues: default, etl\)"):
        read_spark_event_logs([ann, logs[1]], user="nobody")


def test_a_person_of_a_server_is_chosen_and_not_the_account_of_the_server(tmp_path: Path) -> None:
    path = tmp_path / "log"
    events = [{**application_start("app-1"), "User": "server"}, executor()]
    for number, user in enumerate(("ann", "bob", "")):
        stage = stage_info(number, 1)
        ran = (stage, 100 * number, 100 * number + 50)
        told = {"kyuubi_session_user": user, "spark_job_description": f"of {user or 'none'}"}
        events += whole_job(number, 100 * number, ran, **told)
    path.write_bytes(to_bytes(events))
    for user, names in (
        ("ann", ["of ann"]),
        ("server", ["of none"]),
        ("[ab]*", ["of ann", "of bob"]),
    ):
        workload, report = read_spark_event_logs([path], user=user, recorded=True)
        assert [job.name for job in workload.jobs] == names
        left_out = counted(3 - len(names), "job")
        assert any(f"Left out {left_out} that are of other users" in n for n in report.notes)


def test_logs_of_yarn_with_an_older_spark_have_the_same_names_in_both_modes() -> None:
    """Recorded by `make test-clusters` with Spark 3.5.3, see docs/results/clusters.md."""
    for mode in ("client", "cluster"):
        run = read_spark_run([Path(__file__).parent / "logs" / f"yarn-3.5-{mode}.zstd"])
        names = ["sum at app.py:33", "collect at app.py:35", "long", "short"]
        assert [job.name for job in run.jobs] == names
        assert {(job.user, job.queue) for job in run.jobs} == {("etl", "default")}
        assert (run.num_tasks, run.num_cores, run.cores_at_once) == (58, 4, 4)
        # The order of the plugin: the short job came last, and did not wait for the long one.
        assert run.jobs[3].completion_ms < run.jobs[2].completion_ms


def test_an_executor_in_the_place_of_a_killed_one_brings_no_further_slots() -> None:
    workload, report = read_spark_event_logs([shared_case("13-yarn/executor-killed")])
    levels = {
        level for job in workload.jobs for stage in job.stages for level in stage.durations.levels
    }
    assert levels == {4}
    run = read_spark_run([shared_case("13-yarn/executor-killed")])
    assert run.num_cores == 6  # rows of the picture: each executor has its own
    assert compare_runs(run, run).summaries[0].num_cores == 4
    assert any("2 lost with their executor" in note for note in report.notes)


_FROM_FILES = """== Physical Plan ==
* HashAggregate (2)
+- Scan parquet  (1)

(1) Scan parquet
Output [1]: [id#{id}]
Location: InMemoryFileIndex [hdfs://name:8020/warehouse/orders/day=2026-01-0{id}]

(2) HashAggregate
Functions [1]: [{function}(id#{id})]
"""
_FROM_TABLES = (
    "== Physical Plan ==\n(1) Scan parquet spark_catalog.sales.orders\n(2) BatchScan a.b.cities\n"
)


def _name(description: str, plan: str | None, **properties: str) -> str | None:
    names = None if plan is None else plan_names(plan)
    query = SqlRecord(0, 0, description, 0, read_plan({}), names)
    return job_name(JobGroup([JobStart(0, 0, properties, ())], [query]), {}, None)


@pytest.mark.parametrize(
    ("description", "label"),
    [
        ("collectToPython at NativeMethodAccessorImpl.java:0", "collectToPython of orders, cities"),
        ("run at ThreadPoolExecutor.java:1149", "run of orders, cities"),
        (
            "SELECT sum(x1)\n FROM orders WHERE day = '2026-01-05' AND n > 1.5",
            "SELECT sum(x1) FROM orders WHERE day = ? AND n > ?",
        ),
        ("insert overwrite t values (1, 'a b')", "insert overwrite t values (?, ?)"),
        ("/* nightly */ with a as (select 1) select * from a", None),
    ],
)
def test_a_query_without_a_name_of_its_own_has_its_shape_behind_a_label(
    description: str, label: str | None
) -> None:
    name = _name(description, _FROM_TABLES)
    assert name is not None
    assert len(name) <= 80
    assert name.endswith(f" [{shape_name(_FROM_TABLES)}]")
    if label is not None:
        assert name == f"{label} [{shape_name(_FROM_TABLES)}]"
    # Who gives a group or a key says what is the same.
    assert _name(description, _FROM_TABLES, **{"spark.jobGroup.id": "nightly"}) == "nightly"
    without = _name(description, None)
    assert without is not None
    assert "[shape-" not in without


@pytest.mark.parametrize(
    "description",
    ["nightly report", "load orders", "collect at app.py:3", "update at Job.java:9", "f at <x>:1"],
)
def test_what_a_user_wrote_and_where_stays_the_name(description: str) -> None:
    assert _name(description, _FROM_TABLES) == description


def test_unlike_queries_at_one_call_site_have_names_of_their_own(tmp_path: Path) -> None:
    events = [executor()]
    for number, (function, site) in enumerate(
        [("sum", 3), ("max", 3), ("sum", 3), ("sum", 9), ("sum", 9)]
    ):
        start = sql_start(number, 1_000 * number, text=f"collect at /jobs/{number}/app.py:{site}")
        start["description"] = f"collect at /jobs/app.py:{site}"
        plan = _FROM_FILES.format(id=number, function=function)
        ran = (stage_info(number, 1), 1_000 * number + 5, 1_000 * number + 105)
        query = whole_job(number, 1_000 * number, ran, spark_sql_execution_id=str(number))
        events += [{**start, "physicalPlanDescription": plan}, *query, sql_end(number)]
    (tmp_path / "log").write_bytes(to_bytes(events))
    sums, most = (
        f"collect at app.py:3 [{shape_name(_FROM_FILES.format(id=7, function=function))}]"
        for function in ("sum", "max")
    )
    names = [sums, most, sums, "collect at app.py:9", "collect at app.py:9"]
    assert [one.name for one in read_spark_run([tmp_path / "log"]).jobs] == names
    workload, _ = read_spark_event_logs([tmp_path / "log"])
    assert {one.name for one in workload.jobs} == set(names)


def test_folders_of_files_are_named_without_what_differs_between_runs() -> None:
    names = {
        _name(
            "showString at NativeMethodAccessorImpl.java:0", _FROM_FILES.format(id=id, function="f")
        )
        for id in (1, 2)
    }
    shape = shape_name(_FROM_FILES.format(id=3, function="f"))
    assert names == {f"showString of orders [{shape}]"}


def test_a_live_query_is_found_by_its_shape_without_the_label() -> None:
    shape = f"shape-{16 * 'a'}"
    jobs = [
        made(name, (1, 5, ())) for name in (f"count of t [{shape}]", f"count of t [{shape}] (2)")
    ]
    rows = rows_by_name(Workload("w", tuple(jobs)))
    assert rows[shape] == (0, 1)
    named = Workload("w", (*jobs, made(shape, (1, 5, ()))))
    assert rows_by_name(named)[shape] == (2,)


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


_PLANS = json.loads(
    (REPOSITORY / "spark-plugin" / "src" / "test" / "resources" / "plans.json").read_text()
)["plans"]
#: Queries whose text in the second run is that of the first: they have no literal that differs.
_WITHOUT_LITERALS = {"generate", "group", "insert", "local", "rdd-udf", "sortmerge"}


def test_the_fixture_holds() -> None:
    for plan in _PLANS:
        assert plan_name(plan["description"]) == plan["plan"]
        assert shape_name(plan["description"]) == plan["shape"]


def test_a_query_keeps_its_names_and_no_two_share_one() -> None:
    plans = defaultdict[str, dict[int, str]](dict)
    shapes = defaultdict[str, set[str]](set)
    for plan in _PLANS:
        plans[plan["query"]][plan["run"]] = plan["plan"]
        shapes[plan["query"]].add(plan["shape"])
    assert len(plans) == 11
    for query, by_run in plans.items():
        assert by_run[1] == by_run[3], query
        assert (by_run[1] == by_run[2]) == (query in _WITHOUT_LITERALS), query
    assert all(len(names) == 1 for names in shapes.values())
    assert len(set().union(*shapes.values())) == len(shapes)


def test_locations_are_read_once_however_long_their_line_is() -> None:
    # A time that grows with the square of the length would be hours.
    line = 200_000 * "Location: a "
    texts = (line, f"{line}[b", f"{line}[b\n{line}")
    assert all(plan_name(text) != plan_name(f"{text}[c]") for text in texts)
    assert plan_name(f"{line}[b]") == plan_name("Location: a")
    word = f"Location: {1_000_000 * 'a'}"
    assert plan_name(f"{word}[c]") == plan_name(word) != plan_name(f"{word} [c")


_PLAN = "== Physical Plan ==\n* Filter (2)\n\n(2) Filter\nCondition : (day#{id} = 2024-01-{day})\n"


def _log(folder: Path) -> Path:
    """Four jobs: two SQL executions of one shape, one whose user names it, and one without SQL."""
    events = [executor()]
    for job, properties in enumerate(({}, {}, {"spark_parcae_jobKey": "mine"}, None)):
        at = 1_000 * job
        ran = (stage_info(job, 1), at + 5, at + 105)
        if properties is None:
            events += whole_job(job, at, ran, callSite_short="count at x.py:3")
            continue
        plan = _PLAN.format(id=job, day=10 + job)
        in_sql = {"spark_sql_execution_id": str(job), **properties}
        query = whole_job(job, at, ran, callSite_short="count at x.py:3", **in_sql)
        start = {**sql_start(job, at, text="a query"), "physicalPlanDescription": plan}
        events += [start, *query, sql_end(job)]
    return log_file(folder / "log", *events)


def test_the_importer_names_queries_by_plan_or_shape(tmp_path: Path) -> None:
    log = _log(tmp_path)
    plans, _ = read_spark_event_logs([log], key="plan")
    names = sorted(job.name for job in plans.jobs)
    assert names[:2] == ["count at x.py:3", "mine"]
    assert set(names[2:]) == {plan_name(_PLAN.format(id=7, day=10 + job)) for job in (0, 1)}
    shapes, _ = read_spark_event_logs([log], key="shape")
    runs = {job.name: job.num_runs for job in shapes.jobs}
    name = shape_name(_PLAN.format(id=9, day=30))
    assert set(runs) == {"count at x.py:3", "mine", name}
    assert shapes.weights is not None
    assert dict(zip((job.name for job in shapes.jobs), shapes.weights, strict=True))[name] == 2
