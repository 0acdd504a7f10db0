"""What an import says about the logs' own cluster: its order, and whether one can gain there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from parcae.workloads.import_report import ImportReport
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.logged_order import (
    LOGGED_ORDER,
    LOGGED_POLICY,
    LoggedOrder,
    is_logged_policy,
    logged_order,
    provenance_of,
)
from parcae.workloads.workload import Workload
from tests.cli.running import ran
from tests.conftest import shared_case, shared_data
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    job_end,
    job_start,
    stage_completed,
    stage_info,
    task_end,
    to_bytes,
)


def _one(number: int, begin: int, end: int) -> list[dict[str, Any]]:
    """A Spark job of one task, which runs from its arrival on."""
    info = stage_info(number, 1)
    return [
        job_start(number, begin, [info], spark_job_description=f"q{number}"),
        task_end(number, 0, begin, end),
        stage_completed(info, begin, end),
        job_end(number, end_ms=end),
    ]


def _log(app: str, *jobs: tuple[int, int]) -> bytes:
    events = [application_start(app), executor(cores=2)]
    for number, (begin, end) in enumerate(jobs):
        events += _one(number, begin, end)
    return to_bytes(events)


def _read(*paths: Path) -> tuple[Workload, ImportReport]:
    return read_spark_event_logs(paths)


def test_an_order_can_gain_where_jobs_share_full_cores(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(_log("a", (0, 1000), (500, 1500)))
    workload, report = _read(tmp_path / "a")
    verdict = (
        "yes: while jobs ran, 67% of 2 cores were busy; two or more jobs ran at once 33% of the "
        "time (1.3 on average, 2 at most), on full cores 33%"
    )
    assert workload.provenance["can_an_order_gain"] == verdict
    assert f"Can an order gain? {verdict}." in report.notes
    assert workload.provenance["cores_in_logs"] == "2"
    # 2 s of work came within .5 s: at that rate two cores would never be done.
    assert workload.provenance["arrivals_in_logs"] == "batch"


def test_a_stream_has_the_mean_gap_of_the_logs(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(_log("a", *((at, at + 1000) for at in range(0, 5000, 600))))
    workload, _ = _read(tmp_path / "a")
    assert workload.provenance["arrivals_in_logs"] == "poisson:600ms"


@pytest.mark.parametrize("jobs", [((0, 1000), (1000, 2000)), ((0, 1000), (9000, 9500))])
def test_jobs_one_after_another_gain_hardly_anything(
    jobs: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(_log("a", *jobs))
    workload, report = _read(tmp_path / "a")
    # The time between two jobs does not count.
    assert (
        "hardly, at the logs' own load: while jobs ran, 50% of 2 cores were busy"
        in (workload.provenance["can_an_order_gain"])
    )
    assert not any("applications" in note for note in report.notes)


def test_a_stage_without_any_end_holds_as_many_cores_as_are_free(tmp_path: Path) -> None:
    """Of its two tasks nothing is known; both cores were there for them while it ran."""
    jobs = [(0, 1000), (2000, 3000)]
    whole = [
        event for number, (begin, end) in enumerate(jobs) for event in _one(number, begin, end)
    ]
    info = stage_info(2, 2)
    lost = [
        job_start(2, 2000, [info], spark_job_description="lost"),
        stage_completed(info, 2000, 4000),
        job_end(2, end_ms=4000),
    ]
    events = [application_start("a"), executor(cores=2), *whole]
    for name, more in (("whole", []), ("torn", lost)):
        (tmp_path / name).write_bytes(to_bytes([*events, *more]))
    said = {
        name: _read(tmp_path / name)[0].provenance["can_an_order_gain"]
        for name in ("whole", "torn")
    }
    assert "50% of 2 cores were busy" in said["whole"]
    # 1 of 2 s on one core, and 2 s on both.
    assert "83% of 2 cores were busy" in said["torn"]


def test_more_tasks_at_once_than_cores_are_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(_log("a", (0, 1000), (0, 1000), (0, 1000)))
    said = _read(tmp_path / "a")[0].provenance["can_an_order_gain"]
    wrong = "100% of 3 cores (150% of those of its executors: the log lacks some, or is wrong)"
    assert wrong in said


def test_applications_at_the_same_time_are_not_one_application(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(_log("a", (0, 1000), (2000, 3000)))
    (tmp_path / "b").write_bytes(_log("b", (500, 1500)))
    (tmp_path / "c").write_bytes(_log("c", (9000, 9500)))
    workload, report = _read(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    found = [note for note in report.notes if "3 applications, up to 2 at the same time" in note]
    assert len(found) == 1
    assert "--scope cluster" in found[0]
    # Each has cores of its own: the job of b shares none with those of a.
    assert "two or more jobs ran at once 0% of the time" in workload.provenance["can_an_order_gain"]


_FAIR = {"spark.scheduler.mode": "fair"}
_FILE = _FAIR | {"spark.scheduler.allocation.file": "/etc/spark/pools.xml"}


@pytest.mark.parametrize(
    ("settings", "version", "pools", "policy", "words"),
    [
        ({}, "3.5.1", ["a"], "fifo", "FIFO"),
        ({"spark.scheduler.mode": "FIFO"}, "2.4.0", [""], "fifo", "FIFO"),
        (_FAIR, "3.5.1", ["a", "b", "a"], "fair:pools", r"\(a, b\)$"),
        (_FAIR, "2.4.0", ["a", "b"], "fair:pools", r"\(a, b\)$"),
        # SPARK-42157: without a file, the pool `default` is FAIR from 3.4 on.
        (_FAIR, "3.4.0", ["", "default"], "fair:pools", "without pools: task sets share equally"),
        (_FAIR, "3.3.4", [""], "fifo", "without pools: in order of submission"),
        (_FAIR, "4.0.0-preview1", ["a", ""], "fair:pools", "without a pool task sets share"),
        (_FAIR, "3.2.1", ["a", ""], "fair:pools-3.3", "jobs without a pool in order of submission"),
        (_FAIR, "", [""], "fair:pools", "task sets share equally"),
        (_FILE, "3.5.1", ["a"], "fair:/etc/spark/pools.xml", "its jobs named a$"),
        (_FILE, "2.4.0", [""], "fair:/etc/spark/pools.xml", "its jobs named no pool$"),
    ],
)
def test_the_order_follows_from_settings_version_and_pools(
    settings: dict[str, str], version: str, pools: list[str], policy: str, words: str
) -> None:
    order = logged_order(settings, version, pools)
    assert order.policy == policy
    assert re.search(words, order.words)


def test_several_logs_have_one_policy_if_all_have_the_same() -> None:
    fifo, fair = LoggedOrder("fifo", "Spark's FIFO"), LoggedOrder("fair:pools", "Spark's FAIR")
    assert provenance_of([fifo, fifo]) == {LOGGED_ORDER: "Spark's FIFO", LOGGED_POLICY: "fifo"}
    assert provenance_of([fair, fifo]) == {LOGGED_ORDER: "Spark's FAIR; Spark's FIFO"}


def test_an_allocation_file_is_known_by_its_name() -> None:
    provenance = {LOGGED_POLICY: "fair:file:///etc/spark/pools.xml"}
    assert is_logged_policy("fair:copies/pools.xml", provenance)
    assert not is_logged_policy("fair:other.xml", provenance)
    assert not is_logged_policy("fair", provenance)
    assert not is_logged_policy("fifo", {})


def test_import_says_and_keeps_the_order() -> None:
    path = shared_case("03-undefined-pools/log")
    workload, report = read_spark_event_logs([path], recorded=True)
    assert workload.provenance[LOGGED_POLICY] == "fair:pools"
    assert any("Order of the logged cluster: Spark's FAIR with" in note for note in report.notes)
    assert [job.recorded_ms for job in workload.jobs] == [10_000, 10_000, 10_000]


def test_pools_that_no_file_defines_come_out_as_on_spark(tmp_path: Path) -> None:
    """The log has six tasks at once on two cores; each keeps its second."""
    case = shared_case("03-undefined-pools")
    ran(f"parcae workload import spark-events {case}/log --recorded -o w.parcae", tmp_path)
    options = "--arrivals recorded --cores 2 --durations mean --json"
    for file in ("no-pools", "other-pool", "same-as-spark"):
        command = f"parcae simulate w.parcae {options} --policy fair:{case}/{file}.xml"
        simulated = json.loads(ran(command, tmp_path).stdout)
        assert simulated["completion_ms"] == [19_000, 30_000, 21_000]


@pytest.mark.parametrize(
    ("log", "policy"),
    [("fair", "fair:pools"), ("pool_nofile", "fair:pools"), ("pool_other", "other.xml")],
)
def test_the_order_of_real_logs(log: str, policy: str) -> None:
    path = shared_data(f"real-logs/own/{log}")
    (log_file,) = Path(path).iterdir()
    workload, _ = read_spark_event_logs([log_file])
    assert workload.provenance[LOGGED_POLICY].endswith(policy)
