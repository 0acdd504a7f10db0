"""Runs TPC-H queries on a real Spark under its own and Parcae's policies, and compares them.

    python -m benchmarks.spark.tpch --seeds 8 --work tpch-work --json tpch.json

Every step keeps its result in the work folder, so that a stopped command can continue. First every
query runs alone; runs under FAIR then find the arrival rate at which the cores are as busy as asked
for; the logs of both give a profile, from which Parcae's policies plan. Then come the judged runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.spark.cores import (
    QueryProfile,
    busy_ms,
    core_use,
    query_profile,
    read_log,
    task_times,
)
from benchmarks.spark.queries import (
    SILENCE,
    Application,
    Arrival,
    Ending,
    TpchSpark,
    process_cpu_s,
)
from benchmarks.spark.replaying import STOCK, RunningService, SparkFailedError, running_service
from benchmarks.spark.tables import NUM_QUERIES, check_tools, make_tables, query_texts
from benchmarks.spark.tpch_result import draw, print_result, read_result
from benchmarks.spark.work import Work, content_of, file_name, names, number, run_script, tell

from parcae.base.errors import ConfigError, PolicyError
from parcae.base.extensions import require
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S, ms_from_s
from parcae.evaluation.policies import ResolvedPolicies, resolve_policies
from parcae.policies.policy_file import export_policy, write_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.spark.home import SparkHome, find_spark
from parcae.spark.jar import find_jar
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.workload import JobSequence, RandomStreams

#: The policy with which all others are compared.
BASELINE = "fair"
#: Seeds of the earlier runs (arrival rate, profile) start here. Judged seeds are below.
EARLIER_SEED_START = 900_000
#: Time of a run without its queries, for the estimate of the time left before one was measured.
_SETUP_S = 10.0
#: The rate is found when in two runs the load was this close to the requested one. Runs whose load
#: is further than `_NEAR` from it are not used. A run's gap is at most so many times the last one.
_CLOSE = 0.02
_NUM_CLOSE = 2
_NEAR = 0.06
_MAX_STEP = 2.0
#: Simulated runs of every seed, each with other draws of the deviations from the profile.
_SIMULATED_RUNS = 10
#: The settings that must be the same for all runs of a work folder.
_SETTINGS = ("scale_factor", "load", "queries", "cores", "profile_rounds", "memory", "conf")
#: Spark settings that the study makes itself, and those of a JVM that starts before any context.
_OWN_SETTINGS = frozenset(
    {
        "spark.app.name",
        "spark.driver.bindAddress",
        "spark.driver.extraClassPath",
        "spark.driver.extraJavaOptions",
        "spark.driver.host",
        "spark.driver.memory",
        "spark.local.dir",
        "spark.master",
        "spark.scheduler.mode",
        "spark.sql.warehouse.dir",
        "spark.ui.enabled",
        "spark.ui.showConsoleProgress",
    }
)

#: Mean seconds between arrivals, and the share of the cores' time that was busy at that rate.
Point = tuple[float, float]


def setting(text: str) -> tuple[str, str]:
    """A Spark setting of --conf; one that would have no effect is refused."""
    name, found, value = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: write NAME=VALUE")
    if name in _OWN_SETTINGS or name.startswith("spark.eventLog."):
        advice = "use --memory" if name == "spark.driver.memory" else "leave it out"
        raise argparse.ArgumentTypeError(f"{name} has no effect, as the script sets it: {advice}")
    return name.strip(), value


def query_numbers(num_queries: int) -> list[int]:
    """The queries of every run before they are shuffled: the 22 of TPC-H repeat."""
    return [1 + position % NUM_QUERIES for position in range(num_queries)]


def draw_arrivals(num_queries: int, seed: int, gap_s: float) -> list[Arrival]:
    """Draw which query arrives when. The arrivals are the same for every policy.

    The times between arrivals are exponential and scaled so that their mean is exactly `gap_s`.
    This is a Poisson process with given first and last arrivals. So every seed brings the same work
    in the same time.

    Example: with 3 queries and a gap of 10 s the first arrives at 0 s and the last at 20 s.
    """
    streams = RandomStreams(seed)
    order = streams.jobs.permutation(query_numbers(num_queries))
    gaps = streams.arrivals.exponential(1.0, num_queries - 1)
    times = np.concatenate([[0.0], np.cumsum(gaps / gaps.mean() * gap_s)])
    return [Arrival(int(query), float(at)) for query, at in zip(order, times, strict=True)]


def judged_runs(args: argparse.Namespace) -> list[tuple[int, str, int]]:
    """Seed, policy and number of the repeat of all judged runs, seed by seed."""
    # A random order of policies keeps slow changes of the machine from favouring one of them.
    runs = []
    for seed in range(args.seed_start, args.seed_start + args.seeds):
        block = [(seed, policy, 0) for policy in args.policies]
        block += [(seed, BASELINE, repeat) for repeat in range(1, args.repeats + 1)]
        runs += [block[row] for row in RandomStreams(seed).actions.permutation(len(block))]
    return runs


def run_name(seed: int, policy: str, repeat: int = 0) -> str:
    """The name of a run's files."""
    return f"seed-{seed}-{file_name(policy)}" + (f"-again-{repeat}" if repeat else "")


