"""The settings of `parcae spark tpch`, its runs, and the arrivals of queries in every run."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.workloads.arrivals import RandomStreams

#: The policy with which all others are compared.
BASELINE = "fair"
#: Spark's own policies, without the plugin, and their scheduler modes.
STOCK = {"fifo": "FIFO", "fair": "FAIR"}
NUM_QUERIES_OF_TPCH = 22
#: Seeds of the earlier runs (arrival rate, profile) start here. Judged seeds are below.
EARLIER_SEED_START = 900_000
#: Scans read pieces of this size. So even small tables are read by more tasks than there are
#: cores, as large tables are.
SCAN_BYTES = "8m"
#: Settings that the study makes itself, and those of a JVM that it starts before any context.
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
_OF_EVENT_LOGS = "spark.eventLog."


@dataclass(frozen=True)
class TpchConfig:
    """The settings of the study.

    Args:
        policies: `fifo` and `fair` are those of stock Spark; for all others the plugin plans.
            `fair` must be among them.
        scale_factor: of the TPC-H tables; 1 is about 1 GB of text.
        load: the requested load: the share of the cores' time, 0..1, that is busy under FAIR while
            queries arrive.
        num_queries: number of queries of a run. The 22 queries of TPC-H repeat, in the seed's
            order.
        cores: of the local Spark.
        seeds: number of judged seeds; 0 only prepares tables, profile and arrival rate.
        seed_start: the first judged seed.
        repeats: further runs under FAIR for every seed, which show how much repeated runs differ.
        warm_rounds: how often every query runs in a new JVM before anything is measured.
        profile_rounds: how often every query runs alone for the profile.
        calibration_runs: the largest number of runs under FAIR to find the arrival rate.
        gap_s: mean time between arrivals, in s; None to find it by calibration.
        memory: of the driver's JVM, which also runs the tasks.
        conf: more Spark settings, by name, but none that this study makes itself.

    Raises:
        ConfigError: a value is out of its range, `fair` is not among the policies, or a setting in
            `conf` would have no effect.
    """

    policies: tuple[str, ...] = ("fifo", "fair", "srpt", "tuned", "parcae", "parcae+guard:1.1")
    scale_factor: float = 1.0
    load: float = 0.8
    num_queries: int = 44
    cores: int = 2
    seeds: int = 20
    seed_start: int = 1000
    repeats: int = 1
    warm_rounds: int = 2
    profile_rounds: int = 2
    calibration_runs: int = 6
    gap_s: float | None = None
    memory: str = "4g"
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if BASELINE not in self.policies:
            given = ", ".join(self.policies)
            raise ConfigError(f"--policies needs {BASELINE} to compare with, not only {given}")
        if len({*self.policies}) < len(self.policies):
            raise ConfigError(f"--policies names one twice: {', '.join(self.policies)}")
        if not 0 < self.scale_factor <= 1_000:
            given = f"--scale-factor is {self.scale_factor:g}"
            raise ConfigError(f"{given}; write a number above 0, at most 1000")
        if not 0 < self.load < 1:
            given = f"--load is {self.load:g}"
            raise ConfigError(f"{given}; write a share above 0 and below 1, such as 0.8")
        if self.num_queries < 2:
            raise ConfigError(f"--queries is {self.num_queries}; a run needs at least 2")
        if not 0 <= self.seed_start <= EARLIER_SEED_START - self.seeds:
            given = f"--seed-start is {self.seed_start}, with {self.seeds} seeds"
            raise ConfigError(f"{given}; judged seeds lie below {EARLIER_SEED_START}")
        if self.gap_s is not None and not 0 < self.gap_s < math.inf:
            raise ConfigError(f"--gap is {self.gap_s:g} s; write a time above 0")
        for name in self.conf:
            if name in _OWN_SETTINGS or name.startswith(_OF_EVENT_LOGS):
                advice = "use --memory" if name == "spark.driver.memory" else "leave it out"
                raise ConfigError(f"--conf {name} has no effect, as the command sets it: {advice}")
        self._check_counts()

    def _check_counts(self) -> None:
        at_least_1 = {
            "--cores": self.cores,
            "--profile-rounds": self.profile_rounds,
            "--calibration-runs": self.calibration_runs,
        }
        at_least_0 = {
            "--seeds": self.seeds,
            "--repeats": self.repeats,
            "--warm-rounds": self.warm_rounds,
        }
        for least, counts in ((1, at_least_1), (0, at_least_0)):
            for name, count in counts.items():
                if count < least:
                    raise ConfigError(f"{name} is {count}; write at least {least}")

    @property
    def query_numbers(self) -> tuple[int, ...]:
        """The queries of every run, before they are shuffled.

        Example: 44 queries are the queries 1 to 22 twice, 4 queries are 1 to 4.
        """
        return tuple(1 + position % NUM_QUERIES_OF_TPCH for position in range(self.num_queries))

    @property
    def is_adaptive(self) -> bool:
        """Whether every stage is a Spark job of its own (adaptive execution, Spark's default)."""
        return self.conf.get("spark.sql.adaptive.enabled", "true").lower() == "true"

    def of_folder(self) -> dict[str, Any]:
        """The settings that must be the same for all runs of a work folder."""
        shared = (
            "scale_factor",
            "load",
            "num_queries",
            "cores",
            "profile_rounds",
            "memory",
            "conf",
        )
        settings = asdict(self)
        return {name: settings[name] for name in shared}


def usable_cores() -> int:
    """How many cores this process may use: all of the machine, unless `taskset` limits them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Arrival:
    """The arrival of a query."""

    query: int
    at_s: float


def draw_arrivals(config: TpchConfig, seed: int, gap_s: float) -> tuple[Arrival, ...]:
    """Draw which query arrives when. The arrivals are the same for every policy.

    The times between arrivals are exponential and scaled so that their mean is exactly `gap_s`.
    This is a Poisson process with given first and last arrivals. So every seed brings the same work
    in the same time.

    Example: with 3 queries and a gap of 10 s the first arrives at 0 s and the last at 20 s.
    """
    streams = RandomStreams(seed)
    order = streams.jobs.permutation(config.query_numbers)
    gaps = streams.arrivals.exponential(1.0, config.num_queries - 1)
    times = np.concatenate([[0.0], np.cumsum(gaps / gaps.mean() * gap_s)])
    return tuple(Arrival(int(query), float(at)) for query, at in zip(order, times, strict=True))


def policy_file_name(policy: str) -> str:
    """A policy's name as a part of file names.

    Example: "parcae+guard:1.1" becomes "parcae_guard_1.1".
    """
    return re.sub(r"[^\w.-]", "_", policy)


@dataclass(frozen=True, order=True)
class RunKey:
    """The key of a judged run."""

    seed: int
    policy: str
    repeat: int = 0

    @property
    def file_name(self) -> str:
        """The name of the run's files, without the suffix."""
        again = f"-again-{self.repeat}" if self.repeat else ""
        return f"seed-{self.seed}-{policy_file_name(self.policy)}{again}"


def judged_runs(config: TpchConfig) -> list[RunKey]:
    """All judged runs: seed by seed, with the policies of a seed in random order."""
    # A random order keeps slow changes of the machine from favouring one policy.
    runs = []
    for seed in range(config.seed_start, config.seed_start + config.seeds):
        block = [RunKey(seed, policy) for policy in config.policies]
        block += [RunKey(seed, BASELINE, repeat) for repeat in range(1, config.repeats + 1)]
        runs += [block[row] for row in RandomStreams(seed).actions.permutation(len(block))]
    return runs
