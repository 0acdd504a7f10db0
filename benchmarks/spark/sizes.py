"""Measures what foretells the work of SQL queries on a local Spark, from event logs alone.

    python -m benchmarks.spark.sizes --scale-factors 0.2,1 --work sizes-work

Thirty templates (`benchmarks.spark.templates`) run one after the other at every scale factor, round
by round, with literals of their own. Logs that are in the work folder are not recorded again. The
first round warms the JVM up and is left out. Every estimate of an unseen query leaves out all runs
of its template.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.spark.one_at_a_time import task_parts
from benchmarks.spark.queries import QUERY_PROPERTY, Application, TpchSpark
from benchmarks.spark.tables import check_tools, make_tables, query_texts
from benchmarks.spark.templates import NUM_TEMPLATES, drawn_text
from benchmarks.spark.work import Work, number, numbers, run_script, tell
from scipy.stats import spearmanr

from parcae.cli.tables import print_rows
from parcae.spark.home import find_spark
from parcae.workloads.guess import OVERHEAD_BYTES, guess_task_ms
from parcae.workloads.job import JobSpec
from parcae.workloads.spark_log.event_log import read_runs
from parcae.workloads.spark_log.profile import job_of_run
from parcae.workloads.workload import RandomStreams, Workload

#: Rows of a round in the numbers of queries.
_ROUND = 100


def record(args: argparse.Namespace, work: Work, scale_factor: float) -> dict[str, Any]:
    """Run every template in every round, and keep the event log."""
    check_tools()
    data = make_tables(work, scale_factor)
    queries = query_texts(work)
    tell(f"recording at scale factor {scale_factor:g}")
    random = RandomStreams(int(scale_factor * 1000)).actions
    rounds, texts = [], dict[int, str]()
    for row in range(args.rounds + 1):
        order = [row * _ROUND + int(n) for n in random.permutation(NUM_TEMPLATES) + 1]
        for one in order:
            texts[one] = drawn_text(one % _ROUND, queries, work.folder / "etl", random)
        rounds.append(order)
    load = os.getloadavg()[0]
    spark = TpchSpark(find_spark(None), None, work.folder, data, texts, args.cores, args.memory, {})
    with closing(spark) as jvm:
        log = work.folder / f"event-log-sf{scale_factor:g}"
        jvm.run_alone(Application("FAIR", log), rounds)
    return {"load": [load, os.getloadavg()[0]]}


class Measured(NamedTuple):
    """A run of a template: what was known of it, and the time that its tasks then took in ms."""

    scale_factor: float
    template: int
    num_bytes: float
    num_first_tasks: int
    job: JobSpec
    time_ms: float
    cpu_ms: float


def measured(folder: Path, scale_factor: float) -> list[Measured]:
    """The runs in a log, without the first round."""
    times = task_parts(folder)
    rows = []
    for run in read_runs([folder], key=QUERY_PROPERTY).runs:
        number_ = int(run.name.removeprefix("q"))
        if number_ >= _ROUND:
            first = [stage.num_tasks for stage in run.stages if stage.spark_job == 0]
            job = replace(job_of_run(run, None), name=f"template {number_ % _ROUND}")
            parts = times[run.name]
            rows.append(
                Measured(
                    scale_factor, number_ % _ROUND, run.scan_bytes, sum(first), job,
                    max(1.0, parts["time"]), max(1.0, parts["cpu"]),
                )
            )  # fmt: skip
    return rows


def estimates(rows: Sequence[Measured], others: Sequence[Measured]) -> Mapping[str, Any]:
    """Estimates of runs by name; those of a known shape come from its runs at another scale."""
    workload = Workload("all", tuple(row.job for row in rows))
    tasks = np.array([row.job.num_tasks for row in rows])
    ratios = []
    for row in rows:
        same = [one for one in others if one.template == row.template]
        all_bytes = row.num_bytes + OVERHEAD_BYTES
        scaled = [one.cpu_ms * all_bytes / (one.num_bytes + OVERHEAD_BYTES) for one in same]
        ratios.append(np.median(scaled) if scaled else np.nan)
    return {
        "first tasks": np.array([row.num_first_tasks for row in rows]),
        "bytes x columns": np.array([max(1.0, row.num_bytes) for row in rows]),
        "regression": guess_task_ms(workload) * tasks,
        "known shape": np.array(ratios),
    }


def print_figures(rows: Sequence[Measured]) -> None:
    """The rank correlation of every estimate with the tasks' time by the clock and of a processor,
    and the spread of its error against the latter.
    """
    scales = sorted({row.scale_factor for row in rows})
    table = []
    found = [(row, estimate) for scale in scales for row, estimate in _with_others(rows, scale)]
    for name in found[0][1]:
        for part in (*((scale,) for scale in scales), tuple(scales)):
            chosen = [(row, one[name]) for row, one in found if row.scale_factor in part]
            known = [(row, value) for row, value in chosen if value > 0]
            if len(known) < 2:
                continue
            value = np.array([value for _, value in known])
            truths = [
                np.array([getattr(row, field) for row, _ in known])
                for field in ("cpu_ms", "time_ms")
            ]
            ranks = (f"{spearmanr(value, truth)[0]:.2f}" for truth in truths)
            spread = f"{np.std(np.log(value / truths[0])):.2f}"
            where = f"SF {part[0]:g}" if len(part) == 1 else "all"
            table.append((name, where, *ranks, spread))
    heads = ("estimate", "scale", "rank, CPU", "rank, time", "spread, CPU")
    print_rows(f"Rank correlation over {len(rows)} runs", heads, table)


def _with_others(
    rows: Sequence[Measured], scale: float
) -> Iterator[tuple[Measured, Mapping[str, float]]]:
    """The runs of a scale with their estimates; the regression is over the runs of all scales."""
    own = [place for place, row in enumerate(rows) if row.scale_factor == scale]
    others = [row for row in rows if row.scale_factor != scale]
    found = estimates(rows, others)
    for place in own:
        yield rows[place], {name: float(values[place]) for name, values in found.items()}


def main(args: argparse.Namespace) -> None:
    """Record what is missing, and print the figures."""
    names = ("cores", "memory", "rounds")
    work = Work(args.work, {name: getattr(args, name) for name in names})
    rows, loads = [], []
    for scale in args.scale_factors:
        loads += work.kept(f"sf{scale:g}", partial(record, args, work, scale))["load"]
        rows += measured(args.work / f"event-log-sf{scale:g}", scale)
    print_figures(rows)
    print(f"load average {min(loads):.1f} to {max(loads):.1f}")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    scales = partial(numbers, read=number(0.001, 1000, float))
    add = made.add_argument
    add("--work", type=Path, default=Path("sizes-work"), help="a stopped run goes on there")
    add("--scale-factors", type=scales, default=(0.2, 1.0), help="1: 1 GB of text")
    add("--rounds", type=number(1), default=3, help="after a first one that does not count")
    add("--cores", type=number(1), default=2, help="of the local Spark")
    add("--memory", default="4g", help="of the JVM, which also runs the tasks")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
