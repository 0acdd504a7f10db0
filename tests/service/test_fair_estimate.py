"""The estimate of what FAIR would have taken, where FAIR itself is in force."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.fair_estimate import mean_times

from parcae.workloads.archive import load_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import StageSpec
from parcae.workloads.workload import Workload


def _mean_ratio(workload: Workload, is_open: bool) -> float:
    pairs = [
        mean_times(workload, 20, 50, "load:0.6", seed, is_open) for seed in range(5_000, 5_001)
    ]
    return sum(estimated for estimated, _ in pairs) / sum(measured for _, measured in pairs)


@pytest.mark.parametrize("is_open", [False, True])
def test_the_estimate_is_near_what_is_measured(is_open: bool) -> None:
    # Slow tasks, and stages that appear one after another, once made it half as long or a third
    # longer.
    assert 0.75 < _mean_ratio(load_workload("tpch"), is_open) < 1.2


def test_where_tasks_take_equally_long_slow_tasks_count_nothing() -> None:
    workload = load_workload("tpch")
    jobs = (replace(job, stages=tuple(map(_even, job.stages))) for job in workload.jobs)
    assert 0.8 < _mean_ratio(Workload("even", tuple(jobs)), False) < 1.15


def _even(stage: StageSpec) -> StageSpec:
    durations = TaskDurations.constant(max(1, round(stage.mean_task_ms)))
    return replace(stage, durations=durations, mean_task_ms=-1.0)
