"""Helpers of the tests on a real Spark: an application with the plugin, and its trace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.home import SparkHome
from parcae.spark.launch import environment
from parcae.workloads.job import JobSpec
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload
from tests.conftest import wait_until
from tests.spark.machine import Machine
from tests.spark.standalone import EXECUTOR_MEMORY_MB, standalone_cluster
from tests.spark.test_guest import Queries

PLUGIN = "parcae.spark.ParcaePlugin"
#: Tasks of the two queries that the policy file knows, as `Queries.run_both` submits them.
_LONG = 40
_SHORT = 2
_TASK_MS = 100


def write_two_queries(path: Path, *others: JobSpec) -> Path:
    """A policy file that knows the queries `long` and `short` by their users' names, and others."""
    jobs = (chain(1, _LONG, _TASK_MS, "long"), chain(1, _SHORT, _TASK_MS, "short"), *others)
    write_policy(export_policy("srpt", Workload("w", jobs)), path)
    return path


@dataclass(frozen=True)
class Trace:
    """The file of `spark.parcae.trace`."""

    path: Path

    def plans(self) -> list[list[dict[str, Any]]]:
        """The jobs of every order so far, oldest order first."""
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]
        return [json.loads(line)["jobs"] for line in whole.splitlines()]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every query in any order so far, by key, as in its first order."""
        found: dict[str, dict[str, Any]] = {}
        for plan in self.plans():
            for job in plan:
                found.setdefault(job["key"], job)
        return found

    def names(self) -> list[str]:
        """The names of these queries."""
        return [job["name"] for job in self.jobs().values()]

    def is_settled(self) -> bool:
        """Whether the order in force holds no query."""
        plans = self.plans()
        return bool(plans) and not plans[-1]

    def await_settled(self) -> None:
        """Wait until every query in the orders has ended for the plugin too."""
        wait_until(self.is_settled, 60)

    def has_ordered(self, first: str, second: str, since: int = 0) -> bool:
        """Whether one of the plans from number `since` on puts a name before another."""
        for plan in self.plans()[since:]:
            tiers = {job["name"]: job["tier"] for job in plan}
            if first in tiers and second in tiers and tiers[first] < tiers[second]:
                return True
        return False


class Guided(Queries):
    """A Spark application in this process's JVM, with the plugin."""

    def __init__(self, machine: Machine, context: Any, trace: Trace) -> None:
        super().__init__(context)
        self.machine = machine
        self.trace = trace
        self.java: Any = context._jsc
        self.scala: Any = context._jsc.sc()
        context.pythonExec = sys.executable

    def assert_order(self) -> None:
        """Check that the plugin's order lets the short query overtake the long one."""
        before = len(self.trace.plans())
        assert self.run_both() > 0
        assert self.trace.has_ordered("short", "long", before)
        self.trace.await_settled()

    def await_executors(self, number: int) -> None:
        """Wait until there are so many executors."""
        wait_until(lambda: len(self.executors()) == number, 60)

    def executors(self) -> list[str]:
        """The ids of the executors."""
        infos = self.scala.schedulerBackend().getExecutorIds()
        return [infos.apply(i) for i in range(infos.size())]


@contextmanager
def guided(
    machine: Machine,
    folder: Path,
    master: str = "local[2]",
    **settings: object,
) -> Iterator[Guided]:
    """Start an application with the plugin; at its end, check the order and that nothing failed.

    Executors have the classes of the tests' jobs, but not the plugin's jar.
    """
    folder.mkdir(exist_ok=True)
    trace = Trace(folder / "trace.jsonl")
    plugin_conf: dict[str, object] = {
        "spark_plugins": PLUGIN,
        "spark_parcae_policy": write_two_queries(folder / "policy.json"),
        "spark_parcae_trace": trace.path,
        "spark_executor_extraClassPath": machine.test_classes,
        "spark_executor_memory": "512m",
        "spark_executor_extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    before = len(machine.said())
    with machine.context(0, spark_master=master, **{**plugin_conf, **settings}) as started:
        application = Guided(machine, started.context, trace)
        yield application
        application.assert_order()
    assert machine.said()[before:].count("parcae: on, srpt by") == 1
    assert machine.complaints() == []


@dataclass
class Process:
    """A process of Spark and its log."""

    popen: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def await_line(self, word: str, timeout_s: float = 90) -> None:
        """Wait until the output has this word; if it does not come, fail with the last output."""

        def holds() -> bool:
            is_alive = self.popen.poll() is None
            assert is_alive or word in self.said(), f"it ended: {self.said()[-3000:]}"
            return word in self.said()

        wait_until(holds, timeout_s)

    def wait(self, timeout_s: float = 120) -> int:
        """Wait for its end; returns its exit status."""
        return self.popen.wait(timeout_s)

    def kill(self) -> None:
        """Kill it and its children, as with `kill -9`."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@contextmanager
def process(command: list[str], log: Path, spark: SparkHome, **variables: str) -> Iterator[Process]:
    """Run a command of Spark in a separate process group, which ends with the `with` block."""
    with log.open("wb") as out:
        popen = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env={**environment(spark.path), **variables},
            start_new_session=True,
            cwd=log.parent,
        )
    started = Process(popen, log)
    try:
        yield started
    finally:
        started.kill()


@contextmanager
def two_workers(spark: SparkHome, folder: Path, cores: int) -> Iterator[str]:
    """The URL of a standalone master with two workers on two hosts, of so many declared cores."""
    memory = f"{cores * EXECUTOR_MEMORY_MB}m"
    place = ["--host", "127.0.0.2", "--webui-port", "0", "--cores", str(cores), "--memory", memory]
    with standalone_cluster(spark, cores, folder) as cluster:
        command = [
            str(spark.command("spark-class")),
            "org.apache.spark.deploy.worker.Worker",
            *place,
        ]
        variables = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(folder / "local2")}
        command += ["--work-dir", str(folder / "work2"), cluster.master]
        with process(command, folder / "worker2.log", spark, **variables) as worker:
            worker.await_line("Successfully registered with master")
            yield cluster.master


def submit_command(
    spark: SparkHome,
    master: str,
    settings: dict[str, object],
    *more: object,
) -> list[str]:
    """The `spark-submit` command with settings, then the application and its arguments."""
    quiet = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    conf = [f"--conf={name}={value}" for name, value in {**quiet, **settings}.items()]
    return [str(spark.command("spark-submit")), f"--master={master}", *conf, *map(str, more)]


def free_port() -> int:
    """A port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def processes_that(holds: Callable[[str], bool]) -> list[int]:
    """Ids of the running processes whose command line fulfils a condition."""
    ids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                if holds(words.decode(errors="replace")):
                    ids.append(int(folder.name))
    return ids
