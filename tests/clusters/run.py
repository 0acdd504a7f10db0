"""An application on a cluster: how the tests submit it, wait for it and check it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from parcae.spark.home import SparkHome
from parcae.workloads.recorded_run import JobOutcome, RecordedRun
from parcae.workloads.spark_log.event_log import read_runs
from parcae.workloads.spark_log.run import read_spark_run

APP = Path(__file__).with_name("app.py")
#: What the driver's log says without a policy.
ON = "parcae: on, account by what is learned"
#: Options of small JVMs.
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: The names of the application's jobs, in both deploy modes.
NAMES = {"long", "short"} | {
    f"{what} at app.py:{number}"
    for number, line in enumerate(APP.read_text().splitlines(), start=1)
    for what in ("sum", "collect")
    if f".{what}()" in line and "sums" not in line
}
#: Settings with which executors come and go.
COME_AND_GO = {
    "spark_dynamicAllocation_enabled": "true",
    "spark_dynamicAllocation_shuffleTracking_enabled": "true",
    "spark_dynamicAllocation_shuffleTracking_timeout": "1s",
    "spark_dynamicAllocation_executorIdleTimeout": "1s",
    "spark_dynamicAllocation_maxExecutors": "2",
    "spark_executor_instances": "0",
}
_LIMIT_S = 900.0
_AnyRun = TypeVar("_AnyRun", bound="Run")


@dataclass(eq=False)
class Run:
    """An application: what the command and the drivers said, and where its log is."""

    folder: Path
    process: subprocess.Popen[str]
    is_cluster: bool

    @property
    def result(self) -> dict[str, Any]:
        """What the application found."""
        found: dict[str, Any] = json.loads((self.folder / "result").read_text())
        return found

    @property
    def events(self) -> Path:
        """The folder of its event logs."""
        return self.folder / "events"

    def submitted(self) -> str:
        """What the command said so far."""
        return (self.folder / "submit.log").read_text(errors="replace")

    def drivers(self) -> list[str]:
        """What the driver of every attempt said so far."""
        return self.on_cluster() if self.is_cluster else [self.submitted()]

    def on_cluster(self) -> list[str]:
        """The same of drivers that run on the cluster."""
        raise NotImplementedError

    def wait(self, is_there: Callable[[], object], what: str) -> None:
        """Wait until something is there."""
        end = time.monotonic() + _LIMIT_S
        while not is_there():
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(self.explained(f"waits for {what}"))
            time.sleep(0.1)

    def wait_for(self, text: str, attempt: int = 0) -> None:
        """Wait until a driver has said something."""
        self.wait(lambda: text in "".join(self.drivers()[attempt:]), text)

    def wait_for_start(self) -> None:
        """Wait until the first jobs have run."""
        self.wait((self.folder / "result.started").exists, "its jobs")

    def finish(self) -> None:
        """Wait for the end; the application must have succeeded."""
        try:
            code = self.process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = None
        assert code == 0, self.explained(f"ended with {code}")

    def explained(self, what: str) -> str:
        """A fault with the last lines of the logs."""
        return f"{what}: {self.submitted()[-3000:]}\n{''.join(self.drivers())[-6000:]}"

    def check(self, user: str) -> None:
        """All jobs gave what they must, and the plugin stayed on."""
        result = self.result
        assert (result["sum"], result["long"], result["short"]) == (28, 780, 6)
        assert result["sql"] == [1] * 90
        assert result["user"] == user
        assert "parcae: off" not in "".join(self.drivers())

    def logged(self, user: str, queue: str) -> RecordedRun:
        """The event logs, whose names, people, queue and work must be right."""
        logged = read_spark_run([self.events])
        done = [job for job in logged.jobs if job.outcome is JobOutcome.COMPLETED]
        assert {job.name for job in done} == NAMES
        assert {(job.user, job.queue) for job in logged.jobs} == {(user, queue)}
        # 8, 40 and 4 tasks of 0.4 s.
        assert sum(one.task_ms for one in read_runs([self.events]).runs) >= 52 * 400
        return logged


def hold(folder: Path) -> Path:
    """Let the application of a folder go on until the file that is returned is gone."""
    folder.mkdir(exist_ok=True)
    goes_on = folder / "result.go-on"
    goes_on.touch()
    return goes_on


def is_short_first(logged: RecordedRun) -> bool:
    """Whether the short job, which was submitted later, ended before the long one."""
    ended = {job.name: job.completion_ms for job in logged.jobs}
    return ended["short"] < ended["long"]


def settings(folder: Path) -> dict[str, object]:
    """Settings of small applications."""
    return {
        "spark.driver.extraJavaOptions": SMALL,
        "spark.executor.extraJavaOptions": SMALL,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": 2,
        "spark.executor.cores": 2,
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
    }


def command(
    spark: SparkHome,
    folder: Path,
    options: Sequence[str],
    settings: Mapping[str, object],
    policy: Path | None,
    pause_s: float,
    is_stock: bool = False,
    app: str = str(APP),
) -> list[str]:
    """The command that submits the application: `parcae spark submit`, or Spark's own."""
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    own = [] if policy is None else ["--policy", str(policy)]
    first = [sys.executable, "-m", "parcae.cli.main", "spark", "submit", *own, "--"]
    if is_stock:
        first = [str(spark.command("spark-submit"))]
    return [*first, *options, *conf, app, str(folder / "result"), str(pause_s)]


@contextmanager
def running(
    start: Callable[[Path, subprocess.Popen[str], bool], _AnyRun],
    folder: Path,
    command: Sequence[str],
    variables: Mapping[str, str],
    is_cluster: bool,
) -> Iterator[_AnyRun]:
    """Run the command; it ends with the `with` block at the latest."""
    (folder / "events").mkdir(parents=True, exist_ok=True)
    with (folder / "submit.log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    try:
        yield start(folder, process, is_cluster)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
