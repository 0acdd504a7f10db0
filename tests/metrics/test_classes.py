from __future__ import annotations

import pytest

from parcae.base.errors import ConfigError, WorkloadError
from parcae.cluster.state import ExecutorClass
from parcae.decima.catalog import make_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.metrics import (
    class_time_ms,
    class_utilization,
    executors_used,
    memory_fragmentation,
    summarize,
    usable_share,
)
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload
from tests.conftest import JobSequence, arriving
from tests.metrics.hand_made import trace

#: One executor with memory 0.5 (row 0), one with memory 1 (row 1).
_CLASSES = (ExecutorClass(1, 1.0, 0.5), ExecutorClass(1, 1.0, 1.0))


def _stage(num_tasks: int, seconds: int, memory: float) -> StageSpec:
    return StageSpec(num_tasks, TaskDurations.constant(1_000 * seconds), memory=memory)


def _sequence() -> JobSequence:
    """Return the jobs of the run by hand.

    Two tasks of 4 s with memory 0.25, and one of 2 s with memory 0.5.
    """
    return arriving(
        (JobSpec("long", (_stage(2, 4, 0.25),)), 0), (JobSpec("short", (_stage(1, 2, 0.5),)), 1_000)
    )


def test_executor_time_and_executors_are_counted_by_job_and_class() -> None:
    run = trace(classes=_CLASSES)
    assert class_time_ms(run).tolist() == [[4_000, 4_000], [2_000, 0]]
    assert executors_used(run).tolist() == [[1, 1], [1, 0]]
    assert class_utilization(run).tolist() == [6_000 / 7_000, 4_000 / 7_000]


def test_tasks_that_the_end_of_the_run_cut_off_count_up_to_it() -> None:
    config = SimulationConfig(
        executor_classes=_CLASSES, moving_delay_ms=0, warmup_delay_ms=0, end_ms=1_000
    )
    run = simulate(_sequence(), make_policy("fifo", 2), config, 1, record=True)
    assert run.tasks is not None
    assert run.tasks["finish_ms"].tolist() == [1_000, 1_000]
    assert class_utilization(run).tolist() == [1.0, 1.0]


def test_an_executor_that_ran_several_tasks_of_a_job_counts_once() -> None:
    tasks = ((0, 0, 0, 1, 0, 1_000), (0, 0, 1, 1, 1_000, 2_000), (1, 0, 0, 1, 2_000, 3_000))
    assert executors_used(trace(tasks, classes=_CLASSES)).tolist() == [[0, 1], [0, 1]]


def test_fragmentation_is_the_memory_that_running_tasks_did_not_need() -> None:
    # Provided: 4 s x 0.5 + 4 s x 1 + 2 s x 0.5 = 7; needed: 8 s x 0.25 + 2 s x 0.5 = 3.
    assert memory_fragmentation(trace(classes=_CLASSES), _sequence()) == pytest.approx(1 - 3 / 7)


def test_fragmentation_is_unknown_without_tasks_or_sizes() -> None:
    assert memory_fragmentation(trace(), _sequence()) is None
    assert memory_fragmentation(trace(recorded=False, classes=_CLASSES), _sequence()) is None
    assert (
        memory_fragmentation(
            trace((), arrival_ms=(0, 0), completion_ms=(0, 0), classes=_CLASSES), _sequence()
        )
        == 0.0
    )
    with pytest.raises(ConfigError, match="record=True"):
        class_time_ms(trace(recorded=False))


def test_a_run_knows_its_classes_and_its_summary_the_fragmentation() -> None:
    config = SimulationConfig(executor_classes=_CLASSES, moving_delay_ms=0, warmup_delay_ms=0)
    run = simulate(_sequence(), make_policy("fifo", 2), config, 1, record=True)
    assert run.classes == _CLASSES
    assert run.class_of_executor.tolist() == [0, 1]
    assert 0 < (summarize(run, _sequence()).fragmentation or 0) < 1
    assert "fragmentation" not in summarize(trace(), _sequence()).to_json()


def test_the_load_that_classes_can_serve_is_bounded_by_what_only_the_large_ones_can_do() -> None:
    def usable(*memory: float) -> float:
        return usable_share(
            Workload("w", tuple(JobSpec("j", (_stage(1, 1, m),)) for m in memory)), _CLASSES
        )

    assert usable(0.2, 0.3) == 1.0
    assert usable(0.2, 0.8) == 1.0
    assert usable(0.8) == 0.5
    assert usable(0.2, 0.8, 0.8, 0.8) == pytest.approx(0.5 / 0.75)
    with pytest.raises(WorkloadError, match="no executor class is as large"):
        usable(1.5)
