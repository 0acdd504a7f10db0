"""Measure the speed of the simulator: whole compiled runs on one core.

`benchmark_simulator` measures the executors world and compares it with the plain-Python oracle.
`benchmark_cores` measures several policies in the cores world.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parcae.cluster.trace import Trace
from parcae.errors import PolicyError
from parcae.evaluation.policies import resolve_policies
from parcae.policies.catalog import make_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.oracle import Oracle
from parcae.simulation.oracle_policies import fair
from parcae.simulation.run import CompiledPolicy
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

#: The trace of a run and its wall-clock seconds.
_TimedRun = tuple[Trace, float]
#: Jobs of a longer stream, which shows whether speed falls as the number of tasks grows.
_LONG_JOBS = 1_000
#: Largest number of runs of the longer stream.
_LONG_RUNS = 3
#: Jobs that the oracle runs, from the same kind of stream.
_ORACLE_JOBS = 8


@dataclass(frozen=True)
class SimulatorBenchmark:
    """Speed on one core: medians over whole simulated runs, including the policy's decisions."""

    workload: str
    policy: str
    arrivals: str
    num_jobs: int
    num_executors: int
    runs: int
    tasks_per_second: float
    best_tasks_per_second: float
    events_per_second: float
    decisions_per_second: float
    oracle_tasks_per_second: float
    ratio_to_oracle: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


def benchmark_simulator(
    workload: Workload,
    *,
    policy: str = "fair",
    arrivals: str = "poisson:25s",
    num_jobs: int = 200,
    num_executors: int = 50,
    runs: int = 15,
) -> SimulatorBenchmark:
    """Time whole compiled runs and, in the same process, the oracle.

    The times exclude set-up and compilation.

    Args:
        workload: the jobs to draw from.
        policy: name of a heuristic.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each run.
        num_executors: size of the cluster.
        runs: number of timed runs.

    Returns:
        Median speeds, and the ratio to the oracle's speed.
    """
    config = SimulationConfig(num_executors=num_executors)
    chosen = make_policy(policy, num_executors)
    timed = list(_timed_runs(workload, chosen, config, arrivals, num_jobs, runs))
    tasks = [trace.num_tasks / elapsed_s for trace, elapsed_s in timed]
    events = [trace.num_events / elapsed_s for trace, elapsed_s in timed]
    decisions = [trace.num_decisions / elapsed_s for trace, elapsed_s in timed]
    oracle = _oracle_tasks_per_second(workload, arrivals, num_executors)
    speed = statistics.median(tasks)
    return SimulatorBenchmark(
        workload.name, policy, arrivals, num_jobs, num_executors, runs, speed, max(tasks),
        statistics.median(events), statistics.median(decisions), oracle, speed / oracle,
    )  # fmt: skip


def _oracle_tasks_per_second(workload: Workload, arrivals: str, num_executors: int) -> float:
    sequence = draw_sequence(workload, arrivals, _ORACLE_JOBS, num_executors, RandomStreams(0))
    oracle = Oracle(sequence, num_executors)
    # A collection of everything that is in memory takes as long as the run.
    gc.collect()
    start = time.perf_counter()
    oracle.run(fair)
    return oracle.num_tasks / (time.perf_counter() - start)


@dataclass(frozen=True)
class CoresSpeed:
    """Speed of one policy on one core: medians over whole simulated runs, including planning.

    Args:
        policy: the policy's name as the caller gave it.
        variant: the policy that the name was resolved to.
        tasks: number of tasks in the last run.
        tasks_per_second: median over runs.
        best_tasks_per_second: largest over runs.
        plans_per_second: median over runs.
        long_tasks: number of tasks in the last run with 1,000 jobs.
        long_tasks_per_second: median over runs with 1,000 jobs.
        linearity: speed with 1,000 jobs / speed with fewer jobs; near 1 if the time of a run is
            proportional to its number of tasks.
    """

    policy: str
    variant: str
    tasks: int
    tasks_per_second: float
    best_tasks_per_second: float
    plans_per_second: float
    long_tasks: int
    long_tasks_per_second: float
    linearity: float


