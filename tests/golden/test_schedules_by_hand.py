"""Schedules solved by hand. A change here is a change of results: say so in the changelog."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Decision
from parcae.cluster.state import ExecutorClass
from parcae.decima.catalog import make_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.future import Status
from parcae.simulation.simulator import Simulator, simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload
from tests.conftest import arriving, batch, job


def _config(executors: int, moving: int = 2_000) -> SimulationConfig:
    return SimulationConfig(num_executors=executors, moving_delay_ms=moving, warmup_delay_ms=0)


def test_one_stage_on_two_executors_takes_the_move_and_two_waves() -> None:
    # 2 s to move, then tasks at 2-3 s (two of them) and 3-4 s.
    trace = simulate(
        batch(job("a", (3, 1_000, ()))), make_policy("fifo", 2), _config(2), seed=1, record=True
    )
    assert trace.completion_ms.tolist() == [4_000]
    assert trace.tasks is not None
    assert trace.tasks["start_ms"].tolist() == [2_000, 2_000, 3_000]
    assert trace.num_moves.tolist() == [2]


def test_a_chain_keeps_its_executor_and_never_moves_again() -> None:
    trace = simulate(
        batch(job("a", (1, 1_000, ()), (1, 500, (0,)))), make_policy("fifo", 1), _config(1), seed=1
    )
    assert trace.completion_ms.tolist() == [3_500]
    assert trace.num_moves.tolist() == [1]


def test_shortest_job_first_runs_the_short_job_first() -> None:
    long = job("long", (1, 10_000, ()))
    short = job("short", (1, 1_000, ()))
    fifo = simulate(batch(long, short), make_policy("fifo", 1), _config(1, moving=0), seed=1)
    shortest = simulate(batch(long, short), make_policy("sjf-cp", 1), _config(1, moving=0), seed=1)
    assert fifo.completion_ms.tolist() == [10_000, 11_000]
    assert shortest.completion_ms.tolist() == [11_000, 1_000]


def test_fair_gives_two_jobs_half_of_the_executors_each() -> None:
    jobs = [job("a", (4, 1_000, ())), job("b", (4, 1_000, ()))]
    trace = simulate(
        batch(*jobs), make_policy("fair", 4), _config(4, moving=0), seed=1, record=True
    )
    assert trace.completion_ms.tolist() == [2_000, 2_000]
    assert trace.tasks is not None
    held = {(int(row["job"]), int(row["executor"])) for row in trace.tasks}
    assert len([e for j, e in held if j == 0]) == 2


def test_an_arriving_job_waits_until_an_executor_is_free() -> None:
    sequence = arriving((job("a", (1, 5_000, ())), 0), (job("b", (1, 1_000, ())), 2_000))
    trace = simulate(sequence, make_policy("fifo", 1), _config(1, moving=0), seed=1)
    assert trace.completion_ms.tolist() == [5_000, 6_000]


def test_the_waves_of_a_stage_take_their_own_durations() -> None:
    durations = TaskDurations((1,), ([3_000],), ([2_000],), ([1_000],))
    spec = JobSpec("a", (StageSpec(2, durations), StageSpec(1, durations, (0,))))
    # fresh 3 s, rest 1 s; the executor is parked when the next stage unlocks, so it pays the fresh
    # duration again.
    trace = simulate(batch(spec), make_policy("fifo", 1), _config(1, moving=0), seed=1, record=True)
    assert trace.tasks is not None
    assert (trace.tasks["finish_ms"] - trace.tasks["start_ms"]).tolist() == [3_000, 1_000, 3_000]


def test_a_first_wave_follows_a_commitment_within_the_job() -> None:
    durations = TaskDurations((1,), ([3_000],), ([2_000],), ([1_000],))
    spec = JobSpec("a", (StageSpec(1, durations), StageSpec(1, durations)))
    trace = simulate(batch(spec), make_policy("fifo", 1), _config(1, moving=0), seed=1, record=True)
    assert trace.tasks is not None
    assert (trace.tasks["finish_ms"] - trace.tasks["start_ms"]).tolist() == [3_000, 2_000]


def test_a_missing_fresh_duration_adds_the_warmup_delay() -> None:
    spec = JobSpec("a", (StageSpec(1, TaskDurations((1,), ([],), ([2_000],), ([1_000],))),))
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, warmup_delay_ms=700)
    assert simulate(batch(spec), make_policy("fifo", 1), config, seed=1).completion_ms.tolist() == [
        2_700
    ]


def test_an_idle_slot_holds_the_executors_until_its_end() -> None:
    simulator = Simulator(batch(job("a", (1, 1_000, ()))), _config(1, moving=0), seed=1)
    simulator.start()
    assert simulator.step(Decision(stage=0, limit=1, hold_ms=400)) is Status.NEEDS_DECISION
    assert simulator.observe().now.clock_ms[0] == 400
    assert (
        simulator.step(Decision(stage=0, limit=1)) is Status.NEEDS_DECISION
    )  # the executor is free, nothing is left
    assert simulator.step(Decision()) is Status.COMPLETE
    assert simulator.trace("by hand").completion_ms.tolist() == [1_400]


def test_a_stage_has_one_idle_slot_whose_end_may_be_decided_anew_while_it_runs() -> None:
    long = job("long", (1, 10_000, ()))
    short = job("short", (1, 1_000, ()))
    sequence = JobSequence(Workload("two", (long, short)), np.array([0, 1]), np.array([0, 300]))
    simulator = Simulator(sequence, _config(1, moving=0), seed=1)
    simulator.start()
    simulator.step(Decision(stage=0, limit=1, hold_ms=400))
    assert (
        simulator.observe().now.clock_ms[0] == 300
    )  # the second job arrives, and the waiting executor is offered again
    with pytest.raises(PolicyError, match="an idle slot of 9223372036854775807 ms is too long"):
        simulator.step(Decision(stage=0, limit=1, hold_ms=2**63 - 1))
    simulator.step(Decision(stage=0, limit=1, hold_ms=200))
    assert simulator.observe().now.clock_ms[0] == 500
    with pytest.raises(PolicyError, match="stage 0 already had its idle slot, until 500 ms"):
        simulator.step(Decision(stage=0, limit=1, hold_ms=1))
    simulator.step(Decision(stage=1, limit=1))
    simulator.step(Decision(stage=0, limit=1))
    while simulator.status is Status.NEEDS_DECISION:
        simulator.step(Decision())
    assert simulator.trace("by hand").completion_ms.tolist() == [11_500, 1_500]


def test_executors_that_wait_at_their_job_are_asked_about_when_another_job_arrives() -> None:
    long = job("long", (1, 1_000, ()), (1, 10_000, (0,)))
    short = job("short", (1, 1_000, ()))
    sequence = JobSequence(Workload("two", (long, short)), np.array([0, 1]), np.array([0, 1_500]))
    simulator = Simulator(sequence, _config(1, moving=0), seed=1)
    simulator.start()
    simulator.step(Decision(stage=0, limit=1))
    assert simulator.observe().now.source_job[0] == 0
    simulator.step(Decision(stage=1, limit=1, hold_ms=2_000))
    now = simulator.observe().now
    assert (now.clock_ms[0], now.source_job[0]) == (1_500, 0)
    simulator.step(Decision(stage=2, limit=1))
    assert simulator.observe().now.clock_ms[0] == 2_500
    simulator.step(Decision(stage=1, limit=1))
    while simulator.status is Status.NEEDS_DECISION:
        simulator.step(Decision())
    assert simulator.trace("by hand").completion_ms.tolist() == [12_500, 2_500]


def test_an_idle_slot_takes_as_many_executors_as_its_limit_says() -> None:
    simulator = Simulator(
        batch(job("a", (4, 1_000, ())), job("b", (4, 1_000, ()))), _config(3, moving=0), seed=1
    )
    simulator.start()
    simulator.step(Decision(stage=0, limit=1, hold_ms=400))
    seen = simulator.observe()
    assert (seen.now.clock_ms[0], seen.now.num_source[0], seen.schedulable_stages()) == (0, 2, [1])
    simulator.step(Decision(stage=1, limit=2))
    seen = simulator.observe()
    assert (seen.now.clock_ms[0], seen.now.num_source[0]) == (400, 1)


def test_a_stage_may_be_given_executors_of_one_class_after_another() -> None:
    small = JobSpec("small", (StageSpec(3, TaskDurations.constant(1_000), memory=0.2),))
    classes = (ExecutorClass(1, memory=0.25), ExecutorClass(2, memory=1.0))
    config = SimulationConfig(executor_classes=classes, moving_delay_ms=0)
    simulator = Simulator(batch(small), config, seed=1)
    simulator.start()
    simulator.step(Decision(stage=0, limit=5, executor_class=1))
    seen = simulator.observe()
    assert (seen.now.num_source[0], seen.source_count.tolist(), seen.schedulable_stages()) == (
        1,
        [1, 0],
        [0],
    )
    with pytest.raises(PolicyError, match="no executor of class 1 is offered"):
        simulator.step(Decision(stage=0, limit=1, executor_class=1))
    simulator.step(Decision(stage=0, limit=1, executor_class=0))
    assert simulator.trace("by hand").completion_ms.tolist() == [1_000]


def test_an_executor_too_small_for_what_its_job_has_left_idles_for_all_jobs() -> None:
    constant = TaskDurations.constant(1_000)
    first = JobSpec(
        "first", (StageSpec(2, constant, memory=0.2), StageSpec(1, constant, (0,), memory=1.0))
    )
    second = JobSpec("second", (StageSpec(1, constant, memory=0.2),))
    sequence = JobSequence(Workload("two", (first, second)), np.array([0, 1]), np.array([0, 1_200]))
    classes = (ExecutorClass(1, memory=0.25), ExecutorClass(1, memory=1.0))
    trace = simulate(
        sequence,
        make_policy("fifo", 2),
        SimulationConfig(executor_classes=classes, moving_delay_ms=0),
        1,
        record=True,
    )
    assert trace.completion_ms.tolist() == [2_000, 2_200]
    assert trace.tasks is not None
    assert trace.tasks["executor"][trace.tasks["job"] == 1].tolist() == [0]


def test_an_executor_class_takes_only_the_tasks_that_fit() -> None:
    big = JobSpec("big", (StageSpec(2, TaskDurations.constant(1_000), memory=0.8),))
    small = JobSpec("small", (StageSpec(1, TaskDurations.constant(1_000), memory=0.2),))
    classes = (ExecutorClass(1, memory=0.25), ExecutorClass(1, memory=1.0))
    config = SimulationConfig(executor_classes=classes, moving_delay_ms=0)
    trace = simulate(batch(big, small), make_policy("fifo", 2), config, seed=1, record=True)
    assert trace.tasks is not None
    executors = {(int(r["job"]), int(r["executor"])) for r in trace.tasks}
    assert executors == {(0, 1), (1, 0)}  # executor 0 is the small one
    assert trace.completion_ms.tolist() == [2_000, 1_000]


def test_an_episode_ends_at_its_end_time_with_jobs_unfinished() -> None:
    config = SimulationConfig(num_executors=1, moving_delay_ms=0, end_ms=1_500)
    trace = simulate(batch(job("a", (3, 1_000, ()))), make_policy("fifo", 1), config, seed=1)
    assert trace.clock_ms == 1_500
    assert trace.completion_ms.tolist() == [-1]
    assert trace.executed_ms.tolist() == [1_000]
