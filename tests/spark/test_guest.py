"""Tests of the plugin in Spark's scheduler, on a real Spark.

Short queries go first, results are right, and errors leave Spark as it is.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from parcae.policies.policy_file import export_policy, write_policy
from parcae.workloads.guess import OVERHEAD_BYTES
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import wait_until
from tests.spark.machine import Machine

#: Tasks of the long query and of the short one, and how long each sleeps.
_LONG = 40
_SHORT = 2
_SLEEP_MS = 100
#: What the long query takes on two cores.
_ALONE_S = _LONG / 2 * _SLEEP_MS / 1_000
_WORKLOAD = Workload(
    "w", (chain(1, _LONG, _SLEEP_MS, "long"), chain(1, _SHORT, _SLEEP_MS, "short"))
)
_OFF = "parcae: off, Spark schedules by itself"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy file that knows the two queries by the names that their user gives them."""
    write_policy(export_policy("srpt", _WORKLOAD), tmp_path / "policy.json")
    return tmp_path / "policy.json"


class Queries:
    """Queries whose tasks sleep, in an application."""

    def __init__(self, context: Any) -> None:
        from pyspark.sql import SparkSession

        self.context = context
        self.session = SparkSession(context)
        self.end_s = dict[str, float]()
        self.users = dict[str, str]()
        self._errors = list[BaseException]()

    def run(
        self, name: str, tasks: int, sleep_ms: int = _SLEEP_MS, *, is_named: bool = True
    ) -> None:
        """One query; its result must be right."""
        sleep = f"java_method('java.lang.Thread', 'sleep', {sleep_ms}L)"
        text = (
            f"select count(x) as {name} "
            f"from (select {sleep} as x from range(0, {tasks}, 1, {tasks}))"
        )
        try:
            self.context.setLocalProperty("spark.parcae.jobKey", name if is_named else None)
            self.context.setLocalProperty("spark.parcae.user", self.users.get(name))
            assert self.session.sql(text).collect()[0][0] == tasks
            self.end_s[name] = time.monotonic()
        except BaseException as error:
            self._errors.append(error)
            raise

    def run_both(self, *, is_named: bool = True) -> float:
        """Run the long query, then the short one; by how many s the short one ends earlier."""
        self.run("warm", 2, 1, is_named=is_named)
        started = self.num_started()
        threads = []
        for name, tasks in (("long", _LONG), ("short", _SHORT)):
            thread = threading.Thread(
                target=self.run, args=(name, tasks), kwargs={"is_named": is_named}
            )
            thread.start()
            threads.append(thread)
            wait_until(lambda: self.num_started() > started)
        for thread in threads:
            thread.join(60)
        assert not self._errors
        return self.end_s["long"] - self.end_s["short"]

    def num_started(self) -> int:
        """Tasks that have started so far in stages that run now."""
        tracker = self.context.statusTracker()
        infos = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        return sum(info.numActiveTasks + info.numCompletedTasks for info in infos if info)


@contextmanager
def application(
    machine: Machine, policy: Path | str, master: str = "local[2]", **settings: object
) -> Iterator[Queries]:
    """A stock Spark with the plugin."""
    own: dict[str, object] = {
        "spark_plugins": "parcae.spark.ParcaePlugin",
        "spark_parcae_policy": policy,
    }
    with machine.context(0, spark_master=master, **own, **settings) as found:
        yield Queries(found.context)


def _new_lines(machine: Machine, before: int, word: str) -> list[str]:
    return [line for line in machine.said()[before:].splitlines() if word in line]


@pytest.mark.parametrize("name", ["srpt", "tuned"])
def test_a_short_query_does_not_wait_for_a_long_one(
    machine: Machine, tmp_path: Path, name: str
) -> None:
    write_policy(export_policy(name, _WORKLOAD), tmp_path / "policy.json")
    before = len(machine.said())
    with application(machine, tmp_path / "policy.json") as queries:
        conf = queries.context._jsc.sc().conf()
        assert conf.get("spark.plugins", "none") == "none"  # executors are not to look for the jar
        assert queries.run_both() > 0.3 * _ALONE_S
    (line,) = _new_lines(machine, before, "parcae: on")
    assert f"{name} by" in line
    assert "knows 2 jobs; the scheduler mode FIFO decides ties" in line
    assert machine.complaints() == []


