"""Tests of SQL servers: whose a query is, and that others learn from it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from parcae.base.errors import ConfigError
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.spark.launch import environment
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from tests.conftest import wait_until
from tests.spark.java import jdk_tool
from tests.spark.proofs import (
    PLUGIN,
    Process,
    Trace,
    free_port,
    process,
    submit_command,
    write_two_queries,
)

_CLIENT = Path(__file__).parent / "connect_client.py"
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
    spark: SparkHome,
    folder: Path,
    name: str,
    **settings: object,
) -> AbstractContextManager[Process]:
    """A server with the plugin, in a separate process."""
    (folder / "logs").mkdir()
    conf = {
        "spark.plugins": PLUGIN,
        "spark.driver.extraClassPath": find_jar(spark),
        "spark.parcae.policy": write_two_queries(folder / "policy.json"),
        "spark.parcae.trace": folder / "trace.jsonl",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder / "logs",
        "spark.sql.warehouse.dir": folder / "warehouse",
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    command = submit_command(spark, "local[2]", conf, f"--class={name}", "spark-internal")
    return process(command, folder / "server.log", spark)


def _ask(command: list[str], spark: SparkHome, folder: Path) -> str:
    """The output of a client that runs a query."""
    env = environment(spark.path)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env=env,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _assert_clients_share_names(ask: Callable[[str, str], str], trace: Trace) -> None:
    """Clients with sessions of their own; `ask` runs a query of a person from a new one.

    At first the queries are new to the plugin. When two people ask the same at once, the plugin
    knows both queries by name, and whose they are.
    """
    names = {}
    for tasks in (_LONG, _SHORT):
        assert str(tasks) in ask(_query(tasks), "cid")
        trace.await_settled()
        (names[tasks],) = {job["name"] for job in trace.jobs().values()} - set(names.values())
    assert all(name.startswith("plan-") for name in names.values())
    assert {job["known"] for job in trace.jobs().values()} == {"unknown"}
    num_plans = len(trace.plans())
    ended = []

    def ask_again(tasks: int) -> None:
        assert str(tasks) in ask(_query(tasks), _PEOPLE[tasks])
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
    port = free_port()
    own = {
        "spark_connect_grpc_binding_address": "127.0.0.1",
        "spark_connect_grpc_binding_port": port,
    }
    trace = Trace(tmp_path / "trace.jsonl")
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"

    def ask(query: str, user: str) -> str:
        url = f"sc://127.0.0.1:{port}/;user_id={user}"
        return _ask([sys.executable, str(_CLIENT), url, query], spark, tmp_path)

    with _server(spark, tmp_path, name, **own) as server:
        server.await_line("Spark Connect server started at")
        _assert_clients_share_names(ask, trace)
        _end(server)
    _assert_importer_knows_names(tmp_path, trace)


def _end(server: Process) -> None:
    assert "parcae: on" in server.said()
    assert "parcae: off" not in server.said()
    server.popen.terminate()
    server.wait()


@pytest.mark.slow
def test_thrift(spark: SparkHome, tmp_path: Path) -> None:
    port = free_port()
    own = {
        "spark_hadoop_hive_server2_thrift_port": port,
        "spark_hadoop_hive_server2_thrift_bind_host": "127.0.0.1",
        "spark_hadoop_javax_jdo_option_ConnectionURL": "jdbc:derby:memory:metastore;create=true",
    }
    trace = Trace(tmp_path / "trace.jsonl")
    name = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
    with _server(spark, tmp_path, name, **own) as server:
        server.await_line("HiveThriftServer2 started")
        wait_until(lambda: "ThriftBinaryCLIService on port" in server.said())
        options = f"-u jdbc:hive2://127.0.0.1:{port} --silent=true --outputformat=csv2".split()

        def ask(query: str, user: str) -> str:
            client = [str(spark.command("beeline")), *options, "-n", user, "-e", query]
            return _ask(client, spark, tmp_path)

        _assert_clients_share_names(ask, trace)
        node = '/* {"app": "dbt", "node_id": "model.shop.orders"} */'
        assert str(_SHORT) in ask(f"{node} {_query(_SHORT)}", "dbt")
        trace.await_settled()
        named = {(job["name"], job["user"]) for job in trace.jobs().values()}
        assert ("model.shop.orders", "dbt") in named
        _end(server)
    _assert_importer_knows_names(tmp_path, trace)
