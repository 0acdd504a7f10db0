"""Forecast what a policy would have saved in the window of an event log, and who would pay."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from parcae.base.errors import ConfigError
from parcae.evaluation.log_check import Replayed, replayed_applications
from parcae.evaluation.who_pays import by_group, paired_jobs
from parcae.policies.additions import named_policy
from parcae.workloads.spark_log.dag import JobRun
from parcae.workloads.spark_log.event_log import LoggedRuns

#: Intervals are over so many parts of an application's window.
_NUM_PARTS = 20
#: The plugin's sizes are wrong by chance: so many draws of that.
NUM_DRAWS = 5
#: What `forecast` groups jobs by: recurring name, user, queue, and all.
_ALL = "all"
#: What a group of jobs gains or loses.
Row = dict[str, Any]


@dataclass(frozen=True)
class Forecast:
    """What a policy would have changed.

    Args:
        policy: its name.
        today: the logged orders, in words.
        num_jobs: number of jobs in the window.
        replayed: mean completion time under the logged order, simulated / as in the log: how far
            the simulator is off.
        size_error: the sigma of the log-normal error of the sizes that the policy knew.
        all: all jobs: mean time under today's order and under the policy, and their ratio with an
            interval over 20 parts of the window.
        names, users, queues: the same for recurring names, users and YARN's queues, those that lose
            most first.
    """

    policy: str
    today: str
    num_jobs: int
    replayed: float
    size_error: float
    all: Row
    names: tuple[Row, ...]
    users: tuple[Row, ...]
    queues: tuple[Row, ...]


def forecast(logged: LoggedRuns, policy: str) -> Forecast:
    """Replay a log's window under its own order and under a policy.

    Both replays have the log's arrivals, task durations, driver time and cores over time. The
    policy knows sizes as badly as the plugin would, if it knew a recurring name by its earlier runs
    and a new one by the runs of all (a log-normal error of that size).
    """
    replays = list(replayed_applications(logged))
    if not replays:
        raise ConfigError("no query of the log took any time: there is nothing to forecast")
    error = size_error([run for one in replays for run in one.runs])
    frames = []
    for number, one in enumerate(replays):
        for draw in range(NUM_DRAWS):
            frames.append(_paired(one, policy, error, draw).with_columns(
                seed=pl.col("position") * _NUM_PARTS // len(one.runs) + number * _NUM_PARTS
            ))  # fmt: skip
    jobs = pl.concat(frames).with_columns(pl.lit(_ALL).alias(_ALL))
    logged_ms, today_ms = (
        np.concatenate(times)
        for times in zip(
            *((one.logged_ms, one.replay(one.workload, one.slots)) for one in replays), strict=True
        )
    )
    words = dict.fromkeys(order.words for order in logged.orders.values())
    return Forecast(
        policy=policy,
        today="; ".join(words),
        num_jobs=len(logged_ms),
        replayed=float(today_ms.mean() / logged_ms.mean()),
        size_error=error,
        all=_rows(jobs, _ALL)[0],
        names=_rows(jobs, "job"),
        users=_rows(jobs, "user"),
        queues=_rows(jobs, "queue"),
    )


def _paired(one: Replayed, policy: str, error: float, draw: int) -> pl.DataFrame:
    """The jobs of an application under its own order and under the policy."""
    config = one.config(error)
    traces = [
        one.trace(named, config, draw)
        for named in (one.order, named_policy(policy, one.workload, config))
    ]
    users, queues = ([getattr(run, of) for run in one.runs] for of in ("user", "queue"))
    return paired_jobs(traces, users=users, queues=queues)


def _rows(jobs: pl.DataFrame, key: str) -> tuple[Row, ...]:
    """The jobs of every group, those that lose most time first."""
    groups = by_group(jobs, key, [1])
    rows: list[Row] = [
        {
            "name": policy.name,
            "jobs": policy.runs // NUM_DRAWS,
            "today_s": today.mean_s,
            "policy_s": policy.mean_s,
            "ratio": policy.ratio,
            "later_share": policy.later_share,
            "verdict": policy.verdict,
        }
        for today, policy in zip(groups[::2], groups[1::2], strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: (row["today_s"] - row["policy_s"]) * row["jobs"]))


def size_error(runs: Sequence[JobRun]) -> float:
    """How far a job's work is from what the runs before it say: the root of the mean square of the
    logarithm of their ratio.
    """
    earlier: dict[str, list[float]] = defaultdict(list)
    everything: list[float] = []
    errors = []
    for run in sorted(runs, key=lambda run: run.submission_ms):
        work_ms = float(max(1, sum(sum(stage.replayed_ms) for stage in run.stages)))
        known = earlier[run.name] or everything
        if known:
            errors.append(math.log(work_ms / np.mean(known)))
        earlier[run.name].append(work_ms)
        everything.append(work_ms)
    return float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0
