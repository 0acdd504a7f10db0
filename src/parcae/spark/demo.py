"""`parcae spark demo`: the same mixes of jobs on real Spark under Spark's own orders and under Parcae's policies.

A policy plans inside the plugin, by a policy file of the mixes' profile; `service:NAME` plans in a service.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parcae.errors import ConfigError
from parcae.evaluation.log_gantt import gantt
from parcae.evaluation.statistics import METHODS, Estimate, mean_estimate, ratio_estimate
from parcae.files import write_text
from parcae.policies.policy_file import export_policy, write_policy
from parcae.spark.applications import ReplayRequest, replay, running_service
from parcae.spark.home import SparkHome
from parcae.spark.launch import PluginSettings
from parcae.spark.mixes import drawn_sleeps, mix_json, warm_workload
from parcae.units import MS_PER_S
from parcae.workloads.archive import write_workload
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.spark_run import read_spark_run

#: Spark's own orders, without the plugin; FAIR shares between jobs, each of which has a pool.
STOCK = {"spark-fifo": "FIFO", "spark-fair": "FAIR"}
BASELINE = "spark-fair"
#: Before the name of a policy by which a service plans.
THROUGH_SERVICE = "service:"
#: What an application takes to start, to let the JVM compile, and to end; only for the estimate.
_START_S = 14.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class DemoConfig:
    """What is run.

    Args:
        policies: "spark-fifo", "spark-fair", policies that `parcae export` knows, or "service:" and one
            that `parcae serve` knows.
        workload: as for `parcae compare`; its tasks sleep.
        num_jobs: of a mix.
        cores: that the local Spark declares; the machine may have fewer, since tasks sleep.
        arrivals: as for `parcae compare`.
        seeds: mixes; every policy gets the same.
        seed_start: the first seed; policies were neither trained nor tuned on seeds from 1000 on.
        time_scale: task durations are the profile's times this.

    Raises:
        ConfigError: without spark-fair there is nothing to compare with.
    """

    policies: tuple[str, ...] = ("spark-fair", "spark-fifo", "srpt", "tuned")
    workload: str = "tpch"
    num_jobs: int = 16
    cores: int = 24
    arrivals: str = "poisson:750ms"
    seeds: int = 5
    seed_start: int = 1000
    time_scale: float = 3.0

    def __post_init__(self) -> None:
        if BASELINE not in self.policies:
            raise ConfigError(
                f"--policies needs {BASELINE} to compare with, not only {', '.join(self.policies)}"
            )


@dataclass(frozen=True)
class PolicyRun:
    """What became of all mixes under one policy.

    Args:
        average_jct_s: of every mix.
        makespan_s: of every mix.
        jct_ms: of every job, by mix.
    """

    average_jct_s: list[float]
    makespan_s: list[float]
    jct_ms: list[list[float]]


@dataclass(frozen=True)
class DemoResult:
    """All policies' runs."""

    config: DemoConfig
    runs: dict[str, PolicyRun]
    spark_version: str
    pictures: list[Path] = field(default_factory=list)

    def average(self, policy: str) -> Estimate:
        """Average JCT in s, over seeds."""
        return mean_estimate(self.runs[policy].average_jct_s)

    def ratio(self, policy: str, baseline: str = BASELINE) -> Estimate:
        """Average JCT over that of one of Spark's own orders, paired by seed."""
        return ratio_estimate(self.runs[policy].average_jct_s, self.runs[baseline].average_jct_s)

    def _ratios(self, policy: str) -> dict[str, Any]:
        stocks = [stock for stock in STOCK if stock in self.runs]
        return {
            f"ratio_to_{stock.replace('-', '_')}": self.ratio(policy, stock).to_json()
            for stock in stocks
        }

    def makespan_ratio(self, policy: str) -> Estimate:
        """Makespan over that of Spark's FAIR, paired by seed."""
        return ratio_estimate(self.runs[policy].makespan_s, self.runs[BASELINE].makespan_s)

    def to_json(self) -> dict[str, Any]:
        """{"policies": {name: {"average_jct_s": {"mean":, "ci95": []}, "ratio_to_spark_fair": ..}}}, settings and methods."""
        policies = {}
        for name, run in self.runs.items():
            policies[name] = {
                "average_jct_s": self.average(name).to_json(),
                **{
                    f"ratio_to_{stock.replace('-', '_')}": self.ratio(name, stock).to_json()
                    for stock in STOCK
                    if stock in self.runs
                },
                "makespan_s": mean_estimate(run.makespan_s).to_json(),
                "makespan_ratio_to_spark_fair": self.makespan_ratio(name).to_json(),
                "average_jct_s_by_seed": run.average_jct_s,
                "makespan_s_by_seed": run.makespan_s,
            }
        return {
            "policies": policies,
            "settings": asdict(self.config),
            "spark": self.spark_version,
            "method": METHODS["t"],
        }


