"""`parcae spark demo`: runs the same mixes of jobs on a real Spark under several policies.

The policies are Spark's FIFO and FAIR and those of Parcae. A policy of Parcae plans in the plugin,
by a policy file for the mixes' profile. `service:NAME` plans in a service instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.files import write_text
from parcae.base.texts import MS_PER_S
from parcae.evaluation.gantt import gantt
from parcae.evaluation.kept_runs import files_in_names
from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    METHODS,
    Estimate,
    mean_estimate,
    ratio_estimate,
)
from parcae.policies.policy_file import export_policy, write_policy
from parcae.service.policies import policies_for
from parcae.service.serve import ServeSettings
from parcae.spark.applications import ReplayRequest, event_log_folder, replay, running_service
from parcae.spark.home import SparkHome
from parcae.spark.launch import PluginSettings
from parcae.spark.mixes import drawn_sleeps, mix_json, warm_workload
from parcae.spark.tpch_plan import policy_file_name
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.arrivals import JobSequence, RandomStreams, draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.spark_log.run import read_spark_run

#: Spark's own policies, without the plugin. FAIR shares between jobs, since each has its own pool.
STOCK = {"spark-fifo": "FIFO", "spark-fair": "FAIR"}
BASELINE = "spark-fair"
#: The prefix of policies that plan in a service.
THROUGH_SERVICE = "service:"
#: Time to start an application, warm the JVM up and stop; only for the estimate of the time left.
START_S = 14.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class DemoConfig:
    """The settings of a demonstration.

    Args:
        policies: "spark-fifo", "spark-fair", policies that `parcae export` knows, and "service:"
            before a policy that `parcae serve` knows.
        workload: as for `parcae compare`; its tasks sleep.
        num_jobs: number of jobs of a mix.
        cores: number of cores that the local Spark declares. The machine may have fewer, since
            tasks sleep.
        arrivals: as for `parcae compare`.
        seeds: number of mixes; every policy runs the same ones.
        seed_start: the first seed. No policy was trained or tuned on seeds from 1000 on.
        time_scale: factor on the profile's task durations.

    Raises:
        ConfigError: spark-fair, the baseline, is not among the policies.
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
    """The results of all mixes under one policy."""

    average_jct_s: list[float]
    makespan_s: list[float]
    jct_ms: list[list[float]]


@dataclass(frozen=True)
class DemoResult:
    """The runs of all policies.

    Args:
        config: the settings.
        runs: by policy.
        spark_version: of the real Spark.
        pictures: Gantt charts of the first mix.
    """

    config: DemoConfig
    runs: dict[str, PolicyRun]
    spark_version: str
    pictures: list[Path] = field(default_factory=list)

    def average(self, policy: str) -> Estimate:
        """Average JCT in s, over seeds."""
        return mean_estimate(self.runs[policy].average_jct_s).within(0.0)

    def ratio(self, policy: str, baseline: str = BASELINE) -> Estimate:
        """Average JCT divided by that of one of Spark's own policies, paired by seed."""
        return ratio_estimate(self.runs[policy].average_jct_s, self.runs[baseline].average_jct_s)

    def makespan_ratio(self, policy: str) -> Estimate:
        """Makespan divided by that of Spark's FAIR, paired by seed."""
        return ratio_estimate(self.runs[policy].makespan_s, self.runs[BASELINE].makespan_s)

    def to_json(self) -> dict[str, Any]:
        """All results: {"policies": {name: {...}}, "settings":, "spark":, "method":}.

        Estimates are written as {"mean":, "ci95": [low, high]}.
        """
        policies = {}
        for name, run in self.runs.items():
            policies[name] = {
                "average_jct_s": self.average(name).to_json(),
                **{
                    f"ratio_to_{stock.replace('-', '_')}": self.ratio(name, stock).to_json()
                    for stock in STOCK
                    if stock in self.runs
                },
                "makespan_s": mean_estimate(run.makespan_s).within(0.0).to_json(),
                "makespan_ratio_to_spark_fair": self.makespan_ratio(name).to_json(),
                "average_jct_s_by_seed": run.average_jct_s,
                "makespan_s_by_seed": run.makespan_s,
            }
        return {
            "policies": policies,
            "settings": asdict(self.config),
            "spark": self.spark_version,
            "method": METHODS[DEFAULT_METHOD],
        }


