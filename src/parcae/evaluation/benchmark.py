"""How fast the simulator is: compiled runs against the plain-Python oracle, measured in the same process."""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from parcae.policies.catalog import make_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.oracle import Oracle
from parcae.simulation.oracle_policies import fair
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams

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
    config, chosen = SimulationConfig(num_executors=num_executors), make_policy(policy, num_executors)
    seconds, tasks, events, decisions = [], [], [], []
    for seed in range(-1, runs):
        sequence = draw_sequence(workload, arrivals, num_jobs, num_executors, RandomStreams(max(0, seed)))
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
