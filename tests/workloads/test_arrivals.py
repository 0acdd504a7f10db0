from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parcae.api.runs import simulate
from parcae.base.errors import ConfigError, WorkloadError
from parcae.simulation.config import SimulationConfig, WorldName
from parcae.simulation.simulator import draw_run_factors
from parcae.workloads.job import JobSpec
from parcae.workloads.synthetic import chain
from parcae.workloads.workload import (
    ArrivalProcess,
    JobSequence,
    RandomStreams,
    Workload,
    default_block,
    draw_sequence,
    grown,
    process_like,
    recorded_sequence,
    resampled,
    without_breaks,
)

_WORKLOAD = Workload("two", (chain(1, 10, 1_000, "a"), chain(2, 5, 3_000, "b")), weights=(1.0, 3.0))


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("batch", "batch", 0.0),
        ("poisson:25s", "poisson", 25_000.0),
        ("poisson:1.5m", "poisson", 90_000.0),
        ("poisson:40ms", "poisson", 40.0),
        ("bursts:25s", "bursts", 25_000.0),
        ("load:0.85", "load", 0.85),
        ("trace:0.85", "trace", 0.85),
        ("recorded", "recorded", 0.0),
    ],
)
def test_arrival_processes_are_read_from_text(text: str, kind: str, value: float) -> None:
    assert ArrivalProcess.parse(text) == ArrivalProcess(kind, value)


_NO_PROCESS = ["", "poisson", "poisson:25", "poisson:0s", "bursts:0s", "bursts:5", "load:0"]


@pytest.mark.parametrize("text", [*_NO_PROCESS, "load:-1", "sometimes"])
def test_other_text_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="poisson:25s"):
        ArrivalProcess.parse(text)


@pytest.mark.parametrize(
    ("arrivals", "num_jobs", "jobs_a_time"), [("poisson:25s", 20_001, 1), ("bursts:25s", 50_001, 5)]
)
def test_gaps_have_the_mean_asked_for_and_bursts_bring_five_jobs_at_a_time(
    arrivals: str, num_jobs: int, jobs_a_time: int
) -> None:
    arrival_ms = draw_sequence(_WORKLOAD, arrivals, num_jobs, 10, RandomStreams(1)).arrival_ms
    assert arrival_ms[0] == 0
    assert arrival_ms[-1] / (num_jobs - 1) == pytest.approx(25_000, rel=0.03)
    assert num_jobs / len(np.unique(arrival_ms)) == pytest.approx(jobs_a_time, rel=0.03)


@pytest.mark.parametrize("arrivals", ["poisson:3ms", "bursts:3ms", "load:0.85"])
def test_short_gaps_have_the_mean_asked_for(arrivals: str) -> None:
    workload = Workload("small", (chain(1, 10, 255, "a"),))  # 2,550 ms of work
    sequence = draw_sequence(workload, arrivals, 100_001, 1_000, RandomStreams(1))
    assert sequence.arrival_ms[-1] / 100_000 == pytest.approx(3, rel=0.02)


def test_gaps_that_are_no_times_are_refused() -> None:
    with pytest.raises(ConfigError, match="choose shorter gaps"):
        draw_sequence(_WORKLOAD, "poisson:999999999999h", 3, 10, RandomStreams(1))


def test_a_load_counts_how_runs_deviate_from_their_profiles() -> None:
    stages = tuple(replace(stage, duration_sigma=0.3) for stage in chain(2, 10, 1_000).stages)
    workload = Workload("varied", (JobSpec("a", stages, work_sigma=0.5),))
    config = SimulationConfig(world=WorldName.CORES, num_executors=4, estimate_error="log")
    work_ms = []
    for seed in range(40):
        sequence = workload.draw(100, "load:0.5", config, seed=seed)
        factors = draw_run_factors(sequence, seed)
        work_ms.append(10_000 * factors.sum() / 100)
    expected_ms = workload.expected_work_ms(runs_vary=True)
    assert expected_ms == pytest.approx(20_000 * math.exp((0.5**2 + 0.3**2) / 2))
    assert np.mean(work_ms) == pytest.approx(expected_ms, rel=0.03)
    process = ArrivalProcess.parse("load:0.5")
    assert process.mean_gap_ms(workload, 4, runs_vary=True) == pytest.approx(expected_ms / 2)
    last_ms = [
        int(workload.draw(400, "load:0.5", config, seed=seed).arrival_ms[-1]) for seed in range(30)
    ]
    assert np.mean(last_ms) / 399 == pytest.approx(expected_ms / 2, rel=0.03)
    # Such a spread says nothing about a mean, but nothing overflows: a factor has a limit.
    wild = Workload("wild", (JobSpec("a", stages, work_sigma=1e3),))
    assert wild.expected_work_ms(runs_vary=True) == pytest.approx(20_000 * 2**31)