def draw_mixes(config: DemoConfig) -> tuple[list[JobSequence], list[dict[str, Any]]]:
    """Draw the mixes: as job sequences, and as the replaying application reads them."""
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
    """Run every policy on every mix, with one Spark application per policy.

    Policies whose results and event logs are in `work` already are not run again.

    Args:
        config: the settings.
        spark: which Spark.
        jar: the plugin's jar.
        work: folder for results, event logs and pictures.
        progress: called with a line of text at every step.

    Raises:
        SparkFailedError: Spark ended with an error.
        InputError: a policy or the workload is unknown.
    """
    work.mkdir(parents=True, exist_ok=True)
    sequences, mixes = draw_mixes(config)
    profile = work / "profile.parcae"
    write_workload(sequences[0].workload, profile)
    # An unknown policy must raise now and not after minutes of runs.
    for policy in config.policies:
        if policy not in STOCK:
            check_planned(policy, sequences[0].workload)
    seconds = _estimated_s(config, sequences, mixes)
    names = {
        policy: f"{policy_file_name(policy)}-{_fingerprint(policy, config, mixes, spark, jar)}"
        for policy in config.policies
    }
    runs: dict[str, PolicyRun] = {}
    for number, policy in enumerate(config.policies):
        name = names[policy]
        result_file = work / f"{name}.json"
        # The picture needs the event log as well: somebody may have deleted the large files.
        if result_file.exists() and _event_logs(work, name):
            runs[policy] = PolicyRun(**json.loads(result_file.read_text()))
            progress(f"{policy}: finished earlier ({result_file})")
            continue
        left_s = seconds * (len(config.policies) - number)
        progress(
            f"{policy}: {config.seeds} mixes of {config.num_jobs} jobs; "
            f"about {left_s:.0f} s left in all"
        )
        start = time.monotonic()
        runs[policy] = _run_policy(policy, name, config, spark, jar, work, mixes, profile)
        write_text(result_file, json.dumps(asdict(runs[policy])))
        average = float(np.mean(runs[policy].average_jct_s))
        progress(f"{policy}: average JCT {average:.2f} s ({time.monotonic() - start:.0f} s)")
    return DemoResult(config, runs, spark.version, [_draw(config, names, work)])


def _estimated_s(
    config: DemoConfig, sequences: list[JobSequence], mixes: list[dict[str, Any]]
) -> float:
    """Seconds of one policy's runs, roughly: the work on all cores plus 20%, and the arrivals."""
    stages = [stage for mix in mixes for job in mix["jobs"] for stage in job["stages"]]
    work_s = sum(sum(stage["sleep_ms"]) for stage in stages) / MS_PER_S
    arrivals_s = sum(float(sequence.arrival_ms[-1]) for sequence in sequences) / MS_PER_S
    return START_S + 1.2 * work_s / config.cores + arrivals_s


def _run_policy(
    policy: str,
    name: str,
    config: DemoConfig,
    spark: SparkHome,
    jar: Path,
    work: Path,
    mixes: list[dict[str, Any]],
    profile: Path,
) -> PolicyRun:
    mode = STOCK.get(policy, "FAIR")
    planned = (
        contextlib.nullcontext()
        if policy in STOCK
        else planned_by(policy, profile, jar, work / name)
    )
    with planned as plugin:
        replayed = replay(
            ReplayRequest(spark, jar, config.cores, mode, plugin, work, name, {}), mixes
        )
    return PolicyRun(
        [float(mix.jct_ms.mean()) / MS_PER_S for mix in replayed],
        [float(mix.finished_ms.max() - mix.submitted_ms.min()) / MS_PER_S for mix in replayed],
        [mix.jct_ms.tolist() for mix in replayed],
    )


def check_planned(policy: str, workload: Workload) -> None:
    """Refuse a policy that neither the plugin nor a service can plan by."""
    if not policy.startswith(THROUGH_SERVICE):
        export_policy(policy, workload)
        return
    settings = ServeSettings()
    make = policies_for(policy.removeprefix(THROUGH_SERVICE), workload, settings.arrivals)
    make(settings.num_cores)


@contextlib.contextmanager
def planned_by(policy: str, profile: Path, jar: Path, notes: Path) -> Iterator[PluginSettings]:
    """The plugin's settings for a policy; a service for it runs as long as the `with` block."""
    if not policy.startswith(THROUGH_SERVICE):
        file = notes.with_name(f"{notes.name}-policy.json")
        write_policy(export_policy(policy, load_workload(str(profile))), file)
        yield PluginSettings(jar, policy=file)
        return
    log = notes.with_name(f"{notes.name}-service.log")
    with running_service(policy.removeprefix(THROUGH_SERVICE), str(profile), log=log) as service:
        yield PluginSettings(jar, service=service.address)


def _fingerprint(
    policy: str, config: DemoConfig, mixes: list[dict[str, Any]], spark: SparkHome, jar: Path
) -> str:
    """A hash of everything that decides a policy's results, except the policy's name."""
    cluster = (config.cores, config.arrivals, mixes, spark.version, jar.name)
    return hash_of(*cluster, *content_of(policy))


def hash_of(*inputs: Any) -> str:
    """A short hash of what decides a result, for the name of its file; the inputs are JSON."""
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:10]


def content_of(policy: str) -> list[str]:
    """The hashes of the files that a policy's name mentions: a name does not say what is in it."""
    return [*files_in_names([policy.removeprefix(THROUGH_SERVICE)]).values()]


def _event_logs(work: Path, name: str) -> list[Path]:
    """The event logs of a policy's runs, oldest first; none if somebody deleted them."""
    folder = event_log_folder(work, name)
    if not folder.is_dir():
        return []
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)


def _draw(config: DemoConfig, names: Mapping[str, str], work: Path) -> Path:
    """Draw Gantt charts of the first mix under every policy, from the files of these names."""
    charts = []
    for policy, name in names.items():
        # A run that was stopped leaves an event log, too; the newest one counts.
        newest = _event_logs(work, name)[-1]
        charts.append((policy, read_spark_run([newest], key="parcae.mix.0")))
    picture = work / "gantt.png"
    gantt(charts, picture, title=f"{config.num_jobs} jobs on {config.cores} cores of a real Spark")
    return picture
