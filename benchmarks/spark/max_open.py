"""Measures whether holding queries back pays where memory is short.

    python -m benchmarks.spark.max_open --limits 2,4,8 --blocks 3 --work open-work

So many TPC-H queries arrive at once at a Spark with little memory, under FAIR, under FAIR with a
fixed number at once (others wait outside Spark, first come first served), and under the plugin's
order of one user, without and with `maxOpen`. A block has every condition once, in random order,
each in a JVM of its own, since memory may run out. Rounds that are in the work folder are not run
again.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from benchmarks.spark.queries import Application, Arrival, TpchSpark
from benchmarks.spark.replaying import SparkFailedError
from benchmarks.spark.tables import NUM_QUERIES, check_tools, make_tables, query_texts
from benchmarks.spark.work import Work, number, numbers, run_script, tell

from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.statistics import ratio_estimate
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.spark_log.files import find_logs, read_lines
from parcae.workloads.workload import RandomStreams

_FAILED = re.compile(r"(\d+) of \d+ queries failed")
_GIB = 2**30


def conditions(limits: tuple[int, ...]) -> list[tuple[str, int | None]]:
    """Who orders, and how many queries may be open at once."""
    return [(who, limit) for who in ("fair", "account") for limit in (None, *limits)]


def named(condition: tuple[str, int | None]) -> str:
    """The name of a condition, such as "fair-4"."""
    who, limit = condition
    return who if limit is None else f"{who}-{limit}"


def spent(folder: Path) -> dict[str, float]:
    """What the tasks of an event log spilled to disk, and their time and that of garbage."""
    found = {"spilled_gib": 0.0, "task_s": 0.0, "gc_s": 0.0}
    parts = (part for source in find_logs([folder]).sources for part in source.parts)
    for line in (line for part in parts for line, _ in read_lines(part)):
        if b'"SparkListenerTaskEnd"' in line[:60]:
            metrics = orjson.loads(line).get("Task Metrics") or {}
            found["spilled_gib"] += metrics.get("Disk Bytes Spilled", 0) / _GIB
            found["task_s"] += metrics.get("Executor Run Time", 0) / MS_PER_S
            found["gc_s"] += metrics.get("JVM GC Time", 0) / MS_PER_S
    return found


def run_round(
    args: argparse.Namespace, work: Work, block: int, who: str, at_once: int | None
) -> dict[str, Any]:
    """One condition of a block, in a JVM of its own."""
    tell(f"block {block}, {named((who, at_once))}")
    spark = find_spark(None)
    random = RandomStreams(block).actions
    drawn = random.permutation(NUM_QUERIES)[: args.at_once] + 1
    arrivals = [Arrival(int(query), 0.0) for query in drawn]
    log = args.work / "event-log"
    plugin = None
    if who == "account":
        control = args.work.resolve() / "control.json"
        write_text(control, "{}" if at_once is None else f'{{"maxOpen": {at_once}}}')
        plugin = {"spark.parcae.control": str(control), "spark.parcae.user": "one"}
    jvm = TpchSpark(
        spark,
        find_jar(spark),
        args.work,
        make_tables(work, args.scale_factor),
        query_texts(work),
        args.cores,
        args.memory,
        {},
    )
    load = os.getloadavg()[0]
    with closing(jvm):
        application = Application("FAIR", log, plugin=plugin)
        try:
            ran = jvm.run(application, arrivals, at_once if who == "fair" else None)
        except SparkFailedError as error:
            found = _FAILED.search(str(error))
            failed = int(found[1]) if found else len(arrivals)
            return {"failed": failed, "why": str(error), "load": load}
    seconds = {str(one["query"]): one["seconds"] for one in ran["endings"]}
    return {"failed": 0, "seconds": seconds, "load": load, **spent(log)}


def main(args: argparse.Namespace) -> None:
    """Measure, and print a row for every condition."""
    check_tools()
    names = ("scale_factor", "at_once", "cores", "memory")
    work = Work(args.work, {name: getattr(args, name) for name in names})
    wanted = conditions(args.limits)
    blocks = list[Mapping[str, Any]]()
    for block in range(args.blocks):
        order = RandomStreams(block).actions.permutation(len(wanted)).tolist()
        rounds = {
            named(wanted[place]): work.kept(
                f"block-{block}-{named(wanted[place])}",
                partial(run_round, args, work, block, *wanted[place]),
            )
            for place in order
        }
        blocks.append(rounds)
    loads = [one["load"] for block in blocks for one in block.values()]
    print_rows(
        f"{args.at_once} queries at once, {args.cores} cores, {args.memory}",
        ("condition", "failed", "mean to FAIR", "mean s", "spilled GiB", "task s", "GC s"),
        [row(condition, blocks) for condition in map(named, wanted)],
        f"load average {min(loads):.1f} to {max(loads):.1f}",
    )


def row(name: str, blocks: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """A condition's figures; ratios are of the blocks in which nothing failed, nor under FAIR."""
    failed = sum(block[name]["failed"] for block in blocks)
    whole = [block for block in blocks if not block[name]["failed"] + block["fair"]["failed"]]
    if not whole:
        return (name, str(failed), *5 * ("-",))
    means = [
        [sum(block[each]["seconds"].values()) / len(block[each]["seconds"]) for block in whole]
        for each in (name, "fair")
    ]
    ratio = f"{means[0][0] / means[1][0]:.3f}"
    if len(whole) > 1:
        found = ratio_estimate(means[0], means[1])
        ratio = f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
    amounts = [
        sum(block[name][what] for block in whole) / len(whole)
        for what in ("spilled_gib", "task_s", "gc_s")
    ]
    mean_s = sum(means[0]) / len(whole)
    return (name, str(failed), ratio, f"{mean_s:.1f}", *(f"{amount:.2f}" for amount in amounts))


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--scale-factor", type=number(0.001, 1000, float), default=1.0, help="1: 1 GB of text")
    add("--at-once", type=number(2, NUM_QUERIES), default=16, help="queries that arrive at once")
    add("--limits", type=partial(numbers, read=number(1)), default=(2, 4, 8), help="such as 2,4")
    add("--cores", type=number(1), default=4, help="of the local master")
    add("--memory", default="1g", help="of the JVM, which also runs the tasks")
    add("--blocks", type=number(1), default=3, help="of every condition once")
    add("--work", type=Path, default=Path("open-work"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
