"""Who ran a query: by Connect's tags, Kyuubi, the Thrift server, or the application itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parcae.evaluation.compare_logs import compare_runs
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import fingerprint
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from tests.workloads.spark_log_builder import executor, stage_info, to_bytes, whole_job

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
    path.write_bytes(to_bytes(events))
    return path


@pytest.mark.parametrize(
    ("properties", "user"),
    [
        ({"spark_job_tags": f"mine,{_TAG}", "kyuubi_session_user": "eve"}, "ann_Session_x"),
        ({"kyuubi_session_user": "cid", "spark_kyuubi_session_real_user": "first"}, "cid"),
        ({"spark_jobGroup_id": "g1", "spark_parcae_user": "eve"}, "bob"),
        ({"spark_parcae_user": "dan"}, "dan"),
        ({"spark_kyuubi_session_real_user": "first"}, ""),
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
    groups = ({"spark_jobGroup_id": "ann"}, {"spark_jobGroup_id": "0a1b2c3d-0000-4000"})
    jobs = [("q", 1_000 * row, {"my_job": "q", **group}) for row, group in enumerate(groups)]
    path = _log(tmp_path / "app.log", *jobs)
    workload, _ = read_spark_event_logs([path], key="my.job", recorded=True)
    assert [job.user for job in workload.jobs] == ["ann", ""]


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
    assert [(one.name, one.num_jobs, one.num_pairs) for one in found] == [
        ("ann", (2, 1), 2),  # the second one of ann is paired with the job of nobody
        ("bob", (1, 1), 1),
    ]
