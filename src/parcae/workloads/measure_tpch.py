"""Measures the 22 TPC-H queries on a local Spark and makes a workload profile from the event logs.

Every Spark application runs in a separate process and records every query that it finished, so that
a stopped measurement can be continued. The durations are those of a few cores. A model of higher
parallelism is chosen later, when the workload is used (`parcae.workloads.demands`).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_MINUTE, ms_from_s
from parcae.workloads.cold_starts import with_fresh_durations
from parcae.workloads.job import JobSpec, Workload, bare_name
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.tpch_application import JOB_KEY, WARM_UP, ApplicationRequest, QueryRun
from parcae.workloads.tpch_tools import check_tools, describe_machine, generate_tables

QUERIES = tuple(range(1, 23))
POLL_S = 1.0

#: Spark's configuration: no adaptive execution, so that every run of a query has the same plan and
#: all its stages stay separate, and many small tasks.
SPARK_CONF: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "64",
    "spark.sql.files.maxPartitionBytes": "8m",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "true",
    "spark.eventLog.compression.codec": "zstd",
    "spark.eventLog.rolling.enabled": "false",
}
EXECUTOR_MEMORY_MIB = 1500
#: Executors in separate processes: the driver needs little memory.
COLD_CONF: Mapping[str, str] = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": f"{EXECUTOR_MEMORY_MIB}m",
}
#: Fixed cost of a query on warm and on new executors, in units of the cost of the data of scale
#: factor 1. Used only to estimate the remaining time.
WARM_COST = 1.0
COLD_COST = 8.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class MeasureConfig:
    """The settings of a measurement.

    Args:
        scale_factors: TPC-H scale factors (1 is about 1 GB of text).
        repetitions: runs of every query after one warm-up run, which is not used.
        work_dir: folder of the data, the event logs and the records of finished queries.
        queries: numbers of the queries to run, from 1 to 22.
        cores: threads of the local Spark; durations are measured at this parallelism.
        cold_scale_factors: scale factors at which every query also runs once on new executors, for
            fresh durations; by default the smallest.

    Raises:
        ConfigError: a value is out of range.
    """

    scale_factors: tuple[float, ...] = (1.0, 2.0, 5.0)
    repetitions: int = 3
    work_dir: Path = Path("tpch-work")
    queries: tuple[int, ...] = QUERIES
    cores: int = 2
    cold_scale_factors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not self.scale_factors or any(not 0 < sf <= 1_000 for sf in self.scale_factors):
            raise ConfigError(
                f"scale factors are {list(self.scale_factors)}; "
                "write numbers above 0 and at most 1000"
            )
        if len({*self.scale_factors}) < len(self.scale_factors):
            raise ConfigError(
                f"scale factors are {list(self.scale_factors)}; write each of them once"
            )
        if not {*(self.cold_scale_factors or ())} <= {*self.scale_factors}:
            raise ConfigError(
                f"new executors at scale factors {self.cold_scale_factors}: "
                "choose among the scale factors that are measured"
            )
        if self.repetitions < 1 or self.cores < 1:
            raise ConfigError(
                f"{self.repetitions} repetitions on {self.cores} cores; both must be at least 1"
            )
        if not self.queries or not {*self.queries} <= {*QUERIES}:
            raise ConfigError(f"queries are {list(self.queries)}; TPC-H has the queries 1 to 22")

    @property
    def cold_factors(self) -> tuple[float, ...]:
        """Scale factors at which queries run on new executors."""
        return (
            (min(self.scale_factors),)
            if self.cold_scale_factors is None
            else self.cold_scale_factors
        )


@dataclass(frozen=True)
class Application:
    """One Spark application of a measurement.

    A warm application runs all rounds at one scale factor, a cold one runs one query on new
    executors.
    """

    name: str
    master: str
    scale_factor: float
    runs: tuple[QueryRun, ...]
    conf: Mapping[str, str]
    is_cold: bool

    @property
    def cost_of_run(self) -> float:
        """Estimated cost of one query, in units of the cost of the data of scale factor 1."""
        return self.scale_factor + (COLD_COST if self.is_cold else WARM_COST)


def plan(config: MeasureConfig) -> Iterator[Application]:
    """The Spark applications to run, in order of scale factor.

    The cold applications of a scale factor follow its warm one.

    Example: one scale factor, two queries and three repetitions make three applications: "sf1" with
    eight runs (two of them for warm-up), "cold-sf1-q1" and "cold-sf1-q2".
    """
    for scale_factor in sorted(config.scale_factors):
        suffix = f"sf{scale_factor:g}"
        runs = tuple(
            QueryRun(number, query, "warm-up" if number == WARM_UP else f"q{query}-{suffix}")
            for number in range(WARM_UP, config.repetitions + 1)
            for query in config.queries
        )
        yield Application(
            suffix, f"local[{config.cores}]", scale_factor, runs, SPARK_CONF, is_cold=False
        )
        for query in config.queries if scale_factor in config.cold_factors else ():
            run = QueryRun(1, query, f"q{query}-{suffix}")
            master = f"local-cluster[{config.cores},1,{EXECUTOR_MEMORY_MIB}]"
            conf = {**SPARK_CONF, **COLD_CONF}
            yield Application(
                f"cold-{suffix}-q{query}", master, scale_factor, (run,), conf, is_cold=True
            )


def measure_tpch(config: MeasureConfig, progress: Progress = lambda line: None) -> Workload:
    """Generate the data, run the queries, and make the profile from their event logs.

    Queries that were finished before in the same `work_dir` are not run again: when a measurement
    is stopped or crashes, only the running query is lost.

    Example: `measure_tpch(MeasureConfig(scale_factors=(1.0,), work_dir=Path("work")), print)` has
    the jobs q1-sf1 to q22-sf1.
    """
    check_tools()
    config.work_dir.mkdir(parents=True, exist_ok=True)
    _record_machine(config)
    for scale_factor in sorted(config.scale_factors):
        _generate(config, scale_factor, progress)
    report = _ProgressReport(config, progress)
    for application in plan(config):
        if pending(config, application):
            _run(config, application, report)
    return profile(config)


def _record_machine(config: MeasureConfig) -> None:
    """Record once on which machine the measurement runs.

    The profile may be made later and on another machine.
    """
    path = config.work_dir / "machine.json"
    if not path.exists():
        write_text(path, json.dumps(describe_machine(), indent=2) + "\n")


def _data_dir(config: MeasureConfig, scale_factor: float) -> Path:
    return config.work_dir / f"data-sf{scale_factor:g}"


def _log_dir(config: MeasureConfig, application: Application) -> Path:
    return config.work_dir / "event-logs" / application.name


def _finished_path(config: MeasureConfig, application: Application) -> Path:
    return config.work_dir / "finished" / f"{application.name}.jsonl"


def _generate(config: MeasureConfig, scale_factor: float, progress: Progress) -> None:
    target = _data_dir(config, scale_factor)
    if not target.exists():
        progress(f"generating TPC-H data at scale factor {scale_factor:g}")
        generate_tables(target, scale_factor)


def finished(config: MeasureConfig, application: Application) -> list[dict[str, Any]]:
    """The records of the application's finished queries.

    A record has the keys round, query, seconds, at (UTC) and load (load average of the machine). A
    truncated last line is ignored.
    """
    path = _finished_path(config, application)
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # the process was killed while it wrote the line
    return records


def pending(config: MeasureConfig, application: Application) -> tuple[QueryRun, ...]:
    """The runs that are still to do, preceded by a warm-up run for each of their queries."""
    done = {(note["round"], note["query"]) for note in finished(config, application)}
    remaining = [
        run
        for run in application.runs
        if run.round != WARM_UP and (run.round, run.query) not in done
    ]
    queries = {run.query for run in remaining}
    warm_ups = [run for run in application.runs if run.round == WARM_UP and run.query in queries]
    return (*warm_ups, *remaining)


class _ProgressReport:
    """Reports the progress of a measurement and estimates the remaining time."""

    def __init__(self, config: MeasureConfig, progress: Progress) -> None:
        remaining = [
            (len(pending(config, application)), application.cost_of_run)
            for application in plan(config)
        ]
        self.progress = progress
        self.started = time.monotonic()
        self.num_runs = sum(count for count, _ in remaining)
        self.cost = sum(count * cost for count, cost in remaining)
        self.num_done = 0
        self.cost_done = 0.0

    def add(self, application: Application, num_runs: int) -> None:
        """Count `num_runs` more finished runs of the application, and report the progress."""
        self.num_done += num_runs
        self.cost_done += num_runs * application.cost_of_run
        seconds = (time.monotonic() - self.started) * (self.cost / self.cost_done - 1.0)
        rest = f", about {_minutes(seconds)} left" if self.num_done < self.num_runs else ""
        self.progress(f"{application.name}: {self.num_done} of {self.num_runs} runs finished{rest}")


def _minutes(seconds: float) -> str:
    return f"{max(1, round(ms_from_s(seconds) / MS_PER_MINUTE))} min"


def _run(config: MeasureConfig, application: Application, report: _ProgressReport) -> None:
    """Run the remaining queries of an application in a separate process."""
    logs = _log_dir(config, application)
    records_path = _finished_path(config, application)
    logs.mkdir(parents=True, exist_ok=True)
    records_path.parent.mkdir(exist_ok=True)
    request = ApplicationRequest(
        name=application.name,
        master=application.master,
        data_dir=str(_data_dir(config, application.scale_factor).resolve()),
        runs=pending(config, application),
        conf={**application.conf, "spark.eventLog.dir": logs.resolve().as_uri()},
        finished=str(records_path.resolve()),
    )
    output = config.work_dir / f"{application.name}.log"
    command = [sys.executable, "-m", "parcae.workloads.tpch_application", request.to_json()]
    with output.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            status = _watch(
                process,
                lambda: len(finished(config, application)),
                lambda n: report.add(application, n),
            )
        finally:
            process.terminate()
            process.wait()
    if status != 0:
        raise ConfigError(
            f"Spark failed while measuring {application.name}; see {output}; "
            "run the command again to continue"
        )


def _watch(
    process: subprocess.Popen[bytes], count: Callable[[], int], report: Callable[[int], None]
) -> int:
    """Wait for the process and report every increase of the count; returns the exit status."""
    reported = count()
    while True:
        try:
            status = process.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            status = None
        if (current := count()) > reported:
            report(current - reported)
            reported = current
        if status is not None:
            return status


def _is_measured(config: MeasureConfig, application: Application) -> bool:
    """Whether a round of an application has finished that is not its warm-up."""
    return any(note["round"] != WARM_UP for note in finished(config, application))


def profile(config: MeasureConfig) -> Workload:
    """The profile of everything measured so far: jobs "q1-sf1" and so on, without warm-up runs.

    Samples of the first and later waves are from the warm applications; fresh samples are the first
    tasks of the new executors.
    """
    applications = [a for a in plan(config) if _is_measured(config, a)]
    warm = [a for a in applications if not a.is_cold]
    if not warm:
        raise ConfigError(
            f"{config.work_dir}: no query was measured yet; run `parcae workload measure-tpch`"
        )
    warm_jobs = _jobs(config, warm)
    cold_jobs = _jobs(config, [a for a in applications if a.is_cold])
    # The order of the jobs is that of the first measured round.
    names = [run.job for a in warm for run in a.runs if run.round == 1 and run.job in warm_jobs]
    jobs = [
        with_fresh_durations(warm_jobs[n], cold_jobs[n]) if n in cold_jobs else warm_jobs[n]
        for n in names
    ]
    return Workload("tpch", tuple(jobs), provenance=_provenance(config, applications, jobs))


def _jobs(config: MeasureConfig, applications: list[Application]) -> dict[str, JobSpec]:
    """The jobs of the applications' event logs, by name."""
    if not applications:
        return {}
    logs = [_log_dir(config, application) for application in applications]
    # The first runs are the warm-up rounds, which have another name. All runs of the jobs are warm,
    # so none has to be left out.
    workload, _ = read_spark_event_logs(logs, name="tpch", key=JOB_KEY, keep_first_runs=True)
    jobs: dict[str, JobSpec] = {}
    for job, _ in sorted(
        zip(workload.jobs, workload.weights or (), strict=True), key=lambda pair: pair[1]
    ):
        # Different DAGs of one name are called "name (2)" and so on. Jobs are sorted by frequency,
        # so that the most frequent DAG is the one that stays in the dict.
        name = bare_name(job.name)
        jobs[name] = replace(job, name=name)
    return jobs


