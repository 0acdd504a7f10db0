"""Mixes of jobs whose tasks sleep: a real Spark replays them, and the simulator simulates them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from benchmarks.spark.work import THROUGH_SERVICE, Work, content_of, file_name, hash_of, tell

from parcae.base.errors import ConfigError, ParcaeError, WorkloadError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.policies.policy_file import export_policy, write_policy
from parcae.service.policies import policies_for
from parcae.service.serve import ServeSettings
from parcae.spark.home import SparkHome
from parcae.spark.launch import PluginSettings, environment
from parcae.workloads.archive import write_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload

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


#: Settings of every Spark here: on this machine alone, and without a page.
LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def event_log_conf(folder: Path) -> dict[str, str]:
    """Settings for one compressed event log in a folder."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.resolve().as_uri(),
        "spark.eventLog.compress": "true",
        "spark.eventLog.compression.codec": "zstd",
        "spark.eventLog.rolling.enabled": "false",
    }


class SparkFailedError(ParcaeError):
    """A Spark application ended with an error, or the plugin was off in it."""


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
        return self.work / f"{self.name}-events"

    def command(self, mixes: Path, results: Path) -> list[str]:
        """The spark-submit command that replays one file of mixes into another of results."""
        master = self.master or f"local[{self.cores}]"
        conf = {
            "spark.app.name": self.name,
            "spark.scheduler.mode": self.mode,
            **LOCAL_CONF,
            # The cheapest shuffle for tasks that write one record each.
            "spark.shuffle.sort.bypassMergeThreshold": "10000",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=4 -XX:+UseParallelGC",
            **event_log_conf(self.event_logs),
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
    write_text(mixes_file, json.dumps({"mixes": list(mixes)}))
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
        check_guided(request.log_file)
    return read_replayed(results)


def check_guided(log: Path) -> None:
    """Refuse a run in which the plugin's log lines show that it was off or had no orders."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if "parcae: " in line]
    wrong = [line for line in lines if "parcae: off" in line or "parcae: no orders" in line]
    if wrong or not any("parcae: on" in line for line in lines):
        what = wrong[0] if wrong else "the plugin did not log that it is on"
        raise SparkFailedError(f"not all of the run was under the plugin's order ({log}): {what}")


#: Task durations in ms by job, stage and task.
Sleeps = dict[tuple[int, int, int], int]


def _warm(durations: TaskDurations) -> npt.NDArray[np.int64]:
    """The samples of a warm executor at the highest parallelism that was measured."""
    return next(s for s in (durations.rest[-1], durations.first[-1], durations.fresh[-1]) if s.size)


def warm_workload(workload: Workload, factor: float) -> Workload:
    """The same jobs with one list of task durations per stage, that of a warm executor.

    In one Spark application every core is warm for every job. All durations are multiplied by the
    factor; the product is at least 1 ms.

    Example: `warm_workload(load_workload("tpch"), 8)` has tasks of about 250 ms instead of 30 ms.
    """

    def stage_of(stage: StageSpec) -> StageSpec:
        samples = np.maximum(np.rint(_warm(stage.durations) * factor), 1).astype(np.int64)
        return replace(stage, durations=TaskDurations.of(samples), mean_task_ms=-1.0)

    return workload.with_stages(stage_of)


def drawn_sleeps(sequence: JobSequence, seed: int) -> Sleeps:
    """Draw a duration for every task from its stage's warm samples."""
    rng = np.random.default_rng([seed, 0x51EE9])
    sleeps = Sleeps()
    for job, spec in enumerate(sequence.jobs):
        for stage, stage_spec in enumerate(spec.stages):
            for task, drawn in enumerate(
                rng.choice(_warm(stage_spec.durations), stage_spec.num_tasks)
            ):
                sleeps[job, stage, task] = int(drawn)
    return sleeps


def mix_json(sequence: JobSequence, sleeps: Sleeps) -> dict[str, Any]:
    """The mix as the replaying application reads it; tasks sleep for the given times in ms.

    Stages come after their parents. The last stage of a job is its only one without children.
    """
    jobs = []
    for job, (spec, arrival_ms) in enumerate(zip(sequence.jobs, sequence.arrival_ms, strict=True)):
        order = parents_first(spec)
        # Parents are written as positions in the new order of stages.
        place = {stage: position for position, stage in enumerate(order)}
        stages = [
            {
                "parents": [place[parent] for parent in spec.stages[stage].parents],
                "sleep_ms": [
                    sleeps[job, stage, task] for task in range(spec.stages[stage].num_tasks)
                ],
            }
            for stage in order
        ]
        jobs.append({"name": spec.name, "arrival_ms": int(arrival_ms), "stages": stages})
    return {"jobs": jobs}


def parents_first(spec: JobSpec) -> list[int]:
    """The indices of the stages, every stage after its parents and the job's last stage at the
    end.
    """
    with_children = {parent for stage in spec.stages for parent in stage.parents}
    last = [index for index in range(len(spec.stages)) if index not in with_children]
    if len(last) != 1:
        raise WorkloadError(
            f"job {spec.name!r} has {len(last)} last stages, but a job of Spark has exactly one"
        )
    # A depth-first search from the last stage adds every stage after its parents.
    order: dict[int, None] = {}
    path = last
    while path:
        parents = spec.stages[path[-1]].parents
        missing = next((parent for parent in parents if parent not in order), None)
        if missing is None:
            order[path.pop()] = None
        else:
            path.append(missing)
    return list(order)


@dataclass(frozen=True)
class ReplayedMix:
    """The times of a mix's jobs; float64[num_jobs] each, ms since the mix began. Those of jobs that
    were not submitted are NaN.
    """

    submitted_ms: npt.NDArray[np.float64]
    finished_ms: npt.NDArray[np.float64]

    @property
    def jct_ms(self) -> npt.NDArray[np.float64]:
        """Completion times in ms, from submission to the end."""
        return self.finished_ms - self.submitted_ms


def read_replayed(path: Path) -> list[ReplayedMix]:
    """Read the results of the replaying application, one entry per mix."""
    replayed = []
    for number, mix in enumerate(json.loads(path.read_text())["mixes"]):
        # A job that failed has an error in place of the time of its end.
        failed = [job for job in mix["jobs"] if job and "finished_ms" not in job]
        if failed:
            raise WorkloadError(
                f"{len(failed)} jobs of mix {number} failed: "
                f"{failed[0].get('error', 'not finished')}"
            )
        times = ("submitted_ms", "finished_ms")
        columns = ([job.get(name, math.nan) for job in mix["jobs"]] for name in times)
        replayed.append(ReplayedMix(*(np.array(column, np.float64) for column in columns)))
    return replayed


#: Spark's own policies, without the plugin. FAIR shares between jobs, since each has its own pool.
STOCK = {"fifo": "FIFO", "fair": "FAIR"}
#: Time to start an application, warm the JVM up and stop; only for estimates of the time left.
START_S = 14.0


@dataclass(frozen=True)
class RealSpark:
    """A Spark that replays mixes under a policy, and keeps what they took in a work folder."""

    spark: SparkHome
    jar: Path
    work: Work

    def check(self, policies: Sequence[str], workload: Workload) -> None:
        """Refuse policies that could not plan, before minutes of runs."""
        for policy in policies:
            if policy not in STOCK:
                _check_planned(policy, workload)

    def request(
        self, name: str, policy: str, mixes: Sequence[dict[str, Any]], cores: int
    ) -> ReplayRequest:
        """The application of some mixes under a policy.

        Its name has a hash of all that decides its results, besides the name given.
        """
        inputs = (cores, list(mixes), self.spark.version, self.jar.name, *content_of(policy))
        name = f"{file_name(name)}-{hash_of(*inputs)}"
        mode = STOCK.get(policy, "FAIR")
        return ReplayRequest(self.spark, self.jar, cores, mode, None, self.work.folder, name, {})

    def replay(
        self,
        name: str,
        policy: str,
        workload: Workload,
        mixes: Sequence[dict[str, Any]],
        cores: int,
    ) -> list[ReplayedMix]:
        """Run mixes, unless their times and their event log are in the work folder."""
        request = self.request(name, policy, mixes, cores)
        if not request.event_logs.exists():
            self.work.file(request.name).unlink(missing_ok=True)

        def run() -> list[list[list[float]]]:
            tell(f"{name}: {len(mixes)} mixes, about {_seconds(mixes, cores):.0f} s")
            with _planned_by(policy, workload, self.jar, request) as plugin:
                done = replay(replace(request, plugin=plugin), mixes)
            return [[mix.submitted_ms.tolist(), mix.finished_ms.tolist()] for mix in done]

        times = self.work.kept(request.name, run)
        return [ReplayedMix(np.array(begun), np.array(ended)) for begun, ended in times]


def _seconds(mixes: Sequence[dict[str, Any]], cores: int) -> float:
    """How long an application takes, roughly: its start, the arrivals, and 1.2 times the work."""
    work_ms = sum(
        sum(stage["sleep_ms"]) for mix in mixes for job in mix["jobs"] for stage in job["stages"]
    )
    arrivals_ms = sum(mix["jobs"][-1]["arrival_ms"] for mix in mixes)
    return float(START_S + (1.2 * work_ms / cores + arrivals_ms) / MS_PER_S)


def _check_planned(policy: str, workload: Workload) -> None:
    """Refuse a policy that neither the plugin nor a service can plan by."""
    if not policy.startswith(THROUGH_SERVICE):
        export_policy(policy, workload)
        return
    settings = ServeSettings()
    make = policies_for(policy.removeprefix(THROUGH_SERVICE), workload, settings.arrivals)
    make(settings.num_cores)


@contextlib.contextmanager
def _planned_by(
    policy: str, workload: Workload, jar: Path, request: ReplayRequest
) -> Iterator[PluginSettings | None]:
    """The plugin's settings for a policy; a service for it runs as long as the `with` block."""
    notes = request.work / request.name
    if policy in STOCK:
        yield None
    elif policy.startswith(THROUGH_SERVICE):
        profile = notes.with_name(f"{notes.name}.parcae")
        write_workload(workload, profile)
        log = notes.with_name(f"{notes.name}-service.log")
        name = policy.removeprefix(THROUGH_SERVICE)
        with running_service(name, str(profile), log=log) as service:
            yield PluginSettings(jar, service=service.address)
    else:
        file = notes.with_name(f"{notes.name}-policy.json")
        write_policy(export_policy(policy, workload), file)
        yield PluginSettings(jar, policy=file)
