"""Measure the speed of the simulator on one core, and the time that policies need to decide."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parcae.base.errors import PolicyError
from parcae.cluster.orders import Planner, Remembers
from parcae.evaluation.policies import resolve_policies
from parcae.policies.learned import SHIPPED
from parcae.policies.own import AnyPolicy
from parcae.simulation.config import SimulationConfig, WorldName, decima_classes
from parcae.simulation.future import Status
from parcae.simulation.simulator import CompiledPolicy, Simulator
from parcae.workloads.demands import with_drawn_memory
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import Workload

#: Untimed first decisions: they compile the kernels and touch the memory for the first time.
_WARM_UP = 20
#: A case of one policy ends after this many seconds, so that slow policies do not take an hour.
_LONGEST_S = 60.0
#: A case times at least this many decisions, whatever time they take.
_FEWEST = 20
#: The large cases: number of jobs, and stages of each.
_LARGE_JOBS = 1_000
_LARGE_STAGES = 10


@dataclass(frozen=True)
class DecisionBenchmark:
    """Times of one policy's decisions (or plans) in one case.

    A time covers building the observation and deciding.
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


def benchmark_decisions(
    workload: Workload,
    policies: list[str],
    *,
    num_decisions: int = 2_000,
    world: WorldName = WorldName.EXECUTORS,
) -> list[DecisionBenchmark]:
    """Time the decisions of several policies in two or three cases.

    The case "small" is a batch of the workload. The case "large" has 1,000 jobs with 10,000 stages.
    The case "wide" has these jobs and 30,000 executors in Decima's four classes (section 7.3), and
    uses the learned policies for executor classes; it exists in the executors world only. In the
    cores world whole plans are timed. For a policy that decides, a plan is all its decisions until
    no core is left. `fair` is always timed, too.
    """
    drawn = random_dags(RandomDags(num_jobs=1_000), np.random.default_rng(0))
    large = Workload("large", tuple(job for job in drawn.jobs if len(job.stages) == _LARGE_STAGES))
    cases = [
        ("small", workload, 20, SimulationConfig(world=world, num_executors=50)),
        ("large", large, _LARGE_JOBS, SimulationConfig(world=world, num_executors=200)),
    ]
    if world is WorldName.EXECUTORS:
        demanding, _ = with_drawn_memory("uniform")(large)
        wide = SimulationConfig(executor_classes=decima_classes(30_000))
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
    resolved_names = {
        name: f"{name}:classes" if name in SHIPPED.names and len(config.classes) > 1 else name
        for name in names
    }
    resolved = resolve_policies(workload, list(resolved_names.values()), config, "batch", num_jobs)
    for name in resolved.oracles:
        raise PolicyError(
            f"policy {name!r} is another one for each sequence of jobs, so its decisions cannot be "
            "timed: give it a value"
        )
    times = {
        name: _times_ms(resolved.policies[became], workload, config, num_jobs, num_decisions)
        for name, became in resolved_names.items()
    }
    fair = float(np.median(times["fair"][0]))
    rows = []
    for name, (taken, stages) in times.items():
        p50, p99, most = np.percentile(taken, (50, 99, 100)).tolist()
        sizes = (num_jobs, stages, config.total_executors, len(taken))
        rows.append(DecisionBenchmark(name, case, *sizes, p50, p99, most, p50 / fair))
    return rows


def _times_ms(
    policy: AnyPolicy,
    workload: Workload,
    config: SimulationConfig,
    num_jobs: int,
    num_decisions: int,
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], int]:
    """Time decisions or plans in consecutive runs until there are enough. Returns
    float64[decisions], milliseconds of each; and the largest number of stages of a run's jobs.
    """
    if not isinstance(policy, Planner) and not hasattr(policy, "decide"):
        raise PolicyError(
            f"policy {policy.name!r} can only run whole simulations, "
            "so its single decisions cannot be timed"
        )
    taken: list[float] = []
    stages = 0
    seed = 0
    wanted = num_decisions + _WARM_UP
    # Slow policies stop at this time, with fewer decisions.
    end = time.perf_counter() + _LONGEST_S
    while len(taken) < wanted:
        sequence = workload.draw(num_jobs, "batch", config, seed=seed)
        simulator = Simulator(sequence, config, seed)
        stages = max(stages, sum(len(job.stages) for job in sequence.jobs))
        answers = begin_run(simulator, policy)
        simulator.start()
        while simulator.status is Status.NEEDS_DECISION and len(taken) < wanted:
            taken.append(answer_ms(simulator, answers))
            if len(taken) >= _WARM_UP + _FEWEST and time.perf_counter() > end:
                wanted = len(taken)
        seed += 1
    return np.array(taken[_WARM_UP:]), stages