def _provenance(
    config: MeasureConfig, applications: list[Application], jobs: list[JobSpec]
) -> dict[str, str]:
    notes = [note for application in applications for note in finished(config, application)]
    machine = json.loads((config.work_dir / "machine.json").read_text())
    stages = [stage for job in jobs for stage in job.stages]
    num_fresh = sum(any(samples.size for samples in stage.durations.fresh) for stage in stages)
    warm = [[a] for a in applications if not a.is_cold]
    cold = [a for a in applications if a.is_cold]
    days = sorted({note["at"][:10] for note in notes if "at" in note})
    return {
        "source": "TPC-H queries run on a local Spark, from its event logs "
        "(parcae workload measure-tpch)",
        "measured": "; ".join(_measured(config, a) for (a,) in warm),
        "fresh executors": _measured_cold(cold, f"{num_fresh} of {len(stages)} stages"),
        "durations": f"of {config.cores} cores; first and later waves in a warm JVM; "
        "a task's known mean leaves out fresh ones",
        "dates": " to ".join(days[:1] + days[1:][-1:]),
        "machine": f"{machine['cpu']}, {machine['cpus']} CPUs",
        "load average": "; ".join(_load(config, kind) for kind in (*warm, cold) if kind),
        "versions": f"Spark {machine['pyspark']}, Java {machine['java']}, "
        f"tpchgen-cli {machine['tpchgen-cli']}, query texts of duckdb {machine['duckdb']}",
        "spark configuration": ", ".join(
            f"{key}={value}" for key, value in SPARK_CONF.items() if ".sql." in key
        ),
    }


