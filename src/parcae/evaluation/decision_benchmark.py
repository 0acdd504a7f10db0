"""How long a policy takes to decide: what a service would add to every scheduling event."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parcae.cluster.decision import Policy
from parcae.evaluation.tuning import resolve_policies
from parcae.policies.learned import NAMES
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.demands import with_drawn_memory
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags

#: Decisions before the clock starts: compilation, first touches of memory.
_WARM_UP = 20
#: The large cases: this many jobs of ten stages each, on so many executors; in the wide case in four classes.
_LARGE_JOBS, _LARGE_STAGES, _LARGE_EXECUTORS, _WIDE_EXECUTORS = 1_000, 10, 200, 30_000


@dataclass(frozen=True)
class DecisionBenchmark:
    """Milliseconds of one policy's decisions in one case, from looking at the state to the decision.

    Args:
        p50_ms, p99_ms, max_ms: over the decisions of one run.
        ratio_to_fair: of the median, to that of fair sharing in the same process.
    """

    policy: str
    case: str
    jobs: int
    stages: int
    executors: int
    decisions: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    ratio_to_fair: float

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)


def benchmark_decisions(
    workload: Workload, policies: list[str], *, num_jobs: int = 20, num_executors: int = 50, num_decisions: int = 2_000
) -> list[DecisionBenchmark]:
    """Time decisions on batches of the workload, on 1,000 jobs with 10,000 stages, and on these with 30,000 executors.

    The last are in Decima's four classes (section 7.3), with the learned policies that were made for such.

    Example: `benchmark_decisions(load_workload("tpch"), ["fair", "parcae"])`.
    """
    drawn = random_dags(RandomDags(num_jobs=1_000), np.random.default_rng(0))
    large = Workload("large", tuple(job for job in drawn.jobs if len(job.stages) == _LARGE_STAGES))
    demanding, _ = with_drawn_memory("uniform")(large)
    cases = (
        ("small", workload, num_jobs, SimulationConfig(num_executors=num_executors)),
        ("large", large, _LARGE_JOBS, SimulationConfig(num_executors=_LARGE_EXECUTORS)),
        ("wide", demanding, _LARGE_JOBS, SimulationConfig(executor_classes=decima_classes(_WIDE_EXECUTORS))),
    )
    return [row for case in cases for row in _case(*case, policies, num_decisions)]


def _case(
    case: str, workload: Workload, num_jobs: int, config: SimulationConfig, policies: list[str], num_decisions: int
) -> list[DecisionBenchmark]:
    names, num_executors = list(dict.fromkeys(["fair", *policies])), config.total_executors
    found = {name: f"{name}:classes" if name in NAMES and len(config.classes) > 1 else name for name in names}
    policies_by = resolve_policies(workload, list(found.values()), config, "batch", num_jobs).policies
    times = {name: _times_ms(policies_by[own], workload, config, num_jobs, num_decisions) for name, own in found.items()}
    fair = float(np.median(times["fair"][0]))
    rows = []
    for name in names:
        taken, stages = times[name]
        p50, p99 = (float(v) for v in np.percentile(taken, (50, 99)))
        largest = float(taken.max())
        rows.append(DecisionBenchmark(name, case, num_jobs, stages, num_executors, len(taken), p50, p99, largest, p50 / fair))
    return rows


def _times_ms(
    policy: Policy, workload: Workload, config: SimulationConfig, num_jobs: int, num_decisions: int
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], int]:
    """Milliseconds of every decision, and the stages of all jobs; runs follow each other until there are enough."""
    taken: list[float] = []
    stages, seed = 0, 0
    while len(taken) < num_decisions + _WARM_UP:
        sequence = draw_sequence(workload, "batch", num_jobs, config.total_executors, RandomStreams(seed))
        simulator = Simulator(sequence, config, seed)
        stages = max(stages, sum(len(job.stages) for job in sequence.jobs))
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION and len(taken) < num_decisions + _WARM_UP:
            start = time.perf_counter()
            decision = policy.decide(simulator.observe())
            taken.append(1e3 * (time.perf_counter() - start))
            simulator.step(decision)
        seed += 1
    return np.array(taken[_WARM_UP:]), stages