# The arrival rate.


def next_gap(points: Sequence[Point], load: float) -> float:
    """The mean time between arrivals to try next: the last one, scaled by at most 2.

    Example: if the cores are 60% busy at 10 s, the next try for 80% is 7.5 s.
    """
    gap_s, busy = points[-1]
    return gap_s * min(_MAX_STEP, max(1 / _MAX_STEP, busy / load))


def is_found(points: Sequence[Point], load: float) -> bool:
    """Whether the load was close to the requested one in enough runs."""
    return sum(abs(busy - load) <= _CLOSE for _, busy in points) >= _NUM_CLOSE


def fitted_gap(points: Sequence[Point], load: float) -> float:
    """The gap for a load: the geometric mean of what each run near that load says.

    If no run is near the load, the result is `next_gap`.
    """
    near = [gap_s * busy / load for gap_s, busy in points if abs(busy - load) <= _NEAR]
    return math.exp(math.fsum(map(math.log, near)) / len(near)) if near else next_gap(points, load)


def described(calibrated: Mapping[str, Any], load: float | None) -> str:
    """The arrival rate and the runs it was computed from; no load if the rate was asked for."""
    points = calibrated["points"]
    shares = ", ".join(f"{busy:.1%} at {gap_s:.2f} s" for gap_s, busy in points)
    rate = f"A query every {calibrated['gap_s']:.2f} s on average"
    text = f"{rate}; in earlier runs under FAIR the cores were busy for {shares}"
    if load is None or any(abs(busy - load) <= _NEAR for _, busy in points):
        return f"{text}."
    return f"{text}: none of these is near {load:.0%}, so the rate is a guess."


