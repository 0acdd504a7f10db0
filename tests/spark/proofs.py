"""What the proofs on real Spark share: an application with the plugin, and its trace."""

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
from parcae.workloads.job import Workload
from parcae.workloads.synthetic import chain
from tests.spark.machine import Machine, wait_until
from tests.spark.standalone import EXECUTOR_MEMORY_MB, standalone_cluster
from tests.spark.test_guest import Queries

PLUGIN = "parcae.spark.ParcaePlugin"
#: Tasks of the two queries that the policy file knows, as `Queries.run_both` submits them.
_LONG = 40
_SHORT = 2
_TASK_MS = 100


def write_two_queries(path: Path) -> Path:
    """A policy file that knows the queries `long` and `short` by their users' names."""
    jobs = (chain(1, _LONG, _TASK_MS, "long"), chain(1, _SHORT, _TASK_MS, "short"))
    write_policy(export_policy("srpt", Workload("w", jobs)), path)
    return path


@dataclass(frozen=True)
class Trace:
    """The file that `spark.parcae.trace` names."""

    path: Path

    def plans(self) -> list[list[dict[str, Any]]]:
        """The jobs of every order so far, oldest order first."""
        if not self.path.exists():
            return []
        whole = self.path.read_text().rpartition("\n")[0]
        return [json.loads(line)["jobs"] for line in whole.splitlines()]

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Every query that was ever ordered, by its key, as it was first seen."""
        found: dict[str, dict[str, Any]] = {}
        for plan in self.plans():
            for job in plan:
                found.setdefault(job["key"], job)
        return found

    def names(self) -> list[str]:
        """What they are called."""
        return [job["name"] for job in self.jobs().values()]

    def is_settled(self) -> bool:
        """Whether the order in force holds no query."""
        plans = self.plans()
        return bool(plans) and not plans[-1]

    def await_settled(self) -> None:
        """Every query that was ordered has ended for the plugin too."""
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

    def check_order(self) -> None:
        """An order is in force, by which the short query overtakes the long one; all are closed."""
        before = len(self.trace.plans())
        assert self.run_both() > 0
        assert self.trace.has_ordered("short", "long", before)
        self.trace.await_settled()

    def await_executors(self, number: int) -> None:
        """So many executors are there."""
        wait_until(lambda: len(self.executors()) == number, 60)

    def executors(self) -> list[str]:
        """Ids of those that are there."""
        infos = self.scala.schedulerBackend().getExecutorIds()
        return [infos.apply(i) for i in range(infos.size())]


@contextmanager
def guided(
    machine: Machine,
    folder: Path,
    master: str = "local[2]",
    **settings: object,
) -> Iterator[Guided]:
    """An application with the plugin: on, with an order in force at its end, and no complaints.

    Executors have the classes of the tests' jobs, and not the plugin's jar.
    """
    folder.mkdir(exist_ok=True)
    trace = Trace(folder / "trace.jsonl")
    own: dict[str, object] = {
        "spark_plugins": PLUGIN,
        "spark_parcae_policy": write_two_queries(folder / "policy.json"),
        "spark_parcae_trace": trace.path,
        "spark_executor_extraClassPath": machine.folder / "classes",
        "spark_executor_memory": "512m",
        "spark_executor_extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    before = len(machine.said())
    with machine.context(0, spark_master=master, **{**own, **settings}) as found:
        application = Guided(machine, found.context, trace)
        yield application
        application.check_order()
    assert machine.said()[before:].count("parcae: on, srpt by") == 1
    assert machine.complaints() == []


@dataclass
class Process:
    """A process of Spark's, and what it wrote."""

    popen: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")

    def await_line(self, word: str, timeout_s: float = 90) -> None:
        """It says this, or the test fails with what it said last."""

        def holds() -> bool:
            is_alive = self.popen.poll() is None
            assert is_alive or word in self.said(), f"it ended: {self.said()[-3000:]}"
            return word in self.said()

        wait_until(holds, timeout_s)

    def wait(self, timeout_s: float = 120) -> int:
        """Its exit status."""
        return self.popen.wait(timeout_s)

    def kill(self) -> None:
        """As with `kill -9`, its children too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()


@contextmanager
def process(command: list[str], log: Path, spark: SparkHome, **own: str) -> Iterator[Process]:
    """A command of Spark's in a process group of its own, which ends with the block."""
    with log.open("wb") as out:
        popen = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env=environment(spark.path, own),
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
    """URL of a standalone master with two workers on a host each, of so many declared cores."""
    memory = f"{cores * EXECUTOR_MEMORY_MB}m"
    place = ["--host", "127.0.0.2", "--webui-port", "0", "--cores", str(cores), "--memory", memory]
    with standalone_cluster(spark, cores, folder) as cluster:
        command = [
            str(spark.command("spark-class")),
            "org.apache.spark.deploy.worker.Worker",
            *place,
        ]
        own = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(folder / "local2")}
        command += ["--work-dir", str(folder / "work2"), cluster.master]
        with process(command, folder / "worker2.log", spark, **own) as worker:
            worker.await_line("Successfully registered with master")
            yield cluster.master


def submit_command(
    spark: SparkHome,
    master: str,
    settings: dict[str, object],
    *more: object,
) -> list[str]:
    """`spark-submit` with settings, then what is to run."""
    quiet = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    conf = [f"--conf={name}={value}" for name, value in {**quiet, **settings}.items()]
    return [str(spark.command("spark-submit")), f"--master={master}", *conf, *map(str, more)]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def processes_that(holds: Callable[[str], bool]) -> list[int]:
    """Ids of the running processes whose command line is such."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                if holds(words.decode(errors="replace")):
                    found.append(int(folder.name))
    return found
