"""Persons who share a real Spark: under Spark's own orders, by size alone, and with their accounts.

    python -m benchmarks.spark.persons --scenario loop --seeds 5 --work persons-work

Tasks sleep, and no order knows a query before it runs. `loop`: a person's two programs run small
queries one after the other beside another person's big query; in `loops` the two are two persons.
`unlike`: three sessions of analysts, a dashboard that refreshes, an ETL that returns. `hetero` and
`homo`: the two traces that were published with UWFQ (arXiv 2510.15485), on 32 cores, at
`--time-scale`; their small jobs are the 80% with the least work. Orders are
`fair`, Spark's FAIR between queries; `pools`, a FAIR pool a person, FAIR inside; `srpt`, the
plugin's least remaining work; `account`, the plugin without a file; `account-2`, the same with
weight 2 for the ETL's person; `same`, the pools once more, with the arrivals that `account` had.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark.replaying import ReplayRequest, replay
from benchmarks.spark.work import Work, number, run_script, tell

from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.statistics import ratio_estimate, with_interval
from parcae.policies.policy_file import PolicyFile, write_policy
from parcae.spark.home import find_spark
from parcae.spark.jar import find_jar
from parcae.spark.launch import PluginSettings

Json = dict[str, Any]

#: Whose time is compared with whose.
BASELINE = "pools"
#: Scenarios with their cores and orders.
SCENARIOS = {
    "loop": (4, ("fair", "pools", "srpt", "account")),
    "loops": (4, ("fair", "pools", "srpt", "account")),
    "unlike": (8, ("fair", "pools", "srpt", "account", "account-2", "same")),
    "hetero": (32, ("fair", "pools", "srpt", "account")),
    "homo": (32, ("fair", "pools", "srpt", "account")),
}
_TRACES = ("hetero", "homo")
#: The share of a trace's jobs that are small, and how a row names them.
_SMALL_SHARE = 0.8
_SMALL = "small"
_BIG = "etl"
_SPREAD = 0.2
#: The unlike persons come for so long; queries of the first part are not compared.
_UNTIL_MS = 80_000
_WARM_MS = 15_000


def _query(user: str, stages: Sequence[tuple[int, float]], draw: Any, **when: Any) -> Json:
    """A query of stages in a row, each of so many tasks of about so many ms."""
    drawn = [
        {
            "parents": [place - 1] if place else [],
            "sleep_ms": [int(ms * draw.lognormal(0.0, _SPREAD)) for _ in range(tasks)],
        }
        for place, (tasks, ms) in enumerate(stages)
    ]
    return {"user": user, "stages": drawn, **when}


def loop(seed: int, persons: Sequence[str]) -> Json:
    """Two programs that run 60 small queries each, one after the other, beside one big query."""
    draw = np.random.default_rng([seed, 62])
    jobs = [_query(_BIG, [(40, 500.0)], draw, arrival_ms=2_000)]
    for person in persons:
        for step in range(60):
            when = {"after": len(jobs) - 1, "think_ms": 0} if step else {"arrival_ms": 0}
            jobs.append(_query(person, [(4, 250.0)], draw, **when))
    return {"jobs": jobs}


def unlike(seed: int) -> Json:
    """Analysts who think between their queries, bursts of a dashboard, an ETL that returns."""
    draw = np.random.default_rng([seed, 63])
    jobs: list[Json] = []
    for start_ms in range(3_000, _UNTIL_MS, 26_000):
        jobs.append(_query(_BIG, [(120, 500.0), (40, 500.0)], draw, arrival_ms=start_ms))
    for start_ms in range(1_000, _UNTIL_MS, 13_000):
        for place in range(8):
            at_ms = start_ms + 30 * place
            jobs.append(_query("dash", [(4, 250.0)], draw, arrival_ms=at_ms))
    for session in range(3):
        for step in range(40):
            think_ms = int(draw.exponential(1_500))
            when: Json = {"after": len(jobs) - 1, "think_ms": think_ms}
            work = min(40.0, 5 * draw.lognormal(0.0, 1.0))
            tasks = max(2, round(work / 0.4))
            stages = [(tasks, 300.0), (max(1, tasks // 3), 300.0)]
            jobs.append(
                _query("ana", stages, draw, **(when if step else {"arrival_ms": 500 * session}))
            )
    return {"jobs": jobs, "until_ms": _UNTIL_MS}


def trace(path: Path, time_scale: float) -> Json:
    """The jobs of a trace: a table of stages, each with its tasks, their mean time and parents."""
    found: dict[str, dict[str, Any]] = {}
    with path.open() as lines:
        for row in csv.DictReader(lines):
            job = found.setdefault(row["job"], {"user": row["pool"], "stages": [], "places": {}})
            if row["arrival_s"]:
                job["arrival_ms"] = int(float(row["arrival_s"]) * MS_PER_S * time_scale)
            sleep_ms = max(1, round(float(row["duration_mean_ms"]) * time_scale))
            parents = [job["places"][name] for name in row["parents"].split()]
            job["places"][row["stage"]] = len(job["stages"])
            job["stages"].append({"parents": parents, "sleep_ms": [sleep_ms] * int(row["tasks"])})
    kept = ("user", "stages", "arrival_ms")
    return {"jobs": [{name: job[name] for name in kept} for job in found.values()]}


def mix_of(args: argparse.Namespace, seed: int) -> Json:
    """The queries of a scenario, each with a name that no other one has."""
    scenario = args.scenario
    persons = {"loop": ("cron", "cron"), "loops": ("cron", "batch")}
    if scenario in _TRACES:
        mix = trace(args.traces / f"{scenario}.csv", args.time_scale)
    else:
        mix = loop(seed, persons[scenario]) if scenario in persons else unlike(seed)
    for place, job in enumerate(mix["jobs"]):
        job["name"] = f"{job['user']} {place}"
    return mix


class Measurement:
    """The runs of one command."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.cores, self.orders = SCENARIOS[args.scenario]
        kept = {"scenario": args.scenario}
        if args.scenario in _TRACES:
            kept["time_scale"] = args.time_scale
        self.work = Work(args.work / args.scenario, kept)
        self.spark = find_spark()
        self.jar = find_jar(self.spark)
        self.folder = self.work.folder.resolve()
        plain = PolicyFile(
            format="parcae-policy", version=3, policy="srpt", kind="srpt", parameters={},
            account=None, mean_work_ms=100_000.0, guess_ms=1_000.0, jobs={},
        )  # fmt: skip
        write_policy(plain, self.folder / "srpt.json")
        write_text(self.folder / "control.json", json.dumps({"weights": {_BIG: 2}}))
        pool = "<pool name='{}'><schedulingMode>FAIR</schedulingMode></pool>"
        users = dict.fromkeys(job["user"] for job in mix_of(args, 0)["jobs"])
        pools = "".join(pool.format(user) for user in users)
        write_text(self.folder / "pools.xml", f"<allocations>{pools}</allocations>")

    def run(self) -> dict[str, list[Json]]:
        """The runs of every order, by seed; runs of a seed are beside each other."""
        seeds = range(self.args.seed_start, self.args.seed_start + self.args.seeds)
        found: dict[str, list[Json]] = {order: [] for order in self.orders}
        with ThreadPoolExecutor(self.args.beside) as pool:
            for seed in seeds:
                futures = {
                    order: pool.submit(self._kept, order, seed)
                    for order in self.orders
                    if order != "same"
                }
                for order, future in futures.items():
                    found[order].append(future.result())
            if "same" in found:
                found["same"] = list(pool.map(partial(self._kept, "same"), seeds))
        return found

    def _kept(self, order: str, seed: int) -> Json:
        kept: Json = self.work.kept(f"{order}-{seed}", partial(self._run, order, seed))
        return kept

    def _run(self, order: str, seed: int) -> Json:
        tell(f"{self.args.scenario}, {order}, seed {seed}")
        mix = mix_of(self.args, seed)
        conf: dict[str, str] = {}
        if order in ("pools", "same"):
            mix["jobs"] = [{**job, "pool": job["user"]} for job in mix["jobs"]]
            conf["spark.scheduler.allocation.file"] = str(self.folder / "pools.xml")
        if order == "same":
            mix = _with_arrivals(mix, self._kept("account", seed))
        if order == "account-2":
            conf["spark.parcae.control"] = str(self.folder / "control.json")
        policy = self.folder / "srpt.json" if order == "srpt" else None
        is_plugin = order.startswith("account") or policy is not None
        request = ReplayRequest(
            self.spark, self.jar, self.cores, "FAIR",
            PluginSettings(self.jar, policy=policy) if is_plugin else None,
            self.folder, f"{order}-{seed}-run", conf,
        )  # fmt: skip
        load = os.getloadavg()[0]
        (times,) = replay(request, [mix])
        rows = zip(mix["jobs"], times.submitted_ms, times.finished_ms, strict=True)
        return {
            "load": [load, os.getloadavg()[0]],
            "queries": [
                {"user": job["user"], "work_ms": _work_ms(job), "from_ms": begun, "to_ms": ended}
                if ended == ended
                else None
                for job, begun, ended in rows
            ],
        }


