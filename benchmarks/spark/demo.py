"""Runs mixes of jobs on a local Spark under Spark's and Parcae's policies, and compares them.

    python -m benchmarks.spark.demo --seeds 3 --json

A policy of Parcae plans in the plugin, by a policy file for the mixes' profile; `service:NAME`
plans in a service.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark.replaying import (
    STOCK,
    RealSpark,
    ReplayedMix,
    drawn_sleeps,
    mix_json,
    warm_workload,
)
from benchmarks.spark.work import Work, names, number, run_script

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.gantt import gantt
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    ratio_estimate,
    with_interval,
)
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.archive import load_workload
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.workload import RandomStreams, draw_sequence

BASELINE = "fair"
Runs = Mapping[str, Sequence[ReplayedMix]]


def mix_parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """The options of mixes of jobs that a real Spark runs."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    add = parser.add_argument
    add("--policies", type=names, help="fifo and fair are Spark's own; others are Parcae's")
    add("--workload", default="tpch", help="profile whose jobs are replayed by tasks that sleep")
    add("--jobs", type=number(1), help="jobs of a mix")
    add("--arrivals", help="batch | poisson:2s (mean gap) | load:0.85")
    add("--seeds", type=number(1), help="mixes; every policy gets the same")
    add("--seed-start", type=number(0), default=1000, help="the first mix's seed")
    add("--time-scale", type=number(0.01, 1e6, float), help="task durations times this")
    add("--spark-home", type=Path, help="else SPARK_HOME, else this Python's PySpark")
    add("--work", type=Path, help="event logs, results, pictures; a stopped script continues there")
    add("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(**defaults)
    return parser


def run_demo(args: argparse.Namespace, spark: SparkHome, jar: Path) -> dict[str, Any]:
    """Run every policy on every mix, with one Spark application per policy."""
    if BASELINE not in args.policies:
        given = ", ".join(args.policies)
        raise ConfigError(f"--policies needs {BASELINE} to compare with, not only {given}")
    workload = warm_workload(load_workload(args.workload), args.time_scale)
    mixes = []
    for seed in range(args.seed_start, args.seed_start + args.seeds):
        streams = RandomStreams(seed)
        sequence = draw_sequence(workload, args.arrivals, args.jobs, args.cores, streams)
        mixes.append(mix_json(sequence, drawn_sleeps(sequence, seed)))
    real = RealSpark(spark, jar, Work(args.work))
    real.check(args.policies, workload)
    runs = {name: real.replay(name, name, workload, mixes, args.cores) for name in args.policies}
    charts = []
    for name in args.policies:
        logs = real.request(name, name, mixes, args.cores).event_logs
        # A run that was stopped leaves an event log, too; the newest one counts.
        newest = max(logs.iterdir(), key=lambda path: path.stat().st_mtime)
        charts.append((name, read_spark_run([newest], key="parcae.mix.0")))
    title = f"{args.jobs} jobs on {args.cores} cores of a real Spark"
    gantt(charts, args.work / "gantt.png", title=title)
    return {
        "policies": {name: compared(runs, name) for name in runs},
        "settings": {name: str(value) for name, value in vars(args).items()},
        "spark": spark.version,
        "method": METHODS[DEFAULT_METHOD],
    }


def compared(runs: Runs, name: str) -> dict[str, Any]:
    """The average JCT and the makespan of a policy, and their ratios paired by seed."""
    average_s = {
        one: [mix.jct_ms.mean() / MS_PER_S for mix in mixes] for one, mixes in runs.items()
    }
    makespan_s = {
        one: [float(np.ptp([mix.submitted_ms, mix.finished_ms])) / MS_PER_S for mix in mixes]
        for one, mixes in runs.items()
    }
    return {
        "average_jct_s": mean_estimate(average_s[name]).within(0.0).to_json(),
        **{
            f"ratio_to_{stock}": ratio_estimate(average_s[name], average_s[stock]).to_json()
            for stock in STOCK
            if stock in runs
        },
        "makespan_s": mean_estimate(makespan_s[name]).within(0.0).to_json(),
        "makespan_ratio_to_fair": ratio_estimate(makespan_s[name], makespan_s[BASELINE]).to_json(),
        "average_jct_s_by_seed": average_s[name],
        "makespan_s_by_seed": makespan_s[name],
    }


def interval(estimate: Mapping[str, Any] | None) -> str:
    """An estimate of a result with its confidence interval; nothing if there is none."""
    if estimate is None:
        return ""
    numbers = (estimate["mean"], *estimate["ci95"])
    return with_interval(Estimate(*(math.nan if n is None else n for n in numbers)))


def main(args: argparse.Namespace) -> None:
    """Run the policies and print the result."""
    spark = find_spark(args.spark_home)
    result = run_demo(args, spark, find_jar(spark))
    if args.json:
        print(json.dumps(result, indent=2))
        return
    ratios = [f"ratio_to_{stock}" for stock in STOCK] + ["makespan_ratio_to_fair"]
    rows = [
        (name, f"{one['average_jct_s']['mean']:.2f}", *(interval(one.get(key)) for key in ratios))
        for name, one in result["policies"].items()
    ]
    title = f"Spark {spark.version}: {args.jobs} jobs, {args.arrivals}, {args.cores} cores"
    print_rows(title, ("policy", "average JCT s", *ratios), rows)
    print(f"Gantt charts of the first mix: {args.work / 'gantt.png'}")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = mix_parser(
        __doc__,
        policies=("fair", "fifo", "srpt", "tuned"),
        jobs=16,
        arrivals="poisson:750ms",
        seeds=5,
        time_scale=3.0,
        work=Path("parcae-spark-demo"),
    )
    made.add_argument("--cores", type=number(1), default=24, help="cores that Spark declares")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
