"""Tasks that take several cores: cores are cores in sizes, prices and comparisons of logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.compare_logs import compare_runs
from parcae.evaluation.sizing import Question, size_cluster
from parcae.simulation.config import SimulationConfig, WorldName, offered_load
from parcae.simulation.elastic import Elastic
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.describe import CAN_GAIN, CORES_IN_LOGS, fingerprint
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.run import read_spark_run
from parcae.workloads.workload import Workload
from tests.conftest import shared_data
from tests.workloads.spark_log_builder import (
    executor,
    job_end,
    job_start,
    log_file,
    settings,
    stage_completed,
    stage_info,
    task_end,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A job of 8 tasks of 1 s on 2 executors of 4 cores, with 2 cores a task: 2 s."""
    info = stage_info(0, 8)
    events = [
        settings({"spark.task.cpus": "2"}),
        executor("1", 4),
        executor("2", 4),
        job_start(0, 0, [info], spark_jobGroup_id="report"),
    ]
    for task in range(8):
        begin = 1_000 * (task // 4)
        events.append(task_end(0, task, begin, begin + 1_000, str(1 + task % 2)))
    events += [stage_completed(info, 0, 2_000), job_end(0, end_ms=2_000)]
    return log_file(tmp_path / "log", *events)


def _size(workload: Workload, cores: int, **settings: Any) -> dict[str, float]:
    question = Question(workload, (cores,), ("fifo",), num_seeds=2, price=3.6, **settings)
    [result] = size_cluster(question).results[:1]
    names = ("average_s", "cores_busy", "cost_per_job")
    return {name: result.of(name).mean for name in names}


def test_a_size_in_cores_runs_as_many_tasks_as_spark_would(log: Path, tmp_path: Path) -> None:
    workload, report = read_spark_event_logs([log], recorded=True)
    assert "Each task takes 2 cores (spark.task.cpus): sizes are in cores" in " ".join(report.notes)
    assert workload.provenance[CORES_IN_LOGS] == "8"
    assert "100% of 8 cores were busy" in workload.provenance[CAN_GAIN]
    write_workload(workload, tmp_path / "w.parcae")
    read = read_workload(tmp_path / "w.parcae")
    assert read.cores_per_task == 2
    assert fingerprint(read) == fingerprint(workload)
    config = SimulationConfig(world=WorldName.CORES, num_executors=8)
    settings = {"arrivals": "batch", "num_jobs": 1, "config": config}
    # 8 cores for 2 s, at 3.60 an hour for a core.
    figures = {"average_s": 2.0, "cores_busy": 8.0, "cost_per_job": 0.016}
    assert _size(read, 8, **settings) == pytest.approx(figures)
    assert _size(read, 16, **settings)["average_s"] == pytest.approx(1.0)
    assert offered_load(read, config, "poisson:4s") == pytest.approx(0.5)
    with pytest.raises(ConfigError, match=r"takes 2 cores \(spark.task.cpus\), but there are only"):
        _size(read, 1, **settings)


def test_an_elastic_cluster_has_executors_of_cores(log: Path) -> None:
    workload, _ = read_spark_event_logs([log], recorded=True)
    elastic = Elastic(min_cores=5, cores_per_executor=5)
    config = SimulationConfig(world=WorldName.CORES, num_executors=20, elastic=elastic)
    slots = config.for_tasks_of(workload)
    assert slots.elastic is not None
    # A core of each executor is left over.
    assert (slots.num_executors, slots.elastic.cores_per_executor, slots.elastic.min_cores) == (
        8,
        2,
        2,
    )
    executors = SimulationConfig(world=WorldName.EXECUTORS, num_executors=8)
    assert executors.for_tasks_of(workload) is executors


def test_logs_are_compared_in_cores(log: Path) -> None:
    run = read_spark_run([log])
    summary = compare_runs(run, run).summaries[0]
    assert (summary.num_cores, summary.core_utilization) == (8, 1.0)
    assert summary.makespan_s == 2.0


def test_a_real_log_with_tasks_of_two_cores() -> None:
    path = shared_data("real-logs/own/taskcpus")
    workload, _ = read_spark_event_logs([path])
    assert (workload.cores_per_task, workload.provenance[CORES_IN_LOGS]) == (2, "4")
    assert compare_runs(*[read_spark_run([path])] * 2).summaries[0].num_cores == 4
