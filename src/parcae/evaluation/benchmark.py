"""How fast the simulator is: whole compiled runs on one core, in the world of executors beside the plain-Python oracle."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from parcae.errors import PolicyError
from parcae.evaluation.tuning import resolve_policies
from parcae.policies.catalog import make_policy
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.oracle import Oracle
from parcae.simulation.oracle_policies import fair
from parcae.simulation.run import CompiledPolicy
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

#: The longer stream, by which speed is seen not to fall with the number of tasks, and how often it is run.
_LONG_JOBS = 1_000
_LONG_RUNS = 3
#: The oracle runs this many jobs of the same kind of stream.
_ORACLE_JOBS = 8


@dataclass(frozen=True)
class SimulatorBenchmark:
    """Speed of one core: medians over runs of whole simulations, the policy's decisions included."""

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
    """Time whole compiled runs (set-up and compilation excluded) and, in the same process, the oracle."""
    config = SimulationConfig(num_executors=num_executors)
    chosen = make_policy(policy, num_executors)
    seconds = []
    tasks = []
    events = []
    decisions = []
    for seed in range(-1, runs):
        sequence = draw_sequence(
            workload, arrivals, num_jobs, num_executors, RandomStreams(max(0, seed))
        )
        simulator = Simulator(sequence, config, max(0, seed))
        start = time.perf_counter()
        chosen.play(simulator.state, simulator.future, simulator.tables)
        elapsed = time.perf_counter() - start
        if seed < 0:
            continue  # compiles
        trace = simulator.trace(policy)
        seconds.append(elapsed)
        tasks.append(trace.num_tasks / elapsed)
        events.append(trace.num_events / elapsed)
        decisions.append(trace.num_decisions / elapsed)
    oracle = _oracle_tasks_per_second(workload, arrivals, num_executors)
    speed = statistics.median(tasks)
    return SimulatorBenchmark(
        workload.name, policy, arrivals, num_jobs, num_executors, runs, speed, max(tasks),
        statistics.median(events), statistics.median(decisions), oracle, speed / oracle,
    )  # fmt: skip


def _oracle_tasks_per_second(workload: Workload, arrivals: str, num_executors: int) -> float:
    sequence = draw_sequence(workload, arrivals, _ORACLE_JOBS, num_executors, RandomStreams(0))
    oracle = Oracle(sequence, num_executors)
    start = time.perf_counter()
    oracle.run(fair)
    return oracle.num_tasks / (time.perf_counter() - start)


@dataclass(frozen=True)
class CoresSpeed:
    """Speed of one policy on one core, medians over runs of whole simulations, planning included.

    Args:
        variant: what the policy's name became.
        tasks: of the last run.
        long_tasks_per_second: the same with 1,000 jobs.
        linearity: speed with 1,000 jobs / speed with fewer; near 1 where time grows with the tasks and no faster.
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
    """Speed of several policies in the world of cores."""

    workload: str
    arrivals: str
    num_jobs: int
    num_long_jobs: int
    num_cores: int
    runs: int
    policies: tuple[CoresSpeed, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain numbers; `tasks_per_second` is that of the slowest policy."""
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
    num_long_jobs: int = _LONG_JOBS,
) -> CoresBenchmark:
    """Time whole compiled runs of one application's cores (set-up and compilation excluded), one thread.

    Raises:
        PolicyError: an unknown policy, or one that does not play whole runs in one compiled call.

    Example: `benchmark_cores(load_workload("tpch"), ["fair", "srpt"]).policies[0].tasks_per_second`.
    """
    config = SimulationConfig(world=WorldName.CORES, num_executors=num_cores)
    resolved = resolve_policies(workload, policies, config, arrivals, num_jobs)
    rows = []
    for name in resolved.names:
        policy = resolved.policies.get(name)
        if not isinstance(policy, CompiledPolicy):
            raise PolicyError(
                f"policy {name!r} does not play whole runs: its speed is that of its decisions"
            )
        speeds, plans, tasks = _speeds(workload, policy, config, arrivals, num_jobs, runs)
        long, _, long_tasks = _speeds(
            workload, policy, config, arrivals, num_long_jobs, min(runs, _LONG_RUNS)
        )
        speed = statistics.median(speeds)
        long_speed = statistics.median(long)
        rows.append(
            CoresSpeed(
                policy=name,
                variant=resolved.variants[name],
                tasks=tasks,
                tasks_per_second=speed,
                best_tasks_per_second=max(speeds),
                plans_per_second=statistics.median(plans),
                long_tasks=long_tasks,
                long_tasks_per_second=long_speed,
                linearity=long_speed / speed,
            )
        )
    return CoresBenchmark(
        workload.name, arrivals, num_jobs, num_long_jobs, num_cores, runs, tuple(rows)
    )


def _speeds(
    workload: Workload,
    policy: CompiledPolicy,
    config: SimulationConfig,
    arrivals: str,
    num_jobs: int,
    runs: int,
) -> tuple[list[float], list[float], int]:
    """Tasks a second and plans (or decisions) a second of every run, and the tasks of the last; the first run compiles."""
    speeds = []
    plans = []
    tasks = 0
    for seed in range(-1, runs):
        sequence = draw_sequence(
            workload, arrivals, num_jobs, config.total_executors, RandomStreams(max(0, seed))
        )
        simulator = Simulator(sequence, config, max(0, seed))
        start = time.perf_counter()
        policy.play(simulator.state, simulator.future, simulator.tables)
        elapsed = time.perf_counter() - start
        if seed < 0:
            continue
        trace = simulator.trace(policy.name)
        tasks = trace.num_tasks
        speeds.append(tasks / elapsed)
        plans.append(trace.num_decisions / elapsed)
    return speeds, plans, tasks