def draw_mixes(config: DemoConfig) -> tuple[list[JobSequence], list[dict[str, Any]]]:
    """The mixes' jobs, and the mixes as the replaying application reads them."""
    workload = warm_workload(load_workload(config.workload), config.time_scale)
    sequences = []
    mixes = []
    for seed in range(config.seed_start, config.seed_start + config.seeds):
        sequence = draw_sequence(
            workload, config.arrivals, config.num_jobs, config.cores, RandomStreams(seed)
        )
        sequences.append(sequence)
        mixes.append(mix_json(sequence, drawn_sleeps(sequence, seed)))
    return sequences, mixes


def run_demo(
    config: DemoConfig, spark: SparkHome, jar: Path, work: Path, progress: Progress = print
) -> DemoResult:
    """Run every policy on every mix, one application a policy. What is finished in `work` is not run again.

    Raises:
        SparkFailedError: Spark ended with an error.
        InputError: an unknown policy or workload.
    """
    work.mkdir(parents=True, exist_ok=True)
    sequences, mixes = draw_mixes(config)
    profile = work / "profile.parcae"
    write_workload(sequences[0].workload, profile)
    work_s = (
        sum(sum(sum(s["sleep_ms"]) for j in mix["jobs"] for s in j["stages"]) for mix in mixes)
        / MS_PER_S
    )
    seconds = (
        _START_S
        + 1.2 * work_s / config.cores
        + sum(float(s.arrival_ms[-1]) for s in sequences) / MS_PER_S
    )
    runs: dict[str, PolicyRun] = {}
    for number, policy in enumerate(config.policies):
        noted = work / f"{_file_name(policy)}-{_fingerprint(config, mixes, jar)}.json"
        if noted.exists():
            runs[policy] = PolicyRun(**json.loads(noted.read_text()))
            progress(f"{policy}: finished earlier ({noted})")
            continue
        left_s = seconds * (len(config.policies) - number)
        progress(
            f"{policy}: {config.seeds} mixes of {config.num_jobs} jobs; about {left_s:.0f} s left in all"
        )
        start = time.monotonic()
        runs[policy] = _run_policy(policy, config, spark, jar, work, mixes, profile)
        write_text(noted, json.dumps(asdict(runs[policy])))
        average = float(np.mean(runs[policy].average_jct_s))
        progress(f"{policy}: average JCT {average:.2f} s ({time.monotonic() - start:.0f} s)")
    return DemoResult(config, runs, spark.version, [_draw(config, work)])


def _run_policy(
    policy: str,
    config: DemoConfig,
    spark: SparkHome,
    jar: Path,
    work: Path,
    mixes: list[dict[str, Any]],
    profile: Path,
) -> PolicyRun:
    name = _file_name(policy)
    if policy in STOCK:
        return _outcome(
            ReplayRequest(spark, jar, config.cores, STOCK[policy], None, work, name, {}), mixes
        )
    with contextlib.ExitStack() as stack:
        plugin = stack.enter_context(planned_by(policy, profile, jar, work / name))
        return _outcome(
            ReplayRequest(spark, jar, config.cores, "FAIR", plugin, work, name, {}), mixes
        )


@contextlib.contextmanager
def planned_by(policy: str, profile: Path, jar: Path, notes: Path) -> Iterator[PluginSettings]:
    """What the plugin is told to plan by a policy.

    Args:
        policy: as in `DemoConfig.policies`.
        profile: of the jobs that will run.
        jar: see `build_plugin`.
        notes: the policy file and the service's log go there, with endings of their own.

    Raises:
        InputError: a policy that cannot be exported, or that no service knows.
    """
    if not policy.startswith(THROUGH_SERVICE):
        file = notes.with_name(f"{notes.name}-policy.json")
        write_policy(export_policy(policy, load_workload(str(profile))), file)
        yield PluginSettings(jar, policy=file)
        return
    log = notes.with_name(f"{notes.name}-service.log")
    with running_service(policy.removeprefix(THROUGH_SERVICE), str(profile), log=log) as service:
        yield PluginSettings(jar, service=service.address)


def _outcome(request: ReplayRequest, mixes: list[dict[str, Any]]) -> PolicyRun:
    replayed = replay(request, mixes)
    return PolicyRun(
        [float(mix.jct_ms.mean()) / MS_PER_S for mix in replayed],
        [float(mix.finished_ms.max() - mix.submitted_ms.min()) / MS_PER_S for mix in replayed],
        [mix.jct_ms.tolist() for mix in replayed],
    )


def _file_name(policy: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in policy)


def _fingerprint(config: DemoConfig, mixes: list[dict[str, Any]], jar: Path) -> str:
    """Of all that decides on a policy's numbers but the policy."""
    told = json.dumps([config.cores, config.arrivals, mixes, jar.name])
    return hashlib.sha256(told.encode()).hexdigest()[:10]


def _draw(config: DemoConfig, work: Path) -> Path:
    """The first mix under every policy."""
    charts = []
    for policy in config.policies:
        logs = sorted(
            (work / f"{_file_name(policy)}-events").iterdir(), key=lambda path: path.stat().st_mtime
        )
        charts.append((policy, read_spark_run([logs[-1]], key="parcae.mix.0")))
    picture = work / "gantt.png"
    gantt(charts, picture, title=f"{config.num_jobs} jobs on {config.cores} cores of a real Spark")
    return picture
