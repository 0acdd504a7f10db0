"""Measures a mixed load (short, medium, ETL) on a real Spark under FAIR and under least work first.

    python -m benchmarks.spark.mixed --scale-factor 1 --seeds 8 --work mixed-work

Queries of thirty templates (`benchmarks.spark.templates`), each with literals of its own, arrive at
random times. On equal arrivals, Spark's FAIR competes with `srpt` in the plugin that knows nothing
of the queries, what one earlier pass over all templates shows, or what three show. Runs that are in
the work folder are not run again, so a stopped command goes on.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark.one_at_a_time import task_parts
from benchmarks.spark.queries import QUERY_PROPERTY, Application, Arrival, TpchSpark
from benchmarks.spark.tables import check_tools, make_tables, query_texts
from benchmarks.spark.templates import ETL, MEDIUM, NUM_TEMPLATES, SHORT, drawn_text
from benchmarks.spark.work import Work, number, run_script, tell

from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.statistics import ratio_estimate
from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.spark_log.event_log import read_runs
from parcae.workloads.spark_log.state import write_state
from parcae.workloads.synthetic import toy_workload
from parcae.workloads.workload import RandomStreams

#: The contenders, and how many earlier passes over the templates each knows; None: Spark's FAIR.
CONTENDERS: Mapping[str, int | None] = {"fair": None, "nothing": 0, "one pass": 1, "profile": 3}
_CLASSES = {"short": SHORT, "medium": MEDIUM, "ETL": ETL}
#: How often a query is of each class.
_SHARES = (0.5, 0.4, 0.1)
#: The plugin writes what it learned only when the application ends.
_NEVER_MS = "1000000000"


class Study:
    """The passes and runs of one command; the JVM starts when one of them is missing."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        names = ("scale_factor", "queries", "cores", "memory", "load")
        self.work = Work(args.work, {name: getattr(args, name) for name in names})
        self._texts = dict[int, str]()

    @cached_property
    def _jvm(self) -> TpchSpark:
        check_tools()
        home, args = find_spark(None), self.args
        data = make_tables(self.work, args.scale_factor)
        jvm = TpchSpark(
            home, find_jar(home), args.work, data, self._texts, args.cores, args.memory, {}
        )
        tell("warming the JVM up")
        numbers = self._draw(range(1, NUM_TEMPLATES + 1), RandomStreams(0).actions)
        jvm.run_alone(Application("FAIR", None), [numbers])
        return jvm

    @cached_property
    def _queries(self) -> Mapping[int, str]:
        return query_texts(self.work)

    def _draw(self, templates: Sequence[int], random: Any) -> list[int]:
        """Numbers of queries of templates, each with a text of its own."""
        drawn = []
        for row, template in enumerate(templates):
            one = (row + 1) * 100 + template
            folder = self.work.folder / "etl"
            self._texts[one] = drawn_text(template, self._queries, folder, random)
            drawn.append(one)
        return drawn

    def close(self) -> None:
        """End the JVM, if there is one."""
        if "_jvm" in self.__dict__:
            self._jvm.close()

    def prepare(self) -> float:
        """Run three passes, each query alone; returns the mean time of a query's tasks in ms."""
        means = np.zeros((3, NUM_TEMPLATES + 1))
        for one in range(3):
            log = self.work.folder / f"pass-{one}"

            def run(one: int = one, log: Path = log) -> dict[str, float]:
                jvm = self._jvm
                tell(f"pass {one}")
                random = RandomStreams(1 + one).actions
                templates = (random.permutation(NUM_TEMPLATES) + 1).tolist()
                jvm.run_alone(Application("FAIR", log), [self._draw(templates, random)])
                return {name: parts["time"] for name, parts in task_parts(log).items()}

            for name, time_ms in self.work.kept(f"pass-{one}", run).items():
                means[one, int(name.removeprefix("q")) % 100] += time_ms
        of_class = [means[:, templates].mean() for templates in map(list, _CLASSES.values())]
        return float(np.dot(_SHARES, of_class))

    def run(self, seed: int, contender: str, gap_s: float) -> dict[str, Any]:
        """One run, or its result in the work folder."""
        name = f"seed-{seed}-{contender.replace(' ', '-')}"
        return dict(self.work.kept(name, partial(self._run, seed, contender, gap_s)))

    def _run(self, seed: int, contender: str, gap_s: float) -> dict[str, Any]:
        jvm = self._jvm
        tell(f"seed {seed}, {contender}")
        random = RandomStreams(seed).actions
        classes = random.choice(len(_SHARES), self.args.queries, p=_SHARES)
        templates = [int(random.choice(list(_CLASSES.values())[row])) for row in classes]
        times = np.cumsum(random.exponential(gap_s, len(templates)))
        drawn = self._draw(templates, random)
        arrivals = [Arrival(one, float(at)) for one, at in zip(drawn, times, strict=True)]
        plugin = self._plugin(CONTENDERS[contender])
        return jvm.run(Application("FAIR", None, plugin), arrivals)

    def _plugin(self, passes: int | None) -> dict[str, str] | None:
        """The plugin's settings: a policy without any query, and a state of its own."""
        if passes is None:
            return None
        policy, state = self.work.folder / "srpt.json", self.work.folder / "state.json"
        write_policy(export_policy("srpt", toy_workload()).model_copy(update={"jobs": {}}), policy)
        state.unlink(missing_ok=True)
        if passes:
            logs = [self.work.folder / f"pass-{one}" for one in range(passes)]
            write_state(read_runs(logs, key=QUERY_PROPERTY).runs, state)
        settings = {"policy": policy, "state": state, "stateMs": _NEVER_MS}
        return {f"spark.parcae.{name}": str(value) for name, value in settings.items()}


