"""Names of recurring jobs: ids that Spark generates are cut, and what users wrote stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.base.errors import FormatError
from parcae.base.loader import chunks
from parcae.evaluation.compare_logs import compare_runs
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.import_report import counted
from parcae.workloads.spark_log.application import SqlRecord
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.events import JobStart
from parcae.workloads.spark_log.naming import JobGroup, job_name
from parcae.workloads.spark_log.plan import NAME_PROPERTY, plan_names, read_plan, shape_name
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.workload import Workload, rows_by_name
from tests.conftest import job as made
from tests.conftest import shared_case
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
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


def test_listings_of_files_are_one_recurring_job() -> None:
    workload, _ = read_spark_event_logs([shared_case("09-names-with-counters")])
    assert [(job.name, job.num_runs) for job in workload.jobs] == [
        ("Listing leaf files and directories", 2)
    ]
    assert workload.weights == (3.0,)


def test_names_on_yarn_are_the_same_in_every_run_and_mode() -> None:
    names = {
        mode: [job.name for job in read_spark_event_logs([shared_case(f"13-yarn/{mode}")])[0].jobs]
        for mode in ("client", "cluster")
    }
    assert names["client"] == names["cluster"] == ["sum at app.py:15", "long", "short"]
    both = [shared_case(f"13-yarn/sql-{run}") for run in (1, 2)]
    workload, _ = read_spark_event_logs(both)
    assert [job.name for job in workload.jobs] == ["collect at sql.py:3"]
    assert workload.weights == (2.0,)


def _changed(log: Path, folder: Path, old: str, new: str) -> Path:
    """A copy of a rolling log as one plain file, with another text in it."""
    text = b"".join(chunks(next(log.glob("*/events_1_*")))).decode()
    assert old in text
    path = folder / new.replace("/", "-")
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("new", "name"), [("sql.py:4", "collect at sql.py:4"), ("qql.py:3", "collect at qql.py:3")]
)
def test_another_line_or_file_is_another_job(tmp_path: Path, new: str, name: str) -> None:
    logs = [shared_case("13-yarn/sql-1"), shared_case("13-yarn/sql-2")]
    logs[1] = _changed(logs[1], tmp_path, "sql.py:3", new)
    workload, _ = read_spark_event_logs(logs)
    assert sorted(job.name for job in workload.jobs) == sorted(["collect at sql.py:3", name])


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


def test_a_job_of_an_application_master_that_was_killed_is_left_out() -> None:
    workload, report = read_spark_event_logs([shared_case("13-yarn/two-attempts")], recorded=True)
    assert [job.name for job in workload.jobs] == ["sum at app.py:15", "long", "short"]
    assert any(
        "1 job that had not ended when the log did: sum at app.py:15 (attempt 1 of" in note
        for note in report.notes
    )


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
