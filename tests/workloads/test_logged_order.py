"""Which order the cluster of a log had."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.logged_order import (
    LOGGED_ORDER,
    LOGGED_POLICY,
    LoggedOrder,
    is_logged_policy,
    logged_order,
    provenance_of,
)
from tests.cli.running import ran
from tests.conftest import shared_case, shared_data

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
