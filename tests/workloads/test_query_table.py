"""Tables of queries: the shapes of public traces, the model of widths, sessions, bad rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from parcae.base.errors import ConfigError, FormatError
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.import_report import ImportReport
from parcae.workloads.readers import guess_format, read_workload
from parcae.workloads.workload import Workload
from tests.conftest import arriving

#: A user's two runs of one query, the second queued for a second, another user's, and one that
#: failed. CPU time is in ns.
BENDSET = """\
query_id,cpu_time_sum,query_start_time,query_queued_duration_ms,query_duration_ms,query_kind,\
query_parameterized_hash,log_type_name,scan_bytes,sql_user
q1,7000000000.0,2025-12-09 16:00:00.5+00:00,0.0,2000.0,Query,h1,Finish,1000.0,ann
q2,7600000000.0,2025-12-09 16:00:10.5+00:00,1000.0,3000.0,Query,h1,Finish,3000.0,ann
q3,300000000.0,2025-12-09 16:00:11+00:00,0.0,900.0,Query,,Finish,0.0,bob
q4,9000000000.0,2025-12-09 16:00:12+00:00,0.0,900.0,Query,h1,Exception,0.0,bob
q5,300000000.0,2025-12-09 16:00:30+00:00,0.0,900.0,Query,,Finish,0.0,bob
"""


def _text(folder: Path, text: str, **options: Any) -> tuple[Workload, ImportReport]:
    path = folder / "q.csv"
    path.write_text(text)
    return read_workload("queries", [path], **options)


def test_recurring_queries_are_one_job_with_the_work_of_the_trace(tmp_path: Path) -> None:
    workload, report = _text(tmp_path, BENDSET)
    assert [(job.name, job.user, job.num_runs) for job in workload.jobs] == [
        ("h1", "ann", 2),
        ("q3", "bob", 1),
        ("q5", "bob", 1),
    ]
    first = workload.jobs[0]
    # 7 s and 7.6 s of CPU time in 2 s are on 4 cores; the job is that of the median run.
    assert first.stages[0].num_tasks == 4
    assert first.work_ms == pytest.approx((7_000 * 7_600) ** 0.5, abs=4)
    assert first.scan_bytes == 2_000
    assert workload.num_sessions == 2
    assert "Left out as aborted: 1." in report.notes
    assert "Ignored the columns query_kind." in report.notes


def test_a_recorded_query_alone_takes_as_long_as_in_the_trace(tmp_path: Path) -> None:
    workload, _ = _text(tmp_path, BENDSET, recorded=True)
    assert [job.arrival_ms for job in workload.jobs] == [0, 10_000, 10_500, 29_500]
    # Ann pauses from 16:00:02.5 on, Bob from 16:00:11.9 on.
    assert [job.pauses_ms for job in workload.jobs] == [(), (8_000,), (), (18_100,)]
    assert [job.recorded_ms for job in workload.jobs] == [2_000, 3_000, 900, 900]
    # Nothing overlaps on eight cores. One that had waited does not wait again.
    config = SimulationConfig(num_executors=8, world="cores")
    policy = OrderPolicy("fifo", OrderKind.FIFO, plan_tables())
    sequence = arriving(*((job, job.arrival_ms or 0) for job in workload.jobs))
    trace = simulate(sequence, policy, config, 0)
    assert jct_ms(trace).tolist() == [2_000, 2_000, 900, 900]


def _redset(folder: Path, *rows: dict[str, Any]) -> Path:
    start = datetime(2024, 3, 1)
    usual = {"instance_id": 4, "user_id": 7, "queue_duration_ms": 0, "execution_duration_ms": 500}
    usual |= {"compile_duration_ms": 20, "was_cached": 0, "was_aborted": 0, "mbytes_scanned": 2}
    path = folder / "sample.parquet"
    full = [
        {**usual, "arrival_timestamp": start + timedelta(seconds=n), "query_id": n, **row}
        for n, row in enumerate(rows)
    ]
    pl.DataFrame(full).write_parquet(path)
    return path


def test_a_trace_without_cpu_time_needs_a_width(tmp_path: Path) -> None:
    other = {"instance_id": 5, "feature_fingerprint": "f2"}
    path = _redset(tmp_path, {"feature_fingerprint": "f1"}, other, {"was_cached": 1})
    with pytest.raises(FormatError, match="neither CPU time nor tasks: say by --width how many"):
        read_workload("queries", [path])
    workload, report = read_workload("queries", [path, path], width=3)
    assert [(job.name, job.num_runs, job.user) for job in workload.jobs] == [
        ("f1", 2, "7"),
        ("f2", 2, "7"),
    ]
    stage = workload.jobs[0].stages[0]
    assert (stage.num_tasks, stage.work_ms) == (3, 1_500)
    assert workload.jobs[0].driver_time.gap_ms.tolist() == [[20], [20]]
    assert workload.jobs[0].scan_bytes == 2e6
    assert "Left out as cached: 2." in report.notes
    assert "Queries of 2 clusters are here on one; see --cluster." in report.notes
    one, _ = read_workload("queries", [path], width=3, cluster="5")
    assert [job.name for job in one.jobs] == ["f2"]
    with pytest.raises(ConfigError, match="no query ran on cluster '6'"):
        read_workload("queries", [path], width=3, cluster="6")


def test_two_columns_of_cpu_time_are_added_and_a_missing_value_may_be_written_as_such(
    tmp_path: Path,
) -> None:
    head = "queryId,warehouseId,createdTime,durationTotal,durationExec,userCpuTime,systemCpuTime\n"
    rows = (
        "1,9,2018-02-21 10:00:00,1200,1000,1500000,400000\n2,9,2018-02-21 10:00:05,80,50,\\N,\\N\n"
    )
    workload, _ = _text(tmp_path, head + rows, width=1, columns="user=warehouseId", recorded=True)
    assert [job.stages[0].num_tasks for job in workload.jobs] == [2, 1]
    assert [job.work_ms for job in workload.jobs] == [1_900, 50]
    assert [job.recorded_ms for job in workload.jobs] == [1_200, 80]
    assert {job.user for job in workload.jobs} == {"9"}
    found = guess_format(tmp_path / "q.csv")
    assert found is not None
    assert found.format == "queries"


_HEAD = "arrival_s,duration_s,cpu_s,aborted\n1,2,3,0\n"


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("arrival_s,cpu_s\n1,2\n", {}, r"no column duration \(or elapsed\); the table has arr"),
        ("duration_s,cpu_s\n1,2\n", {}, "no column arrival"),
        ("arrival,duration_s,cpu_s\n1,2,3\n", {}, "'arrival' does not say its unit"),
        (_HEAD + ",2,3,0\n", {}, r"1 of 2 rows .*q\.csv:3: the cell of arrival is empty"),
        (_HEAD + "1,2,3,maybe\n", {}, r"q\.csv:3: 'maybe' is neither true nor false"),
        (_HEAD + "1,2,900000,0\n", {}, "kept 450,000 cores busy: is the unit right"),
        (_HEAD + "1,,3,0\n", {}, "cells of duration and elapsed are empty"),
        (_HEAD + "1,-2,3,0\n", {}, "'-2' is negative"),
        ("arrival_s,duration_s,aborted\n1,2,1\n", {}, "no query that ran to its end in 1 row"),
        (_HEAD, {"width": 2}, "--width has no effect"),
        (_HEAD, {"cluster": "a"}, "has no column cluster"),
        (_HEAD, {"columns": "stage=cpu_s"}, "--columns stage=cpu_s: "),
        (
            "arrival_s,elapsed_s,queued_s,cpu_s\n1,2,3,1\n",
            {},
            "waited and was compiled for longer than 2000 ms",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((FormatError, ConfigError), match=message):
        _text(tmp_path, text, **options)
