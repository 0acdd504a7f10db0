"""Runs a service and Spark applications as separate processes.

The demonstration, the fidelity study and the TPC-H study use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError, ParcaeError
from parcae.spark.home import SparkHome
from parcae.spark.launch import PluginSettings, environment
from parcae.spark.mixes import ReplayedMix, read_replayed, write_mixes

#: How long a service may take to start. Minutes pass if its kernels must be compiled first.
_READY_S = 600.0
#: How long a service may take to end before it is killed.
_STOP_S = 10.0
#: How many of the last log lines an error message quotes.
_LOG_LINES = 12
REPLAY_CLASS = "parcae.spark.Replay"


@dataclass(frozen=True)
class RunningService:
    """A service in a separate process."""

    port: int
    admin_port: int | None
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """HOST:PORT, as the plugin's settings need it."""
        return f"127.0.0.1:{self.port}"


@contextlib.contextmanager
def running_service(
    policy: str,
    workload: str,
    *,
    port: int = 0,
    admin_port: int = -1,
    extra: Sequence[str] = (),
    log: Path | None = None,
) -> Iterator[RunningService]:
    """Run `parcae serve` in another process, which ends with the `with` block."""
    command = [
        sys.executable,
        "-m",
        "parcae.cli.main",
        "serve",
        "--json",
        "--policy",
        policy,
        "--workload",
        workload,
    ]
    command += ["--port", str(port), "--admin-port", str(admin_port), *extra]
    with contextlib.ExitStack() as stack:
        errors: Any = stack.enter_context(log.open("ab")) if log else subprocess.PIPE
        start = log.stat().st_size if log else 0  # the log may have lines of earlier services
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        stack.callback(_stop, process)
        ready = json.loads(_first_line(process, log, start))
        yield RunningService(ready["port"], ready.get("admin_port"), process)


def _first_line(process: subprocess.Popen[bytes], log: Path | None, start: int) -> bytes:
    """The line of JSON that the service prints when it is ready.

    Its standard error is in the log from byte `start` on.
    """
    assert process.stdout is not None
    # A service that hangs must not block this process for ever.
    readable, _, _ = select.select([process.stdout], [], [], _READY_S)
    line = process.stdout.readline() if readable else b""
    if line:
        return line
    process.kill()
    output = log.read_bytes()[start:] if log else (process.stderr.read() if process.stderr else b"")
    raise ConfigError(
        "the service did not start: "
        + output.decode(errors="replace").strip().removeprefix("parcae: ")
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # the service may still write its files
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


class SparkFailedError(ParcaeError):
    """A Spark application ended with an error, or the plugin was off in it."""


def event_log_folder(work: Path, name: str) -> Path:
    """The folder of an application's event log."""
    return work / f"{name}-events"


@dataclass(frozen=True)
class ReplayRequest:
    """One Spark application that replays mixes.

    A run with the plugin is valid only if the plugin gave orders from the start to the end.
    """

    spark: SparkHome
    jar: Path
    cores: int
    mode: str
    plugin: PluginSettings | None
    work: Path
    name: str
    conf: Mapping[str, str]
    master: str | None = None

    @property
    def log_file(self) -> Path:
        """The file of Spark's log."""
        return self.work / f"{self.name}.log"

    @property
    def event_logs(self) -> Path:
        """The folder of the event log."""
        return event_log_folder(self.work, self.name)

    def command(self, mixes: Path, results: Path) -> list[str]:
        """The spark-submit command that replays one file of mixes into another of results."""
        master = self.master or f"local[{self.cores}]"
        conf = {
            "spark.app.name": self.name,
            "spark.scheduler.mode": self.mode,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # The cheapest shuffle for tasks that write one record each.
            "spark.shuffle.sort.bypassMergeThreshold": "10000",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4 -XX:+UseParallelGC",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.event_logs.resolve().as_uri(),
            "spark.eventLog.compress": "true",
            "spark.eventLog.compression.codec": "zstd",
            "spark.eventLog.rolling.enabled": "false",
            # Later settings replace earlier ones, so the caller's come last.
            **(self.plugin.conf() if self.plugin else {}),
            **self.conf,
        }
        lines = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        return [
            str(self.spark.command("spark-submit")),
            "--master",
            master,
            *lines,
            "--class",
            REPLAY_CLASS,
            str(self.jar),
            str(mixes),
            str(results),
        ]


def replay(
    request: ReplayRequest, mixes: Sequence[dict[str, Any]], *, timeout_s: float = 3600.0
) -> list[ReplayedMix]:
    """Run mixes on a real Spark, one after the other in one application. Returns one entry for
    every mix, in the same order.
    """
    request.work.mkdir(parents=True, exist_ok=True)
    request.event_logs.mkdir(exist_ok=True)
    mixes_file, results = (
        request.work / f"{request.name}-{what}.json" for what in ("mixes", "results")
    )
    # Old results must not be taken for those of this run.
    results.unlink(missing_ok=True)
    write_mixes(mixes_file, mixes)
    with request.log_file.open("wb") as log:
        process = subprocess.Popen(
            request.command(mixes_file, results),
            stdout=log,
            stderr=log,
            env=environment(request.spark.path),
            start_new_session=True,  # a new process group, which can be killed as a whole
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Spark's command starts a JVM: the whole process group must end.
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
    if status != 0:
        output = request.log_file.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        how = (
            f"did not end within {timeout_s:.0f} s"
            if status is None
            else f"ended with status {status}"
        )
        raise SparkFailedError(f"Spark {how} ({request.log_file}):\n" + "\n".join(output))
    if request.plugin is not None:
        _check_guided(request.log_file)
    return read_replayed(results)


def _check_guided(log: Path) -> None:
    """Refuse a run in which the plugin's log lines show that it was off or had no orders."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "parcae: " in line]
    wrong = [line for line in lines if "parcae: off" in line or "parcae: no orders" in line]
    if wrong or not any("parcae: on" in line for line in lines):
        what = wrong[0] if wrong else "the plugin did not log that it is on"
        raise SparkFailedError(f"not all of the run was under the plugin's order ({log}): {what}")
