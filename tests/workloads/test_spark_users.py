"""Who ran a query, and its name: by Connect, Kyuubi, Thrift, Livy, dbt, or the application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parcae.evaluation.compare_logs import compare_runs
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.spark_log.application import ApplicationLog, JobStart, SqlRecord
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.events import add_event
from parcae.workloads.spark_log.naming import JobGroup, job_groups, job_name, user_of
from parcae.workloads.spark_log.plan import plan_names, read_plan
from parcae.workloads.spark_log.run import read_spark_run
from tests.conftest import REPOSITORY
from tests.workloads.spark_log_builder import executor, log_file, stage_info, whole_job

#: Events of each server, and what they say. The plugin's `ServersTest` reads the same file.
_CASES: list[dict[str, Any]] = json.loads(
    (REPOSITORY / "spark-plugin" / "src" / "test" / "resources" / "servers.json").read_text()
)
_SESSION = "0a1b2c3d-0000-4000-8000-00000000000a"
_TAG = f"SparkConnect_OperationTag_User_ann_Session_x_Session_{_SESSION}_Operation_{_SESSION}"
_STATEMENT = {
    "Event": "org.apache.spark.sql.hive.thriftserver.ui.SparkListenerThriftServerOperationStart",
    "id": "op",
    "sessionId": "s1",
    "statement": "SELECT 1",
    "startTime": 0,
    "groupId": "g1",
    "userName": "bob",
}


def _log(path: Path, *jobs: tuple[str, int, dict[str, str]]) -> Path:
    """A log of jobs of one task, each with its description, its start in ms and properties."""
    events: list[dict[str, Any]] = [executor(), _STATEMENT]
    for job, (name, time, properties) in enumerate(jobs):
        ran = (stage_info(job, 1), time, time + 100)
        events += whole_job(job, time, ran, spark_job_description=name, **properties)
    return log_file(path, *events)


@pytest.mark.parametrize("case", _CASES, ids=[f"{one['server']}: {one['what']}" for one in _CASES])
def test_person_and_name_are_those_of_the_table_that_the_plugin_reads_too(
    case: dict[str, Any],
) -> None:
    log = ApplicationLog("log")
    for line in case["events"]:
        add_event(log, json.dumps(line).encode())
    (group,) = job_groups(log)
    assert user_of(group, log, "another") == case["person"]
    assert job_name(group, {}, None) == case["name"]


def test_every_server_of_the_table_is_in_the_documents() -> None:
    page = (REPOSITORY / "docs" / "spark-servers.md").read_text()
    rows = {row.split(" |")[0] for row in page.replace("`", "").split("\n| ")}
    assert {case["server"] for case in _CASES} <= rows


@pytest.mark.parametrize(
    ("properties", "user"),
    [
        ({"spark_job_tags": f"mine,{_TAG}", "kyuubi_session_user": "eve"}, "ann_Session_x"),
        ({"spark_jobGroup_id": "g1", "spark_parcae_user": "eve"}, "bob"),
        # A group that names the job says nothing about people.
        ({"spark_jobGroup_id": "nightly"}, ""),
    ],
)
def test_a_query_has_the_user_that_its_server_names(
    properties: dict[str, str], user: str, tmp_path: Path
) -> None:
    path = _log(tmp_path / "app.log", ("q", 1_000, properties))
    workload, _ = read_spark_event_logs([path], recorded=True)
    assert [job.user for job in workload.jobs] == [user]
    assert [job.user for job in read_spark_run([path]).jobs] == [user]


def test_a_job_group_is_the_user_where_another_property_names_jobs(tmp_path: Path) -> None:
    groups = ("ann", "ann 2", "0a1b2c3d-0000-4000", "17")
    jobs = [
        ("q", 1_000 * row, {"my_job": "q", "spark_jobGroup_id": group})
        for row, group in enumerate(groups)
    ]
    path = _log(tmp_path / "app.log", *jobs)
    workload, _ = read_spark_event_logs([path], key="my.job", recorded=True)
    assert [job.user for job in workload.jobs] == ["ann", "ann", "", ""]
    for pattern, count in (("ann", 2), ("ann 2", 1), ("17", 1)):
        chosen, _ = read_spark_event_logs([path], key="my.job", recorded=True, user=pattern)
        assert len(chosen.jobs) == count


def test_dbts_node_names_a_query_also_where_plans_name_the_others() -> None:
    text = '/* {"app": "dbt", "node_id": "model.shop.orders"} */ SELECT 1'
    query = SqlRecord(0, 0, text, 0, read_plan({}), plan_names("(1) Scan parquet a.b.orders"))
    for key in (None, "plan", "shape"):
        assert job_name(JobGroup([JobStart(0, 0, {}, ())], [query]), {}, key) == "model.shop.orders"
    given = JobStart(0, 0, {"spark.parcae.jobKey": "mine"}, ())
    assert job_name(JobGroup([given], [query]), {}, "plan") == "mine"


def test_users_are_kept_in_files_and_are_a_part_of_the_fingerprint(tmp_path: Path) -> None:
    named, plain = (
        read_spark_event_logs([_log(tmp_path / f"{user}.log", ("q", 1_000, given))])[0]
        for user, given in (("dan", {"spark_parcae_user": "dan"}), ("none", {}))
    )
    write_workload(named, tmp_path / "named.parcae")
    assert read_workload(tmp_path / "named.parcae").jobs[0].user == "dan"
    assert fingerprint(read_workload(tmp_path / "named.parcae")) == fingerprint(named)
    # Orders between users depend on them.
    assert fingerprint(named) != fingerprint(plain)


def test_logs_are_compared_by_user(tmp_path: Path) -> None:
    def run(name: str, *names: str) -> Any:
        jobs = [("q", 1_000 * row, {"spark_parcae_user": one}) for row, one in enumerate(names)]
        return read_spark_run([_log(tmp_path / name, *jobs, ("q", 9_000, {}))])

    found = compare_runs(run("a.log", "ann", "bob", "ann"), run("b.log", "ann", "bob")).users
    assert [(one.name, one.jobs, one.pairs) for one in found] == [
        ("ann", {"A": 2, "B": 1}, 2),  # the second one of ann is paired with the job of nobody
        ("bob", {"A": 1, "B": 1}, 1),
    ]