def _work_ms(job: Json) -> int:
    return sum(sum(stage["sleep_ms"]) for stage in job["stages"])


def _with_arrivals(mix: Json, run: Json) -> Json:
    """The queries of a run, with the arrivals that they had there."""
    jobs = [
        {**{name: job[name] for name in job if name not in ("after", "think_ms")},
         "arrival_ms": int(ran["from_ms"])}
        for job, ran in zip(mix["jobs"], run["queries"], strict=True)
        if ran is not None
    ]  # fmt: skip
    return {"jobs": jobs}


def mean_s(run: Json, user: str, warm_ms: int = 0) -> float:
    """The mean time in the system of a user's queries, of all or of the small ones, in s."""
    ran = [one for one in run["queries"] if one is not None and one["from_ms"] >= warm_ms]
    if user == _SMALL:
        most_ms = np.quantile([one["work_ms"] for one in ran], _SMALL_SHARE)
        ran = [one for one in ran if one["work_ms"] <= most_ms]
    elif user != "all":
        ran = [one for one in ran if one["user"] == user]
    took = [one["to_ms"] - one["from_ms"] for one in ran]
    return float(np.mean(took)) / MS_PER_S


def rows_of(scenario: str, runs: dict[str, list[Json]]) -> list[list[str]]:
    """A row for every order: means of all and of each user, and their ratios to the pools."""
    first = [one for one in runs[BASELINE][0]["queries"] if one is not None]
    users = ["all", *dict.fromkeys(one["user"] for one in first)]
    if scenario in _TRACES:
        users = ["all", _SMALL]
    warm_ms = _WARM_MS if scenario == "unlike" else 0
    rows = []
    for order, of_order in runs.items():
        for user in users:
            means = [mean_s(run, user, warm_ms) for run in of_order]
            row = [order, user, f"{np.mean(means):.2f}"]
            for other in (BASELINE, "fair", "same"):
                if other not in runs or other == order:
                    row.append("")
                    continue
                others = [mean_s(run, user, warm_ms) for run in runs[other]]
                row.append(with_interval(ratio_estimate(means, others)))
            if scenario in ("loop", "loops") and user == _BIG:
                split = [
                    _equal_split_s(run, len(users) - 1, SCENARIOS[scenario][0]) for run in of_order
                ]
                row.append(with_interval(ratio_estimate(means, split)))
            rows.append(row)
    return rows


