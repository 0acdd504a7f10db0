"""`parcae spark fidelity`: does a job take as long on real Spark as in the simulator? (Decima, Appendix D and Figure 18)

The simulator's world of cores plays a run and notes how long every task took. Real Spark then runs the same jobs, whose tasks
sleep for just that long: under its own FIFO and FAIR, and under the plugin with a policy file. What the cluster itself costs
(starting a task, the step from stage to stage, beginning a job) is measured first and told to the simulator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.cluster.trace import Trace
from parcae.errors import InvariantError
from parcae.evaluation.plots import scatter_of_pairs
from parcae.policies.orders.catalog import make_cores_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.run import simulate
from parcae.spark.applications import ReplayRequest, replay
from parcae.spark.demo import THROUGH_SERVICE, planned_by
from parcae.spark.home import SparkHome
from parcae.spark.mixes import Sleeps, mix_json, parents_first, warm_workload
from parcae.units import MS_PER_S
from parcae.workloads.archive import write_workload
from parcae.workloads.arrivals import JobSequence, draw_sequence
from parcae.workloads.catalog import load_workload
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload
from parcae.workloads.random_streams import RandomStreams

FloatArray = npt.NDArray[np.float64]
Progress = Callable[[str], None]
#: Tasks of the calibration sleep that long, in chains and waves of that many.
_SLEEP_MS = 100
_LENGTH = 20
_REPETITIONS = 5
#: What an application takes to start, to let the JVM compile, and to end; only for the estimate.
_START_S = 14.0
#: Spark's own orders by the simulator's name for them.
_STOCK = {"fifo": "FIFO", "fair": "FAIR"}


@dataclass(frozen=True)
class FidelityConfig:
    """What is compared.

    Args:
        workload: as for `parcae compare`; its tasks sleep.
        policies: who schedules, here and there: "fifo" and "fair" are Spark's own, others plan in the plugin
            (see `DemoConfig.policies`). Jobs alone are run under the first.
        cores: that the local Spark declares.
        num_jobs: of a mix, for the shared cluster.
        arrivals: of a mix.
        seeds: mixes.
        seed_start: the first seed.
        time_scale: task durations are the profile's times this.
        alone: how many of the workload's jobs run alone, evenly chosen; None for all.
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


@dataclass(frozen=True)
class ClusterCosts:
    """What the cluster itself costs, in ms.

    Args:
        task: of every task, beside its work: launching it, telling its end.
        stage: more, from the end of a stage to the first task of the next.
        job: more, from a job's submission to its first task and from its last to its end.
    """

    task: float
    stage: float
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
        """{"alone": {"mean_error":, "p95_error":, ..}, "shared": {policy: {..}}, "costs_ms": .., "settings": ..}."""
        return {
            "alone": self.alone.to_json(),
            "shared": {policy: own.to_json() for policy, own in self.shared.items()},
            "costs_ms": asdict(self.costs),
            "settings": asdict(self.config),
            "spark": self.spark_version,
        }


def run_fidelity(
    config: FidelityConfig, spark: SparkHome, jar: Path, work: Path, progress: Progress = print
) -> FidelityResult:
    """Measure the cluster's costs, then compare.

    Raises:
        SparkFailedError: Spark ended with an error.
        InputError: an unknown policy or workload.
    """
    work.mkdir(parents=True, exist_ok=True)
    warm = warm_workload(load_workload(config.workload), config.time_scale)
    cluster = _Cluster(config, spark, jar, work)
    progress(
        f"measuring what the cluster costs: about {_START_S + 2 * _REPETITIONS * 2 * _LENGTH * _SLEEP_MS / MS_PER_S:.0f} s"
    )
    costs = cluster.costs(warm)
    progress(", ".join(f"{name} {value:.1f} ms" for name, value in asdict(costs).items()))
    known = costly_workload(warm, costs)
    jobs = np.unique(
        np.linspace(
            0, len(known.jobs) - 1, min(config.alone or len(known.jobs), len(known.jobs))
        ).astype(np.int64)
    )
    single = [JobSequence(known, np.array([job]), np.zeros(1, np.int64)) for job in jobs]
    mixes = [
        draw_sequence(known, config.arrivals, config.num_jobs, config.cores, RandomStreams(seed))
        for seed in range(config.seed_start, config.seed_start + config.seeds)
    ]
    alone = cluster.compare("alone", config.policies[0], single, costs, progress)
    shared = {
        policy: cluster.compare(policy, policy, mixes, costs, progress)
        for policy in config.policies
    }
    picture = work / "fidelity.png"
    pairs = {"alone": (alone.real_ms, alone.simulated_ms)}
    pairs |= {
        f"shared, {policy}": (own.real_ms, own.simulated_ms) for policy, own in shared.items()
    }
    scatter_of_pairs(
        pairs,
        picture,
        ("real Spark: completion time [s]", "simulator: completion time [s]"),
        scale=1 / MS_PER_S,
    )
    return FidelityResult(config, costs, alone, shared, spark.version, picture)


