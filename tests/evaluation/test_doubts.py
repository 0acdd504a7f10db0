"""Warnings where conclusions would be wrong, and none where they would not."""

from dataclasses import replace

import polars as pl
import pytest

from parcae.decima.catalog import HEURISTICS
from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.comparison import comparison_table
from parcae.evaluation.sections import mean_task_ms, run_warnings, setting_warnings
from parcae.policies.parameter_search import Sweep, edge_warning
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.workloads.archive import load_workload
from parcae.workloads.workload import Workload
from tests.conftest import job
from tests.evaluation.made import jobs_of, run_of

#: 2 tasks of 3 s and 1 task of 6 s: 4 s a task, and a drawn job has 6 s of work.
_WORKLOAD = Workload("w", (job("a", (2, 3_000, ())), job("b", (1, 6_000, ()))))
_EXECUTORS = SimulationConfig(num_executors=2)
_CORES = SimulationConfig(num_executors=2, world=WorldName.CORES)


_SWEEPS = {entry.name: entry.sweep for entry in HEURISTICS if entry.sweep is not None}


def test_delays_longer_than_tasks_are_warned_of_in_the_world_that_has_them() -> None:
    assert mean_task_ms(_WORKLOAD) == 4_000
    assert setting_warnings(_WORKLOAD, _EXECUTORS, "batch") == []
    slow = _EXECUTORS.model_copy(update={"moving_delay_ms": 4_001})
    (text,) = setting_warnings(_WORKLOAD, slow, "batch")
    assert text.startswith("an executor takes 4 s to move between jobs, a task only 4 s")
    assert text.endswith("choose --moving-delay-ms for your cluster, or --world cores")
    classes = SimulationConfig(executor_classes="2x1x1", moving_delay_ms=4_001)
    (text,) = setting_warnings(_WORKLOAD, classes, "batch")
    assert text.endswith("choose --moving-delay-ms for your cluster")
    same = _CORES.model_copy(update={"moving_delay_ms": 4_001})
    assert setting_warnings(_WORKLOAD, same, "batch") == []


def test_runs_that_deviate_from_their_profiles_bring_more_work() -> None:
    # The mean factor of a run is exp(0.8 ** 2 / 2) = 1.377.
    jobs = tuple(replace(job, work_sigma=0.8, arrival_ms=0) for job in _WORKLOAD.jobs)
    varied = replace(_WORKLOAD, jobs=(jobs[0], replace(jobs[1], arrival_ms=4_000)))
    in_log = _CORES.model_copy(update={"estimate_error": "log"})
    for arrivals, load in (("poisson:3s", "1.38"), ("recorded", "1.03")):
        assert setting_warnings(varied, _CORES, arrivals) == []
        (text,) = setting_warnings(varied, in_log, arrivals)
        assert text.startswith(f"arrivals bring {load} times the work that 2 cores can do")
    assert setting_warnings(varied, in_log, "load:0.9") == []


def test_a_load_at_which_hardly_two_jobs_meet_is_warned_of() -> None:
    (text,) = setting_warnings(_WORKLOAD, _CORES, "poisson:100s")
    assert text.startswith("arrivals bring 0.03 times the work that 2 cores can do")
    assert text.endswith("the order of jobs hardly matters; give --arrivals load:0.8")
    assert setting_warnings(_WORKLOAD, _CORES, "load:0.1") == []


@pytest.mark.parametrize(
    ("arrivals", "load"),
    [("load:1.5", "1.50"), ("poisson:2s", "1.50"), ("bursts:1s", "3.00"), ("recorded", "1.20")],
)
def test_a_load_above_one_is_warned_of(arrivals: str, load: str) -> None:
    first, second = _WORKLOAD.jobs
    recorded = (replace(first, arrival_ms=0), replace(second, arrival_ms=2_500))
    (text,) = setting_warnings(replace(_WORKLOAD, jobs=recorded), _CORES, arrivals)
    assert text.startswith(f"arrivals bring {load} times the work that 2 cores can do")


