"""Measures the 22 TPC-H queries on a local Spark and makes a workload profile of the event logs.

    python -m benchmarks.spark.measure --scale-factors 1,2,5 --work tpch-work -o mine.parcae

At every scale factor the queries run in a warm JVM, round by round; at the smallest one each also
runs once on new executors, for the durations of their first tasks. Rounds that are in the work
folder are not run again. The durations are those of a few cores; a model of higher parallelism is
chosen when the workload is used (`parcae.workloads.demands`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark.queries import QUERY_PROPERTY, Application, TpchSpark
from benchmarks.spark.tables import (
    NUM_QUERIES,
    check_tools,
    describe_machine,
    make_tables,
    query_texts,
)
from benchmarks.spark.work import Work, number, numbers, run_script, tell

from parcae.base.arrays import Int64Array
from parcae.spark.home import find_spark
from parcae.workloads.archive import write_workload
from parcae.workloads.job import JobSpec, StageSpec, bare_name
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.workload import Workload

#: No adaptive execution, so that every run of a query has the same plan and all its stages stay
#: separate, and many small tasks.
SPARK_CONF: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "64",
}
#: Memory of an executor in a process of its own, in MiB.
_MEMORY_MIB = 1500


class Measurement:
    """The rounds of one command. A JVM starts when a scale factor lacks a round."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.work = Work(args.work, {"cores": args.cores})

    @cached_property
    def _home(self) -> Any:
        check_tools()
        return find_spark(None)

    def run(self) -> Workload:
        """Run what the work folder lacks, and make the profile of all that is there."""
        self.work.kept("machine", describe_machine)
        for factor in sorted(self.args.scale_factors):
            self._run_factor(factor)
        return self.profile()

    def _run_factor(self, factor: float) -> None:
        """Run the rounds at a scale factor that are not there yet, in one JVM."""
        args = self.args
        left = [
            name for name in self.rounds(factor) if not self.work.file(f"finished/{name}").exists()
        ]
        if not left:
            return
        home = self._home
        data = make_tables(self.work, factor)
        jvm = TpchSpark(
            home, None, args.work, data, query_texts(self.work), args.cores, "4g", SPARK_CONF
        )
        try:
            tell(f"sf{factor:g}: warming the JVM up")
            jvm.run_alone(Application("FIFO", None), [args.queries])
            for name in left:
                tell(name)
                self.work.kept(f"finished/{name}", partial(self._round, jvm, factor, name))
        finally:
            jvm.close()

    def rounds(self, factor: float) -> dict[str, tuple[int, ...]]:
        """The rounds at a scale factor and their queries; a round on new executors has one."""
        rounds = {
            f"sf{factor:g}-round-{row + 1}": self.args.queries
            for row in range(self.args.repetitions)
        }
        if factor == min(self.args.scale_factors):
            for query in self.args.queries:
                rounds[f"cold-sf{factor:g}-q{query}"] = (query,)
        return rounds

    def _round(self, jvm: TpchSpark, factor: float, name: str) -> dict[str, Any]:
        """Run a round. On new executors, only the driver is warm."""
        is_cold = name.startswith("cold-")
        master = f"local-cluster[{self.args.cores},1,{_MEMORY_MIB}]" if is_cold else None
        conf = {"spark.executor.memory": f"{_MEMORY_MIB}m"} if is_cold else {}
        application = Application(
            "FIFO", self._logs(name), master=master, conf=conf, suffix=f"-sf{factor:g}"
        )
        endings = jvm.run_alone(application, [self.rounds(factor)[name]])
        return {
            "seconds": {ending.query: ending.seconds for ending in endings},
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 1),
        }

    def _logs(self, name: str) -> Path:
        return Path(self.args.work) / "event-logs" / name

    def profile(self) -> Workload:
        """The jobs "q1-sf1" and so on, with fresh durations of those that ran on new executors."""
        names = [name for factor in self.args.scale_factors for name in self.rounds(factor)]
        warm = self._jobs([name for name in names if not name.startswith("cold-")])
        cold = self._jobs([name for name in names if name.startswith("cold-")])
        jobs = [with_fresh_durations(warm[n], cold[n]) if n in cold else warm[n] for n in warm]
        return Workload("tpch", tuple(jobs), provenance=self._provenance(names))

    def _jobs(self, rounds: list[str]) -> dict[str, JobSpec]:
        """The jobs of the event logs of some rounds, by name; of a name, the most frequent DAG."""
        if not rounds:
            return {}
        logs = [self._logs(name) for name in rounds]
        # The JVM was warm before the first round, so no run has to be left out.
        workload, _ = read_spark_event_logs(
            logs, name="tpch", key=QUERY_PROPERTY, keep_first_runs=True
        )
        counted = zip(workload.jobs, workload.weights or (), strict=True)
        found = {}
        for job, _ in sorted(counted, key=lambda pair: pair[1]):
            found[bare_name(job.name)] = replace(job, name=bare_name(job.name))
        order = [
            f"q{q}-sf{f:g}" for f in sorted(self.args.scale_factors) for q in self.args.queries
        ]
        return {name: found[name] for name in order if name in found}

    def _provenance(self, names: list[str]) -> dict[str, str]:
        machine = self.work.kept("machine", describe_machine)
        notes = [self.work.kept(f"finished/{name}", dict) for name in names]
        days = sorted({note["at"][:10] for note in notes})
        factors = ", ".join(f"{factor:g}" for factor in sorted(self.args.scale_factors))
        queries = len(self.args.queries)
        return {
            "source": "TPC-H queries run on a local Spark, from its event logs "
            "(benchmarks/spark/measure.py)",
            "measured": f"scale factors {factors}: {self.args.repetitions} runs of {queries} "
            "queries after a warm-up",
            "fresh executors": "at the smallest scale factor, every query once on new executors "
            "that had only read the schemas",
            "durations": f"of {self.args.cores} cores; first and later waves in a warm JVM; "
            "a task's known mean leaves out fresh ones",
            "dates": " to ".join(dict.fromkeys((days[0], days[-1]))),
            "machine": f"{machine['cpu']}, {machine['cpus']} CPUs",
            "load average": f"median {statistics.median(note['load'] for note in notes):.1f}",
            "versions": f"Spark {machine['pyspark']}, Java {machine['java']}, "
            f"tpchgen-cli {machine['tpchgen-cli']}, query texts of duckdb {machine['duckdb']}",
            "spark configuration": ", ".join(f"{key}={value}" for key, value in SPARK_CONF.items()),
        }


