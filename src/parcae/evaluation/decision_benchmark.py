"""How long a policy takes to decide or to plan: what a service would add to every scheduling event."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parcae.cluster.orders import Planner
from parcae.errors import PolicyError
from parcae.evaluation.tuning import AnyPolicy, resolve_policies
from parcae.policies.learned import NAMES
from parcae.simulation.config import SimulationConfig, WorldName, decima_classes
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator
from parcae.workloads.arrivals import draw_sequence
from parcae.workloads.demands import with_drawn_memory
from parcae.workloads.job import Workload
from parcae.workloads.random_streams import RandomStreams
from parcae.workloads.synthetic import RandomDags, random_dags

#: Decisions before the clock starts: compilation, first touches of memory.
_WARM_UP = 20
#: A case of one policy ends after so many seconds, with at least a few decisions: slow ones are not timed for an hour.
_LONGEST_S = 60.0
_FEWEST = 20
#: The large cases: this many jobs of ten stages each, on so many executors; in the wide case in four classes.
_LARGE_JOBS = 1_000
_LARGE_STAGES = 10
_LARGE_EXECUTORS = 200
_WIDE_EXECUTORS = 30_000


@dataclass(frozen=True)
class DecisionBenchmark:
    """Milliseconds of one policy's decisions (or plans) in one case, from looking at the state to the decision.

    Args:
        decisions: how many decisions were timed; in the world of cores plans.
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
    workload: Workload,
    policies: list[str],
    *,
    num_jobs: int = 20,
    num_executors: int = 50,
    num_decisions: int = 2_000,
    world: WorldName = WorldName.EXECUTORS,
) -> list[DecisionBenchmark]:
    """Time decisions on batches of the workload, on 1,000 jobs with 10,000 stages, and on these with 30,000 executors.

    The last are in Decima's four classes (section 7.3), with the learned policies that were made for such, and in the world of
    executors only. In the world of cores whole plans are timed; one of a policy that decides is all its decisions until no core
    is left.

    Example: `benchmark_decisions(load_workload("tpch"), ["fair", "parcae"])`.
    """
    drawn = random_dags(RandomDags(num_jobs=1_000), np.random.default_rng(0))
    large = Workload("large", tuple(job for job in drawn.jobs if len(job.stages) == _LARGE_STAGES))
    cases = [
        ("small", workload, num_jobs, SimulationConfig(world=world, num_executors=num_executors)),
        (
            "large",
            large,
            _LARGE_JOBS,
            SimulationConfig(world=world, num_executors=_LARGE_EXECUTORS),
        ),
    ]
    if world is WorldName.EXECUTORS:
        demanding, _ = with_drawn_memory("uniform")(large)
        wide = SimulationConfig(executor_classes=decima_classes(_WIDE_EXECUTORS))
        cases.append(("wide", demanding, _LARGE_JOBS, wide))
    return [row for case in cases for row in _case(*case, policies, num_decisions)]


def _case(
    case: str,
    workload: Workload,
    num_jobs: int,
    config: SimulationConfig,
    policies: list[str],
    num_decisions: int,
) -> list[DecisionBenchmark]:
    names = list(dict.fromkeys(["fair", *policies]))
    num_executors = config.total_executors
    found = {
        name: f"{name}:classes" if name in NAMES and len(config.classes) > 1 else name
        for name in names
    }
    policies_by = resolve_policies(
        workload, list(found.values()), config, "batch", num_jobs
    ).policies
    times = {
        name: _times_ms(policies_by[own], workload, config, num_jobs, num_decisions)
        for name, own in found.items()
    }
    fair = float(np.median(times["fair"][0]))
    rows = []
    for name in names:
        taken, stages = times[name]
        p50, p99 = (float(v) for v in np.percentile(taken, (50, 99)))
        largest = float(taken.max())
        rows.append(
            DecisionBenchmark(
                name,
                case,
                num_jobs,
                stages,
                num_executors,
                len(taken),
                p50,
                p99,
                largest,
                p50 / fair,
            )
        )
    return rows


def _times_ms(
    policy: AnyPolicy,
    workload: Workload,
    config: SimulationConfig,
    num_jobs: int,
    num_decisions: int,
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], int]:
    """Milliseconds of every decision or plan, and the stages of all jobs; runs follow each other until there are enough."""
    if not isinstance(policy, Planner) and not hasattr(policy, "decide"):
        raise PolicyError(
            f"policy {policy.name!r} plays whole runs only: its decisions cannot be timed"
        )
    taken: list[float] = []
    stages = 0
    seed = 0
    wanted = num_decisions + _WARM_UP
    end = time.perf_counter() + _LONGEST_S
    while len(taken) < wanted:
        sequence = draw_sequence(
            workload, "batch", num_jobs, config.total_executors, RandomStreams(seed)
        )
        simulator = Simulator(sequence, config, seed)
        stages = max(stages, sum(len(job.stages) for job in sequence.jobs))
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION and len(taken) < wanted:
            taken.append(
                _plan_ms(simulator, policy)
                if isinstance(policy, Planner)
                else _decide_ms(simulator, policy)
            )
            if len(taken) >= _WARM_UP + _FEWEST and time.perf_counter() > end:
                wanted = len(taken)
        seed += 1
    return np.array(taken[_WARM_UP:]), stages


def _plan_ms(simulator: Simulator, policy: Planner) -> float:
    """Milliseconds of one plan, which is then followed."""
    start = time.perf_counter()
    orders = policy.plan(simulator.observe())
    elapsed = time.perf_counter() - start
    simulator.follow(orders)
    return 1e3 * elapsed


def _decide_ms(simulator: Simulator, policy: Any) -> float:
    """Milliseconds of one decision; in the world of cores of all decisions of a plan."""
    elapsed = 0.0
    while True:
        start = time.perf_counter()
        decision = policy.decide(simulator.observe())
        elapsed += time.perf_counter() - start
        simulator.step(decision)
        is_planned = (
            simulator.state.now.num_planned[0] == 0 or simulator.status is not Status.NEEDS_DECISION
        )
        if simulator.config.world is WorldName.EXECUTORS or is_planned:
            return 1e3 * elapsed
