"""Foretells how long queries take on other numbers of cores, and holds it against a real Spark.

    python -m benchmarks.spark.core_counts --work /tmp/core-counts

Six shapes of queries (aggregation, broadcast join, subquery, sort, union, shuffle join; adaptive
execution, tasks that sleep) run on local[2], [4], [8] and [16]: one after another in one thread,
and eighteen at fixed times that overlap. The log of each run, replayed on the cores of each other
run, foretells that run. Sleeping tasks need no CPU, so a small machine can have many cores; what
the driver does needs one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from benchmarks.spark.work import Work, run_script, tell

from parcae.cli.tables import print_rows
from parcae.evaluation.log_check import replay, replayed_workload
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.event_log import read_runs

_CORES = (2, 4, 8, 16)
_ROUNDS = 3
_GAP_S = 0.8
#: One query at a time: the next one arrives long after the last one has ended.
_ALONE_MS = 10_000_000
_SLEEP = "reflect('java.lang.Thread', 'sleep', cast({ms} as bigint))"


def _rows(name: str, tasks: int, ms: int) -> str:
    """A subquery of `tasks` tasks, each of which sleeps for about `ms`."""
    sleep = _SLEEP.format(ms=f"{ms} + 40 * (id % 5)")
    return (
        f"(select id, id % 4 as k, {sleep} as slept from range(0, {tasks}, 1, {tasks})) as {name}"
    )


#: A comparison with what the sleep returned keeps the optimizer from leaving it out.
_KEPT = "slept is not null"
QUERIES = {
    "aggregation": f"select k, count(*) from {_rows('a', 12, 300)} where {_KEPT} group by k",
    "broadcast": (
        f"select /*+ broadcast(b) */ count(*) from {_rows('a', 10, 250)} join "
        f"{_rows('b', 3, 200)} on a.k = b.k where a.{_KEPT} and b.{_KEPT}"
    ),
    "subquery": (
        f"select count(*) from {_rows('a', 9, 300)} where {_KEPT} and id > "
        f"(select min(id) from {_rows('b', 5, 250)} where {_KEPT})"
    ),
    "sort": f"select id from {_rows('a', 8, 350)} where {_KEPT} order by id desc",
    "union": (
        f"select k, count(*) from (select k from {_rows('a', 6, 300)} where {_KEPT} union all "
        f"select k from {_rows('b', 7, 200)} where {_KEPT}) group by k"
    ),
    "shuffle-join": (
        f"select /*+ merge(b) */ count(*) from {_rows('a', 8, 250)} join {_rows('b', 6, 300)} "
        f"on a.k = b.k where a.{_KEPT} and b.{_KEPT}"
    ),
}


def _run(cores: int, folder: Path, overlapping: bool) -> None:
    """Run the queries in this process's Spark, with an event log in the folder."""
    from pyspark.sql import SparkSession  # only the child process has a Spark

    folder.mkdir(parents=True)
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.resolve().as_uri(),
        "spark.sql.shuffle.partitions": "6",
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName("core counts")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def ask(name: str) -> None:
        spark.sparkContext.setLocalProperty("parcae.job", name)
        spark.sql(QUERIES[name.removeprefix("warm-")]).collect()

    for name in QUERIES:
        ask(f"warm-{name}")
    threads = []
    begun_s = time.monotonic()
    for number, name in enumerate([*QUERIES] * _ROUNDS):
        if not overlapping:
            ask(name)
            continue
        time.sleep(max(0.0, begun_s + number * _GAP_S - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(name,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    spark.stop()


def _logged(folder: Path) -> list[JobRun]:
    runs = read_runs([folder], key="parcae.job").runs
    return [run for run in runs if not run.name.startswith("warm-")]


def _foretold_ms(runs: list[JobRun], cores: int, overlapping: bool, with_driver: bool) -> float:
    """The mean completion time of one run's queries on so many cores."""
    workload = replayed_workload(runs)
    jobs = workload.jobs
    if not overlapping:
        jobs = tuple(job.at(number * _ALONE_MS) for number, job in enumerate(jobs))
    if not with_driver:
        jobs = tuple(replace(job, driver_time=None) for job in jobs)
    return float(replay(replace(workload, jobs=jobs), ((0, cores),)).mean())


def _errors(logs: dict[int, list[JobRun]], overlapping: bool, with_driver: bool) -> list[float]:
    """(Foretold / real mean completion time) - 1 of every ordered pair of core counts."""
    errors = []
    for cores, real in logs.items():
        real_ms = np.mean([run.end_ms - run.submission_ms for run in real])
        others = [runs for count, runs in logs.items() if count != cores]
        foretold = [_foretold_ms(runs, cores, overlapping, with_driver) for runs in others]
        errors += [float(ms / real_ms - 1) for ms in foretold]
    return errors


def main(given: argparse.Namespace) -> None:
    """Run what is missing, then print the table."""
    if given.run:
        return _run(given.run, given.work, given.overlapping)
    work = Work(given.work)
    rows = []
    for overlapping in (False, True):
        way = "overlapping" if overlapping else "one thread"
        logs = {}
        for cores in _CORES:
            folder = work.folder / f"{way.replace(' ', '-')}-{cores}"
            if not folder.exists():
                tell(f"running {way} on {cores} cores")
                words = ["--run", str(cores), "--work", str(folder)]
                words += ["--overlapping"] if overlapping else []
                module = "benchmarks.spark.core_counts"
                subprocess.run([sys.executable, "-m", module, *words], check=True)
            logs[cores] = _logged(folder)
        for with_driver in (False, True):
            errors = np.abs(_errors(logs, overlapping, with_driver))
            label = "with driver time" if with_driver else "without"
            rows.append([way, label, f"{errors.mean():.3f}", f"{errors.max():.3f}"])
    if given.json:
        print(json.dumps(rows))
    else:
        headings = ("queries", "replay", "mean error", "largest")
        print_rows("Foretold on other numbers of cores", headings, rows)
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="core_counts", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps the logs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--overlapping", action="store_true", help=argparse.SUPPRESS)
    run_script(parser, main)