class _Cluster:
    """The real cluster, and the simulated one."""

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
        """Submission and end of every job of every mix, on real Spark."""
        name = name.replace(":", "-")
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
        """Jobs of one task, waves of one stage and chains of stages on one core: the slopes tell the costs apart.

        One core: w tasks of one stage take j + w (d + t), a chain of n stages j + n (d + t + s), where d is the sleep.
        """
        wave = {"jobs": [_job([[_SLEEP_MS] * _LENGTH])]}
        chain = {"jobs": [_job([[_SLEEP_MS]] * _LENGTH)]}
        short = {"jobs": [_job([[_SLEEP_MS]])]}
        rounds = [short, wave, chain] * _REPETITIONS
        replayed = self.replay("calibration", "fifo", workload, rounds, 1)
        span = [float(finished.max() - submitted.min()) for submitted, finished in replayed]
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
        """Simulate the sequences, then run them."""
        config = SimulationConfig(
            world=WorldName.CORES,
            num_executors=self.config.cores,
            moving_delay_ms=0,
            warmup_delay_ms=0,
        )
        traces = []
        mixes = []
        simulated = list[float]()
        for seed, sequence in enumerate(sequences, self.config.seed_start):
            planner = make_cores_policy(
                policy.removeprefix(THROUGH_SERVICE), sequence.workload, config
            )
            trace = simulate(sequence, planner, config, seed, record=True)
            traces.append(trace)
            mixes.append(mix_json(sequence, slept(trace, costs)))
            took = trace.completion_ms - trace.arrival_ms
            simulated += [
                float(t) + hand_over_ms(job, costs)
                for t, job in zip(took, sequence.jobs, strict=True)
            ]
        seconds = sum(trace.clock_ms for trace in traces) / MS_PER_S + _START_S
        progress(f"{name}: {len(mixes)} mixes, about {seconds:.0f} s")
        replayed = self.replay(name, policy, sequences[0].workload, mixes, self.config.cores)
        names = [job for trace in traces for job in trace.job_names]
        real = [float(t) for submitted, finished in replayed for t in finished - submitted]
        result = Comparison(names, simulated, real)
        progress(
            f"{name}: mean error {result.errors.mean():.1%}, 95th percentile {np.percentile(result.errors, 95):.1%}"
        )
        return result


def _job(stages: list[list[int]]) -> dict[str, Any]:
    told = [
        {"parents": [number - 1] if number else [], "sleep_ms": sleeps}
        for number, sleeps in enumerate(stages)
    ]
    return {"name": "calibration", "arrival_ms": 0, "stages": told}


def hand_over_ms(job: JobSpec, costs: ClusterCosts) -> float:
    """What the cluster costs a job beside its tasks: beginning it, and the steps along its longest chain of stages."""
    depth = dict[int, int]()
    for stage in parents_first(job):
        depth[stage] = 1 + max((depth[parent] for parent in job.stages[stage].parents), default=-1)
    return costs.job + costs.stage * max(depth.values())


def costly_workload(workload: Workload, costs: ClusterCosts) -> Workload:
    """The workload as the cluster runs it: every task costs more."""
    task = round(costs.task)

    def stage_of(stage: StageSpec) -> StageSpec:
        samples = stage.durations.rest[-1] + task
        return replace(
            stage,
            durations=TaskDurations((1,), (samples,), (samples,), (samples,)),
            mean_task_ms=-1.0,
        )

    jobs = tuple(
        replace(job, stages=tuple(stage_of(stage) for stage in job.stages)) for job in workload.jobs
    )
    return replace(workload, jobs=jobs)


def slept(trace: Trace, costs: ClusterCosts) -> Sleeps:
    """How long the tasks of a simulated run worked, without what the cluster costs.

    Raises:
        InvariantError: the run was not recorded.
    """
    if trace.tasks is None:
        raise InvariantError("a run that was not recorded")
    task = round(costs.task)
    sleeps = Sleeps()
    for row in trace.tasks:
        own = (int(row["job"]), int(row["stage"]), int(row["task"]))
        sleeps[own] = max(0, int(row["finish_ms"] - row["start_ms"]) - task)
    return sleeps
