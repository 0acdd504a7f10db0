"""`parcae spark fidelity`: does a job take as long on real Spark as in the simulator? (Decima, Appendix D and Figure 18)

The simulator plays a run and notes how long every task took. Real Spark then runs the same jobs, whose tasks sleep for just that
long, under a service with the same policy. What the cluster itself costs (starting a task, handing a core from stage to stage and
from job to job) is measured first and told to the simulator.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.decision import Policy
from parcae.cluster.trace import Trace
from parcae.errors import InvariantError
from parcae.evaluation.plots import scatter_of_pairs
from parcae.policies.catalog import make_policy
from parcae.policies.learned import deciding_policy, is_learned
from parcae.simulation.config import SimulationConfig
from parcae.simulation.run import simulate
from parcae.spark.applications import ReplayRequest, replay, running_service
from parcae.spark.home import SparkHome
from parcae.spark.launch import PluginSettings
from parcae.spark.mixes import Sleeps, mix_json, warm_workload
from parcae.units import MS_PER_S
from parcae.workloads.archive import write_workload
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.job import StageSpec, TaskDurations, Workload
from parcae.workloads.random_streams import RandomStreams

FloatArray = npt.NDArray[np.float64]
Progress = Callable[[str], None]
#: Tasks of the calibration sleep that long, in chains and waves of that many.
_SLEEP_MS, _LENGTH, _REPETITIONS = 100, 20, 5
#: What an application takes to start, to let the JVM compile, and to end; only for the estimate.
_START_S = 14.0


@dataclass(frozen=True)
class FidelityConfig:
    """What is compared.

    Args:
        workload: as for `parcae compare`; its tasks sleep.
        policy: who schedules, here and there.
        cores: that the local Spark declares.
        num_jobs: of a mix, for the shared cluster.
        arrivals: of a mix.
        seeds: mixes.
        seed_start: the first seed.
        time_scale: task durations are the profile's times this.
        alone: how many of the workload's jobs run alone, evenly chosen; None for all.
    """

    workload: str = "tpch"
    policy: str = "parcae"
    cores: int = 24
    num_jobs: int = 12
    arrivals: str = "load:0.7"
    seeds: int = 4
    seed_start: int = 1000
    time_scale: float = 4.0
    alone: int | None = None


@dataclass(frozen=True)
class ClusterCosts:
    """What the cluster itself costs, in ms.

    Args:
        task: of every task, beside its work: launching it, telling its end.
        stage: more, for the first task of a core in another stage.
        moving: more, for the first task of a core in another job.
        job: more, from a job's submission to its first task and from its last to its end.
    """

    task: float
    stage: float
    moving: float
    job: float


@dataclass(frozen=True)
class Comparison:
    """Jobs here and there; float64[num_jobs], completion times in ms."""

    names: list[str]
    simulated_ms: list[float]
    real_ms: list[float]

    @property
    def errors(self) -> FloatArray:
        """|simulated - real| / real of every job."""
        real = np.array(self.real_ms)
        return np.asarray(np.abs(np.array(self.simulated_ms) - real) / real)

    def to_json(self) -> dict[str, Any]:
        """{"mean_error":, "p95_error":, "mean_signed_error":, "jobs": [...]}."""
        signed = np.array(self.simulated_ms) / np.array(self.real_ms) - 1
        return {
            "mean_error": float(self.errors.mean()),
            "p95_error": float(np.percentile(self.errors, 95)),
            "mean_signed_error": float(signed.mean()),
            "num_jobs": len(self.names),
            "jobs": [list(row) for row in zip(self.names, self.simulated_ms, self.real_ms, strict=True)],
        }


@dataclass(frozen=True)
class FidelityResult:
    """The comparison of jobs that run alone and of jobs that share the cluster."""

    config: FidelityConfig
    costs: ClusterCosts
    alone: Comparison
    shared: Comparison
    plugin: dict[str, Any]
    spark_version: str
    picture: Path

    def to_json(self) -> dict[str, Any]:
        """{"alone": {"mean_error":, "p95_error":, ..}, "shared": {..}, "costs_ms": .., "settings": ..}."""
        return {
            "alone": self.alone.to_json(),
            "shared": self.shared.to_json(),
            "costs_ms": asdict(self.costs),
            "plugin": self.plugin,
            "settings": asdict(self.config),
            "spark": self.spark_version,
        }


def run_fidelity(config: FidelityConfig, spark: SparkHome, jar: Path, work: Path, progress: Progress = print) -> FidelityResult:
    """Measure the cluster's costs, then compare.

    Raises:
        SparkFailedError: Spark ended with an error.
        InputError: an unknown policy or workload.
    """
    work.mkdir(parents=True, exist_ok=True)
    warm = warm_workload(load_workload(config.workload), config.time_scale)
    cluster = _Cluster(config, spark, jar, work)
    progress(f"measuring what the cluster costs: about {_START_S + 2 * _REPETITIONS * 3 * _LENGTH * _SLEEP_MS / MS_PER_S:.0f} s")
    costs = cluster.costs(warm)
    progress(", ".join(f"{name} {value:.1f} ms" for name, value in asdict(costs).items()))
    known = costly_workload(warm, costs)
    jobs = np.unique(np.linspace(0, len(known.jobs) - 1, min(config.alone or len(known.jobs), len(known.jobs))).astype(np.int64))
    single = [JobSequence(known, np.array([job]), np.zeros(1, np.int64)) for job in jobs]
    mixes = [
        draw_sequence(known, config.arrivals, config.num_jobs, config.cores, RandomStreams(seed))
        for seed in range(config.seed_start, config.seed_start + config.seeds)
    ]
    alone = cluster.compare("alone", single, costs, progress)
    shared = cluster.compare("shared", mixes, costs, progress)
    picture = work / "fidelity.png"
    scatter_of_pairs(
        {"alone": (alone.real_ms, alone.simulated_ms), "shared cluster": (shared.real_ms, shared.simulated_ms)},
        picture,
        ("real Spark: completion time [s]", "simulator: completion time [s]"),
        scale=1 / MS_PER_S,
    )
    return FidelityResult(config, costs, alone, shared, cluster.report, spark.version, picture)


class _Cluster:
    """The real cluster under a service, and the simulated one."""

    def __init__(self, config: FidelityConfig, spark: SparkHome, jar: Path, work: Path) -> None:
        self.config, self.spark, self.jar, self.work = config, spark, jar, work
        self.report: dict[str, Any] = {}

    def replay(
        self, name: str, policy: str, workload: Workload, mixes: Sequence[dict[str, Any]], cores: int
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Submission and end of every job of every mix, on real Spark."""
        profile, report = self.work / f"{name}.parcae", self.work / f"{name}-report.json"
        write_workload(workload, profile)
        extra = ("--arrivals", self.config.arrivals)
        with running_service(
            policy, str(profile), num_slots=cores, extra=extra, log=self.work / f"{name}-service.log"
        ) as service:
            plugin = PluginSettings(self.jar, service.address, report=report)
            done = replay(ReplayRequest(self.spark, self.jar, cores, "FAIR", plugin, self.work, name, {}), mixes)
        self.report = json.loads(report.read_text())
        return [(mix.submitted_ms, mix.finished_ms) for mix in done]

    def costs(self, workload: Workload) -> ClusterCosts:
        """Waves of one stage, chains of stages and chains of jobs on one core: the slopes tell the costs apart.

        One core: w tasks of one stage take j + s + w (d + t), a chain of n stages j + n (d + t + s), n jobs that came together
        n (d + t + s + m) + j, where d is the sleep.
        """
        wave = {"jobs": [_job([[_SLEEP_MS] * _LENGTH])]}
        chain = {"jobs": [_job([[_SLEEP_MS]] * _LENGTH)]}
        jobs = {"jobs": [_job([[_SLEEP_MS]]) for _ in range(_LENGTH)]}
        short = {"jobs": [_job([[_SLEEP_MS]])]}
        rounds = [short, wave, chain, jobs] * _REPETITIONS
        replayed = self.replay("calibration", "fifo", workload, rounds, 1)
        span = [float(finished.max() - submitted.min()) for submitted, finished in replayed]
        one, waves, stages, several = (float(np.median(span[kind::4])) for kind in range(4))
        more = _LENGTH - 1
        task = (waves - one) / more - _SLEEP_MS
        stage = (stages - one) / more - _SLEEP_MS - task
        moving = (several - one) / more - _SLEEP_MS - task - stage
        return ClusterCosts(task, max(0.0, stage), max(0.0, moving), max(0.0, one - _SLEEP_MS - task - max(0.0, stage)))

    def compare(self, name: str, sequences: Sequence[JobSequence], costs: ClusterCosts, progress: Progress) -> Comparison:
        """Simulate the sequences, then run them."""
        traces, mixes = [], []
        for seed, sequence in enumerate(sequences, self.config.seed_start):
            config = SimulationConfig(
                num_executors=self.config.cores, moving_delay_ms=max(0, round(costs.moving)), warmup_delay_ms=0
            )
            trace = simulate(sequence, self._policy(sequence.workload, config), config, seed, record=True)
            traces.append(trace)
            mixes.append(mix_json(sequence, slept(trace, costs)))
        seconds = sum(trace.clock_ms for trace in traces) / MS_PER_S + _START_S
        progress(f"{name}: {len(mixes)} mixes, about {seconds:.0f} s")
        replayed = self.replay(name, self.config.policy, sequences[0].workload, mixes, self.config.cores)
        names = [job for trace in traces for job in trace.job_names]
        simulated = [float(t) + costs.job for trace in traces for t in trace.completion_ms - trace.arrival_ms]
        real = [float(t) for submitted, finished in replayed for t in finished - submitted]
        result = Comparison(names, simulated, real)
        progress(f"{name}: mean error {result.errors.mean():.1%}, 95th percentile {np.percentile(result.errors, 95):.1%}")
        return result

    def _policy(self, workload: Workload, config: SimulationConfig) -> Policy:
        text = self.config.policy
        if is_learned(text):
            return deciding_policy(text, workload, _as_served(config), self.config.arrivals)
        return make_policy(text, config.total_executors)