def test_a_query_that_never_ran_is_sized_by_the_bytes_that_the_log_shows(
    machine: Machine, policy: Path, tmp_path: Path
) -> None:
    trace, log = tmp_path / "trace.jsonl", tmp_path / "log"
    log.mkdir()
    state = {"spark_parcae_state": tmp_path / "state.json", "spark_parcae_trace": trace}
    settings = {"spark_eventLog_enabled": "true", "spark_eventLog_dir": log.as_uri()}
    with application(machine, policy, **state, **settings) as queries:
        table = str(tmp_path / "table")
        rows = queries.session.range(100_000).selectExpr("id", "cast(id as int) x", "uuid() s")
        rows.write.parquet(table)
        queries.session.read.parquet(table).createOrReplaceTempView("t")
        for columns in ("id, x, s", "x"):
            queries.context.setJobDescription(columns)
            queries.context.setLocalProperty("spark.parcae.jobKey", columns)
            queries.session.sql(f"select sum(hash({columns})) from t").collect()
    workload, _ = read_spark_event_logs([log])
    read = {job.name: job.scan_bytes for job in workload.jobs}
    assert read["x"] == pytest.approx(read["id, x, s"] * 4 / 32)
    tiers = dict[str, float]()
    for line in trace.read_text().splitlines():
        for job in json.loads(line)["jobs"]:
            if job.get("known") == "bytes":
                tiers.setdefault(job["name"], job["tier"])  # before a task ends
    for columns in ("id, x, s", "x"):
        # Before five queries are known a core reads 20 MB a second.
        assert tiers[columns] == pytest.approx((read[columns] + OVERHEAD_BYTES) / 20e3)
    before = len(machine.said())
    with application(machine, policy, **state) as queries:
        wait_until(lambda: bool(_new_lines(machine, before, "names of queries are known from")))
        queries.session.read.parquet(table).createOrReplaceTempView("t")
        queries.context.setLocalProperty("spark.parcae.jobKey", "x")
        queries.session.sql("select sum(hash(x)) from t").collect()
    lines = [job for text in trace.read_text().splitlines() for job in json.loads(text)["jobs"]]
    assert ("x", "learned") in {(job.get("name"), job.get("known")) for job in lines}
    assert machine.complaints() == []


def test_a_file_switches_the_order_on_and_off_while_spark_runs(
    machine: Machine, policy: Path, tmp_path: Path
) -> None:
    control, trace = tmp_path / "control.json", tmp_path / "trace.jsonl"

    def switched(mode: str, *, gains: bool) -> bool:
        before = len(machine.said())
        control.write_text(f'{{"mode": "{mode}"}}')
        wait_until(lambda: bool(_new_lines(machine, before, f"parcae: the mode is {mode} by")))
        written = trace.stat().st_size
        gained_s = queries.run_both()
        assert (gained_s > 0.3 * _ALONE_S) == gains, (mode, gained_s)
        return trace.stat().st_size > written

    settings = {
        "spark_parcae_mode": "observe",
        "spark_parcae_control": control,
        "spark_parcae_controlMs": 100,
        "spark_parcae_trace": trace,
    }
    before = len(machine.said())
    with application(machine, policy, **settings) as queries:
        assert queries.run_both() < 0.3 * _ALONE_S
        assert '"short"' in trace.read_text()
        assert switched("on", gains=True)
        assert not switched("off", gains=False)
        control.write_text('{"mode": "on", "weigths": {}}')
        wait_until(lambda: bool(_new_lines(machine, before, "unknown fields (weigths)")))
        assert queries.run_both() < 0.3 * _ALONE_S
        assert switched("observe", gains=False)
    (line,) = _new_lines(machine, before, "parcae: observe, srpt by")
    assert line.startswith("WARN")
    assert machine.complaints() == []