class Study(contextlib.ExitStack):
    """The runs of one command. The JVM starts when the first run needs it."""

    def __init__(self, args: argparse.Namespace, spark: SparkHome) -> None:
        super().__init__()
        self.args = args
        self.home = spark
        self.work = Work(args.work, {name: getattr(args, name) for name in _SETTINGS})
        self._services = dict[str, RunningService]()
        self._resolved = dict[str, ResolvedPolicies]()
        for policy in args.policies:
            content = self.work.kept(
                f"policies/{file_name(policy)}-content", partial(content_of, policy)
            )
            if content != content_of(policy):
                raise ConfigError(
                    f"{policy} is not what it was in earlier runs of {args.work}; name another "
                    "file, or use another --work"
                )

    @cached_property
    def _jvm(self) -> TpchSpark:
        """The JVM, after every query has run in it a few times."""
        args = self.args
        jar = None
        if not {*args.policies} <= {*STOCK}:
            jar = args.jar or find_jar(self.home)
        data = make_tables(self.work, args.scale_factor)
        texts = query_texts(self.work)
        spark = TpchSpark(
            self.home, jar, args.work, data, texts, args.cores, args.memory, dict(args.conf)
        )
        self.callback(spark.close)
        tell("warming the JVM up")
        queries = list(dict.fromkeys(query_numbers(args.queries)))
        spark.run_alone(Application("FAIR", None), [queries] * args.warm_rounds)
        return spark

    def _logs(self, name: str) -> Path:
        return Path(self.args.work) / "event-logs" / name

    def prepare(self) -> None:
        """Run the queries alone, find the arrival rate, and make the profile."""
        gap_s = self.args.gap
        if not self.work.file("earlier/alone").exists():
            check_tools()
        self.work.kept("earlier/alone", self._run_alone)
        calibrated = self.work.kept("calibration", self._calibrate)
        if gap_s not in (None, calibrated["gap_s"]):
            raise ConfigError(
                f"{self.args.work} has runs with a query every {calibrated['gap_s']:.3f} s, not "
                f"every {gap_s:.3f} s; use another --work"
            )
        self.work.kept("profile", self._make_profile)

    def _make_profile(self) -> dict[str, int]:
        tell("making the profile of the earlier runs")
        earlier = sorted(path.stem for path in (self.args.work / "earlier").glob("load-*.json"))
        profile = query_profile([self._logs("alone"), *map(self._logs, earlier)])
        write_workload(profile.workload, self.args.work / "profile.parcae")
        return {str(query): row for query, row in profile.job_of_query.items()}

    @cached_property
    def profile(self) -> QueryProfile:
        """The profile, and the job of every query in it."""
        rows = self.work.kept("profile", self._make_profile)
        workload = load_workload(str(self.args.work / "profile.parcae"))
        return QueryProfile(workload, {int(query): row for query, row in rows.items()})

    def _run_alone(self) -> list[dict[str, Any]]:
        """Run every query alone, round by round, each round in another random order."""
        queries = list(dict.fromkeys(query_numbers(self.args.queries)))
        generator = RandomStreams(EARLIER_SEED_START).jobs
        rounds = [generator.permutation(queries).tolist() for _ in range(self.args.profile_rounds)]
        jvm = self._jvm
        tell(f"every query alone, {len(rounds)} rounds")
        endings = jvm.run_alone(Application("FAIR", self._logs("alone")), rounds)
        results = {ending.query: ending.result for ending in reversed(endings)}
        if wrong := [ending.query for ending in endings if ending.result != results[ending.query]]:
            raise SparkFailedError(f"queries {wrong} gave different results in repeated runs")
        return [asdict(ending) for ending in endings]

    def _calibrate(self) -> dict[str, Any]:
        """Find the arrival rate by runs under FAIR; with a given rate, only measure the load."""
        args = self.args
        points: list[Point] = []
        for row in range(args.calibration_runs):
            gap_s = args.gap or (next_gap(points, args.load) if points else self._first_gap())
            name = f"load-{row:02d}"
            seed = EARLIER_SEED_START + 1 + row
            run = partial(self._measure, seed, BASELINE, 0, gap_s, name)
            record = self.work.kept(f"earlier/{name}", run)
            points.append((record["gap_s"], record["use"]["busy_share"]))
            busy = f"{points[-1][1]:.1%}"
            tell(f"under FAIR with a query every {gap_s:.2f} s the cores are {busy} busy")
            if len(points) >= _NUM_CLOSE and (args.gap or is_found(points, args.load)):
                break
        return {"gap_s": args.gap or fitted_gap(points, args.load), "points": points}

    def _first_gap(self) -> float:
        """The gap of the first run: from the core time of the queries that ran alone, in s."""
        work_s = busy_ms(task_times(read_log(self._logs("alone"))), 0, math.inf) / MS_PER_S
        endings = self.work.kept("earlier/alone", self._run_alone)
        return float(work_s / len(endings) / (self.args.cores * self.args.load))

    @property
    def _gap_s(self) -> float:
        return float(self.work.kept("calibration", self._calibrate)["gap_s"])

    def judge(self) -> None:
        """Run all judged runs that are not complete yet."""
        runs = judged_runs(self.args)
        left = [run for run in runs if not self.work.file(f"runs/{run_name(*run)}").exists()]
        # An unknown policy must raise now and not after hours of runs.
        for policy in sorted({policy for _, policy, _ in left}):
            self._plan_by(policy)
        run_s = self.args.queries * self._gap_s + _SETUP_S
        for row, (seed, policy, repeat) in enumerate(left):
            minutes = (len(left) - row) * run_s / 60
            position = f"run {len(runs) - len(left) + row + 1} of {len(runs)}"
            tell(f"seed {seed}, {policy}: {position}, about {minutes:.0f} min left")
            name = run_name(seed, policy, repeat)
            run = partial(self._measure, seed, policy, repeat, self._gap_s, name)
            record = self.work.kept(f"runs/{name}", run)
            # The mean duration of the runs so far.
            run_s += (record["wall_s"] - run_s) / (row + 1)

    def _measure(
        self, seed: int, policy: str, repeat: int, gap_s: float, name: str
    ) -> dict[str, Any]:
        """Run the queries of a seed under a policy; the event log goes to a folder `name`."""
        start_s = time.monotonic()
        logs = self._logs(name)
        jvm = self._jvm
        plugin, service = self._plan_by(policy)
        # FAIR decides ties under the plugin, and schedules if the plugin has no order.
        mode = STOCK.get(policy, STOCK[BASELINE])
        # A service plans for many runs, so only the difference belongs to this one.
        before_s = process_cpu_s(service) if service else 0.0
        arrivals = draw_arrivals(self.args.queries, seed, gap_s)
        finished = jvm.run(Application(mode, logs, plugin), arrivals)
        service_s = process_cpu_s(service) - before_s if service else 0.0
        endings = [Ending(**ending) for ending in finished["endings"]]
        last_s = max(ending.arrival_s + ending.seconds for ending in endings)
        first_ms = finished["first_ms"]
        use = core_use(logs, self.args.cores, first_ms, endings[-1].arrival_s, last_s)
        alone = (Ending(**one) for one in self.work.kept("earlier/alone", self._run_alone))
        results = {ending.query: ending.result for ending in alone}
        known = 0.0 if policy in STOCK else self.profile.knows(read_log(logs))
        return {
            "seed": seed,
            "policy": policy,
            "repeat": repeat,
            "gap_s": gap_s,
            **finished,
            "makespan_s": last_s,
            "use": use,
            "num_wrong": sum(ending.result != results[ending.query] for ending in endings),
            "num_silences": sum(SILENCE in line for line in finished["plugin_lines"]),
            "known_share": known,
            "wall_s": time.monotonic() - start_s,
            "driver_cpu_s": finished["jvm_cpu_s"] - use["task_cpu_s"],
            "service_cpu_s": service_s,
            "spark": self.home.version,
        }

    def _plan_by(self, policy: str) -> tuple[Mapping[str, str] | None, int]:
        """The plugin's settings for a policy, and the process id of its service.

        The settings are None for stock Spark, and the id is 0 without a service. A policy that can
        be exported plans in the plugin, any other in a service.
        """
        if policy in STOCK:
            return None, 0
        try:
            exported = export_policy(policy, self.profile.workload)
        except PolicyError:
            service = self._service(policy)
            return {"spark.parcae.service": service.address}, service.process.pid
        path = self.args.work / "policies" / f"{file_name(policy)}.json"
        write_policy(exported, path)
        return {"spark.parcae.policy": str(path.resolve())}, 0

    def _service(self, policy: str) -> RunningService:
        """The service of a policy, which knows the profile and serves all runs of the command."""
        if policy not in self._services:
            tell(f"starting a service for {policy}")
            log = self.args.work / f"service-{file_name(policy)}.log"
            profile = str(self.args.work / "profile.parcae")
            self._services[policy] = self.enter_context(running_service(policy, profile, log=log))
        return self._services[policy]

    # What the simulator says about the judged runs.

    def foretell(self) -> None:
        """Simulate every judged seed under every policy, with deviations like the earlier runs'."""
        for seed in range(self.args.seed_start, self.args.seed_start + self.args.seeds):
            for policy in self.args.policies:
                simulated = partial(self._simulated, seed, policy)
                self.work.kept(f"foretold/{run_name(seed, policy)}", simulated)

    def _simulated(self, seed: int, policy: str) -> dict[str, Any]:
        resolved = self._resolved.get(policy) or self._resolve(policy)
        sequence = self._sequence(seed)
        means = []
        # Seeds of simulated runs must differ between the judged seeds, too.
        for run in range(seed * _SIMULATED_RUNS, (seed + 1) * _SIMULATED_RUNS):
            (played,) = resolved.for_sequence(sequence, run).values()
            trace = simulate(sequence, played, resolved.config, run)
            means.append(float(jct_ms(trace).mean()) / MS_PER_S)
        return {"seed": seed, "policy": policy, "mean_s": float(np.mean(means))}

    def _resolve(self, policy: str) -> ResolvedPolicies:
        tell(f"simulating {policy}")
        cores = self.args.cores
        config = SimulationConfig(world=WorldName.CORES, num_executors=cores, estimate_error="log")
        arrivals = f"poisson:{max(1, ms_from_s(self._gap_s))}ms"
        name = simulated_name(policy, dict(self.args.conf))
        workload = self.profile.workload
        found = resolve_policies(workload, [name], config, arrivals, self.args.queries)
        self._resolved[policy] = found
        return found

    def _sequence(self, seed: int) -> JobSequence:
        """The same queries at the same times as on Spark."""
        arrivals = draw_arrivals(self.args.queries, seed, self._gap_s)
        rows = np.array([self.profile.job_of_query[one.query] for one in arrivals], np.int64)
        times = np.array([ms_from_s(one.at_s) for one in arrivals], np.int64)
        return JobSequence(self.profile.workload, rows, times)