def test_jobs_are_drawn_by_weight() -> None:
    sequence = draw_sequence(_WORKLOAD, "batch", 20_000, 10, RandomStreams(3))
    assert np.mean(sequence.job_index) == pytest.approx(0.75, abs=0.02)


def test_the_same_seed_draws_the_same_jobs_whatever_the_arrivals() -> None:
    batch = draw_sequence(_WORKLOAD, "batch", 50, 10, RandomStreams(7))
    poisson = draw_sequence(_WORKLOAD, "poisson:1s", 50, 10, RandomStreams(7))
    assert batch.job_index.tolist() == poisson.job_index.tolist()


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None])
def test_a_seed_that_is_negative_or_not_whole_is_refused(seed: Any) -> None:
    config = SimulationConfig()
    with pytest.raises(ConfigError, match=f"seed is {seed!r}: give 0 or more"):
        _WORKLOAD.draw(2, "batch", config, seed=seed)
    jobs = _WORKLOAD.draw(2, "batch", config, seed=np.int64(1))
    with pytest.raises(ConfigError, match=f"seed is {seed!r}: give 0 or more"):
        simulate(jobs, "fair", config, seed=seed)


@pytest.mark.parametrize("num_jobs", [2.5, "2", None])
def test_a_number_of_jobs_that_is_not_whole_is_refused(num_jobs: Any) -> None:
    with pytest.raises(ConfigError, match=f"num_jobs is {num_jobs!r}: give a whole number"):
        _WORKLOAD.draw(num_jobs, "batch", SimulationConfig(), seed=1)


def test_recorded_arrivals_start_at_zero_and_in_order() -> None:
    jobs = tuple(job.at(ms) for job, ms in zip(_WORKLOAD.jobs, (9_000, 4_000), strict=True))
    sequence = recorded_sequence(Workload("recorded", jobs))
    assert (sequence.job_index.tolist(), sequence.arrival_ms.tolist()) == ([1, 0], [0, 5_000])
    with pytest.raises(ConfigError, match="recorded 2 jobs, not 3"):
        recorded_sequence(Workload("recorded", jobs), 3)
    with pytest.raises(ConfigError, match="no recorded arrivals"):
        recorded_sequence(_WORKLOAD)


def _recorded(*arrival_ms: int) -> Workload:
    return Workload(
        "recorded", tuple(chain(1, 1, 1_000, f"q{row}").at(ms) for row, ms in enumerate(arrival_ms))
    )


def test_a_piece_of_the_trace_keeps_its_order_and_its_gaps_at_another_pace() -> None:
    # Recorded mean gap 5 s; jobs of 1 s on 2 executors at a load of 0.25 come every 2 s.
    workload = _recorded(0, 20_000, 4_000, 4_000, 15_000)
    drawn = [draw_sequence(workload, "trace:0.25", 3, 2, RandomStreams(seed)) for seed in range(30)]
    pieces = {(0, 2, 3): [0, 1_600, 1_600], (2, 3, 4): [0, 0, 4_400], (3, 4, 1): [0, 4_400, 6_400]}
    assert {tuple(s.job_index.tolist()) for s in drawn} == set(pieces)
    assert all(s.arrival_ms.tolist() == pieces[tuple(s.job_index.tolist())] for s in drawn)
    again = draw_sequence(workload, "trace:0.25", 3, 2, RandomStreams(4))
    assert again.job_index.tolist() == drawn[4].job_index.tolist()


def test_the_load_of_a_trace_counts_every_job_once() -> None:
    jobs = tuple(chain(1, 1, 9_000 if n % 2 else 1_000).at(1_000 * n) for n in range(20))
    workload = Workload("recorded", jobs, tuple(9.0 if n % 2 else 1.0 for n in range(20)))
    sequence = draw_sequence(workload, "trace:0.5", 20, 4, RandomStreams(1))
    # 20 jobs with 5 s of work each, on 4 cores.
    assert sequence.arrival_ms[-1] == 19 * 2_500


def test_a_load_of_half_leaves_half_of_the_executors_time() -> None:
    # Mean work: (1 x 10 s + 3 x 30 s) / 4 = 25 s of one executor; 10 executors at 50% do 5 s of
    # work per second.
    assert ArrivalProcess.parse("load:0.5").mean_gap_ms(_WORKLOAD, 10) == pytest.approx(5_000)