def test_off_is_in_force_for_queries_that_run(
    machine: Machine, policy: Path, tmp_path: Path
) -> None:
    control = tmp_path / "control.json"
    control.write_text('{"mode": "on"}')
    settings = {"spark_parcae_control": control, "spark_parcae_controlMs": 100}
    with application(machine, policy, "local[1]", **settings) as queries:

        def started(tasks: int) -> int:
            """How many of a query's tasks have started."""
            tracker = queries.context.statusTracker()
            infos = map(tracker.getStageInfo, tracker.getActiveStageIds())
            of = (info for info in infos if info and info.numTasks == tasks)
            return sum(info.numActiveTasks + info.numCompletedTasks for info in of)

        threads = []
        for name, tasks in (("long", _LONG), ("smaller", _LONG // 2)):
            threads.append(threading.Thread(target=queries.run, args=(name, tasks)))
            threads[-1].start()
            wait_until(lambda tasks=tasks: started(tasks) >= 3)
        before = started(_LONG), started(_LONG // 2)
        assert before[0] < 10
        control.write_text('{"mode": "off"}')
        wait_until(lambda: started(_LONG) >= before[0] + 5)
        assert started(_LONG // 2) < before[1] + 10
        for thread in threads:
            thread.join(60)
    assert machine.complaints() == []


def _is_policy(seed: int, block: int) -> bool:
    """Whether a block is the policy's, by SplitMix64 of the seed and the pair."""
    mask = (1 << 64) - 1
    mixed = (seed + (block // 2 + 1) * 0x9E3779B97F4A7C15) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & mask
    return (mixed ^ (mixed >> 31) ^ block) & 1 == 0


def test_the_order_takes_turns_with_sparks_own_and_the_event_log_says_when(
    machine: Machine, policy: Path, tmp_path: Path
) -> None:
    control, logs = tmp_path / "control.json", tmp_path / "logs"
    logs.mkdir()
    before = len(machine.said())
    block_s = 24 * 3_600
    block = int(time.time()) // block_s
    settings = {
        "spark_parcae_control": control,
        "spark_parcae_controlMs": 100,
        "spark_eventLog_enabled": "true",
        "spark_eventLog_dir": logs,
    }
    with application(machine, policy, **settings) as queries:
        for is_policy in (False, True):
            seed = next(seed for seed in count() if _is_policy(seed, block) == is_policy)
            wanted = {"mode": "on", "experiment": {"block": "24h", "washout": "0s", "seed": seed}}
            control.write_text(json.dumps(wanted))
            said = f"86400000 ms, 0 ms of washout, seed {seed}"
            wait_until(lambda said=said: bool(_new_lines(machine, before, said)))
            assert (queries.run_both() > 0.3 * _ALONE_S) == is_policy
        control.write_text('{"mode": "observe"}')
        wait_until(lambda: bool(_new_lines(machine, before, "the mode is observe by")))
        queries.run("after", 2)
    jobs = read_spark_run([logs], key="spark.parcae.jobKey").jobs
    assert {job.arm.is_policy for job in jobs if job.arm} == {False, True}
    assert {job.arm.block for job in jobs if job.arm} == {block}
    assert jobs[-1].name == "after"
    assert jobs[-1].arm is None
    assert machine.complaints() == []


def test_the_jar_and_the_plugins_name_are_enough(machine: Machine, tmp_path: Path) -> None:
    """Two people whose queries no file knows: the second need not wait for the first."""
    trace = tmp_path / "trace.jsonl"
    settings = {"spark_plugins": "parcae.spark.ParcaePlugin", "spark_parcae_trace": trace}
    before = len(machine.said())
    with machine.context(0, spark_master="local[2]", **settings) as found:
        queries = Queries(found.context)
        assert queries.run_both(is_named=False) > 0.3 * _ALONE_S
        queries.users = {"long": "ann", "short": "bob"}
        assert queries.run_both(is_named=False) > 0.3 * _ALONE_S
    (line,) = _new_lines(machine, before, "parcae: on")
    assert "account by what is learned while Spark runs" in line
    jobs = [job for line in trace.read_text().splitlines() for job in json.loads(line)["jobs"]]
    users = dict.fromkeys(job["user"] for job in jobs)
    assert [user for user in users if not user.startswith("shape-")] == ["ann", "bob"]
    assert machine.complaints() == []


def test_after_an_error_spark_is_as_stock(machine: Machine, policy: Path) -> None:
    before = len(machine.said())
    with application(machine, policy) as queries:
        events = machine.jvm.org.apache.spark.scheduler
        for _ in range(3):  # an event that cannot be read
            queries.context._jsc.sc().listenerBus().post(events.SparkListenerStageCompleted(None))
        wait_until(lambda: _new_lines(machine, before, _OFF))
        assert queries.run_both() < 0.2 * _ALONE_S
    (line,) = _new_lines(machine, before, _OFF)
    assert "noting the end of a stage failed" in line
    machine.forgive()


@pytest.mark.slow
def test_in_sql_the_setting_takes_the_place_of_the_local_property_and_is_no_name(
    machine: Machine, tmp_path: Path
) -> None:
    jobs = (chain(1, 2, _SLEEP_MS, name) for name in ("mine", "by the key", "by the session"))
    write_policy(export_policy("srpt", Workload("w", tuple(jobs))), tmp_path / "policy.json")
    trace = tmp_path / "trace.jsonl"
    own = {"spark_parcae_jobKey": "my.key", "spark_parcae_trace": trace}
    with application(machine, tmp_path / "policy.json", **own) as queries:
        queries.run("mine", 2)  # Spark puts the setting in the place of this name
        queries.context.setLocalProperty("my.key", "by the key")
        queries.run("mine", 2)
        queries.context.setLocalProperty("my.key", None)
        queries.session.conf.set("spark.parcae.jobKey", "by the session")
        queries.run("mine", 2)
        queries.session.conf.unset("spark.parcae.jobKey")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    plan, *names = dict.fromkeys(job["name"] for line in lines for job in line["jobs"])
    assert plan.startswith("plan-")
    assert names == ["by the key", "by the session"]
    assert machine.complaints() == []


@pytest.mark.slow
def test_queries_recur_by_their_plan_on_executors_without_the_jar(
    machine: Machine, tmp_path: Path
) -> None:
    """Take profiles from a stock Spark's event log, then run executors without the plugin's jar."""
    logs = tmp_path / "logs"
    logs.mkdir()
    own = {"spark_eventLog_enabled": "true", "spark_eventLog_dir": logs, "spark_master": "local[2]"}
    with machine.context(0, **own) as stock:
        queries = Queries(stock.context)
        assert queries.run_both(is_named=False) < 0.2 * _ALONE_S
    workload, _ = read_spark_event_logs([logs], key="plan")
    assert sum(job.name.startswith("plan-") for job in workload.jobs) == 3
    write_policy(export_policy("srpt", workload), tmp_path / "policy.json")
    with application(
        machine, tmp_path / "policy.json", "local-cluster[1,2,1024]", spark_executor_memory="512m"
    ) as queries:
        scala = queries.context._jsc.sc()
        wait_until(
            lambda: scala.getExecutorMemoryStatus().size() == 2, 60
        )  # the driver is one of them
        assert queries.run_both(is_named=False) > 0.3 * _ALONE_S
    assert machine.complaints() == []


def test_queries_that_no_file_knows_are_learned(machine: Machine, tmp_path: Path) -> None:
    write_policy(
        export_policy("srpt", Workload("w", (chain(1, 10, 5_000, "other"),))),
        tmp_path / "policy.json",
    )
    with application(machine, tmp_path / "policy.json") as queries:
        for name, tasks in (("long", _LONG), ("short", _SHORT)):
            queries.run(name, tasks)
        assert queries.run_both() > 0.3 * _ALONE_S
    assert machine.complaints() == []
