"""Comparisons of runs that are written by hand, and a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from parcae.evaluation.compare import RUNS, ClusterWorld
from parcae.evaluation.comparison import Comparison, compared, numbered
from parcae.evaluation.policies import Resolved, ResolvedPolicies
from parcae.evaluation.who_pays import deadline_counts, later_counts, paired_jobs
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import RunSummary, summarize
from parcae.workloads.workload import Workload
from tests.conftest import job
from tests.metrics.hand_made import sequence, trace
from tests.workloads import spark_log_builder as built

CONFIG = SimulationConfig(num_executors=2)
WORLD = ClusterWorld(Workload("<tpch>", (job("a", (1, 1, ())),)), CONFIG, "batch", 2)


def run_of(
    names: Sequence[str],
    *completion_ms: Sequence[int],
    arrival_ms: Sequence[int] = (),
    clock_ms: Sequence[int] = (),
    deadline_ms: Sequence[float] = (),
    pools: Sequence[str] = (),
) -> pl.DataFrame:
    """The jobs of one run; a row of completion times a policy, -1 for jobs that are cut off."""
    arrivals = tuple(arrival_ms or [0] * len(names))
    ends = clock_ms or [max(9_000, *row) for row in completion_ms]
    traces = [
        replace(
            trace((), arrival_ms=arrivals, completion_ms=tuple(row), clock_ms=end),
            job_names=tuple(names),
        )
        for row, end in zip(completion_ms, ends, strict=True)
    ]
    due = pl.Series(deadline_ms, dtype=pl.Float64).to_numpy() if deadline_ms else None
    return paired_jobs(traces, deadline_ms=due, pools=pools)


def jobs_of(*runs: pl.DataFrame, first_seed: int = 0) -> pl.DataFrame:
    """The jobs of several runs."""
    return pl.concat(numbered(seed, run) for seed, run in enumerate(runs, first_seed))


def counts_of(jobs: pl.DataFrame, column: int) -> pl.DataFrame:
    """What is counted of the jobs under one policy, a row a seed."""
    counts = jobs.group_by("seed", "column").agg(*later_counts(), *deadline_counts())
    return counts.filter(pl.col("column") == column).sort("seed")


def comparison_of(
    averages_s: Mapping[str, Sequence[float]],
    runs: Sequence[pl.DataFrame] = (),
    *,
    oracles: Sequence[str] = (),
    world: ClusterWorld = WORLD,
    first_seed: int = 0,
    summary: RunSummary | None = None,
) -> Comparison:
    """A comparison whose policies had these average completion times on each seed.

    Without `runs`, two jobs a seed took a quarter and seven quarters of the average.
    """
    names = tuple(averages_s)
    seeds = range(first_seed, first_seed + len(averages_s[names[0]]))
    known = summary or summarize(trace(), sequence())
    rows = [
        {
            "seed": seed,
            **asdict(replace(known, average_jct_ms=1_000.0 * averages_s[name][row])),
            "clock_ms": 8_000,
        }
        for row, seed in enumerate(seeds)
        for name in names
    ]
    found = runs or [
        run_of(
            ("small", "large"),
            *((round(250 * v[row]), round(1_750 * v[row])) for v in averages_s.values()),
        )
        for row in range(len(seeds))
    ]
    # What a policy is does not matter here, but that it is no oracle.
    became = {name: Resolved(None if name in oracles else object(), name) for name in names}
    resolved = ResolvedPolicies(became, world.config)
    return compared(
        world,
        resolved,
        seeds,
        pl.DataFrame(rows, {"seed": pl.Int64, **RUNS}),
        jobs_of(*found, first_seed=first_seed),
    )


def _query(
    number: int, name: str, arrival: int, start: int, tasks: int, task_ms: int
) -> list[dict[str, Any]]:
    """A query that waits for the core; its person is the first letter of its name."""
    info = built.stage_info(number, tasks)
    end = start + tasks * task_ms
    begin = built.job_start(
        number, arrival, [info], spark_job_description=name, spark_parcae_user=name[0]
    )
    done = built.stage_completed(info, arrival, end)
    last = {**built.job_end(number), "Completion Time": end}
    return [begin, *built.ran(info, start, end)[:-1], done, last]


def write_waiting_log(path: Path) -> Path:
    """Write a log: thirty times a short query waits for a long one of 10 s, in the order FIFO on
    one core.
    """
    events = [built.application_start("app"), built.executor(cores=1)]
    for turn in range(30):
        at = 20_000 * turn
        events += _query(2 * turn, "long", at, at, 10, 1_000)
        events += _query(2 * turn + 1, "short", at + 50, at + 10_000, 1, 100)
    path.write_bytes(built.to_bytes(events))
    return path