@pytest.mark.parametrize("arrivals", ["batch", "load:1", "poisson:3s", "load:0.85"])
def test_a_load_up_to_one_is_not(arrivals: str) -> None:
    assert setting_warnings(_WORKLOAD, _CORES, arrivals) == []


def test_durations_measured_alone_are_warned_of() -> None:
    alone = replace(_WORKLOAD, provenance={"measured": "sf1: 3 runs of 22 queries"})
    (text,) = setting_warnings(alone, _CORES, "batch")
    assert "measured with one job at a time" in text
    one_by_one = replace(_WORKLOAD, provenance={"measured_alone": "6 runs"})
    assert setting_warnings(one_by_one, _CORES, "batch") == [text]


def test_seeds_that_repeat_one_run_are_warned_of() -> None:
    same, other = (run_of(("a", "b"), (4_000, end_ms)) for end_ms in (5_000, 5_001))
    (text,) = run_warnings(jobs_of(same, same, same))
    assert text.startswith("all 3 seeds gave the same run")
    assert run_warnings(jobs_of(same, other)) == []
    assert run_warnings(jobs_of(same)) == []


def test_a_mean_that_one_recurring_job_decides_is_warned_of() -> None:
    def jobs(jct_ms: list[int]) -> pl.DataFrame:
        names = ["a", "b", "c", "d", "rare"]
        start = {"seed": 1, "column": 0, "arrival_ms": 0}
        rows = [
            {**start, "job": name, "completion_ms": ms, "jct_ms": ms}
            for name, ms in zip(names, jct_ms, strict=True)
        ]
        # What the other policies do with it is their result.
        return pl.DataFrame([*rows, {**rows[0], "column": 1, "jct_ms": 1_000_000}])

    (text,) = run_warnings(jobs([100, 100, 100, 100, 600]))
    assert text.startswith("one recurring job decides the mean: rare is 20% of the jobs and 60% of")
    assert run_warnings(jobs([100, 100, 100, 100, 390])) == []


def test_a_tuned_value_at_the_edge_of_its_grid_is_warned_of() -> None:
    lowest, *_, highest = (values[0] for values in _SWEEPS["weighted-fair"].grid(2))

    def warned(family: str, best: float) -> str:
        knobs = _SWEEPS[family]
        return edge_warning(knobs, 2, Sweep(knobs.names, {(best,): 1.0}))

    assert warned("weighted-fair", lowest).startswith("alpha -10 is at the edge of the values")
    assert "(-10 to 5)" in warned("weighted-fair", highest)
    assert warned("weighted-fair", -2.0) == ""
    # A weight of 0 and a cap of all executors are ends by nature.
    assert warned("tetris", 0.0) == ""
    assert warned("tetris", 100.0) != ""
    assert warned("static", 2.0) == ""


def test_a_comparison_says_its_warnings_in_the_table_and_in_the_json() -> None:
    recorded = (replace(_WORKLOAD.jobs[0], arrival_ms=0), replace(_WORKLOAD.jobs[1], arrival_ms=1))
    world = ClusterWorld(replace(_WORKLOAD, jobs=recorded), _CORES, "recorded", 2)
    comparison = compare(world, ["fair", "fifo"], num_seeds=2, processes=1)
    overload, same = comparison.to_json()["warnings"]
    assert overload.startswith("arrivals bring")
    assert same.startswith("all 2 seeds gave the same run")
    assert f"Warning: {same}." in str(comparison_table(comparison).caption)


def test_failures_that_would_end_jobs_are_warned_of() -> None:
    config = SimulationConfig(world=WorldName.CORES, faults="failures=0.5,max-failures=2")
    # The toy's jobs have several tasks; one in four of them would fail twice.
    (warning,) = [
        text
        for text in setting_warnings(load_workload("toy"), config, "batch")
        if text.startswith("with failures=0.5 and 2 failures allowed, Spark would end ")
    ]
    assert "here the last attempt of a task succeeds" in warning
    rare = SimulationConfig(world=WorldName.CORES, faults="failures=0.01")
    assert not setting_warnings(load_workload("toy"), rare, "batch")
