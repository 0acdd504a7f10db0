"""The bytes that the scans of a query read, from the driver's metrics in an event log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.plan import bytes_of_row
from parcae.workloads.workload import Workload
from tests.workloads.spark_log_builder import (
    SQL,
    executor,
    plan_node,
    sql_end,
    sql_start,
    stage_info,
    to_bytes,
    whole_job,
)

_WHOLE = "struct<id:bigint,name:string>"
_ID = "struct<id:bigint>"


def _scan(metric: int, schema: str, table: str = "orders") -> dict[str, Any]:
    node = plan_node("Scan parquet ", metric=metric)
    node["metrics"][0] |= {"name": "size of files read", "metricType": "size"}
    return node | {"metadata": {"Location": f"[file:/{table}]", "ReadSchema": schema}}


def _updates(execution: int, *values: list[int]) -> dict[str, Any]:
    event = SQL + "SparkListenerDriverAccumUpdates"
    return {"Event": event, "executionId": execution, "accumUpdates": list(values)}


def _query(
    number: int, plan: dict[str, Any], *events: dict[str, Any], job: str = ""
) -> list[dict[str, Any]]:
    at = 1_000 * number
    group = {"spark_jobGroup_id": job or f"q{number}", "spark_sql_execution_id": str(number)}
    ran = whole_job(number, at, (stage_info(number, 2), at, at + 100), **group)
    return [sql_start(number, at, plan), *events, *ran, sql_end(number)]


def _read(folder: Path, *events: dict[str, Any]) -> Workload:
    (folder / "log").write_bytes(to_bytes([executor(), *events]))
    workload, _ = read_spark_event_logs([folder / "log"])
    return workload


def test_bytes_of_scans_are_those_of_the_files_times_the_share_of_the_columns(
    tmp_path: Path,
) -> None:
    whole = plan_node("Join", _scan(1, _WHOLE), _scan(2, _ID, "items"))
    workload = _read(
        tmp_path,
        *_query(0, whole, _updates(0, [1, 2_800]), _updates(0, [2, 50], [3, 7])),
        *_query(1, _scan(4, _ID), _updates(1, [4, 2_800])),
    )
    assert {job.name: job.scan_bytes for job in workload.jobs} == {"q0": 2_850.0, "q1": 800.0}


def test_scans_of_plans_that_spark_changed_count_and_those_that_never_ran_do_not(
    tmp_path: Path,
) -> None:
    changed = {
        "Event": SQL + "SparkListenerSQLAdaptiveExecutionUpdate",
        "executionId": 0,
        "physicalPlanDescription": "",
        "sparkPlanInfo": plan_node("Join", _scan(1, _ID), _scan(3, _ID)),
    }
    first = plan_node("Join", _scan(1, _ID), _scan(2, _ID))
    workload = _read(
        tmp_path, *_query(0, first, _updates(0, [1, 100]), changed, _updates(0, [3, 40]))
    )
    assert workload.jobs[0].scan_bytes == 140.0


def test_what_is_written_counts_too(tmp_path: Path) -> None:
    plan = plan_node("Execute InsertIntoHadoopFsRelationCommand", _scan(1, _ID))
    workload = _read(tmp_path, *_query(0, plan, _updates(0, [1, 100])))
    assert workload.jobs[0].scan_bytes == 300.0


def test_runs_of_a_job_have_their_mean(tmp_path: Path) -> None:
    runs = [
        _query(run, _scan(run, _ID), _updates(run, [run, size]), job="daily")
        for run, size in enumerate((100, 300, 500))
    ]
    workload = _read(tmp_path, *(event for run in runs for event in run))
    assert [job.scan_bytes for job in workload.jobs] == [400.0]  # the first run warms up


def test_updates_that_belong_to_no_known_scan_or_query_are_ignored(tmp_path: Path) -> None:
    strange = (_updates(7, [1, 5]), _updates(0, [9, 5]), _updates(0, [1, -1]))
    workload = _read(tmp_path, *_query(0, _scan(1, _ID), *strange))
    assert workload.jobs[0].scan_bytes == 0.0


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ("struct<o_orderkey:bigint,price:decimal(15,2),comment:string>", 36),
        ("struct<a:int,b:struct<c:date,d:string>,... 3 more fields>", 88),
        ("struct<m:map<string,int>,a:array<bigint>,t:timestamp_ntz>", 40),
        ("struct<>", 1),
        ("", 1),
    ],
)
def test_a_row_has_the_bytes_of_its_types(schema: str, expected: int) -> None:
    assert bytes_of_row(schema) == expected
