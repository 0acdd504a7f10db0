"""Measures what makes tasks of TPC-H queries dearer when Spark serves one query at a time.

    python -m benchmarks.spark.one_at_a_time --queries 1,5,9,13,17,21 --work one-work

The queries run in one JVM on two cores: each alone on both (as under an order); in two streams,
so that each has a core beside another query (as under FAIR); each beside itself; and alone on one
core. A block has every condition, in random order. Rounds that are in the work folder are not run
again.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from benchmarks.spark.queries import QUERY_PROPERTY, Application, TpchSpark
from benchmarks.spark.tables import NUM_QUERIES, check_tools, make_tables, query_texts
from benchmarks.spark.work import Work, number, numbers, run_script, tell

from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.statistics import ratio_estimate
from parcae.spark.home import find_spark
from parcae.workloads.spark_log.files import find_logs, read_lines
from parcae.workloads.workload import RandomStreams

#: The conditions, in words.
CONDITIONS = {
    "alone": "one query at a time, on two cores",
    "beside": "a core beside another query",
    "itself": "a core beside the same query",
    "one-core": "alone, on one core",
}
#: Time of tasks in ms: by the clock, of a processor, of collections of garbage.
PARTS = ("time", "cpu", "gc")
_EVENTS = (b'"SparkListenerTaskEnd"', b'"SparkListenerJobStart"')
_NS_PER_MS = 1e6


class Measurement:
    """The rounds of one command; the JVM starts when a round is missing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        names = ("scale_factor", "queries", "memory")
        self.work = Work(args.work, {name: getattr(args, name) for name in names})

    @cached_property
    def _jvm(self) -> TpchSpark:
        check_tools()
        data = make_tables(self.work, self.args.scale_factor)
        texts = query_texts(self.work)
        jvm = TpchSpark(
            find_spark(None), None, self.args.work, data, texts, 2, self.args.memory, {}
        )
        tell("warming the JVM up")
        jvm.run_alone(Application("FAIR", None), [self.args.queries] * 3)
        return jvm

    def run(self) -> list[dict[str, dict[str, Any]]]:
        """The rounds of all blocks, by condition."""
        blocks = []
        for block in range(self.args.blocks):
            random = RandomStreams(block).actions
            queries = random.permutation(self.args.queries).tolist()
            order = random.permutation(list(CONDITIONS)).tolist()
            rounds = {
                name: self.work.kept(f"block-{block}-{name}", partial(self._round, name, queries))
                for name in order
            }
            blocks.append(rounds)
        return blocks

    def close(self) -> None:
        """End the JVM, if there is one."""
        if "_jvm" in self.__dict__:
            self._jvm.close()

    def _round(self, condition: str, queries: list[int]) -> dict[str, Any]:
        """The parts of the mean time that each query's tasks took together, by query."""
        tell(condition)
        groups = [(query, query) if condition == "itself" else (query,) for query in queries]
        streams = [groups]
        if condition == "beside":
            half = len(queries) // 2
            streams.append(groups[half:] + groups[:half])
        master = "local[1]" if condition == "one-core" else None
        log = self.args.work / "event-log"
        load = os.getloadavg()[0]
        self._jvm.run_streams(Application("FAIR", log, master=master), streams)
        runs = 2 if condition in ("beside", "itself") else 1
        queued_ms = self._jvm.queued_s * MS_PER_S / runs
        found = {
            query: {part: value / runs for part, value in parts.items()}
            for query, parts in task_parts(log).items()
        }
        return {"queries": found, "queued_ms": queued_ms, "load": [load, os.getloadavg()[0]]}


def task_parts(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """The parts of the time of all tasks of every query of an event log, by query."""
    query_of_stage = dict[int, str]()
    found: defaultdict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(PARTS, 0.0))
    parts = (part for source in find_logs([folder]).sources for part in source.parts)
    for line in (line for part in parts for line, _ in read_lines(part)):
        if not any(event in line[:60] for event in _EVENTS):
            continue
        event = orjson.loads(line)
        if stages := event.get("Stage Infos"):
            if query := event["Properties"].get(QUERY_PROPERTY):
                query_of_stage |= {stage["Stage ID"]: query for stage in stages}
        elif event.get("Stage ID") in query_of_stage:
            for name, value in _parts(event["Task Metrics"]).items():
                found[query_of_stage[event["Stage ID"]]][name] += value
    return found


def _parts(metrics: Mapping[str, Any]) -> dict[str, float]:
    cpu_ns = metrics["Executor CPU Time"] + metrics["Executor Deserialize CPU Time"]
    time_ms = metrics["Executor Run Time"] + metrics["Executor Deserialize Time"]
    return {"time": time_ms, "cpu": cpu_ns / _NS_PER_MS, "gc": metrics["JVM GC Time"]}


def main(args: argparse.Namespace) -> None:
    """Measure, and print a row for every condition."""
    with closing(Measurement(args)) as measurement:
        blocks = measurement.run()
    names = sorted(blocks[0]["beside"]["queries"])

    def sums(condition: str, part: str) -> list[float]:
        """A value for every block and query, so that a query is paired with itself."""
        return [block[condition]["queries"][n][part] for block in blocks for n in names]

    whole = np.sum(sums("beside", "time"))
    rows = []
    for condition, meaning in CONDITIONS.items():
        ratio = [ratio_estimate(sums(condition, p), sums("beside", p)) for p in ("time", "cpu")]
        time, *parts = (np.sum(sums(condition, part)) / whole for part in PARTS)
        parts.append(sum(block[condition]["queued_ms"] for block in blocks) / whole)
        found = (f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in ratio)
        rest = time - sum(parts)
        rows.append((meaning, *found, *(f"{share:.3f}" for share in (*parts, rest))))
    headings = ("condition", "task time", "task CPU", *PARTS[1:], "queued", "rest")
    print_rows("Relative to a core beside another query", headings, rows)
    loads = [load for block in blocks for one in block.values() for load in one["load"]]
    print(f"load average {min(loads):.1f} to {max(loads):.1f}")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    queries = partial(numbers, read=number(1, NUM_QUERIES))
    add = made.add_argument
    add("--scale-factor", type=number(0.001, 1000, float), default=1.0, help="1: 1 GB of text")
    add("--queries", type=queries, default=tuple(range(1, NUM_QUERIES + 1)), help="such as 1,6")
    add("--blocks", type=number(2), default=3, help="of every condition once")
    add("--memory", default="4g", help="of the JVM, which also runs the tasks")
    add("--work", type=Path, default=Path("one-work"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