def _as_served(config: SimulationConfig) -> SimulationConfig:
    """What the service takes for granted: that moving costs nothing (its default)."""
    return config.model_copy(update={"moving_delay_ms": 0})


def _job(stages: list[list[int]]) -> dict[str, Any]:
    told = [{"parents": [number - 1] if number else [], "sleep_ms": sleeps} for number, sleeps in enumerate(stages)]
    return {"name": "calibration", "arrival_ms": 0, "stages": told}


def costly_workload(workload: Workload, costs: ClusterCosts) -> Workload:
    """The workload as the cluster runs it: every task costs more, the first of a core in a stage most."""
    task, first = max(0, round(costs.task)), max(0, round(costs.task + costs.stage))

    def stage_of(stage: StageSpec) -> StageSpec:
        rest, begun = stage.durations.rest[-1] + task, stage.durations.rest[-1] + first
        return replace(stage, durations=TaskDurations((1,), (begun,), (begun,), (rest,)), mean_task_ms=-1.0)

    jobs = tuple(replace(job, stages=tuple(stage_of(stage) for stage in job.stages)) for job in workload.jobs)
    return replace(workload, jobs=jobs)


def slept(trace: Trace, costs: ClusterCosts) -> Sleeps:
    """How long the tasks of a simulated run worked, without what the cluster costs.

    Raises:
        InvariantError: the run was not recorded.
    """
    if trace.tasks is None:
        raise InvariantError("a run that was not recorded")
    task, first = max(0, round(costs.task)), max(0, round(costs.task + costs.stage))
    last: dict[int, tuple[int, int]] = {}
    sleeps = Sleeps()
    for row in trace.tasks:
        own = (int(row["job"]), int(row["stage"]))
        cost = task if last.get(int(row["executor"])) == own else first
        last[int(row["executor"])] = own
        sleeps[(*own, int(row["task"]))] = max(0, int(row["finish_ms"] - row["start_ms"]) - cost)
    return sleeps
