"""`parcae spark fidelity`: compares completion times on a real Spark and in the simulator.

It repeats an experiment of Decima (Appendix D and Figure 18). The simulator's cores world runs
jobs and records how long every task takes. A real Spark then runs the same jobs, with tasks that
sleep for exactly that long: under Spark's FIFO and FAIR, and under the plugin with a policy file.
The overheads of the cluster (of every task, every stage and every job) are measured first, and the
simulator takes them into account.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, InvariantError
from parcae.base.texts import MS_PER_S
from parcae.cluster.trace import Trace
from parcae.evaluation.plots import scatter_of_pairs
from parcae.evaluation.policies import ResolvedPolicies, resolve_policies
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import simulate
from parcae.spark.applications import ReplayRequest, replay
from parcae.spark.demo import START_S, THROUGH_SERVICE, check_planned, planned_by
from parcae.spark.home import SparkHome
from parcae.spark.mixes import Sleeps, mix_json, parents_first, warm_workload
from parcae.spark.tpch_plan import policy_file_name
from parcae.workloads.archive import load_workload, write_workload
from parcae.workloads.arrivals import ArrivalProcess, JobSequence, RandomStreams, draw_sequence
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec, Workload

FloatArray = npt.NDArray[np.float64]
Progress = Callable[[str], None]
#: How long tasks of the calibration sleep.
_SLEEP_MS = 100
#: The number of stages of a chain, and of tasks of a wave, in the calibration.
_LENGTH = 20
#: How often the calibration repeats its jobs.
_REPETITIONS = 5
#: Spark's scheduler modes, by the simulator's names of these policies.
_STOCK = {"fifo": "FIFO", "fair": "FAIR"}


@dataclass(frozen=True)
class FidelityConfig:
    """The settings of a comparison.

    Args:
        workload: as for `parcae compare`; its tasks sleep.
        policies: the policies in the simulator and on Spark. "fifo" and "fair" are Spark's own;
            others plan in the plugin (see `DemoConfig.policies`). Jobs run alone under the first.
        cores: number of cores that the local Spark declares.
        num_jobs: number of jobs of a mix that shares the cluster.
        arrivals: arrivals of a mix, as for `parcae compare`.
        seeds: number of mixes.
        seed_start: the first seed.
        time_scale: factor on the profile's task durations.
        alone: how many of the workload's jobs run alone, evenly chosen; None for all.

    Raises:
        ConfigError: there is no policy, or the arrivals are not understood.
    """

    workload: str = "tpch"
    policies: tuple[str, ...] = ("fifo", "fair", "srpt")
    cores: int = 24
    num_jobs: int = 12
    arrivals: str = "load:0.7"
    seeds: int = 4
    seed_start: int = 1000
    time_scale: float = 4.0
    alone: int | None = None

    def __post_init__(self) -> None:
        if not self.policies:
            raise ConfigError("--policies names no policy; write some, as in fifo,fair,srpt")
        # Arrivals are drawn only after the overheads were measured, which takes a minute.
        ArrivalProcess.parse(self.arrivals)


@dataclass(frozen=True)
class ClusterCosts:
    """The overheads of the cluster, in ms."""

    task: float
    stage: float
    job: float


@dataclass(frozen=True)
class Comparison:
    """Completion times of the same jobs in the simulator and on Spark."""

    names: list[str]
    simulated_ms: list[float]
    real_ms: list[float]

    @property
    def errors(self) -> FloatArray:
        """|simulated - real| / real of every job, float64[num_jobs]."""
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
            "jobs": [
                list(row) for row in zip(self.names, self.simulated_ms, self.real_ms, strict=True)
            ],
        }


@dataclass(frozen=True)
class FidelityResult:
    """The comparison of jobs that run alone and of jobs that share the cluster."""

    config: FidelityConfig
    costs: ClusterCosts
    alone: Comparison
    shared: dict[str, Comparison]
    spark_version: str
    picture: Path

    def to_json(self) -> dict[str, Any]:
        """All results: {"alone":, "shared":, "costs_ms":, "settings":, "spark":}.

        "alone" and every policy's entry in "shared" are as `Comparison.to_json` makes them.
        """
        return {
            "alone": self.alone.to_json(),
            "shared": {policy: comparison.to_json() for policy, comparison in self.shared.items()},
            "costs_ms": asdict(self.costs),
            "settings": asdict(self.config),
            "spark": self.spark_version,
        }


def run_fidelity(
    config: FidelityConfig, spark: SparkHome, jar: Path, work: Path, progress: Progress = print
) -> FidelityResult:
    """Measure the cluster's overheads, then compare.

    Args:
        config: the settings.
        spark: which Spark.
        jar: the plugin's jar.
        work: folder for logs and the picture.
        progress: called with a line of text at every step.

    Raises:
        SparkFailedError: Spark ended with an error.
        InputError: the policy or the workload is unknown.
    """
    work.mkdir(parents=True, exist_ok=True)
    warm = warm_workload(load_workload(config.workload), config.time_scale)
    cluster = MeasuredCluster(config, spark, jar, work)
    cluster.check_policies(warm)
    progress(
        "measuring the overheads of the cluster: about "
        f"{START_S + 2 * _REPETITIONS * 2 * _LENGTH * _SLEEP_MS / MS_PER_S:.0f} s"
    )
    costs = cluster.costs(warm)
    progress(", ".join(f"{name} {value:.1f} ms" for name, value in asdict(costs).items()))
    # Policies estimate durations from this workload, so it includes the overheads.
    measured = costly_workload(warm, costs)
    single = _single_jobs(measured, config.alone)
    mixes = [
        draw_sequence(measured, config.arrivals, config.num_jobs, config.cores, RandomStreams(seed))
        for seed in range(config.seed_start, config.seed_start + config.seeds)
    ]
    alone = cluster.compare("alone", config.policies[0], single, costs, progress)
    shared = {
        policy: cluster.compare(policy, policy, mixes, costs, progress)
        for policy in config.policies
    }
    picture = work / "fidelity.png"
    _draw_pairs({"alone": alone} | {f"shared, {p}": c for p, c in shared.items()}, picture)
    return FidelityResult(config, costs, alone, shared, spark.version, picture)


def _single_jobs(workload: Workload, num_jobs: int | None) -> list[JobSequence]:
    """Sequences of one job each: `num_jobs` spread over the workload; None or 0 for all."""
    most = len(workload.jobs)
    jobs = np.unique(np.linspace(0, most - 1, min(num_jobs or most, most)).astype(np.int64))
    return [JobSequence(workload, np.array([job]), np.zeros(1, np.int64)) for job in jobs]


def _draw_pairs(comparisons: dict[str, Comparison], picture: Path) -> None:
    scatter_of_pairs(
        {label: (one.real_ms, one.simulated_ms) for label, one in comparisons.items()},
        picture,
        ("real Spark: completion time [s]", "simulator: completion time [s]"),
        scale=1 / MS_PER_S,
    )


class MeasuredCluster:
    """Runs jobs on the real cluster and in the simulator."""

    def __init__(self, config: FidelityConfig, spark: SparkHome, jar: Path, work: Path) -> None:
        self.config = config
        self.spark = spark
        self.jar = jar
        self.work = work

    def replay(
        self,
        name: str,
        policy: str,
        workload: Workload,
        mixes: Sequence[dict[str, Any]],
        cores: int,
    ) -> list[tuple[FloatArray, FloatArray]]:
        """Run mixes on a real Spark. Returns for every mix the times of submission and of the end
        of its jobs.
        """
        name = policy_file_name(name)
        mode = _STOCK.get(policy, "FAIR")
        with contextlib.ExitStack() as stack:
            plugin = None
            if policy not in _STOCK:
                profile = self.work / f"{name}.parcae"
                write_workload(workload, profile)
                plugin = stack.enter_context(
                    planned_by(policy, profile, self.jar, self.work / name)
                )
            done = replay(
                ReplayRequest(self.spark, self.jar, cores, mode, plugin, self.work, name, {}), mixes
            )
        return [(mix.submitted_ms, mix.finished_ms) for mix in done]

    def costs(self, workload: Workload) -> ClusterCosts:
        """Measure the overheads on one core, by single tasks, waves of tasks and chains of stages.

        With d the sleep, j, t and s the overheads of a job, a task and a stage: w tasks of one
        stage take j + w (d + t), and a chain of n stages takes j + n (d + t) + (n - 1) s. The
        differences of these times give the overheads.
        """
        wave = {"jobs": [_job([[_SLEEP_MS] * _LENGTH])]}
        chain = {"jobs": [_job([[_SLEEP_MS]] * _LENGTH)]}
        short = {"jobs": [_job([[_SLEEP_MS]])]}
        rounds = [short, wave, chain] * _REPETITIONS
        replayed = self.replay("calibration", "fifo", workload, rounds, 1)
        span = [float(finished.max() - submitted.min()) for submitted, finished in replayed]
        # The kinds of jobs take turns, so that every third span is of the same kind.
        one, waves, stages = (float(np.median(span[kind::3])) for kind in range(3))
        more = _LENGTH - 1
        task = max(0.0, (waves - one) / more - _SLEEP_MS)
        stage = max(0.0, (stages - one) / more - _SLEEP_MS - task)
        return ClusterCosts(task, stage, max(0.0, one - _SLEEP_MS - task))

    def compare(
        self,
        name: str,
        policy: str,
        sequences: Sequence[JobSequence],
        costs: ClusterCosts,
        progress: Progress,
    ) -> Comparison:
        """Simulate job sequences, then run them on Spark."""
        resolved = self.resolved(policy, sequences[0].workload)
        traces = [
            _simulated(resolved, sequence, seed)
            for seed, sequence in enumerate(sequences, self.config.seed_start)
        ]
        mixes = []
        simulated = list[float]()
        for sequence, trace in zip(sequences, traces, strict=True):
            # Spark adds the overheads by itself, so tasks sleep for their work only.
            mixes.append(mix_json(sequence, slept(trace, costs)))
            took = trace.completion_ms - trace.arrival_ms
            simulated += [
                float(t) + hand_over_ms(job, costs)
                for t, job in zip(took, sequence.jobs, strict=True)
            ]
        seconds = sum(trace.clock_ms for trace in traces) / MS_PER_S + START_S
        progress(f"{name}: {len(mixes)} mixes, about {seconds:.0f} s")
        replayed = self.replay(name, policy, sequences[0].workload, mixes, self.config.cores)
        names = [job for trace in traces for job in trace.job_names]
        real = [float(t) for submitted, finished in replayed for t in finished - submitted]
        result = Comparison(names, simulated, real)
        progress(
            f"{name}: mean error {result.errors.mean():.1%}, "
            f"95th percentile {np.percentile(result.errors, 95):.1%}"
        )
        return result

    def check_policies(self, workload: Workload) -> None:
        """Refuse policies that Spark or the simulator would refuse after minutes of runs."""
        for policy in self.config.policies:
            self.resolved(policy, workload)
            if policy not in _STOCK:
                check_planned(policy, workload)

    def resolved(self, policy: str, workload: Workload) -> ResolvedPolicies:
        """The policy in the simulator's world of cores."""
        cluster = SimulationConfig(
            world=WorldName.CORES,
            num_executors=self.config.cores,
            moving_delay_ms=0,
            warmup_delay_ms=0,
        )
        name = policy.removeprefix(THROUGH_SERVICE)
        arrivals = self.config.arrivals
        return resolve_policies(workload, [name], cluster, arrivals, self.config.num_jobs)


