"""The load of arrivals on a cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parcae.simulation.config import SimulationConfig, mean_gap_ms, offered_load
from parcae.workloads.job import Workload
from tests.conftest import job

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
        _WORKLOAD,
        jobs=tuple(job.at(time) for job, time in zip(jobs, times, strict=True)),
    )
    assert mean_gap_ms(recorded, _CLUSTER, "recorded") == 4_000
    # 80 s of work in three jobs, one every 4 s, on 10 executors.
    assert offered_load(recorded, _CLUSTER, "recorded") == pytest.approx(80 / 3 / 40)