def begin_run(simulator: Simulator, policy: Any) -> Any:
    """What answers in a run that is played answer by answer; the simulator gets its tables."""
    if hasattr(policy, "unwrapped"):
        policy, simulation = policy.unwrapped(simulator.simulation)
        simulator.tables = simulation.tables
    if isinstance(policy, Remembers):
        policy.restart()
    return policy


def answer_ms(simulator: Simulator, policy: Any) -> float:
    """Milliseconds of one plan or decision; in the cores world, of all decisions of a plan."""
    elapsed = 0.0
    plans = isinstance(policy, Planner)  # takes some microseconds, so it is not timed
    while True:
        start = time.perf_counter()
        observation = simulator.observe()
        answer = policy.plan(observation) if plans else policy.decide(observation)
        elapsed += time.perf_counter() - start
        if plans:
            simulator.follow(answer)
            return 1e3 * elapsed
        simulator.step(answer)
        is_planned = (
            simulator.state.now.num_planned[0] == 0 or simulator.status is not Status.NEEDS_DECISION
        )
        if simulator.config.world is WorldName.EXECUTORS or is_planned:
            return 1e3 * elapsed


#: Jobs of a longer stream, which shows whether speed falls as the number of tasks grows.
LONG_JOBS = 1_000
#: Largest number of runs of the longer stream.
_LONG_RUNS = 3


@dataclass(frozen=True)
class SimulatorBenchmark:
    """Speed of one policy on one core: medians over whole simulated runs, including planning."""

    policy: str
    variant: str
    tasks: int
    tasks_per_second: float
    best_tasks_per_second: float
    events_per_second: float
    decisions_per_second: float
    long_tasks: int
    long_tasks_per_second: float
    linearity: float


def benchmark_simulator(
    workload: Workload,
    policies: Sequence[str],
    config: SimulationConfig,
    *,
    arrivals: str,
    num_jobs: int,
    runs: int,
) -> list[SimulatorBenchmark]:
    """Time whole compiled runs of several policies, on one thread.

    The times exclude set-up and compilation.
    """
    resolved = resolve_policies(workload, policies, config, arrivals, num_jobs)
    rows = []
    for name, row in resolved.rows.items():
        policy = row.policy
        if not isinstance(policy, CompiledPolicy):
            raise PolicyError(
                f"policy {name!r} cannot run a whole simulation in one compiled call, "
                "so this benchmark cannot time it: time its decisions"
            )
        tasks, *speeds = _speeds(workload, policy, config, arrivals, num_jobs, runs)
        long = _speeds(workload, policy, config, arrivals, LONG_JOBS, min(runs, _LONG_RUNS))
        median, best, events, decisions = speeds
        rows.append(
            SimulatorBenchmark(
                name, row.variant, int(tasks), median, best, events, decisions, int(long[0]),
                long[1], long[1] / median,
            )
        )  # fmt: skip
    return rows


def _speeds(
    workload: Workload,
    policy: CompiledPolicy,
    config: SimulationConfig,
    arrivals: str,
    num_jobs: int,
    runs: int,
) -> tuple[float, ...]:
    """Tasks of the last run; tasks a second (median, best), events and decisions a second."""
    rates = []
    # Seed -1 stands for an untimed run, which compiles the kernels.
    for seed in range(-1, runs):
        sequence = workload.draw(num_jobs, arrivals, config, seed=max(0, seed))
        simulator = Simulator(sequence, config, max(0, seed))
        start = time.perf_counter()
        policy.play(simulator.simulation)
        elapsed_s = time.perf_counter() - start
        trace = simulator.trace(policy.name)
        counts = (trace.num_tasks, trace.num_events, trace.num_decisions)
        rates.append([count / elapsed_s for count in counts])
    tasks, events, decisions = zip(*rates[1:], strict=True)
    median = statistics.median
    return trace.num_tasks, median(tasks), max(tasks), median(events), median(decisions)
