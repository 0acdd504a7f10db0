from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from parcae.base.errors import ConfigError, WorkloadError
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_parallelism_model
from parcae.workloads.describe import describe_workload, sample_workload
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, LoggedFaults, StageSpec
from parcae.workloads.synthetic import (
    RandomDags,
    chain,
    mixed,
    one_stage,
    random_dags,
    toy_workload,
)
from parcae.workloads.workload import RandomStreams, Workload, draw_sequence
from tests.conftest import job


def test_work_critical_path_and_width_by_hand() -> None:
    made = job("a", (3, 1_000, ()), (1, 4_000, ()), (2, 2_000, (0, 1)))
    assert made.work_ms == 3_000 + 4_000 + 4_000
    assert made.critical_path_ms == 4_000 + 2_000
    assert made.average_width == pytest.approx(11 / 6)
    assert made.topological_order == (0, 1, 2)
    assert made.children == ((2,), (2,), ())


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        (((1,), (0,)), r"cycle through some of its stages \[0, 1\]"),
        (((5,), ()), "parent 5 does not exist"),
    ],
)
def test_dags_that_cannot_be_are_refused(
    parents: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        JobSpec("bad", tuple(StageSpec(1, TaskDurations.constant(1), p) for p in parents))


@pytest.mark.parametrize("samples", [[float("nan")], [-1.0], [float("inf")]])
def test_durations_that_cannot_be_are_refused(samples: list[float]) -> None:
    with pytest.raises(WorkloadError, match="duration"):
        TaskDurations((1,), (samples,), (samples,), (samples,))  # type: ignore[arg-type]


def test_empty_stages_jobs_and_workloads_are_refused() -> None:
    with pytest.raises(WorkloadError, match="empty stage"):
        StageSpec(0, TaskDurations.constant(1))
    with pytest.raises(WorkloadError, match="no stages"):
        JobSpec("none", ())
    with pytest.raises(WorkloadError, match="no jobs"):
        Workload("none", ())
    with pytest.raises(WorkloadError, match="no samples"):
        TaskDurations((1,), ([],), ([],), ([1],))  # type: ignore[arg-type]


def test_samples_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        TaskDurations.constant(5).first[0][0] = 7


def test_the_decima_cluster_model_inflates_later_waves() -> None:
    workload = Workload("one", (job("a", (1, 1_000, ())),))
    durations = with_parallelism_model(workload, "decima-cluster").jobs[0].stages[0].durations
    assert durations.levels == (5, 10, 20, 40, 60, 100)
    assert [int(s[0]) for s in durations.rest] == [1_000, 1_090, 1_310, 1_750, 2_170, 2_960]
    assert [int(s[0]) for s in durations.first] == [1_000, 1_020, 1_080, 1_330, 1_580, 2_100]
    assert with_parallelism_model(workload, "none") is workload


def test_a_description_counts_what_is_there() -> None:
    described = describe_workload(Workload("w", (chain(3, 2, 1_000), chain(2, 3, 2_000))))
    assert [described[f"num_{what}"] for what in ("jobs", "stages", "tasks")] == [2, 5, 12]
    assert described["total_work_s"] == 6 + 12
    assert described["depth"] == {2: 1, 3: 1}


def test_random_dags_and_samples_depend_on_their_seed_only() -> None:
    one, two = (random_dags(RandomDags(num_jobs=5), np.random.default_rng(3)) for _ in range(2))
    assert [j.work_ms for j in one.jobs] == [j.work_ms for j in two.jobs]
    assert len(sample_workload(toy_workload(), 7, np.random.default_rng(1)).jobs) == 7


def test_a_sample_has_no_recorded_arrival_twice() -> None:
    jobs = tuple(replace(chain(1, 1, 10), arrival_ms=1_000 * row) for row in range(6))
    recorded = Workload("log", jobs)
    for seed in range(3):
        sampled = sample_workload(recorded, 4, np.random.default_rng(seed))
        arrivals = [one.arrival_ms or 0 for one in sampled.jobs]
        assert len(arrivals) == 4
        assert arrivals == sorted(set(arrivals))
    with pytest.raises(ConfigError, match="7 jobs cannot be drawn from the 6 of 'log'"):
        sample_workload(recorded, 7, np.random.default_rng(0))
    weighted = replace(recorded, weights=(1, 1, 0, 0, 0, 0))
    with pytest.raises(ConfigError, match="3 jobs cannot be drawn from the 2 of 'log'"):
        sample_workload(weighted, 3, np.random.default_rng(0))


def test_a_dag_is_one_stage_of_all_its_work_to_one_executor() -> None:
    dag = job("dag", (1, 2_000, ()), (1, 5_000, (0,)), (2, 4_000, (0,)), (3, 4_000, (1, 2)))
    assert one_stage(dag).work_ms == one_stage(dag).critical_path_ms == 27_000
    assert (len(one_stage(dag).stages), one_stage(dag).num_tasks) == (1, 1)
    assert one_stage(dag.at(7)).arrival_ms == 7


def test_synthetic_jobs_take_10_or_50_seconds_half_of_each() -> None:
    workload = load_workload("one-stage")
    assert [job.work_ms for job in workload.jobs] == [10_000, 50_000]
    assert workload.mean_work_ms == 30_000


def test_alpha_is_the_share_of_one_stage_jobs_in_a_mixture() -> None:
    two = Workload("two", (job("a", (1, 1_000, ())), job("b", (1, 3_000, ()))), (1.0, 3.0))
    assert mixed(two, 0.4).weights == pytest.approx((0.2, 0.2, 0.15, 0.45))
    assert mixed(two, 0.0).mean_work_ms == two.mean_work_ms
    assert mixed(two, 1.0).mean_work_ms == 30_000
    loaded = load_workload("mixed:0.5:toy")
    assert [job.name for job in loaded.jobs] == ["short", "long", "long", "middle", "short"]
    drawn = draw_sequence(loaded, "poisson:10s", 2_000, 4, RandomStreams(0))
    assert (drawn.job_index < 2).mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("text", ["0.5", "x:toy", "0.5:", ":toy", "1.5:toy"])
def test_a_mixture_without_a_share_or_a_workload_is_refused(text: str) -> None:
    message = "between 0 and 1" if text == "1.5:toy" else "mixed:ALPHA:WORKLOAD"
    with pytest.raises(ConfigError, match=message):
        load_workload(f"mixed:{text}")


def test_a_mixture_keeps_what_went_wrong_in_the_logs() -> None:
    faults = LoggedFaults(num_attempts=100, num_failed=2)
    logged = Workload("w", (job("a", (1, 10, ())),), faults=faults)
    assert mixed(logged, 0.5).faults == faults
