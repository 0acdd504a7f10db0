"""Policies that decide, in the world of cores: the sequence of their decisions is an order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from parcae.cluster.observation import Decision, Observation
from parcae.cluster.state import ANY_CLASS
from parcae.decima.catalog import make_policy
from parcae.policies.additions import named_policy
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.future import Status
from parcae.simulation.kernels.event_loop import resume
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.workload import JobSequence, RandomStreams, draw_sequence
from tests.cluster.invariants import check_every_task_ran_once, check_invariants
from tests.conftest import batch, job, made_up

_WORKLOAD = made_up(12, 8.0)
_CONFIG = SimulationConfig(world=WorldName.CORES, num_executors=10)
_LEARNED = ["tuned:batch", "decima:batch", "corrector:batch"]
_NAMES = ["fair", "fifo", "weighted-fair:-1", "sjf-cp", "srpt-cap:3", "static:2", "random:3"]
_NAMES += _LEARNED


def _policy(name: str) -> object:
    is_learned = name in _LEARNED
    return named_policy(name, _WORKLOAD, _CONFIG) if is_learned else make_policy(name, 10)


def _sequence(arrivals: str, seed: int = 1, num_jobs: int = 12) -> JobSequence:
    return draw_sequence(_WORKLOAD, arrivals, num_jobs, 10, RandomStreams(seed))


@pytest.mark.parametrize("arrivals", ["batch", "load:0.8"])
@pytest.mark.parametrize("name", _NAMES)
def test_every_decision_names_a_runnable_stage_and_the_tables_stay_consistent(
    name: str, arrivals: str
) -> None:
    sequence = _sequence(arrivals, num_jobs=6)
    policy = _policy(name)
    simulator = Simulator(sequence, _CONFIG, 1, record=True)
    simulator.start()
    while simulator.status is Status.NEEDS_DECISION:
        check_invariants(simulator.state)
        observation = simulator.observe()
        decision = policy.decide(observation)  # type: ignore[attr-defined]
        if decision.stage >= 0:
            assert observation.stages.frontier_rank[decision.stage] >= 0
            assert decision.executor_class in (ANY_CLASS, 0)
        simulator.step(decision)
    check_every_task_ran_once(simulator.trace(name), sequence, 10)
    whole = simulate(sequence, _policy(name), _CONFIG, 1, record=True)  # type: ignore[arg-type]
    np.testing.assert_array_equal(whole.tasks, simulator.trace(name).tasks)


@pytest.mark.parametrize("name", ["sjf-cp", "srpt-cap:3", "tuned:batch"])
def test_short_jobs_first_is_better_than_first_come_here_too(name: str) -> None:
    def mean_ms(policy: object) -> float:
        runs = [simulate(_sequence("batch", seed), policy, _CONFIG, seed) for seed in range(5)]  # type: ignore[arg-type]
        return float(np.mean([run.completion_ms - run.arrival_ms for run in runs]))

    first_come = OrderPolicy("fifo", OrderKind.FIFO, plan_tables())
    assert mean_ms(_policy(name)) < 0.9 * mean_ms(first_come)


@dataclass
class _AllTo:
    """All cores to the first stage that may be chosen."""

    name: str = "all"

    def decide(self, observation: Observation) -> Decision:
        stages = observation.schedulable_stages()
        return Decision(stages[0], int(observation.now.num_source[0])) if stages else Decision()


def test_the_cores_that_run_a_stage_count_when_it_is_planned_for_again() -> None:
    # Four cores: stage 0 has 9 tasks of 10 s, stage 1 (behind a task of 15 s) 2 of 10 s. At 15 s,
    # when stage 1 becomes runnable, stage 0 holds three cores and has tasks waiting: these go
    # first, and no core idles.
    sequence = batch(job("a", (9, 10_000, ()), (1, 15_000, ()), (2, 10_000, (1,))))
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    order = simulate(
        sequence, OrderPolicy("fifo", OrderKind.FIFO, plan_tables()), config, 1, record=True
    )
    decided = simulate(sequence, _AllTo(), config, 1, record=True)
    np.testing.assert_array_equal(order.tasks, decided.tasks)


def test_a_policy_that_idles_while_tasks_run_is_asked_again_when_they_have_ended() -> None:
    class Lazy:
        name = "lazy"

        def decide(self, observation: Observation) -> Decision:
            if observation.executors.stage.max() >= 0:
                return Decision()
            stages = observation.schedulable_stages()
            return Decision(stages[0], 1) if observation.now.num_planned[0] == 0 else Decision()

    config = SimulationConfig(world=WorldName.CORES, num_executors=2)
    sequence = batch(job("a", (1, 1_000, ()), (1, 500, ()), (1, 100, (0, 1))))
    assert simulate(sequence, Lazy(), config, 1).completion_ms.tolist() == [1_600]
    # Where a second stage becomes runnable while a task of the first runs, the order that idles
    # holds back the rest of it.
    sequence = batch(job("a", (3, 1_000, ()), (1, 500, ())))
    assert simulate(sequence, Lazy(), config, 1).completion_ms.tolist() == [3_500]


def test_a_policy_that_lets_every_core_idle_does_not_stall_the_cluster() -> None:
    class Idle:
        name = "idle"

        def decide(self, observation: Observation) -> Decision:
            return Decision()

    config = SimulationConfig(world=WorldName.CORES, num_executors=2)
    sequence = batch(job("a", (3, 1_000, ()), (1, 500, ()), (1, 100, (0, 1))))
    first_come = simulate(sequence, OrderPolicy("fifo", OrderKind.FIFO, plan_tables()), config, 1)
    trace = simulate(sequence, Idle(), config, 1)
    assert trace.is_complete
    assert trace.completion_ms[0] >= first_come.completion_ms[0]


@pytest.mark.parametrize("kind", [OrderKind.FIFO, OrderKind.FAIR, OrderKind.SRPT])
def test_an_episode_ends_in_the_middle(kind: OrderKind) -> None:
    sequence = _sequence("batch")
    policy = OrderPolicy("one", kind, plan_tables())
    whole = simulate(sequence, policy, _CONFIG, 1)
    end_ms = whole.clock_ms // 2
    config = _CONFIG.model_copy(update={"end_ms": end_ms})
    half = simulate(sequence, policy, config, 1)
    assert half.clock_ms == end_ms
    over = whole.completion_ms < end_ms
    assert 0 < over.sum() < len(over)
    np.testing.assert_array_equal(half.completion_ms, np.where(over, whole.completion_ms, -1))
    late = simulate(sequence, policy, _CONFIG.model_copy(update={"end_ms": 10 * whole.clock_ms}), 1)
    assert (late.clock_ms, late.is_complete) == (whole.clock_ms, True)


def test_episodes_of_random_length_end() -> None:
    config = _CONFIG.model_copy(update={"mean_episode_ms": 20_000.0})
    traces = [
        simulate(_sequence("load:0.8"), make_policy("fair", 10), config, seed) for seed in range(8)
    ]
    assert len({trace.clock_ms for trace in traces}) > 1
    assert not all(trace.is_complete for trace in traces)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been() -> None:
    sequence = _sequence("load:0.8")
    whole = Simulator(sequence, _CONFIG, 1, record=True)
    parts = Simulator(sequence, _CONFIG, 1, record=True)
    parts.future.events.end_ms[0] = 1
    status = int(parts.start())
    whole.start()
    policy = make_policy("fair", 10)
    while whole.status is Status.NEEDS_DECISION:
        whole.step(policy.decide(whole.observe()))
    for _ in range(100_000):
        if status == Status.ENDED:
            parts.future.events.end_ms[0] += 777
            status = int(resume(parts.state, parts.future, parts.tables))
        elif status == Status.NEEDS_DECISION:
            status = int(parts.step(policy.decide(parts.observe())))
        else:
            break
    assert status == Status.COMPLETE
    np.testing.assert_array_equal(whole.trace("fair").tasks, parts.trace("fair").tasks)
    assert whole.trace("fair").num_decisions == parts.trace("fair").num_decisions


def test_a_run_that_was_stopped_within_a_planning_round_goes_on_with_the_round() -> None:
    sequence = _sequence("load:0.8")
    whole, parts = (Simulator(sequence, _CONFIG, 1, record=True) for _ in range(2))
    policy = make_policy("fair", 10)
    whole.start()
    while whole.status is Status.NEEDS_DECISION:
        whole.step(policy.decide(whole.observe()))
    parts.start()
    num_rounds = 0
    while parts.status is Status.NEEDS_DECISION:
        left = int(parts.state.now.num_source[0])
        num_rounds += left == 10
        # A window of a training may end before any decision, where its record is full.
        assert resume(parts.state, parts.future, parts.tables) == Status.NEEDS_DECISION
        assert parts.state.now.num_source[0] == left
        parts.step(policy.decide(parts.observe()))
    trace = parts.trace("fair")
    assert 0 < num_rounds < trace.num_decisions
    np.testing.assert_array_equal(whole.trace("fair").tasks, trace.tasks)
