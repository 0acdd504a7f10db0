"""Draws of durations and the event queue with literal numbers.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import WorkloadError
from parcae.cluster.state import World
from parcae.decima.catalog import make_policy
from parcae.simulation.config import SimulationConfig, decima_classes
from parcae.simulation.future import NEVER_MS, Future, allocate_future
from parcae.simulation.kernels.events import (
    clear,
    next_executor,
    next_ms,
    pop,
    push,
    sort_in_place,
    task_duration_ms,
)
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode, Interpolation, workload_tables
from parcae.workloads.durations import TaskDurations, Wave
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.synthetic import toy_workload
from parcae.workloads.workload import JobSequence, Workload

_WARMUP_MS = 700


def _draw(
    durations: TaskDurations, wave: Wave, world: World = World.EXECUTORS, task: int = 0
) -> int:
    workload = Workload("w", (JobSpec("a", (StageSpec(9, durations),)),))
    tables = workload_tables(workload, DurationMode.SAMPLED, Interpolation.LINEAR, world)
    bits = np.uint64(0)
    return int(task_duration_ms(tables, 0, task, 1, int(wave), bits, bits, _WARMUP_MS))


def test_empty_lists_are_replaced_and_a_cold_executor_takes_longer() -> None:
    no_fresh = TaskDurations((1,), ([],), ([200],), ([],))
    assert [_draw(no_fresh, wave) for wave in (Wave.FIRST, Wave.REST)] == [200, 200]
    assert _draw(no_fresh, Wave.FRESH) == 200 + _WARMUP_MS
    only_fresh = TaskDurations((1,), ([300],), ([],), ([],))
    assert [_draw(only_fresh, wave) for wave in Wave] == [300, 300, 300]


def test_waves_are_pooled_in_the_world_of_cores() -> None:
    durations = TaskDurations((1,), ([9],), ([4, 7],), ([1, 2, 3],))
    # Nine tasks share five samples, of which none is drawn more than three times.
    pooled = [_draw(durations, Wave.FRESH, World.CORES, k) for k in range(9)]
    assert set(pooled) == {1, 2, 3, 4, 7}
    assert max(map(pooled.count, pooled)) <= 3
    only_fresh = TaskDurations((1,), ([8, 9],), ([],), ([],))
    assert {_draw(only_fresh, Wave.REST, World.CORES, k) for k in range(9)} == {8, 9}


def _queue(num_executors: int) -> Future:
    future = Future(*(table[0] for table in allocate_future(1, num_executors, 1, 1, 0, 0)))
    clear(future, 0)
    return future


def test_events_of_one_time_fire_in_the_order_in_which_they_were_pushed() -> None:
    future = _queue(4)
    assert next_ms(future) == NEVER_MS
    for executor, time_ms in ((2, 50), (0, 50), (3, 40), (1, 50)):
        assert push(future, executor, time_ms)
    fired = []
    while next_ms(future) != NEVER_MS:
        fired.append((int(next_ms(future)), int(next_executor(future))))
        pop(future, fired[-1][1])
    assert fired == [(40, 3), (50, 2), (50, 0), (50, 1)]


def test_a_push_replaces_the_executor_s_event() -> None:
    future = _queue(2)
    push(future, 0, 10)
    push(future, 1, 20)
    push(future, 0, 30)
    assert (next_ms(future), next_executor(future)) == (20, 1)
    pop(future, 1)
    assert (next_ms(future), next_executor(future)) == (30, 0)


def test_times_beyond_24_days_are_counted_from_the_earliest_pending_event() -> None:
    future = _queue(2)
    day_ms = 86_400_000
    push(future, 0, 20 * day_ms)
    assert push(future, 1, 30 * day_ms)
    assert future.events.base_ms[0] == 20 * day_ms
    assert (next_ms(future), next_executor(future)) == (20 * day_ms, 0)
    assert not push(future, 1, 45 * day_ms)  # 25 days after the other event


def test_an_event_that_is_alone_may_be_far_away_but_no_other_may_be_long_before_it() -> None:
    future = _queue(2)
    day_ms = 86_400_000
    assert push(future, 0, 100 * day_ms)
    assert push(future, 1, 80 * day_ms)
    assert (next_ms(future), next_executor(future)) == (80 * day_ms, 1)
    pop(future, 1)
    assert not push(future, 1, 1_000)


def test_a_move_that_takes_too_long_is_refused_with_what_to_do() -> None:
    sequence = JobSequence(toy_workload(), np.array([0, 1, 2]), np.zeros(3))
    config = SimulationConfig(num_executors=3, moving_delay_ms=10**12)
    with pytest.raises(WorkloadError, match=r"more than 24 days apart; .* or shorter delays"):
        simulate(sequence, make_policy("fair", 3), config, 0)


def test_a_decision_for_each_executor_of_wide_stages_can_be_recorded() -> None:
    samples = list(range(1_000, 1_200))
    durations = TaskDurations((1,), (samples,), (samples,), (samples,))
    wide = Workload("wide", (JobSpec("wide", (StageSpec(400, durations),)),))
    sequence = JobSequence(wide, np.zeros(12, np.int64), np.zeros(12, np.int64))
    config = SimulationConfig(executor_classes=decima_classes(200))
    trace = simulate(sequence, make_policy("fifo", 200), config, 0, record=True)
    assert trace.decisions is not None
    assert len(trace.decisions) == trace.num_decisions > 150 * 12


def test_heapsort() -> None:
    values = np.array([5, 1, 4, 1, 3, 9, -2], np.int64)
    sort_in_place(values)
    assert values.tolist() == [-2, 1, 1, 3, 4, 5, 9]