def mean_s(run: Mapping[str, Any], templates: Sequence[int]) -> float:
    """The mean completion time of a run's queries of some templates; NaN if there are none."""
    taken = [one["seconds"] for one in run["endings"] if one["query"] % 100 in templates]
    return float(np.mean(taken)) if taken else float("nan")


def main(args: argparse.Namespace) -> None:
    """Run what is missing, and print the ratios to FAIR."""
    study = Study(args)
    try:
        gap_s = study.prepare() / MS_PER_S / args.cores / args.load
        tell(f"mean gap between arrivals: {gap_s:.2f} s")
        seeds = range(args.seed_start, args.seed_start + args.seeds)
        found = {name: [study.run(seed, name, gap_s) for seed in seeds] for name in CONTENDERS}
    finally:
        study.close()
        shutil.rmtree(args.work / "etl", ignore_errors=True)
    everything = {"all": tuple(range(1, NUM_TEMPLATES + 1)), **_CLASSES}
    rows = []
    for name, runs in found.items():
        for of_class, templates in everything.items():
            both = zip(runs, found["fair"], strict=True)
            pairs = np.array([[mean_s(one, templates) for one in pair] for pair in both])
            known = pairs[~np.isnan(pairs).any(axis=1)]
            if len(known) > 1:
                one = ratio_estimate(known[:, 0], known[:, 1])
                ratio = f"{one.mean:.2f} [{one.low:.2f}, {one.high:.2f}]"
                rows.append((name, of_class, f"{known[:, 0].mean():.1f}", ratio))
    heads = ("knows", "queries", "mean s", "ratio to FAIR")
    print_rows(f"Mean completion time over {args.seeds} seeds", heads, rows)
    loads = [load for runs in found.values() for run in runs for load in run["load"]]
    print(f"load average {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} processors")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--scale-factor", type=number(0.001, 1000, float), default=1.0, help="1: 1 GB of text")
    add("--queries", type=number(2, 99), default=44, help="of a run")
    add("--load", type=number(0.01, 0.99, float), default=0.8, help="share of the cores' time")
    add("--seeds", type=number(2), default=8, help="runs of every contender")
    add("--seed-start", type=number(10), default=1000, help="of the first one")
    add("--cores", type=number(1), default=2, help="of the local Spark")
    add("--memory", default="4g", help="of the driver's JVM, which also runs the tasks")
    add("--work", type=Path, default=Path("mixed-work"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
