"""Runs a service and Spark applications as processes of their own: for the demonstration and the fidelity study."""

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

from parcae.errors import ConfigError, ParcaeError
from parcae.spark.home import SparkHome
from parcae.spark.launch import PluginSettings, environment
from parcae.spark.mixes import ReplayedMix, read_replayed, write_mixes

#: A policy takes a while to be made ready, and minutes where its kernels must be compiled first.
_READY_S = 600.0
_STOP_S = 10.0
_LOG_LINES = 12
REPLAY_CLASS = "parcae.spark.Replay"


@dataclass(frozen=True)
class RunningService:
    """A service in a process of its own."""

    port: int
    admin_port: int | None
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> str:
        """HOST:PORT for the plugin."""
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
    """`parcae serve` in another process, ended with the block.

    Args:
        policy: as in `parcae policies`.
        workload: as for `parcae serve --workload`.
        port: for clients; 0 for a free one.
        admin_port: of the live page; -1 for none, 0 for a free one.
        extra: more arguments of `parcae serve`.
        log: what it says on standard error goes there.

    Raises:
        ConfigError: it ended at once; the message is its own.
    """
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
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
        stack.callback(_stop, process)
        ready = json.loads(_first_line(process, log))
        yield RunningService(ready["port"], ready.get("admin_port"), process)


def _first_line(process: subprocess.Popen[bytes], log: Path | None) -> bytes:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _READY_S)
    line = process.stdout.readline() if readable else b""
    if line:
        return line
    process.kill()
    said = log.read_bytes() if log else (process.stderr.read() if process.stderr else b"")
    raise ConfigError(
        "the service did not start: "
        + said.decode(errors="replace").strip().removeprefix("parcae: ")
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


class SparkFailedError(ParcaeError):
    """A Spark application ended with an error."""


@dataclass(frozen=True)
class ReplayRequest:
    """One application that replays mixes.

    With the plugin a run counts only if the plugin gave orders from its beginning to its end.

    Args:
        spark: which Spark.
        jar: the plugin's (it holds the replaying application, too).
        cores: of the local cluster; more than the machine has may be declared, since tasks sleep.
        mode: FIFO or FAIR, Spark's own order.
        plugin: what the plugin is told, or None for a stock Spark.
        work: folder for the mixes, results, logs.
        name: of its files within `work`.
        conf: more Spark settings.
        master: of a standalone cluster, e.g. spark://127.0.0.1:7077; a local cluster of `cores` where None.
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
        """What Spark says."""
        return self.work / f"{self.name}.log"

    @property
    def event_logs(self) -> Path:
        """Folder of its event log."""
        return self.work / f"{self.name}-events"

    def command(self, mixes: Path, results: Path) -> list[str]:
        """The spark-submit command."""
        master = self.master or f"local[{self.cores}]"
        conf = {
            "spark.app.name": self.name,
            "spark.scheduler.mode": self.mode,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
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
    """Run mixes on real Spark, one after the other in one application.

    Raises:
        SparkFailedError: Spark ended with an error, or not in time; the message has its last lines.
            Or the plugin was off, or away from its service, for a part of the run.
        WorkloadError: a job failed.
    """
    request.work.mkdir(parents=True, exist_ok=True)
    request.event_logs.mkdir(exist_ok=True)
    mixes_file, results = (
        request.work / f"{request.name}-{what}.json" for what in ("mixes", "results")
    )
    results.unlink(missing_ok=True)
    write_mixes(mixes_file, mixes)
    with request.log_file.open("wb") as log:
        process = subprocess.Popen(
            request.command(mixes_file, results),
            stdout=log,
            stderr=log,
            env=environment(request.spark.path),
            start_new_session=True,
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
    if status != 0:
        said = request.log_file.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        how = (
            f"did not end within {timeout_s:.0f} s"
            if status is None
            else f"ended with status {status}"
        )
        raise SparkFailedError(f"Spark {how} ({request.log_file}):\n" + "\n".join(said))
    if request.plugin is not None:
        _check_guided(request.log_file)
    return read_replayed(results)


def _check_guided(log: Path) -> None:
    lines = [line for line in log.read_text(errors="replace").splitlines() if "parcae: " in line]
    wrong = [line for line in lines if "parcae: off" in line or "parcae: no orders" in line]
    if wrong or not any("parcae: on" in line for line in lines):
        what = wrong[0] if wrong else "the plugin did not say that it is on"
        raise SparkFailedError(f"not all of the run was under the plugin's order ({log}): {what}")
