"""A standalone Spark cluster of one master and one worker on this machine, for trials and tests."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from parcae.base.errors import ConfigError
from parcae.spark.home import SparkHome
from parcae.spark.launch import environment

_READY_S = 60.0
_STOP_S = 15.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_HOST = "127.0.0.1"
#: Spark asks for no less than 450 MiB.
EXECUTOR_MEMORY_MB = 512


@dataclass(frozen=True)
class StandaloneCluster:
    """A running cluster.

    Args:
        master: the URL of its master, spark://HOST:PORT.
        executors: number of executors, of one core each, that fit in.
        shuffle_port: of the worker's shuffle service. With it, shuffled data outlive their
            executor.
        worker: the process of its worker.
    """

    master: str
    executors: int
    shuffle_port: int
    worker: subprocess.Popen[bytes]

    def conf(self) -> dict[str, str]:
        """Spark settings for an application on this cluster."""
        return {
            "spark.executor.memory": f"{EXECUTOR_MEMORY_MB}m",
            # Executors live for a short time, so they must start quickly.
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.shuffle.service.enabled": "true",
            "spark.shuffle.service.port": str(self.shuffle_port),
        }


@contextlib.contextmanager
def standalone_cluster(spark: SparkHome, executors: int, work: Path) -> Iterator[StandaloneCluster]:
    """Start a cluster for so many executors of one core each; it ends with the `with` block.

    Args:
        spark: which Spark.
        executors: the cores that its worker declares; may be more than the machine has.
        work: folder for logs and for files of executors.

    Raises:
        ConfigError: the cluster did not start; the message names the log.
    """
    work.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    shuffle_port = _free_port()
    shuffle = f"-Dspark.shuffle.service.enabled=true -Dspark.shuffle.service.port={shuffle_port}"
    variables = {
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_LOCAL_HOSTNAME": _HOST,
        "SPARK_WORKER_OPTS": shuffle,
        "SPARK_DAEMON_MEMORY": "512m",
        "SPARK_LOCAL_DIRS": str((work / "local").resolve()),
    }
    memory = f"{executors * EXECUTOR_MEMORY_MB}m"
    place = ["--host", _HOST, "--webui-port", "0"]
    sizes = f"--cores {executors} --memory {memory}".split()
    worker_place = [*place, *sizes, "--work-dir", str((work / "work").resolve())]
    url = f"spark://{_HOST}:{port}"
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(
            _daemon(spark, [_MASTER, *place, "--port", str(port)], variables, work / "master.log")
        )
        _await(master, work / "master.log", "New state: ALIVE")
        worker = stack.enter_context(
            _daemon(spark, [_WORKER, *worker_place, url], variables, work / "worker.log")
        )
        _await(worker, work / "worker.log", "Successfully registered with master")
        yield StandaloneCluster(url, executors, shuffle_port, worker)


@contextlib.contextmanager
def _daemon(
    spark: SparkHome, arguments: list[str], variables: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        command = [str(spark.command("spark-class")), *arguments]
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=out,
            env={**environment(spark.path), **variables},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def _await(process: subprocess.Popen[bytes], log: Path, word: str) -> None:
    deadline = time.monotonic() + _READY_S
    while word not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ConfigError(f"the standalone cluster did not start: see {log}")
        time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
