"""What the Spark plugin costs: throughput and CPU time of short tasks with it and without it.

    python benchmarks/spark_plugin_overhead.py --tasks 200000 --task-ms 10 --cores 4 --pairs 5

Tasks sleep. Queries of a few hundred tasks come from several threads, so that there is always
something to order. Both arms run one after the other in one JVM, in random order within a pair.
The policy file knows every second query; the plugin learns the others. Throughput asks for a
machine that does nothing else (the load average is printed); the CPU time of a task, which is all
Spark's and the plugin's since tasks sleep, is fair on a busy one too. Linux only.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import Workload

#: Threads that submit queries, and tasks of a query.
THREADS = 4
TASKS_PER_QUERY = 250
ARMS = ("stock", "plugin")


@dataclass(frozen=True)
class Result:
    """One run.

    Args:
        tasks_per_s: throughput.
        outside: share of the cores' time that was not spent in the tasks' sleep: an upper bound
            of the share in which cores were idle while tasks waited.
        cpu_ms: CPU time of the JVM per task, in ms.
    """

    tasks_per_s: float
    outside: float
    cpu_ms: float


def settings(arm: str, cores: int, folder: Path) -> dict[str, str]:
    """Of a Spark context."""
    conf = {
        "spark.master": f"local[{cores}]",
        "spark.app.name": arm,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    if arm == "plugin":
        conf["spark.plugins"] = "parcae.spark.ParcaePlugin"
        conf["spark.parcae.policy"] = str(folder / "policy.json")
    return conf


def query(session: Any, name: str, tasks: int, task_ms: int) -> None:
    """Run one query."""
    session.sparkContext.setLocalProperty("spark.parcae.jobKey", name)
    sleep = f"java_method('java.lang.Thread', 'sleep', {task_ms}L)"
    rows = f"(select {sleep} as x from range(0, {tasks}, 1, {tasks}))"
    (row,) = session.sql(f"select count(x) from {rows}").collect()
    if row[0] != tasks:
        raise RuntimeError(f"{name} counted {row[0]} rows, not {tasks}")


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system


def run(arm: str, tasks: int, task_ms: int, cores: int, folder: Path) -> Result:
    """A context, a warm-up, then so many tasks."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=False).setAll(list(settings(arm, cores, folder).items()))
    context = SparkContext(conf=conf)
    session = SparkSession(context)
    try:
        query(session, "warm-up", 10 * cores, task_ms)
        queries = iter(range(math.ceil(tasks / TASKS_PER_QUERY)))
        errors: list[BaseException] = []

        def submit() -> None:
            try:
                for number in queries:
                    query(session, f"query-{number % 20}", TASKS_PER_QUERY, task_ms)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=submit) for _ in range(THREADS)]
        gateway = SparkContext._gateway
        assert gateway is not None
        start = time.monotonic()
        start_cpu_s = cpu_s(gateway.proc.pid)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took_s = time.monotonic() - start
        took_cpu_s = cpu_s(gateway.proc.pid) - start_cpu_s
        if errors:
            raise errors[0]
    finally:
        context.stop()
    done = TASKS_PER_QUERY * math.ceil(tasks / TASKS_PER_QUERY)
    outside = 1 - done * task_ms / 1_000 / (cores * took_s)
    return Result(done / took_s, outside, took_cpu_s * 1_000 / done)


def interval(ratios: list[float]) -> str:
    """Geometric mean of paired ratios with its 95% interval, e.g. "0.998 [0.991, 1.005]"."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f} [one pair: no interval]"
    half = student.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(mean):.3f} [{math.exp(mean - half):.3f}, {math.exp(mean + half):.3f}]"


def start_jvm(folder: Path) -> None:
    """A JVM with the plugin's jar, which both arms have, and the policy file."""
    from pyspark import SparkConf, SparkContext

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging = folder / "log4j2.properties"
    logging.write_text("rootLogger.level = error\n")
    conf = SparkConf(loadDefaults=False).set("spark.driver.memory", "2g")
    conf.set("spark.driver.extraClassPath", str(find_jar(find_spark())))
    conf.set("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={logging}")
    SparkContext._ensure_initialized(conf=conf)


def main() -> None:
    """Print every pair, then the ratio."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    for name, default in (
        ("tasks", 200_000),
        ("task-ms", 10),
        ("cores", 4),
        ("pairs", 5),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    results: dict[str, list[Result]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        known = [chain(1, TASKS_PER_QUERY, chosen.task_ms, f"query-{n}") for n in range(0, 20, 2)]
        write_policy(export_policy("srpt", Workload("known", tuple(known))), folder / "policy.json")
        start_jvm(folder)
        for arm in ARMS:
            run(arm, min(chosen.tasks, 5_000), chosen.task_ms, chosen.cores, folder)
        for pair in range(chosen.pairs):
            for arm in draw.sample(ARMS, 2):
                result = run(arm, chosen.tasks, chosen.task_ms, chosen.cores, folder)
                results[arm].append(result)
                rate = f"{result.tasks_per_s:.1f} tasks/s, outside tasks {result.outside:.2%}"
                cpu = f"{result.cpu_ms:.3f} ms of CPU a task"
                print(f"pair {pair + 1} {arm}: {rate}, {cpu}", flush=True)
    pairs = list(zip(results["plugin"], results["stock"], strict=True))
    rates = [plugin.tasks_per_s / stock.tasks_per_s for plugin, stock in pairs]
    cpus = [plugin.cpu_ms / stock.cpu_ms for plugin, stock in pairs]
    print(f"throughput with the plugin / without: {interval(rates)}")
    print(f"CPU time of a task with the plugin / without: {interval(cpus)}")
    shares = [statistics.mean(each.outside for each in results[arm]) for arm in ARMS]
    print(f"core time outside the tasks' sleep: stock {shares[0]:.2%}, plugin {shares[1]:.2%}")
    print(f"load average of the last 1, 5 and 15 minutes: {os.getloadavg()}")


if __name__ == "__main__":
    main()