def with_fresh_durations(warm: JobSpec, cold: JobSpec) -> JobSpec:
    """The warm job with the fresh samples of the corresponding stages of the cold job.

    Two stages correspond if they agree in name, task count, ancestors and descendants. Only fresh
    samples are copied: later tasks of a cold run are slow for temporary reasons (code that is not
    yet compiled). Fresh samples of the warm job are kept. The mean task duration that a scheduler
    knows remains that of the warm job.

    Example: a stage has the first-wave samples [100] in the warm job; in the cold job it has the
    fresh samples [3000] and the first-wave samples [500]. The result has fresh [3000] and first
    [100].
    """
    fresh_of = dict(zip(_signatures(cold), cold.stages, strict=True))
    stages = [
        _with_fresh(stage, fresh_of[key]) if key in fresh_of else stage
        for key, stage in zip(_signatures(warm), warm.stages, strict=True)
    ]
    return replace(warm, stages=tuple(stages))


def _with_fresh(stage: StageSpec, cold: StageSpec) -> StageSpec:
    """The stage with the fresh samples of a cold one, each at the nearest level of the stage."""
    warm = stage.durations
    fresh: list[list[Int64Array]] = [[samples] for samples in warm.fresh]
    for level, samples in zip(cold.durations.levels, cold.durations.fresh, strict=True):
        nearest = min(range(len(warm.levels)), key=lambda row: abs(warm.levels[row] - level))
        fresh[nearest].append(samples)
    durations = replace(warm, fresh=tuple(np.concatenate(samples) for samples in fresh))
    return replace(stage, durations=durations, mean_task_ms=stage.mean_task_ms)


def _signatures(job: JobSpec) -> list[str]:
    """A text per stage, equal for stages with equal name, task count, ancestors and descendants."""
    labels = [f"{stage.name}\n{stage.num_tasks}" for stage in job.stages]
    # First from the roots: a stage with its ancestors; then from the leaves, with the descendants.
    above, below = labels.copy(), labels.copy()
    for row in job.topological_order:
        above[row] = _digest([labels[row], *sorted(above[one] for one in job.stages[row].parents)])
    for row in reversed(job.topological_order):
        below[row] = _digest([above[row], *sorted(below[child] for child in job.children[row])])
    return below


def _digest(parts: list[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def main(args: argparse.Namespace) -> None:
    """Measure, and write the profile."""
    workload = Measurement(args).run()
    write_workload(workload, args.output)
    print(f"{args.output}: {len(workload.jobs)} jobs")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    factors = partial(numbers, read=number(0.001, 1000, float))
    queries = partial(numbers, read=number(1, NUM_QUERIES))
    all_queries = tuple(range(1, NUM_QUERIES + 1))
    add = made.add_argument
    add("--scale-factors", type=factors, default=(1.0, 2.0, 5.0), help="1 is 1 GB of text")
    add("--queries", type=queries, default=all_queries, help="which of the 22, such as 1,6")
    add("--repetitions", type=number(1), default=3, help="runs of every query after a warm-up")
    add("--cores", type=number(1), default=2, help="of the local Spark")
    add("--work", type=Path, default=Path("tpch-work"), help="data, event logs, finished rounds")
    add("-o", "--output", type=Path, required=True, help="the workload file to write")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
