"""Measures the 22 TPC-H queries on a local Spark and makes a workload profile of the event logs.

Every Spark application runs in a process of its own and leaves a marker when it is finished, so that a measurement that was
stopped goes on where it was. Durations are those of two cores; what more parallelism does to them is a model that is chosen
when the workload is used (`parcae.workloads.parallelism`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from parcae.errors import ConfigError
from parcae.workloads.job import Workload
from parcae.workloads.spark_event_log import read_spark_event_logs

#: The Spark property that names the recurring job in the event log.
JOB_KEY = "parcae.job"
WARM_UP = "warm-up"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = tuple(range(1, 23))

#: One stage a shuffle, many small tasks, one plan: what a profile needs (adaptive execution would merge the tasks).
SPARK_CONF: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "64",
    "spark.sql.files.maxPartitionBytes": "8m",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "true",
    "spark.eventLog.compression.codec": "zstd",
    "spark.eventLog.rolling.enabled": "false",
}


@dataclass(frozen=True)
class MeasureConfig:
    """What to measure.

    Args:
        scale_factors: TPC-H scale factors (1 is about 1 GB of text).
        repetitions: runs of every query after one discarded warm-up.
        work_dir: holds the data, the event logs and the markers of what is finished.
        queries: which of the 22 queries.
        cores: threads of the local Spark; the parallelism that the durations are measured at.
        fresh_scale_factors: scale factors at which each query also runs in new executors, for fresh durations.
    """

    scale_factors: tuple[float, ...] = (1.0, 2.0, 5.0)
    repetitions: int = 3
    work_dir: Path = Path("tpch-work")
    queries: tuple[int, ...] = QUERIES
    cores: int = 2
    fresh_scale_factors: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.scale_factors or any(not 0 < sf <= 1_000 for sf in self.scale_factors):
            raise ConfigError(f"scale factors must be between 0 and 1000, not {self.scale_factors}")
        if self.repetitions < 1 or self.cores < 1 or not set(self.queries) <= set(QUERIES):
            raise ConfigError("repetitions and cores must be >= 1, and queries between 1 and 22")


@dataclass(frozen=True)
class SparkApplication:
    """One run of Spark: which queries, on which data, in which executors."""

    name: str
    master: str
    data_dir: Path
    log_dir: Path
    rounds: tuple[str, ...]
    queries: tuple[int, ...]
    suffix: str
    conf: Mapping[str, str] = field(default_factory=dict)


def check_tools() -> None:
    """Raise ConfigError where something that measuring needs is not installed."""
    missing = [name for name in ("pyspark", "duckdb") if importlib.util.find_spec(name) is None]
    if _tpchgen() is None:
        missing.append("tpchgen-cli")
    if missing:
        raise ConfigError(f"measuring needs {', '.join(missing)}: pip install 'parcae[measure]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise ConfigError("measuring runs Spark, which needs Java 17 or newer: install a JDK, or set JAVA_HOME")


def _tpchgen() -> str | None:
    beside = Path(sys.executable).parent / "tpchgen-cli"
    return str(beside) if beside.exists() else shutil.which("tpchgen-cli")


def measure_tpch(config: MeasureConfig, progress: Callable[[str], None] = lambda line: None) -> Workload:
    """Generate the data, run the queries, and read the profile from the event logs. Resumable.

    Raises:
        ConfigError: a tool is missing, or Spark failed (the message names its log).
    """
    check_tools()
    config.work_dir.mkdir(parents=True, exist_ok=True)
    for scale_factor in sorted({*config.scale_factors, *config.fresh_scale_factors}):
        _generate(config, scale_factor, progress)
    applications = list(plan(config))
    started, done = time.monotonic(), 0
    for index, application in enumerate(applications):
        if not _marker(config, application).exists():
            left = (time.monotonic() - started) / done * (len(applications) - index) if done else None
            estimate = "" if left is None else f", about {left / 60:.0f} min left"
            progress(f"{application.name} ({index + 1} of {len(applications)}{estimate})")
            _run(config, application)
            done += 1
    return profile(config)


def plan(config: MeasureConfig) -> Iterator[SparkApplication]:
    """The Spark applications to run: one a scale factor, then one a query in new executors."""
    rounds = (WARM_UP, *(f"run {r + 1}" for r in range(config.repetitions)))
    logs = config.work_dir / "event-logs"
    for sf in config.scale_factors:
        data = _data_dir(config, sf)
        yield SparkApplication(f"sf{sf:g}", f"local[{config.cores}]", data, logs / f"sf{sf:g}", rounds, config.queries, f"sf{sf:g}")
    for sf in config.fresh_scale_factors:
        for query in config.queries:
            name = f"fresh-sf{sf:g}-q{query}"
            master = f"local-cluster[{config.cores},1,1500]"
            yield SparkApplication(name, master, _data_dir(config, sf), logs / name, ("run 1",), (query,), f"sf{sf:g}",
                                   {"spark.driver.memory": "1g", "spark.executor.memory": "1500m"})  # fmt: skip


def _data_dir(config: MeasureConfig, scale_factor: float) -> Path:
    return config.work_dir / f"data-sf{scale_factor:g}"


def _marker(config: MeasureConfig, application: SparkApplication) -> Path:
    return config.work_dir / "done" / application.name


def _generate(config: MeasureConfig, scale_factor: float, progress: Callable[[str], None]) -> None:
    target = _data_dir(config, scale_factor)
    if target.exists():
        return
    progress(f"generating TPC-H data at scale factor {scale_factor:g}")
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [str(_tpchgen()), "parquet", "-s", f"{scale_factor:g}", "--output-dir", str(partial)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ConfigError(f"tpchgen-cli failed: {result.stderr.strip()[-300:]}")
    partial.rename(target)


def _run(config: MeasureConfig, application: SparkApplication) -> None:
    shutil.rmtree(application.log_dir, ignore_errors=True)
    application.log_dir.mkdir(parents=True)
    request = {
        "name": application.name,
        "master": application.master,
        "data": str(application.data_dir.resolve()),
        "rounds": list(application.rounds),
        "queries": list(application.queries),
        "suffix": application.suffix,
        "conf": {**SPARK_CONF, **application.conf, "spark.eventLog.dir": application.log_dir.resolve().as_uri()},
    }
    output = config.work_dir / f"{application.name}.log"
    with output.open("w") as stream:
        command = [sys.executable, "-m", "parcae.workloads.measure_tpch", json.dumps(request)]
        status = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
    if status != 0:
        raise ConfigError(f"Spark failed while measuring {application.name}; see {output}; run again to go on from here")
    _marker(config, application).parent.mkdir(exist_ok=True)
    _marker(config, application).touch()


def query_texts() -> dict[int, str]:
    """The 22 query texts, from duckdb's built-in TPC-H extension."""
    import duckdb

    rows = duckdb.connect().execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
    return {int(number): str(text).strip().rstrip(";") for number, text in rows}


