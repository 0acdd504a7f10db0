"""Spread between runs of a recurring job: kept by the importer, around medians, without first
runs.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parcae.workloads
from parcae.base.errors import WorkloadError
from parcae.simulation.kernels.events import choose_runs
from parcae.workloads.archive import read_workload, write_workload
from parcae.workloads.demands import in_memory_units, prepare, with_parallelism_model
from parcae.workloads.describe import describe_workload, fingerprint
from parcae.workloads.durations import TaskDurations
from parcae.workloads.import_report import ImportReport
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.spark_log.event_log import read_spark_event_logs
from parcae.workloads.spark_log.profile import log_sigma, scaled, spread_of_runs
from parcae.workloads.spread import usual_sigma
from parcae.workloads.workload import Workload
from tests.workloads.spark_log_builder import (
    application_start,
    executor,
    job_end,
    job_start,
    ran,
    stage_info,
    to_bytes,
    whole_job,
)

EXAMPLE = Path(parcae.workloads.__file__).parent / "bundled" / "example-event-log.zstd"
LOG_2 = math.log(2)


def _log(runs: list[tuple[int, int]], pools: tuple[str, ...] = (), app: str = "app-1") -> bytes:
    """A job "report" of two stages, of 2 and 1 tasks.

    It runs once for each pair: ms of a task of each stage.
    """
    events: list[dict[str, Any]] = [application_start(app), executor(cores=1)]
    for number, (first_ms, last_ms) in enumerate(runs):
        at = number * 100_000
        first = stage_info(2 * number, 2)
        last = stage_info(2 * number + 1, 1, (2 * number,), scope="reduce")
        own = {"spark_scheduler_pool": pools[number]} if pools and pools[number] else {}
        middle = at + 2 * first_ms
        stages = ((first, at, middle), (last, middle, middle + last_ms))
        events += whole_job(number, at, *stages, spark_jobGroup_id="report", **own)
    return to_bytes(events)


def _read(folder: Path, *logs: bytes, **options: Any) -> tuple[Workload, ImportReport]:
    paths = [folder / f"log-{number}" for number in range(len(logs))]
    for path, data in zip(paths, logs, strict=True):
        path.write_bytes(data)
    return read_spark_event_logs(paths, **options)


def test_the_sigma_of_numbers_is_that_of_their_logarithms_around_the_median() -> None:
    assert log_sigma(np.array([1.0, 2.0, 4.0])) == pytest.approx(
        LOG_2
    )  # sqrt((log(2)^2 + 0 + log(2)^2) / 2)
    assert log_sigma(np.array([3.0, 12.0])) == pytest.approx(math.sqrt(2) * LOG_2)
    assert log_sigma(np.array([5.0, 0.0])) == 0.0
    assert log_sigma(np.zeros(0)) == 0.0


@pytest.mark.parametrize(
    ("mean_ms", "work_sigma", "of_stages", "stage", "scale"),
    [
        # What a whole run was slower by is not counted again in its stages.
        ([[100.0, 50.0], [200.0, 100.0], [400.0, 200.0]], LOG_2, 0.0, 0, [2.0, 1.0, 0.5]),
        # Stages that differ within runs of one work have sigmas of their own.
        (
            [[100.0, 200.0], [150.0, 100.0], [50.0, 300.0]],
            0.0,
            math.sqrt((math.log(1.5) ** 2 + LOG_2**2) / 2),
            1,
            [1.0, 2.0, 2 / 3],
        ),
    ],
)
def test_the_spread_of_runs_and_that_of_their_stages_are_kept_apart(
    mean_ms: Any, work_sigma: float, of_stages: float, stage: int, scale: list[float]
) -> None:
    num_tasks = np.array([[2, 1]] * 3)
    spread = spread_of_runs(np.array(mean_ms), num_tasks, np.ones((3, 2), np.int64))
    assert spread.work_sigma == pytest.approx(work_sigma)
    assert spread.duration_sigma == pytest.approx([of_stages, of_stages])
    assert spread.scale[:, stage] == pytest.approx(scale)
    assert spread.factors[:, stage] == pytest.approx(1 / np.array(scale))


def test_the_factors_of_runs_count_tasks_that_the_profile_has_not() -> None:
    """With 2 tasks in the profile, a run of 3 tasks of the usual duration has half as much more."""
    spread = spread_of_runs(np.full((3, 1), 100.0), np.array([[2], [3], [2]]), np.ones((3, 1)))
    assert spread.factors == pytest.approx(np.array([[1.0], [1.5], [1.0]]))
    # A stage that took no time takes none when this run is drawn.
    mean_ms = np.array([[100.0, 5.0], [100.0, 0.0], [100.0, 5.0]])
    none = spread_of_runs(mean_ms, np.ones((3, 2), np.int64), np.ones((3, 2)))
    assert none.factors[:, 1].tolist() == [pytest.approx(1.0), 0.0, pytest.approx(1.0)]


def _job_of_runs(*factors: float, num_stages: int = 1) -> JobSpec:
    """A job of 1 s of work, whose stages deviate alike."""
    stage = StageSpec(10, TaskDurations.constant(100 // num_stages))
    return JobSpec(
        f"{len(factors)} runs",
        (stage,) * num_stages,
        work_sigma=log_sigma(np.array(factors)),
        num_runs=len(factors),
        run_factors=np.repeat(factors, num_stages) if len(factors) > 1 else (),
    )


def _runs(workload: Workload, job_index: Any, seed: int = 1) -> Any:
    run = workload.runs.num_runs[job_index]
    choose_runs(np.uint64(seed), run)
    return run, workload.runs.draw(job_index, run, seed)


def _drawn(workload: Workload, job: int, count: int = 20_000) -> Any:
    run, factors = _runs(workload, np.full(count, job))
    return run, factors.reshape(count, -1)


def test_of_ten_runs_each_simulated_one_is_a_recorded_one() -> None:
    recorded = np.linspace(0.2, 3.0, 10)
    workload = Workload("w", (_job_of_runs(*recorded, num_stages=2), _job_of_runs(0.1, 10.0)))
    run, factors = _drawn(workload, 0)
    assert (factors == recorded[run][:, None]).all()
    assert np.bincount(run) == pytest.approx(np.full(10, 2_000), abs=150)
    assert workload.runs.mean_work_ms[0] == pytest.approx(1_000 * recorded.mean())


def test_few_runs_are_shrunk_towards_the_usual_spread_and_one_run_has_it() -> None:
    """The usual spread is that of the median job: an odd pair of runs does not change it."""
    alike = [_job_of_runs(0.9, 1 / 0.9)] * 4
    workload = Workload("w", (_job_of_runs(0.1, 10.0), _job_of_runs(1.0), *alike))
    usual = usual_sigma(workload.jobs)
    assert usual == pytest.approx(math.sqrt(2) * math.log(1 / 0.9) / (7 / 9) ** 1.5)
    for job, own in ((0, [0.1, 10.0]), (1, [1.0])):
        _, factors = _drawn(workload, job)
        share = 3 / (3 + len(own))
        assert np.isin(factors, own).mean() == pytest.approx(1 - share, abs=0.02)
        # The quantiles have 0.95 of the variance of the whole distribution.
        variance = share * 0.95 * usual**2 + (1 - share) * np.square(np.log(own)).mean()
        assert np.log(factors).std() == pytest.approx(math.sqrt(variance), rel=0.03)
        expected_ms = workload.runs.mean_work_ms[job]
        assert factors.mean() * 1_000 == pytest.approx(expected_ms, rel=0.03)
        assert workload.runs.sigma[job] == pytest.approx(math.sqrt(variance), rel=0.03)


def test_no_run_is_more_than_twice_as_large_as_the_largest_recorded_one() -> None:
    wild = [_job_of_runs(0.01, 100.0)] * 3
    workload = Workload("w", (_job_of_runs(0.9, 1.0, 1.1), *wild))
    _, factors = _drawn(workload, 0)
    assert (factors.min(), factors.max()) == (pytest.approx(0.45), pytest.approx(2.2))
    # Without the runs (an older file) their number and sigma say how large one can have been.
    old = replace(wild[0], run_factors=())
    _, factors = _drawn(Workload("old", (old,)), 0)
    assert factors.max() == pytest.approx(2 * math.exp(old.work_sigma))


def test_which_run_is_drawn_depends_on_the_seed_and_the_place_alone() -> None:
    jobs = (_job_of_runs(*np.linspace(0.5, 2, 12)), _job_of_runs(0.9, 1 / 0.9, num_stages=3))
    workload = Workload("w", jobs)
    order = np.array([0, 1, 1, 0, 0, 1])
    run, factors = _runs(workload, order, 7)
    fewer, fewer_factors = _runs(workload, order[:3], 7)
    assert (run[:3].tolist(), factors[:7].tolist()) == (fewer.tolist(), fewer_factors.tolist())
    assert run.tolist() != _runs(workload, order, 8)[0].tolist()


@pytest.mark.parametrize("factors", [[1.0], [1.0, -1.0], [1.0, math.nan], [[1.0, 1.0]] * 2])
def test_factors_of_runs_that_cannot_be_are_refused(factors: Any) -> None:
    with pytest.raises(WorkloadError, match="factors of its runs must be 2 x 1 numbers"):
        replace(_job_of_runs(1.0), num_runs=2, run_factors=factors)


def test_runs_are_scaled_to_the_median_of_their_own_parallelism() -> None:
    """Equal work with different stages: by chance at one level, due to parallelism at two."""
    mean_ms = np.array([[90.0, 10.0], [90.0, 10.0], [10.0, 90.0]])
    num_tasks = np.ones((3, 2), np.int64)
    alike = spread_of_runs(mean_ms, num_tasks, np.ones((3, 2), np.int64))
    assert alike.scale == pytest.approx(np.array([[1.0, 1.0], [1.0, 1.0], [9.0, 1 / 9]]))
    apart = spread_of_runs(mean_ms, num_tasks, np.array([[1, 1], [1, 1], [8, 8]]))
    assert apart.scale == pytest.approx(np.ones((3, 2)))


def test_scaled_durations_keep_their_mean_in_whole_ms() -> None:
    assert scaled(np.array([1, 1, 1, 1, 1]), 1.4).tolist() == [1, 2, 1, 2, 1]
    assert scaled(np.array([100, 300]), 0.5).tolist() == [50, 150]
    assert scaled(np.zeros(0, np.int64), 2.0).tolist() == []


def test_the_importer_keeps_medians_and_spread_without_the_first_run(tmp_path: Path) -> None:
    workload, report = _read(tmp_path, _log([(5_000, 5_000), (100, 100), (400, 400), (200, 200)]))
    (job,) = workload.jobs
    assert (workload.weights, job.num_runs) == ((4.0,), 3)
    assert [stage.mean_task_ms for stage in job.stages] == [200.0, 200.0]
    assert job.stages[0].durations.rest[0].tolist() == [200, 200, 200]
    assert job.work_sigma == pytest.approx(LOG_2)
    assert [stage.duration_sigma for stage in job.stages] == pytest.approx([0.0, 0.0])
    assert workload.provenance["first_runs_left_out"] == "1"
    assert any("Left out 1 first run of jobs that ran again" in note for note in report.notes)
    assert any("sigma of log work: median 0.69, p95 0.69" in note for note in report.notes)


def test_a_single_run_is_kept_and_two_leave_one_without_spread(tmp_path: Path) -> None:
    (once,) = _read(tmp_path, _log([(800, 800)]))[0].jobs
    assert (once.num_runs, once.work_sigma, once.stages[0].mean_task_ms) == (1, 0.0, 800.0)
    (twice,) = _read(tmp_path, _log([(800, 800), (100, 70)]))[0].jobs
    assert (twice.num_runs, twice.work_sigma, twice.stages[0].mean_task_ms) == (1, 0.0, 100.0)
    assert twice.stages[1].durations.first[0].tolist() == [70]


def test_every_application_starts_cold_unless_it_ran_the_job_only_once(tmp_path: Path) -> None:
    logs = (
        _log([(900, 900), (100, 100)]),
        _log([(700, 700), (200, 200)], app="app-2"),
        _log([(400, 400)], app="app-3"),
    )
    workload, report = _read(tmp_path, *logs)
    (job,) = workload.jobs
    assert (workload.weights, job.num_runs, job.stages[0].mean_task_ms) == ((5.0,), 3, 200.0)
    assert any(note.startswith("Left out 2 first runs") for note in report.notes)


def test_what_fresh_executors_cost_is_neither_spread_nor_scaled(tmp_path: Path) -> None:
    """The only slot is fresh in the first run of the first stage: its sample is not scaled."""
    workload, _ = _read(tmp_path, _log([(300, 300), (100, 100), (100, 100)]), keep_first_runs=True)
    durations = workload.jobs[0].stages[0].durations
    assert durations.fresh[0].tolist() == [300]
    assert workload.jobs[0].stages[0].mean_task_ms == 100.0


def test_a_run_on_fresh_executors_alone_is_scaled_as_it_is_drawn() -> None:
    """A stage of one task: what took 1,126 ms on a fresh executor is a run, not the median one."""
    workload, _ = read_spark_event_logs([EXAMPLE], keep_first_runs=False)
    (job,) = (job for job in workload.jobs if job.name.startswith("parquet"))
    (stage,) = job.stages
    ((fresh,),), ((warm,),) = stage.durations.fresh, stage.durations.first
    assert fresh == warm == round(math.sqrt(1_126 * 83))
    assert job.run_factors.ravel() * stage.mean_task_ms == pytest.approx([1_126, 83], abs=2)


def test_pools_are_those_that_most_runs_were_in(tmp_path: Path) -> None:
    runs = [(10, 10)] * 4
    assert _read(tmp_path, _log(runs, ("etl", "bi", "bi", "etl")))[0].jobs[0].pool == "bi"
    assert _read(tmp_path, _log(runs))[0].jobs[0].pool == ""
    recorded = _read(tmp_path, _log(runs, ("", "bi", "bi", "etl")), recorded=True)[0]
    assert [job.pool for job in recorded.jobs] == ["", "bi", "bi", "etl"]


def test_input_bytes_are_the_mean_of_what_runs_read_from_files_and_shuffles(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [executor(cores=1)]
    for number, (read, remote, local) in enumerate([(10_000, 0, 0), (100, 20, 3), (200, 0, 7)]):
        info = stage_info(number, 1)
        task, completed = ran(info, number * 1_000, number * 1_000 + 50)
        task["Task Metrics"] |= {
            "Input Metrics": {"Bytes Read": read, "Records Read": 1},
            "Shuffle Read Metrics": {
                "Remote Bytes Read": remote,
                "Remote Bytes Read To Disk": 5,
                "Local Bytes Read": local,
            },
            "Output Metrics": {"Bytes Written": 999},
        }
        start = job_start(number, number * 1_000, [info], spark_jobGroup_id="report")
        events += [start, task, completed, job_end(number)]
    (job,) = _read(tmp_path, to_bytes(events))[0].jobs
    assert job.stages[0].input_bytes == (123 + 207) / 2
    assert _read(tmp_path, _log([(10, 10)]))[0].jobs[0].stages[0].input_bytes == 0.0


def _spread_job(**changes: Any) -> JobSpec:
    return JobSpec(
        "a", (StageSpec(1, TaskDurations.constant(10), memory=0.5, duration_sigma=0.2),), **changes
    )


def test_a_description_tells_the_spread_and_the_first_runs_left_out() -> None:
    jobs = (
        _spread_job(work_sigma=0.5, num_runs=4),
        _spread_job(work_sigma=0.3, num_runs=2),
        _spread_job(),
    )
    described = describe_workload(Workload("w", jobs, provenance={"first_runs_left_out": "2"}))
    runs = described["runs"]
    assert (runs["num_jobs"], runs["num_runs"], runs["work_sigma"]["median"]) == (2, 6, 0.4)
    assert described["runs_in_words"] == (
        "sigma of log work: median 0.40, p95 0.49; "
        "of stages' durations: median 0.20, p95 0.20 (6 runs of 2 jobs);"
        " first runs left out: 2"
    )
    plain = describe_workload(Workload("w", (_spread_job(),)))
    assert plain["runs"] is None
    assert plain["runs_in_words"] == (
        "not known (no job is profiled from several runs); first runs left out: 0"
    )


def test_spread_and_pools_count_in_the_fingerprint_and_survive_preparation() -> None:
    plain, spread = (
        Workload("w", (_spread_job(work_sigma=sigma, pool="bi"),)) for sigma in (0.0, 0.5)
    )
    assert fingerprint(plain) != fingerprint(spread)
    inflated = with_parallelism_model(spread, "decima-cluster").jobs[0]
    prepared = prepare(spread, [in_memory_units(1.0)])[0].jobs[0]
    for job in (inflated, prepared):
        assert (job.work_sigma, job.pool, job.stages[0].duration_sigma) == (0.5, "bi", 0.2)


def test_a_model_of_parallelism_keeps_what_was_measured() -> None:
    def means(levels: tuple[int, ...], *each_ms: int) -> dict[int, int]:
        samples = tuple(np.array([ms], np.int64) for ms in each_ms)
        stage = StageSpec(1, TaskDurations(levels, samples, samples, samples))
        inflated = with_parallelism_model(
            Workload("w", (JobSpec("a", (stage,)),)), "decima-cluster"
        )
        durations = inflated.jobs[0].stages[0].durations
        return {
            level: int(rest.mean())
            for level, rest in zip(durations.levels, durations.rest, strict=True)
        }

    assert means((2,), 1_000) == {5: 1_000, 10: 1_090, 20: 1_310, 40: 1_750, 60: 2_170, 100: 2_960}
    # At 40 executors the model has 1.75, at 60 1.24 and at 100 1.691 times as much.
    assert means((16, 40), 1_000, 2_000) == {16: 1_000, 40: 2_000, 60: 2_480, 100: 3_383}
    assert means((200,), 1_000) == {200: 1_000}


def test_whole_numbers_and_those_of_a_file_have_one_fingerprint(tmp_path: Path) -> None:
    stage = StageSpec(1, TaskDurations.constant(1_000), cpu=1, memory=0)
    workload = Workload("w", (JobSpec("a", (stage,)),))
    write_workload(workload, tmp_path / "w.parcae")
    assert fingerprint(read_workload(tmp_path / "w.parcae")) == fingerprint(workload)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_spread_that_cannot_be_is_refused(value: float) -> None:
    durations = TaskDurations.constant(1)
    with pytest.raises(WorkloadError, match="the work sigma is"):
        JobSpec("bad", (StageSpec(1, durations),), work_sigma=value)
    with pytest.raises(WorkloadError, match="the duration sigma is"):
        StageSpec(1, durations, duration_sigma=value)
    with pytest.raises(WorkloadError, match="the number of input bytes is"):
        StageSpec(1, durations, input_bytes=value)
    with pytest.raises(WorkloadError, match="a profile of 0 runs"):
        JobSpec("bad", (StageSpec(1, durations),), num_runs=0)
