"""The settings of a cluster, executor classes above all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.state import ExecutorClass
from parcae.simulation.config import (
    SimulationConfig,
    WorldName,
    decima_classes,
    mean_gap_ms,
    offered_load,
    parse_executor_classes,
)
from parcae.simulation.elastic import Elastic
from parcae.simulation.simulator import Simulator
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload
from tests.conftest import job


def _counts(config: SimulationConfig) -> list[int]:
    return [c.num_executors for c in config.classes]


def test_decimas_classes_are_a_quarter_of_the_executors_each() -> None:
    assert decima_classes(200) == tuple(
        ExecutorClass(50, 1.0, memory) for memory in (0.25, 0.5, 0.75, 1.0)
    )
    assert [c.num_executors for c in decima_classes(6)] == [1, 1, 2, 2]
    with pytest.raises(ConfigError, match="at least 4 executors"):
        decima_classes(3)


def test_classes_are_read_from_text() -> None:
    assert parse_executor_classes("50x1x0.25, 10x2x1", 7) == (
        ExecutorClass(50, 1.0, 0.25),
        ExecutorClass(10, 2.0, 1.0),
    )
    config = SimulationConfig.model_validate({"num_executors": 8, "executor_classes": "decima"})
    assert _counts(config) == [2, 2, 2, 2]
    assert SimulationConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("text", ["", "50", "50x1", "50x1x0.5x3", "ax1x1", "5x1x-1"])
def test_other_text_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="write decima"):
        parse_executor_classes(text, 10)


def test_a_resized_cluster_keeps_the_shares_of_its_classes() -> None:
    config = SimulationConfig(executor_classes=(ExecutorClass(30), ExecutorClass(10)))
    assert _counts(config.resized(20)) == [15, 5]
    assert _counts(config.resized(2)) == [1, 1]
    unequal = SimulationConfig(executor_classes=(ExecutorClass(29), ExecutorClass(71)))
    assert _counts(unequal.resized(100)) == [29, 71]  # 0.29 * 100 is less than 29
    assert SimulationConfig(num_executors=7).resized(3).total_executors == 3
    for total in range(4, 40):
        skewed = SimulationConfig(
            executor_classes=tuple(ExecutorClass(count) for count in (97, 1, 1, 1))
        )
        assert skewed.resized(total).total_executors == total
    with pytest.raises(ConfigError, match="too few"):
        config.resized(1)


def test_a_cluster_is_not_resized_to_what_it_cannot_be() -> None:
    elastic = SimulationConfig(
        world=WorldName.CORES, num_executors=8, elastic=Elastic(initial_cores=4)
    )
    assert elastic.resized(12).elastic == elastic.elastic
    with pytest.raises(ConfigError, match=r"^6 executors: 6 cores cannot be whole executors of 4 "):
        elastic.resized(6)
    with pytest.raises(ConfigError, match=r"^1,000,000 executors: .* less than or equal to 65536"):
        SimulationConfig().resized(1_000_000)


_CLUSTER = SimulationConfig(num_executors=10)
#: Jobs of 40 s and of 20 s of work.
_WORKLOAD = Workload("two", (job("long", (4, 10_000, ())), job("short", (2, 10_000, ()))))


def test_the_offered_load_is_work_over_capacity() -> None:
    assert offered_load(_WORKLOAD, _CLUSTER, "poisson:6s") == pytest.approx(0.5)
    assert offered_load(_WORKLOAD, _CLUSTER, "load:0.8") == pytest.approx(0.8)


def test_a_batch_has_no_gap_and_an_infinite_load() -> None:
    assert mean_gap_ms(_WORKLOAD, _CLUSTER, "batch") == 0
    assert offered_load(_WORKLOAD, _CLUSTER, "batch") == float("inf")


def test_recorded_jobs_count_once_each() -> None:
    times = (0, 4_000, 8_000)
    jobs = [_WORKLOAD.jobs[0], *[_WORKLOAD.jobs[1]] * 2]
    recorded = replace(
        _WORKLOAD, jobs=tuple(job.at(time) for job, time in zip(jobs, times, strict=True))
    )
    assert mean_gap_ms(recorded, _CLUSTER, "recorded") == 4_000
    # 80 s of work in three jobs, one every 4 s, on 10 executors.
    assert offered_load(recorded, _CLUSTER, "recorded") == pytest.approx(80 / 3 / 40)


def test_no_executor_is_fresh_in_the_world_of_cores() -> None:
    """Load, estimates and durations leave its samples out there, where the stage has others."""
    durations = TaskDurations((1,), ([900],), ([100],), ([100],))
    cold = StageSpec(1, TaskDurations((1,), ([800],), ([],), ([],)))
    workload = Workload("w", (JobSpec("a", (StageSpec(2, durations), cold)),))
    seen = {}
    for world in WorldName:
        config = SimulationConfig(world=world, num_executors=2, moving_delay_ms=0)
        sequence = workload.draw(1, "batch", config, seed=1)
        assert mean_gap_ms(workload, config, "load:0.5") == sequence.jobs[0].work_ms
        assert offered_load(workload, config, "poisson:1000ms") == sequence.jobs[0].work_ms / 2000
        simulator = Simulator(sequence, config, 1)
        simulator.start()
        task_ms = simulator.observe().stages.task_ms[:2].tolist()
        seen[world] = (sequence.jobs[0].work_ms, task_ms)
    mean_ms = 1_100 / 3
    assert seen[WorldName.EXECUTORS] == (2 * mean_ms + 800, [mean_ms, 800])
    assert seen[WorldName.CORES] == (1_000, [100, 800])