def test_a_trace_without_a_pace_is_refused() -> None:
    with pytest.raises(ConfigError, match="all its jobs at one time"):
        draw_sequence(_recorded(3, 3, 3), "trace:0.5", 2, 2, RandomStreams(1))
    with pytest.raises(ConfigError, match="recorded 3 jobs, not 4"):
        draw_sequence(_recorded(1, 2, 3), "trace:0.5", 4, 2, RandomStreams(1))
    with pytest.raises(ConfigError, match="no recorded arrivals"):
        draw_sequence(_WORKLOAD, "trace:0.5", 2, 2, RandomStreams(1))


@pytest.mark.parametrize("arrivals", ["trace:0.0000000000001", "load:0.0000000000001"])
def test_gaps_that_end_behind_the_last_time_are_refused(arrivals: str) -> None:
    with pytest.raises(ConfigError, match=r"2 gaps of 1e\+16 ms .* are too long"):
        draw_sequence(_recorded(0, 4, 8), arrivals, 3, 1, RandomStreams(1))


def test_a_sequence_is_checked_at_the_door() -> None:
    with pytest.raises(WorkloadError, match="ascending"):
        JobSequence(_WORKLOAD, np.array([0, 1]), np.array([5, 4]))
    with pytest.raises(WorkloadError, match="outside"):
        JobSequence(_WORKLOAD, np.array([2]), np.array([0]))
    with pytest.raises(WorkloadError, match="at least one job"):
        JobSequence(_WORKLOAD, np.array([], np.int64), np.array([], np.int64))


def test_arrivals_are_like_a_batch_or_poisson_at_their_rate() -> None:
    assert process_like([0, 1_000, 4_000]) == "poisson:2000ms"
    assert process_like([4_000, 0, 1_000]) == "poisson:2000ms"
    assert process_like([7_000, 7_000]) == process_like([7_000]) == process_like([]) == "batch"
    day_ms = 86_400_000
    assert without_breaks([0, 2_000, 4_000, day_ms, day_ms + 2_000]) == [0, 2_000, 4_000, 6_000]
    assert [without_breaks([]), without_breaks([9])] == [[], [0]]


#: Gap before each of ten recorded jobs; before the first it is the mean of the others.
_GAPS_MS = (500, 100, 200, 300, 400, 500, 600, 700, 800, 900)


def _ten() -> JobSequence:
    jobs = tuple(chain(1, 1, 10, f"job {i}") for i in range(10))
    return JobSequence(Workload("ten", jobs), np.arange(10), np.cumsum([0, *_GAPS_MS[1:]]))


def test_inside_a_block_jobs_and_gaps_are_as_ten() -> None:
    drawn = resampled(_ten(), 12, 4, seed=3)
    gaps_ms = np.diff(drawn.arrival_ms)
    assert drawn.num_jobs == 12
    assert drawn.arrival_ms[0] == 0
    for first in range(0, 12, 4):
        block = drawn.job_index[first : first + 4]
        assert (np.diff(block) % 10 == 1).all()
    # Every job keeps the gap that was recorded before it, also across blocks.
    assert gaps_ms.tolist() == [_GAPS_MS[job] for job in drawn.job_index[1:]]


def test_means_are_those_of_the_record() -> None:
    draws = [resampled(_ten(), 11, 3, seed=seed) for seed in range(2_000)]
    mean_gap_ms = np.mean([draw.arrival_ms[-1] / 10 for draw in draws])
    counts = np.bincount(np.concatenate([draw.job_index for draw in draws]), minlength=10)
    assert mean_gap_ms == pytest.approx(np.mean(_GAPS_MS), rel=0.02)
    assert counts / counts.sum() == pytest.approx(np.full(10, 0.1), rel=0.06)


def test_a_seed_draws_one_resampled_sequence() -> None:
    first, again, other = (resampled(_ten(), 20, 3, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.job_index, again.job_index)
    assert np.array_equal(first.arrival_ms, again.arrival_ms)
    assert not np.array_equal(first.job_index, other.job_index)


def test_growth_divides_the_gaps() -> None:
    twice = grown(_ten(), 2.0)
    assert twice.arrival_ms.tolist() == (_ten().arrival_ms // 2).tolist()
    for growth in (0.0, -1.0, 1e-300, 1e6, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--growth"):
            grown(_ten(), growth)


def test_blocks_are_shorter_than_the_record_and_have_a_job() -> None:
    assert [default_block(count) for count in (1, 2, 3, 100)] == [1, 1, 2, 10]
    for block in (0, 10, 11):
        with pytest.raises(ConfigError, match="from 1 to 9"):
            resampled(_ten(), 5, block, seed=0)

    with pytest.raises(ConfigError, match="at least one job, not 0"):
        resampled(_ten(), 0, 9, seed=0)