def simulated_name(policy: str, conf: Mapping[str, str]) -> str:
    """The name of a policy in the simulator.

    Under adaptive execution (Spark's default) every stage is a Spark job, and FIFO orders by Spark
    jobs.
    """
    is_adaptive = conf.get("spark.sql.adaptive.enabled", "true").lower() == "true"
    return "fifo:spark-jobs" if policy == "fifo" and is_adaptive else policy


def main(args: argparse.Namespace) -> None:
    """Run what the work folder lacks, and print its result or that of several folders."""
    require("matplotlib")  # draws the picture, after all runs
    if not args.merge:
        if BASELINE not in args.policies:
            raise ConfigError(f"--policies needs {BASELINE} to compare with")
        if args.jar is not None and not args.jar.exists():
            raise ConfigError(f"--jar {args.jar} does not exist")
        with Study(args, find_spark(args.spark_home)) as study:
            study.prepare()
            study.judge()
            calibrated = json.loads(study.work.file("calibration").read_text())
            print(described(calibrated, args.load if args.gap is None else None))
            if not args.seeds:
                return
            if args.foretell:
                try:
                    study.foretell()
                except PolicyError as error:  # the results on Spark are printed all the same
                    tell(f"not simulated: {error}")
    works = args.merge or [args.work]
    result = read_result(works)
    if args.json is not None:
        write_text(args.json, json.dumps(result, indent=1) + "\n")
    print_result(result)
    picture = args.picture or works[0] / "ratios.png"
    draw(result, picture)
    print(f"picture: {picture}")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    policies = ("fifo", "fair", "srpt", "tuned", "parcae", "parcae+account")
    share = number(0.01, 0.99, float)
    add = made.add_argument
    add("--policies", type=names, default=policies, help="fifo and fair are Spark's own")
    add("--work", type=Path, default=Path("parcae-spark-tpch"), help="a stopped run goes on there")
    add("--merge", type=Path, action="append", help="run nothing; the result of these work folders")
    add("--scale-factor", type=number(0.001, 1000, float), default=1.0, help="1: 1 GB of text")
    add("--load", type=share, default=0.8, help="share of the cores' time busy under FAIR")
    add("--queries", type=number(2), default=44, help="of a run; the 22 of TPC-H repeat")
    add("--cores", type=number(1), default=usable, help="of the local Spark")
    add("--gap", type=number(1e-3, 1e6, float), help="mean s between arrivals; else for --load")
    add("--memory", default="4g", help="of the driver's JVM, which also runs the tasks")
    add("--conf", type=setting, action="append", default=[], help="NAME=VALUE for Spark")
    add("--seeds", type=number(0), default=20, help="0: prepare only")
    add("--seed-start", type=number(0, EARLIER_SEED_START // 2), default=1000)
    add("--repeats", type=number(0), default=1, help="further runs under FAIR for every seed")
    add("--profile-rounds", type=number(1), default=2, help="runs of every query alone")
    add("--calibration-runs", type=number(1), default=6, help="at most, to find the gap")
    add("--warm-rounds", type=number(0), default=2, help="of every query in a new JVM")
    add("--jar", type=Path, help="the plugin's; else it is built")
    add("--spark-home", type=Path, help="else SPARK_HOME, else PySpark")
    add("--no-foretell", dest="foretell", action="store_false", help="do not simulate the runs")
    add("--json", type=Path, help="write the result here")
    add("--picture", type=Path, help="draw ratios and times here, else in the work folder")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
