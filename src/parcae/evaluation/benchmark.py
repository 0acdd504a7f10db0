"""Measure the speed of the simulator: whole compiled runs on one core.

`benchmark_simulator` measures the executors world, `benchmark_cores` several policies in the cores
world.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parcae.base.errors import PolicyError
from parcae.cluster.orders import Planner, Remembers
from parcae.cluster.trace import Trace
from parcae.evaluation.policies import resolve_policies
from parcae.policies.learned import SHIPPED
from parcae.policies.own import AnyPolicy
from parcae.policies.registry import named_policy
from parcae.simulation.config import SimulationConfig, WorldName, decima_classes
from parcae.simulation.future import Status
from parcae.simulation.simulator import CompiledPolicy, Simulator
from parcae.workloads.demands import with_drawn_memory
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence

#: Untimed first decisions: they compile the kernels and touch the memory for the first time.
_WARM_UP = 20
#: A case of one policy ends after this many seconds, so that slow policies do not take an hour.
_LONGEST_S = 60.0
#: A case times at least this many decisions, whatever time they take.
_FEWEST = 20
#: The large cases: number of jobs, stages of each job, and executors. The wide case has the larger
#: number of executors, in four classes.
_LARGE_JOBS = 1_000
_LARGE_STAGES = 10
_LARGE_EXECUTORS = 200
_WIDE_EXECUTORS = 30_000


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
    """Time the decisions of several policies in two or three cases.

    The case "small" is a batch of the workload. The case "large" has 1,000 jobs with 10,000 stages.
    The case "wide" has these jobs and 30,000 executors in Decima's four classes (section 7.3), and
    uses the learned policies for executor classes; it exists in the executors world only. In the
    cores world whole plans are timed. For a policy that decides, a plan is all its decisions until
    no core is left.

    Args:
        workload: the jobs of the small case.
        policies: names as in `parcae policies`; `fair` is always added.
        num_jobs: number of jobs in the small case.
        num_executors: number of executors (or cores) in the small case.
        num_decisions: number of decisions to time.
        world: the world to measure in.

    Returns:
        One row for each case and policy.

    Raises:
        PolicyError: a policy is unknown, or has no single decisions that can be timed.

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
        sequence = draw_sequence(
            workload, "batch", num_jobs, config.total_executors, RandomStreams(seed)
        )
        simulator = Simulator(sequence, config, seed)
        stages = max(stages, sum(len(job.stages) for job in sequence.jobs))
        if isinstance(policy, Remembers):
            policy.restart()
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
    """Milliseconds of one plan. The simulator then follows the plan."""
    start = time.perf_counter()
    orders = policy.plan(simulator.observe())
    elapsed = time.perf_counter() - start
    simulator.follow(orders)
    return 1e3 * elapsed


def _decide_ms(simulator: Simulator, policy: Any) -> float:
    """Milliseconds of one decision; in the cores world, of all decisions of a plan."""
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


#: The trace of a run and its wall-clock seconds.
_TimedRun = tuple[Trace, float]
#: Jobs of a longer stream, which shows whether speed falls as the number of tasks grows.
_LONG_JOBS = 1_000
#: Largest number of runs of the longer stream.
_LONG_RUNS = 3


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
    """Time whole compiled runs in the executors world.

    The times exclude set-up and compilation.

    Args:
        workload: the jobs to draw from.
        policy: name of a heuristic.
        arrivals: when jobs arrive.
        num_jobs: number of jobs in each run.
        num_executors: size of the cluster.
        runs: number of timed runs.

    Returns:
        Median speeds.
    """
    config = SimulationConfig(num_executors=num_executors)
    chosen = named_policy(policy, workload, config)
    timed = list(_timed_runs(workload, chosen, config, arrivals, num_jobs, runs))
    tasks = [trace.num_tasks / elapsed_s for trace, elapsed_s in timed]
    events = [trace.num_events / elapsed_s for trace, elapsed_s in timed]
    decisions = [trace.num_decisions / elapsed_s for trace, elapsed_s in timed]
    return SimulatorBenchmark(
        workload.name, policy, arrivals, num_jobs, num_executors, runs, statistics.median(tasks),
        max(tasks), statistics.median(events), statistics.median(decisions),
    )  # fmt: skip


@dataclass(frozen=True)
class CoresSpeed:
    """Speed of one policy on one core: medians over whole simulated runs, including planning."""

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
    """The speed of one policy."""
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
    """Time the runs of one policy, after an untimed run that compiles the kernels."""
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
