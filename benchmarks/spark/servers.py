"""Two people at once on a real SQL server: one's loop of short queries beside another's big query.

    python -m benchmarks.spark.servers --server thrift --rounds 8 --work servers-work

A round starts a server for each order, draws their sequence by its number, and measures by the
server's event log: the big query alone, then beside the loop. Tasks sleep.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark.work import Work, number, run_script
from tests.spark.proofs import PLUGIN
from tests.spark.sql_servers import CONNECT, THRIFT, sql_server

from parcae.base.errors import ParcaeError
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.statistics import ratio_estimate, with_interval
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.recorded_run import RecordedJob
from parcae.workloads.spark_log.run import read_spark_run

Json = dict[str, Any]
_CORES = 4
_KINDS = {"connect": CONNECT, "thrift": THRIFT}
_POOLS = "pools"
#: Spark's FIFO, FAIR with a pool a person (which only a Thrift server's session can choose), and
#: the plugin as it comes.
ORDERS = {"connect": ("fifo", "account"), "thrift": ("fifo", _POOLS, "account")}
#: Who asks alone, who has the big query, and who has the loop.
_ALONE, _BIG, _LOOP = "alone", "etl", "ann"


class Measurement:
    """Runs of all rounds, each kept in the work folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        settings = {name: getattr(args, name) for name in ("server", "tasks", "task_ms", "loops")}
        self._work = Work(args.work, settings)

    def run(self) -> dict[str, list[Json]]:
        """The runs of every order, by round."""
        runs: dict[str, list[Json]] = {order: [] for order in ORDERS[self.args.server]}
        for turn in range(self.args.rounds):
            drawn = random.Random(turn).sample(list(runs), len(runs))
            for order in drawn:
                runs[order].append(
                    self._work.kept(f"{order}-{turn}", partial(self._measure, order, turn))
                )
        return runs

    def _measure(self, order: str, turn: int) -> Json:
        folder = self.args.work / f"{order}-{turn}"
        shutil.rmtree(folder, ignore_errors=True)
        spark = find_spark()
        by_order: dict[str, dict[str, object]] = {
            "fifo": {},
            _POOLS: {"spark.scheduler.mode": "FAIR"},
            "account": {
                "spark.plugins": PLUGIN,
                "spark.driver.extraClassPath": find_jar(spark),
            },
        }
        settings = by_order[order]
        kind = _KINDS[self.args.server]
        with sql_server(kind, spark, folder.absolute(), f"local[{_CORES}]", settings) as server:

            def ask(user: str, *queries: str) -> None:
                pool = f"SET spark.sql.thriftserver.scheduler.pool={user}"
                server.ask(user, *([pool] if order == _POOLS else []), *queries)

            big = self._query("count(x)", self.args.tasks)
            short = self._query("sum(length(x))", _CORES)
            ask(_ALONE, short, big, big)  # the first of each warms the server
            with ThreadPoolExecutor() as people:
                asked = [
                    people.submit(ask, _LOOP, *[short] * self.args.loops),
                    people.submit(ask, _BIG, big),
                ]
                for one in asked:
                    one.result()
            server.end()
            if order == "account" and "parcae: on" not in server.process.said():
                raise ParcaeError(f"the plugin was not on: see {server.process.log}")
        return times_of(read_spark_run([folder / "logs"]).jobs)

    def _query(self, found: str, tasks: int) -> str:
        sleep = f"java_method('java.lang.Thread', 'sleep', {self.args.task_ms}L)"
        return f"select {found} from (select {sleep} as x from range(0, {tasks}, 1, {tasks}))"


def times_of(jobs: Sequence[RecordedJob]) -> Json:
    """The big query's ms alone and beside the loop, and those of the loop's queries beside it."""
    by_user = {user: [one for one in jobs if one.user == user] for user in (_ALONE, _BIG, _LOOP)}
    took = {
        user: [one.completion_ms - one.submission_ms for one in of] for user, of in by_user.items()
    }
    (big,) = by_user[_BIG]
    beside = [
        ms
        for one, ms in zip(by_user[_LOOP], took[_LOOP], strict=True)
        if one.submission_ms < big.completion_ms and one.completion_ms > big.submission_ms
    ]
    if not beside:
        raise ParcaeError("no query of the loop ran beside the big query: give it more --tasks")
    return {"alone_ms": took[_ALONE][-1], "big_ms": took[_BIG][0], "loop_ms": beside}


def rows_of(runs: dict[str, list[Json]]) -> list[list[str]]:
    """A row for every order: the loop's mean, its ratio to FIFO's, the big query's to alone."""
    loop = {order: [np.mean(run["loop_ms"]) / MS_PER_S for run in of] for order, of in runs.items()}
    rows = []
    for order, of_order in runs.items():
        big = [run["big_ms"] / MS_PER_S for run in of_order]
        alone = [run["alone_ms"] / MS_PER_S for run in of_order]
        to_fifo = (
            "" if order == "fifo" else with_interval(ratio_estimate(loop[order], loop["fifo"]))
        )
        of_loop = [f"{np.mean([len(run['loop_ms']) for run in of_order]):.1f}"]
        of_loop += [f"{np.mean(loop[order]):.2f}", to_fifo]
        rows.append(
            [order, *of_loop, f"{np.mean(big):.2f}", with_interval(ratio_estimate(big, alone))]
        )
    return rows


def main(args: argparse.Namespace) -> None:
    """Measure, and print a row for every order."""
    headings = ["order", "loop's queries beside", "mean s", "to FIFO", "big s", "to alone"]
    title = f"{args.server}: a loop beside a big query, {args.rounds} rounds"
    print_rows(title, headings, rows_of(Measurement(args).run()))


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--server", choices=tuple(_KINDS), default="thrift")
    add("--rounds", type=number(2), default=8)
    add("--tasks", type=number(1), default=240, help="of the big query")
    add("--task-ms", type=number(1), default=200)
    add("--loops", type=number(1), default=60, help="short queries of the loop")
    add("--work", type=Path, default=Path("servers-work"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