def _equal_split_s(run: Json, num_users: int, cores: int) -> float:
    """The big query's time if it had its equal share of the cores all the time."""
    big = next(one for one in run["queries"] if one["user"] == _BIG)
    return float(big["work_ms"] * num_users / cores / MS_PER_S)


def main(args: argparse.Namespace) -> None:
    """Measure, and print a row for every order and person."""
    runs = Measurement(args).run()
    headings = ["order", "whose", "mean s", "to pools", "to FAIR", "to same", "to equal split"]
    rows = [row + [""] * (len(headings) - len(row)) for row in rows_of(args.scenario, runs)]
    loads = [load for of_order in runs.values() for run in of_order for load in run["load"]]
    caption = f"load average {min(loads):.1f} to {max(loads):.1f}"
    title = f"{args.scenario}: {args.seeds} seeds, times in the system"
    print_rows(title, headings, rows, caption)


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    add("--scenario", choices=tuple(SCENARIOS), default="loop")
    add("--seeds", type=number(2), default=5)
    add("--seed-start", type=number(0), default=1000)
    add("--beside", type=number(1), default=2, help="applications that run beside each other")
    folder = Path("../shared/data/uwfq")
    add("--traces", type=Path, default=folder, help="the folder of hetero.csv and homo.csv")
    add("--time-scale", type=number(0.01, 100, float), default=0.5, help="of a trace's times")
    add("--work", type=Path, default=Path("persons-work"), help="a stopped run goes on there")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