def _simulated(resolved: ResolvedPolicies, sequence: JobSequence, seed: int) -> Trace:
    """A recorded run in the simulator, under the only policy."""
    (policy,) = resolved.for_sequence(sequence, seed).values()
    return simulate(sequence, policy, resolved.config, seed, record=True)


def _job(stages: list[list[int]]) -> dict[str, Any]:
    """A job for the calibration: a chain of stages, with how long each task sleeps, in ms."""
    chain = [
        {"parents": [number - 1] if number else [], "sleep_ms": sleeps}
        for number, sleeps in enumerate(stages)
    ]
    return {"name": "calibration", "arrival_ms": 0, "stages": chain}


def hand_over_ms(job: JobSpec, costs: ClusterCosts) -> float:
    """The overhead of a job and of its longest chain of stages, without that of tasks, in ms."""
    # The number of steps on the longest chain of stages that ends at each stage.
    depth = dict[int, int]()
    for stage in parents_first(job):
        depth[stage] = 1 + max((depth[parent] for parent in job.stages[stage].parents), default=-1)
    return costs.job + costs.stage * max(depth.values())


def costly_workload(workload: Workload, costs: ClusterCosts) -> Workload:
    """The workload as the cluster runs it: with the overhead of a task added to every duration."""

    def stage_of(stage: StageSpec) -> StageSpec:
        durations = TaskDurations.of(stage.durations.rest[-1] + round(costs.task))
        return replace(stage, durations=durations, mean_task_ms=-1.0)

    return workload.with_stages(stage_of)


def slept(trace: Trace, costs: ClusterCosts) -> Sleeps:
    """How long the tasks of a simulated run worked, without the overhead of a task."""
    if trace.tasks is None:
        raise InvariantError("the trace holds no tasks: simulate with record=True")
    task = round(costs.task)
    sleeps = Sleeps()
    for row in trace.tasks:
        key = (int(row["job"]), int(row["stage"]), int(row["task"]))
        sleeps[key] = max(0, int(row["finish_ms"] - row["start_ms"]) - task)
    return sleeps