@dataclass(frozen=True)
class CoresBenchmark:
    """Speed of several policies in the cores world."""

    workload: str
    arrivals: str
    num_jobs: int
    num_long_jobs: int
    num_cores: int
    runs: int
    policies: tuple[CoresSpeed, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; the top-level `tasks_per_second` is that of the slowest policy."""
        plain = {**asdict(self), "world": WorldName.CORES.value}
        plain["policies"] = {speed.policy: asdict(speed) for speed in self.policies}
        return {"tasks_per_second": min(speed.tasks_per_second for speed in self.policies), **plain}


def benchmark_cores(
    workload: Workload,
    policies: Sequence[str],
    *,
    arrivals: str = "poisson:25s",
    num_jobs: int = 200,
    num_cores: int = 50,
    runs: int = 15,
) -> CoresBenchmark:
    """Time whole compiled runs in the cores world, on one thread.

    The times exclude set-up and compilation.

    Args:
        workload: the jobs to draw from.
        policies: names as in `parcae policies`.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each run.
        num_cores: size of the cluster.
        runs: number of timed runs.

    Raises:
        PolicyError: a policy is unknown, or cannot run a whole simulation in one compiled call.

    Example:
        `benchmark_cores(load_workload("tpch"), ["fair", "srpt"]).policies[0].tasks_per_second`.
    """
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
    resolved = resolve_policies(workload, policies, config, arrivals, num_jobs)
    rows = []
    for name in resolved.names:
        policy = resolved.policies.get(name)
        if not isinstance(policy, CompiledPolicy):
            raise PolicyError(
                f"policy {name!r} cannot run a whole simulation in one compiled call, "
                "so this benchmark cannot time it: time its decisions"
            )
        short = list(_timed_runs(workload, policy, config, arrivals, num_jobs, runs))
        num_long_runs = min(runs, _LONG_RUNS)
        long = list(_timed_runs(workload, policy, config, arrivals, _LONG_JOBS, num_long_runs))
        rows.append(_cores_speed(name, resolved.variants[name], short, long))
    return CoresBenchmark(
        workload.name, arrivals, num_jobs, _LONG_JOBS, num_cores, runs, tuple(rows)
    )


def _cores_speed(
    name: str, variant: str, short: Sequence[_TimedRun], long: Sequence[_TimedRun]
) -> CoresSpeed:
    """The speed of one policy.

    Args:
        name: the policy's name as the caller gave it.
        variant: the policy that the name was resolved to.
        short: timed runs.
        long: timed runs with more jobs.
    """
    speeds = [trace.num_tasks / elapsed_s for trace, elapsed_s in short]
    plans = [trace.num_decisions / elapsed_s for trace, elapsed_s in short]
    speed = statistics.median(speeds)
    long_speed = statistics.median(trace.num_tasks / elapsed_s for trace, elapsed_s in long)
    return CoresSpeed(
        policy=name,
        variant=variant,
        tasks=short[-1][0].num_tasks,
        tasks_per_second=speed,
        best_tasks_per_second=max(speeds),
        plans_per_second=statistics.median(plans),
        long_tasks=long[-1][0].num_tasks,
        long_tasks_per_second=long_speed,
        linearity=long_speed / speed,
    )


def _timed_runs(
    workload: Workload,
    policy: CompiledPolicy,
    config: SimulationConfig,
    arrivals: str,
    num_jobs: int,
    runs: int,
) -> Iterator[_TimedRun]:
    """Time the runs of one policy, after an untimed run that compiles the kernels.

    Yields:
        The trace of every run and its wall-clock seconds.
    """
    # Seed -1 stands for the untimed run.
    for seed in range(-1, runs):
        streams = RandomStreams(max(0, seed))
        sequence = draw_sequence(workload, arrivals, num_jobs, config.total_executors, streams)
        simulator = Simulator(sequence, config, max(0, seed))
        start = time.perf_counter()
        policy.play(simulator.simulation)
        elapsed_s = time.perf_counter() - start
        if seed >= 0:
            yield simulator.trace(policy.name), elapsed_s
