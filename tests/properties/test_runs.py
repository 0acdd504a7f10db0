"""What holds for every run, whatever the jobs, the cluster and the policy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from parcae.cluster.observation import Decision, Observation, objection
from parcae.cluster.state import ANY_CLASS, ExecutorClass
from parcae.decima.catalog import make_policy
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.metrics import makespan_ms
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import RandomDags, random_dags
from parcae.workloads.workload import JobSequence, RandomStreams, Workload, draw_sequence
from tests.cluster.invariants import check_every_task_ran_once, check_invariants

_POLICIES = st.sampled_from(
    ["fifo", "sjf-cp", "fair", "weighted-fair:-1", "static:2", "random:3", "srpt-cap:2"]
)
_SEEDS = st.integers(0, 10_000)


def _sequence(seed: int, arrivals: str, num_jobs: int, num_executors: int) -> JobSequence:
    shape = RandomDags(num_jobs=6, mean_tasks=5.0, max_depth=4, max_width=3)
    workload = random_dags(shape, np.random.default_rng(seed))
    return draw_sequence(workload, arrivals, num_jobs, num_executors, RandomStreams(seed))


@given(
    seed=_SEEDS,
    policy=_POLICIES,
    executors=st.integers(1, 12),
    arrivals=st.sampled_from(["batch", "poisson:5s", "sessions:2"]),
)
def test_every_task_runs_once_after_its_parents_and_no_run_beats_the_lower_bounds(
    seed: int, policy: str, executors: int, arrivals: str
) -> None:
    sequence = _sequence(seed, arrivals, 6, executors)
    trace = simulate(
        sequence,
        make_policy(policy, executors),
        SimulationConfig(num_executors=executors),
        seed,
        record=True,
    )
    check_every_task_ran_once(trace, sequence, executors)
    tasks = trace.tasks
    assert tasks is not None
    assert (np.diff(tasks["start_ms"]) >= 0).all()
    assert trace.executed_ms.sum() == (tasks["finish_ms"] - tasks["start_ms"]).sum()
    if sequence.has_sessions:
        return  # bounds are for arrivals that do not depend on the schedule
    bounds = lower_bounds(sequence, executors)
    assert (trace.completion_ms - trace.arrival_ms).mean() >= bounds.average_jct_ms - 1e-6
    assert makespan_ms(trace) >= bounds.makespan_ms - 1e-6


def _with_memory_demands(rng: np.random.Generator, num_executors: int, seed: int) -> JobSequence:
    """A few random DAGs whose stages want memory of 0 to 1."""
    made = random_dags(RandomDags(num_jobs=5, mean_tasks=4.0, max_depth=3, max_width=3), rng)
    jobs = tuple(
        JobSpec(
            job.name,
            tuple(
                StageSpec(s.num_tasks, s.durations, s.parents, memory=float(rng.random()))
                for s in job.stages
            ),
        )
        for job in made.jobs
    )
    return draw_sequence(
        Workload("classes", jobs), "poisson:4s", 5, num_executors, RandomStreams(seed)
    )


@given(seed=_SEEDS, policy=_POLICIES, num_small=st.integers(1, 4), num_large=st.integers(1, 4))
def test_the_tables_are_consistent_at_every_decision_also_with_executor_classes(
    seed: int, policy: str, num_small: int, num_large: int
) -> None:
    rng = np.random.default_rng(seed)
    sequence = _with_memory_demands(rng, num_small + num_large, seed)
    classes = (ExecutorClass(num_small, memory=0.5), ExecutorClass(num_large, memory=1.0))
    simulator = Simulator(
        sequence, SimulationConfig(executor_classes=classes, moving_delay_ms=500), seed, record=True
    )
    chosen = make_policy(policy, num_small + num_large)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        simulator.step(chosen.decide(simulator.observe()))
    trace = simulator.trace(policy)
    assert trace.is_complete
    assert trace.tasks is not None
    for row in trace.tasks:
        stage = sequence.jobs[row["job"]].stages[row["stage"]]
        assert row["executor"] >= num_small or stage.memory <= 0.5


def _by_dice(observation: Observation, rng: np.random.Generator) -> Decision:
    """A random valid decision: any stage, limit and class, every other time an idle slot."""
    stages = observation.schedulable_stages()
    assert stages == [
        stage
        for job in observation.active_jobs
        for stage in observation.stages_of(int(job))
        if observation.is_schedulable(stage)
    ]
    while stages and rng.random() < 0.9:
        executor_class = int(rng.integers(ANY_CLASS, len(observation.classes)))
        hold_ms = int(rng.integers(0, 2) * rng.integers(1, 4_000))
        decision = Decision(
            int(rng.choice(stages)), int(rng.integers(1, 4)), executor_class, hold_ms
        )
        if objection(observation, decision) is None:
            return decision
    return Decision(stages[0], 1) if stages else Decision()


@given(
    seed=_SEEDS,
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    moving_delay_ms=st.sampled_from([0, 700]),
)
def test_with_any_classes_and_idle_slots_tasks_fit_and_the_tables_are_consistent(
    seed: int, sizes: list[int], moving_delay_ms: int
) -> None:
    rng = np.random.default_rng(seed)
    sequence = _with_memory_demands(rng, sum(sizes), seed)
    classes = tuple(
        ExecutorClass(count, memory=(row + 1) / len(sizes)) for row, count in enumerate(sizes)
    )
    config = SimulationConfig(executor_classes=classes, moving_delay_ms=moving_delay_ms)
    simulator = Simulator(sequence, config, seed, record=True)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        simulator.step(_by_dice(simulator.observe(), rng))
    trace = simulator.trace("dice")
    assert trace.is_complete
    assert trace.tasks is not None
    first = np.cumsum([0, *sizes])
    for row in trace.tasks:
        needed = sequence.jobs[row["job"]].stages[row["stage"]].memory
        assert (
            classes[int(np.searchsorted(first, row["executor"], side="right")) - 1].memory >= needed
        )
