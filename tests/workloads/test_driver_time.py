"""The driver's time in event logs: what is measured, kept in files and drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parcae.base.errors import WorkloadError
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.metrics import slowdown
from parcae.simulation.simulator import simulate
from parcae.simulation.tables import DurationMode
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.job import DriverTime
from parcae.workloads.spark_log.event_log import LoggedRuns, read_runs, read_spark_event_logs
from parcae.workloads.workload import Workload
from tests.conftest import arriving, job, shared_case
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    job_end,
    job_start,
    log_file,
    ran,
    removed,
    stage_completed,
    stage_info,
    task_end,
)


def _runs(tmp_path: Path, *events: dict[str, Any]) -> LoggedRuns:
    return read_runs([log_file(tmp_path / "log", application_start("a"), *events)])


def _tasks(info: dict[str, Any], start: int, *spans: tuple[int, int]) -> list[dict[str, Any]]:
    ends = [task_end(info["Stage ID"], i, *span) for i, span in enumerate(spans)]
    return [*ends, stage_completed(info, start, max(finish for _, finish in spans))]


def test_gaps_lags_and_tail_of_a_query_are_measured(tmp_path: Path) -> None:
    first, second = stage_info(0, 3), stage_info(1, 1, parents=(0,))
    (run,) = _runs(
        tmp_path,
        executor(cores=2),
        job_start(0, 100, [first, second]),
        # Submitted 50 ms after the query, launched 20 ms later; the third task queues.
        *_tasks(first, 150, (170, 1_170), (170, 1_170), (1_170, 2_170)),
        # 30 ms after its parent, launched 10 ms later.
        *_tasks(second, 2_200, (2_210, 2_710)),
        job_end(0, end_ms=2_750),
    ).runs
    assert [stage.gap_ms for stage in run.stages] == [50, 30]
    assert [stage.lag_ms for stage in run.stages] == [20, 10]
    assert run.tail_ms == 40
    assert [stage.is_startup for stage in run.stages] == [True, False]


def test_time_in_a_queue_is_no_lag(tmp_path: Path) -> None:
    busy, late = stage_info(0, 1), stage_info(1, 1)
    _, run = _runs(
        tmp_path,
        executor(cores=1),
        job_start(0, 0, [busy]),
        job_start(1, 100, [late]),
        *_tasks(busy, 0, (0, 1_000)),
        # Submitted at 100; the only slot is free from 1,000 on, and the launch is 25 ms later.
        *_tasks(late, 100, (1_025, 1_500)),
        job_end(0, end_ms=1_000),
        job_end(1, end_ms=1_500),
    ).runs
    assert (run.stages[0].gap_ms, run.stages[0].lag_ms) == (0, 25)


def test_slots_come_and_go_with_executors(tmp_path: Path) -> None:
    info = stage_info(0, 2)
    (run,) = _runs(
        tmp_path,
        executor("1", 2),
        {**executor("2", 4), "Timestamp": 500},
        removed("2", 800),
        job_start(0, 0, [info]),
        *_tasks(info, 0, (0, 1_000), (0, 1_000)),
        job_end(0, end_ms=1_000),
    ).runs
    assert run.slots == [(0, 2), (500, 4), (800, -4)]


def test_failed_attempts_count_in_a_replay(tmp_path: Path) -> None:
    info = stage_info(0, 1)
    failed = task_end(0, 0, 0, 300, reason="ExceptionFailure")
    (run,) = _runs(
        tmp_path,
        executor(cores=1),
        job_start(0, 0, [info]),
        failed,
        task_end(0, 0, 310, 500, Attempt=1),
        stage_completed(info, 0, 500),
        job_end(0, end_ms=500),
    ).runs
    assert run.stages[0].replayed_ms.tolist() == [490]


def test_tasks_that_one_core_cannot_have_had_keep_their_time(tmp_path: Path) -> None:
    info = stage_info(0, 2)
    (run,) = _runs(
        tmp_path,
        executor(cores=1),
        job_start(0, 0, [info]),
        *_tasks(info, 0, (0, 500), (1, 501)),
        job_end(0, end_ms=501),
    ).runs
    assert run.stages[0].replayed_ms.tolist() == [500, 500]


def test_where_task_ends_are_missing_the_end_of_the_stage_counts(tmp_path: Path) -> None:
    info = stage_info(0, 2)
    (run,) = _runs(
        tmp_path,
        executor(cores=2),
        job_start(0, 0, [info]),
        task_end(0, 0, 20, 100),
        stage_completed(info, 10, 900),
        job_end(0, end_ms=930),
    ).runs
    assert (run.stages[0].gap_ms, run.stages[0].lag_ms, run.tail_ms) == (10, 0, 30)


def test_recurring_jobs_keep_the_driver_time_of_every_run(tmp_path: Path) -> None:
    events = [application_start("a"), executor(cores=1)]
    for number, gap_ms in enumerate((500, 70, 90)):
        info = stage_info(number, 1)
        info["RDD Info"][0]["RDD ID"] = 0
        begin = 10_000 * number
        events += [job_start(number, begin, [info], spark_jobGroup_id="nightly")]
        events += ran(info, begin + gap_ms, begin + gap_ms + 1_000)
        events += [job_end(number, end_ms=begin + gap_ms + 1_000 + number)]
    path = log_file(tmp_path / "log", *events)
    workload, _ = read_spark_event_logs([path])
    times = workload.jobs[0].driver_time
    assert times is not None
    # The first run is left out of the profile.
    assert times.gap_ms.tolist() == [[70], [90]]
    assert times.tail_ms.tolist() == [1, 2]
    write_workload(workload, tmp_path / "w.parcae")
    read = read_workload(tmp_path / "w.parcae").jobs[0]
    assert read.driver_time is not None
    assert read.driver_time.gap_ms.tolist() == [[70], [90]]
    assert read.driver_time.tail_ms.tolist() == [1, 2]
    assert read.stages[0].spark_job == 0


def _fifo(workload: Workload, seed: int, mode: DurationMode = DurationMode.SAMPLED) -> list[int]:
    sequence = arriving(*((one, 10_000 * row) for row, one in enumerate(workload.jobs)))
    config = SimulationConfig(world=WorldName.CORES, num_executors=2, durations=mode)
    policy = OrderPolicy("fifo", OrderKind.FIFO, plan_tables())
    trace = simulate(sequence, policy, config, seed)
    return (trace.completion_ms - trace.arrival_ms).tolist()


def test_a_job_repeats_the_driver_time_of_one_of_its_runs() -> None:
    times = DriverTime(np.array([[100], [300]]), np.array([[10], [30]]), np.array([1, 3]))
    one = replace(job("etl", (2, 1_000, ())), driver_time=times)
    workload = Workload("w", (one,) * 40)
    jcts = _fifo(workload, seed=1)
    assert set(jcts) == {1_111, 1_333}
    assert 10 <= jcts.count(1_111) <= 30
    assert jcts != _fifo(workload, seed=2)
    assert set(_fifo(workload, 1, DurationMode.MEAN)) == {1_222}


@pytest.mark.parametrize("gap", [[[-1]], [[1 << 40]], [[1, 2]]])
def test_driver_time_that_cannot_be_is_refused(gap: list[list[int]]) -> None:
    with pytest.raises(WorkloadError, match="driver time"):
        replace(
            job("etl", (1, 1_000, ())),
            driver_time=DriverTime(np.array(gap), np.zeros_like(gap), np.array([0])),
        )


def test_a_query_of_which_tasks_run_a_quarter_of_the_time_takes_as_long_as_it_did() -> None:
    workload, _ = read_spark_event_logs([shared_case("11-time-without-tasks")], recorded=True)
    assert _fifo(workload, 0, DurationMode.MEAN) == pytest.approx([12_000] * 3, rel=0.03)


def test_the_ideal_duration_has_the_mean_of_the_driver_time_where_the_world_plays_it() -> None:
    # The longest path is by the stage that the driver keeps waiting, not by that of longer tasks.
    times = DriverTime(
        np.array([[900, 0], [900, 0]]), np.array([[40, 0], [60, 0]]), np.array([5, 5])
    )
    one = replace(job("etl", (2, 1_000, ()), (4, 1_500, ())), driver_time=times)
    alone = arriving((one, 0))
    policy = OrderPolicy("fifo", OrderKind.FIFO, plan_tables())
    mean = DurationMode.MEAN
    config = SimulationConfig(world=WorldName.CORES, num_executors=6, durations=mean)
    trace = simulate(alone, policy, config, 0)
    assert one.ideal_ms(6) == trace.completion_ms[0] == 1_955
    assert one.ideal_ms(6, has_driver=False) == 1_500
    assert slowdown(trace, alone).tolist() == [1.0]