def _measured(config: MeasureConfig, application: Application) -> str:
    """How often an application's queries ran, e.g. "sf1: 3 runs of 22 queries after a warm-up"."""
    runs = [(note["round"], note["query"]) for note in finished(config, application)]
    times = Counter(query for number, query in set(runs) if number != WARM_UP)
    by_times = Counter(times.values())
    parts = [
        f"{count} {'run' if count == 1 else 'runs'} of {by_times[count]} queries"
        for count in sorted(by_times, reverse=True)
    ]
    return f"{application.name}: {' and '.join(parts)} after a warm-up"


def _measured_cold(cold: list[Application], where: str) -> str:
    if not cold:
        return "not measured"
    factors = ", ".join(f"sf{factor:g}" for factor in sorted({a.scale_factor for a in cold}))
    executors = f"in new executors ({cold[0].master}) that had only read the schemas"
    return f"{factors}: {len(cold)} queries once each {executors}; samples for {where}"


def _load(config: MeasureConfig, applications: list[Application]) -> str:
    """The machine's median load average while the applications ran, e.g. "sf1: median 2.1"."""
    loads = [
        note["load"]
        for a in applications
        for note in finished(config, a)
        if note["round"] != WARM_UP and "load" in note
    ]
    name = "new executors" if applications[0].is_cold else applications[0].name
    return f"{name}: median {statistics.median(loads):.1f}" if loads else f"{name}: not recorded"
