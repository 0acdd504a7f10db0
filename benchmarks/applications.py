"""The world of applications beside a real YARN: the same schedules, simulated and run.

    python -m benchmarks.applications --times 1,3,10 --seeds 3
    python -m benchmarks.applications --work apps-work
    python -m benchmarks.applications --sweep --seed-start 101 --times 1,3,10

The schedules are those of `benchmarks.spark.applications`. With its work folder, each system that
ran there has its real mean time beside the simulated one; and what `parcae consolidate` foretells
from the logs of `fair` and of `static` stands beside the shared application that ran. Tasks sleep,
so durations are exact; an executor's start is log-normal (`--start`, `--sigma`). `--sweep` tries
other settings of stock and other numbers of the lending rule.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.spark.applications import APPS, EXECUTORS, mean_s, rows_of, schedule
from benchmarks.spark.work import Work, file_name, number, numbers, run_script

from parcae.base.texts import MS_PER_S
from parcae.cli.tables import print_rows
from parcae.evaluation.consolidate import consolidate, read_applications
from parcae.policies.additions import named_policy
from parcae.simulation.allocations import Queues, Served, Static
from parcae.simulation.applications import Allocator, ApplicationsCluster, play_applications
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.elastic import Elastic
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.workload import JobSequence, Workload

_IDLE_MS = 3_000


class System(NamedTuple):
    """A system of the rig: who has executors (None: one application), who orders jobs, and how
    long idle executors stay under dynamic allocation.
    """

    allocation: Allocator | None
    policy: str
    idle_ms: int = _IDLE_MS


def swept(start_ms: int) -> dict[str, System]:
    """Stock with other settings, and lending with other numbers, one at a time."""
    usual = systems(start_ms)
    found = {name: usual[name] for name in ("fair", "static")}
    for least, idle_s in product((0, 1), (1, 10, 30)):
        idle_ms = idle_s * MS_PER_S
        name = f"fair:min={least}:idle={idle_s}"
        found[name] = System(Queues("preempt", least, idle_ms), "fifo", idle_ms)
    others = {"patience": (1.0, 2.0, 4.0), "worth": (1.0, 4.0), "pause": (1.0, 4.0), "last": (1.0,)}
    changes: list[dict[str, float]] = [
        {},
        *({name: value} for name, values in others.items() for value in values),
    ]
    for change in changes:
        words = ", ".join(f"{name} {value:g}" for name, value in change.items()) or "lending"
        found[words] = System(Served(start_ms, change), "srpt")
    return found


def systems(start_ms: int) -> dict[str, System]:
    """The rig's systems by name."""
    return {
        "fifo": System(Queues("fifo", 0, _IDLE_MS), "fifo"),
        "capacity": System(Queues("fair", 1, _IDLE_MS), "fifo"),
        "fair": System(Queues("preempt", 1, _IDLE_MS), "fifo"),
        "static": System(Static(), "fifo"),
        "serve:srpt": System(Served(start_ms=start_ms), "srpt"),
        "one-fair": System(None, "user-fair"),
        "one": System(None, "account"),
    }


def sequence_of(jobs: list[dict[str, Any]]) -> JobSequence:
    """A schedule's jobs as a sequence; a job's user is its application."""
    specs = []
    for row, job in enumerate(jobs):
        stages = tuple(
            StageSpec(len(s["sleep_ms"]), TaskDurations.of(s["sleep_ms"]), tuple(s["parents"]))
            for s in job["stages"]
        )
        specs.append(JobSpec(f"{job['name']}-{row}", stages, job["arrival_ms"], user=job["app"]))
    arrivals = np.array([job["arrival_ms"] for job in jobs], np.int64)
    return JobSequence(Workload("schedule", tuple(specs)), np.arange(len(specs)), arrivals)


def simulated(one: System, seed: int, times: float, args: argparse.Namespace) -> dict[str, Any]:
    """A run as the rig writes it down."""
    jobs = schedule(seed, times)
    sequence = sequence_of(jobs)
    names = tuple(APPS)
    start_ms = round(args.start * MS_PER_S)
    elastic = Elastic(cores_per_executor=1, idle_ms=one.idle_ms, start_ms=start_ms)
    config = SimulationConfig(world=WorldName.CORES, num_executors=EXECUTORS)
    policy = named_policy(one.policy, sequence.workload, config)
    if one.allocation is None:
        trace = simulate(sequence, policy, config, seed)
        counts = {"started": 0, "lost": 0, "most": EXECUTORS}
    else:
        owner = tuple(names.index(job["app"]) for job in jobs)
        with_elastic = config.model_copy(update={"elastic": elastic})
        weights = (1.0,) * len(names)
        cluster = ApplicationsCluster(
            with_elastic, owner, names, weights, args.sigma, round(args.tick * MS_PER_S)
        )
        trace, found = play_applications(sequence, policy, cluster, one.allocation, seed)
        counts = {"started": found.started, "lost": found.interrupted, "most": found.most}
    took = zip(jobs, jct_ms(trace).tolist(), strict=True)
    made = [{"app": job["app"], "ms": ms} for job, ms in took]
    return {"load": [0.0], "again": 0, "jobs": made, **counts}


