"""Resampling a record in blocks, against properties that follow from the method."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload, default_block, grown, resampled

#: Gap before each of ten recorded jobs; before the first it is the mean of the others.
_GAPS_MS = (500, 100, 200, 300, 400, 500, 600, 700, 800, 900)


def _recorded() -> JobSequence:
    durations = TaskDurations.constant(10)
    jobs = tuple(JobSpec(f"job {i}", (StageSpec(1, durations),)) for i in range(10))
    return JobSequence(Workload("ten", jobs), np.arange(10), np.cumsum([0, *_GAPS_MS[1:]]))


def test_inside_a_block_jobs_and_gaps_are_as_recorded() -> None:
    drawn = resampled(_recorded(), 12, 4, seed=3)
    gaps_ms = np.diff(drawn.arrival_ms)
    assert drawn.num_jobs == 12
    assert drawn.arrival_ms[0] == 0
    for first in range(0, 12, 4):
        block = drawn.job_index[first : first + 4]
        assert (np.diff(block) % 10 == 1).all()
    # Every job keeps the gap that was recorded before it, also across blocks.
    assert gaps_ms.tolist() == [_GAPS_MS[job] for job in drawn.job_index[1:]]


def test_means_are_those_of_the_record() -> None:
    draws = [resampled(_recorded(), 11, 3, seed=seed) for seed in range(2_000)]
    mean_gap_ms = np.mean([draw.arrival_ms[-1] / 10 for draw in draws])
    counts = np.bincount(np.concatenate([draw.job_index for draw in draws]), minlength=10)
    assert mean_gap_ms == pytest.approx(np.mean(_GAPS_MS), rel=0.02)
    assert counts / counts.sum() == pytest.approx(np.full(10, 0.1), rel=0.06)


def test_a_seed_draws_one_sequence() -> None:
    first, again, other = (resampled(_recorded(), 20, 3, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.job_index, again.job_index)
    assert np.array_equal(first.arrival_ms, again.arrival_ms)
    assert not np.array_equal(first.job_index, other.job_index)


def test_growth_divides_the_gaps() -> None:
    twice = grown(_recorded(), 2.0)
    assert twice.arrival_ms.tolist() == (_recorded().arrival_ms // 2).tolist()
    for growth in (0.0, -1.0, 1e-300, 1e6, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--growth"):
            grown(_recorded(), growth)


def test_blocks_are_shorter_than_the_record() -> None:
    assert [default_block(count) for count in (1, 2, 3, 100)] == [1, 1, 2, 10]
    for block in (0, 10, 11):
        with pytest.raises(ConfigError, match="from 1 to 9"):
            resampled(_recorded(), 5, block, seed=0)


def test_a_run_has_at_least_one_job() -> None:
    assert resampled(_recorded(), 1, 9, seed=0).num_jobs == 1
    with pytest.raises(ConfigError, match="at least one job, not 0"):
        resampled(_recorded(), 0, 9, seed=0)
