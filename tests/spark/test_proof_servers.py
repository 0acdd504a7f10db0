"""Tests of SQL servers: whose a query is, and that others learn from it."""

from __future__ import annotations

import importlib.util
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from tests.spark.java import jdk_tool
from tests.spark.proofs import PLUGIN, Trace, write_two_queries
from tests.spark.sql_servers import CONNECT, THRIFT, SqlServer, sql_server

_SLEEP = "java_method('java.lang.Thread', 'sleep', 100L)"
#: Tasks of the long query and of the short one.
_LONG = 30
_SHORT = 2
#: Who asks which of them when both ask at once.
_PEOPLE = {_LONG: "ann", _SHORT: "bob"}
_TIMEOUT_S = 90.0


@pytest.fixture(scope="module")
def spark() -> SparkHome:
    try:
        jdk_tool("javac")
        return find_spark()
    except ConfigError as error:
        pytest.skip(str(error))


def _query(tasks: int) -> str:
    """Two shapes of queries; queries that differ only in literals have the same shape."""
    found = "count(x)" if tasks == _LONG else "cast(sum(length(x)) / 4 as int)"  # the word null
    return f"select {found} as n from (select {_SLEEP} as x from range(0, {tasks}, 1, {tasks}))"


def _server(
    kind: str, spark: SparkHome, folder: Path, **settings: object
) -> AbstractContextManager[SqlServer]:
    """A server with the plugin."""
    conf = {
        "spark.plugins": PLUGIN,
        "spark.driver.extraClassPath": find_jar(spark),
        "spark.parcae.policy": write_two_queries(folder / "policy.json"),
        "spark.parcae.trace": folder / "trace.jsonl",
        **settings,
    }
    return sql_server(kind, spark, folder, "local[2]", conf)


def _assert_clients_share_names(server: SqlServer, trace: Trace) -> None:
    """Clients have sessions of their own.

    At first the queries are new to the plugin. When two people ask the same at once, the plugin
    knows both queries by name, and whose they are.
    """
    names = {}
    for tasks in (_LONG, _SHORT):
        assert str(tasks) in server.ask("cid", _query(tasks))
        trace.await_settled()
        (names[tasks],) = {job["name"] for job in trace.jobs().values()} - set(names.values())
    assert all(name.startswith("plan-") for name in names.values())
    assert {job["known"] for job in trace.jobs().values()} == {"unknown"}
    num_plans = len(trace.plans())
    ended = []

    def ask_again(tasks: int) -> None:
        assert str(tasks) in server.ask(_PEOPLE[tasks], _query(tasks))
        ended.append(tasks)

    threads = [threading.Thread(target=ask_again, args=(tasks,)) for tasks in (_LONG, _SHORT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    assert sorted(ended) == [_SHORT, _LONG]
    trace.await_settled()
    again = [job for job in trace.jobs().values() if job["known"] == "learned"]
    assert sorted(job["name"] for job in again) == sorted(names.values())
    tiers = {job["name"]: job["tier"] for job in again}
    assert tiers[names[_SHORT]] < tiers[names[_LONG]]
    assert len(trace.plans()) > num_plans
    whose = {job["name"]: job["user"] for job in again}
    assert whose == {names[tasks]: user for tasks, user in _PEOPLE.items()}


def _assert_importer_knows_names(folder: Path, trace: Trace) -> None:
    """The server's event log has the same names of queries and the same people as the plugin."""
    workload, _ = read_spark_event_logs([folder / "logs"], key="plan", recorded=True)
    found = {(job.name, job.user) for job in workload.jobs}
    assert {(job["name"], job["user"]) for job in trace.jobs().values()} <= found


@pytest.mark.slow  # queries of one application are learned by their plans in test_guest.py
def test_connect(spark: SparkHome, tmp_path: Path) -> None:
    needed = ("grpc", "grpc_status", "pandas", "pyarrow")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"needs pip install 'pyspark[connect]': no {', '.join(missing)}")
    trace = Trace(tmp_path / "trace.jsonl")
    with _server(CONNECT, spark, tmp_path) as server:
        _assert_clients_share_names(server, trace)
        _end(server)
    _assert_importer_knows_names(tmp_path, trace)


def _end(server: SqlServer) -> None:
    assert "parcae: on" in server.process.said()
    assert "parcae: off" not in server.process.said()
    server.end()


@pytest.mark.slow
def test_thrift(spark: SparkHome, tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace.jsonl")
    with _server(THRIFT, spark, tmp_path) as server:
        _assert_clients_share_names(server, trace)
        node = '/* {"app": "dbt", "node_id": "model.shop.orders"} */'
        new = f"select max(length(x)) as n from (select {_SLEEP} as x from range(0, 2, 1, 2))"
        assert "4" in server.ask("dbt", f"{node} {new}")
        trace.await_settled()
        named = {(job["name"], job["user"]) for job in trace.jobs().values()}
        assert ("model.shop.orders", "dbt") in named
        _end(server)
    _assert_importer_knows_names(tmp_path, trace)