def measured(work: Work | None, name: str, seeds: range, times: float) -> list[float]:
    """The mean times of the rig's runs of a system, where there are any."""
    if work is None:
        return []
    paths = [work.folder / f"{file_name(name)}-x{times:g}-{seed}.json" for seed in seeds]
    kept = [path for path in paths if path.exists()]
    return [mean_s(work.kept(path.stem, dict)) for path in kept]


def rows(
    args: argparse.Namespace, times: float, chosen: Mapping[str, System]
) -> Iterator[list[str]]:
    """A row for every system."""
    seeds = range(args.seed_start, args.seed_start + args.seeds)
    work = None if args.work is None else Work(args.work)
    runs = {
        name: [simulated(one, seed, times, args) for seed in seeds] for name, one in chosen.items()
    }
    for name, row in zip(runs, rows_of(runs), strict=True):
        real = measured(work, name, seeds, times)
        own = [mean_s(run) for run in runs[name]][: len(real)]
        beside = [f"{np.mean(real):.2f}", f"{np.mean(own) / np.mean(real):.2f}"] if real else []
        yield [*row[:-1], *(beside or ["", ""])]


def foretold(work: Work, name: str, seed: int, times: float) -> dict[str, float]:
    """By application ("": all), the mean time in s under account that a run's logs foretell."""
    logs = work.folder / f"{file_name(name)}-x{times:g}-{seed}-run" / "events"
    logged, held = read_applications([logs])
    jobs = Counter(APPS[job["app"]] for job in schedule(seed, times))
    by_name: dict[str, list[JobRun]] = defaultdict(list)
    names = {one.key: one.name for one in held}
    for run in sorted(logged.runs, key=lambda run: run.submission_ms):
        by_name[names[run.application]].append(run)
    # What ran before the schedule began, warmed executors up.
    logged.runs = [run for app, runs in by_name.items() for run in runs[-jobs[app] :]]
    found = consolidate(logged, held, EXECUTORS)
    parties = {
        one["name"]: one["account_mean_s"] for one in found.parties if one["kind"] == "application"
    }
    return {"": found.clusters[1]["mean_s"], **parties}


def foretold_rows(work: Work, seeds: range, times: float) -> Iterator[list[str]]:
    """Foretold / measured, of all and by application, for every run that a shared one followed."""
    for seed, name in product(seeds, ("fair", "static")):
        paths = [work.folder / f"{one}-x{times:g}-{seed}.json" for one in (file_name(name), "one")]
        if not all(path.exists() for path in paths):
            continue
        real = work.kept(paths[1].stem, dict)
        means = {"": mean_s(real), **{APPS[app]: mean_s(real, app) for app in APPS}}
        found = foretold(work, name, seed, times)
        ratios = [f"{found[app] / mean:.2f}" for app, mean in means.items()]
        yield [f"{name}, seed {seed}", f"{found['']:.2f}", f"{means['']:.2f}", *ratios]


def main(args: argparse.Namespace) -> None:
    """Compare the rig's systems, or those of the sweep."""
    show(args, (swept if args.sweep else systems)(round(args.start * MS_PER_S)))


def show(args: argparse.Namespace, chosen: Mapping[str, System]) -> None:
    """Print a table for every length of jobs."""
    headings = ["system", "mean s", *APPS.values(), "started", "again", "killed", "most"]
    headings += ["to fair", "to static", "to serve:srpt", "on YARN, s", "simulated / YARN"]
    for times in args.times:
        note = f"an executor starts in {args.start:g} s (sigma {args.sigma:g})"
        title = f"Simulated: {args.seeds} seeds, times {times:g}"
        print_rows(title, headings, list(rows(args, times, chosen)), note)
        if args.work is not None:
            seeds = range(args.seed_start, args.seed_start + args.seeds)
            told = list(foretold_rows(Work(args.work), seeds, times))
            headings_of_told = ["logs of", "foretold s", "measured s", "ratio", *APPS.values()]
            print_rows("One application, foretold / measured", headings_of_told, told, "account")


def parser() -> argparse.ArgumentParser:
    """The options of this script."""
    made = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = made.add_argument
    lengths = partial(numbers, read=number(0.05, 100, float))
    add("--times", type=lengths, default=(1.0,), help="lengths of jobs, such as 1,3,10")
    add("--seeds", type=number(1), default=3)
    add("--seed-start", type=number(0), default=1)
    add("--start", type=number(0, 3600, float), default=3.0, help="median, in s")
    add("--sigma", type=number(0, 3, float), default=0.5)
    add("--tick", type=number(0.01, 10, float), default=0.1, help="s between looks at executors")
    add("--sweep", action="store_true")
    add("--work", type=Path, help="the work folder of benchmarks.spark.applications")
    return made


if __name__ == "__main__":
    run_script(parser(), main)