def run_application(request: Mapping[str, object]) -> None:
    """Run one Spark application (in a process of its own)."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(str(request["master"])).appName(f"tpch-{request['name']}")
    for key, value in dict(request["conf"]).items():  # type: ignore[call-overload]
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        for table in TABLES:
            spark.read.parquet(f"{request['data']}/{table}.parquet").createOrReplaceTempView(table)
        texts = query_texts()
        for current in list(request["rounds"]):  # type: ignore[call-overload]
            for query in list(request["queries"]):  # type: ignore[call-overload]
                job = WARM_UP if current == WARM_UP else f"q{query}-{request['suffix']}"
                spark.sparkContext.setLocalProperty(JOB_KEY, job)
                started = time.monotonic()
                spark.sql(texts[query]).collect()
                print(f"{current}: q{query} {time.monotonic() - started:.2f} s", flush=True)
    finally:
        spark.stop()


def profile(config: MeasureConfig) -> Workload:
    """The profile of all finished applications' event logs: jobs "q1-sf1" and so on, warm-ups left out."""
    logs = [a.log_dir for a in plan(config) if _marker(config, a).exists()]
    if not logs:
        raise ConfigError(f"{config.work_dir}: nothing measured yet")
    workload, _ = read_spark_event_logs(logs, name="tpch", key=JOB_KEY)
    wanted = {f"q{q}-sf{sf:g}": (q, sf) for q in config.queries for sf in config.scale_factors}
    jobs = sorted((job for job in workload.jobs if job.name in wanted), key=lambda job: wanted[job.name])
    return replace(workload, jobs=tuple(jobs), weights=None, provenance=_provenance(config))


def _provenance(config: MeasureConfig) -> dict[str, str]:
    measured = [a.name for a in plan(config) if _marker(config, a).exists()]
    return {
        "source": "TPC-H queries on a local Spark, from its event logs (parcae workload measure-tpch)",
        "scale factors": ", ".join(name[2:] for name in measured if name.startswith("sf")),
        "repetitions": f"{config.repetitions} after one discarded warm-up",
        "measured parallelism": f"{config.cores} cores",
        "fresh executors": f"{sum(name.startswith('fresh') for name in measured)} queries in new executors (local-cluster)",
        "spark": importlib.metadata.version("pyspark"),
        "spark configuration": ", ".join(f"{k}={v}" for k, v in SPARK_CONF.items() if ".sql." in k),
        "cpu": _cpu_model(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    run_application(json.loads(sys.argv[1]))
