from __future__ import annotations

import numpy as np
import pytest

from parcae.cluster.trace import TASK_RECORD, Trace
from parcae.evaluation.gantt import cluster_chart, merged
from parcae.evaluation.statistics import mean_estimate, ratio_estimate
from parcae.simulation.bounds import lower_bounds
from parcae.simulation.metrics import (
    bounded_slowdown,
    busy_executors,
    concurrency,
    executor_share,
    jct_ms,
    makespan_ms,
    slowdown,
    steps,
    summarize,
    utilization,
    work_inflation,
)
from tests.conftest import arriving, batch, job

# Two jobs on two executors: a (2 tasks of 1 s, at 0) and b (1 task of 4 s, at 1 s).
_SEQUENCE = arriving((job("a", (2, 1_000, ())), 0), (job("b", (1, 4_000, ())), 1_000))
_TASKS = np.array(
    [(0, 0, 0, 0, 0, 1_000), (0, 0, 1, 0, 1_000, 2_500), (1, 0, 0, 1, 2_000, 6_000)], TASK_RECORD
)


def _trace(completion: tuple[int, int] = (2_500, 6_000), clock_ms: int = 6_000) -> Trace:
    return Trace(
        "by hand", 2, ("a", "b"), np.array([0, 1_000]), np.array(completion),
        np.array([2_500, 4_000]), np.array([1, 1]), clock_ms, 2, 4, 6, 3, _TASKS,
    )  # fmt: skip


def test_job_metrics_by_hand() -> None:
    trace = _trace()
    assert jct_ms(trace).tolist() == [2_500, 5_000]
    assert slowdown(trace, _SEQUENCE).tolist() == [2.5, 1.25]
    assert bounded_slowdown(trace, _SEQUENCE).tolist() == [1.0, 1.0]


def test_cluster_metrics_by_hand() -> None:
    trace = _trace()
    assert makespan_ms(trace) == 6_000
    assert utilization(trace) == pytest.approx(6_500 / 12_000)
    assert work_inflation(trace, _SEQUENCE) == pytest.approx(6_500 / 6_000)
    assert [v.tolist() for v in concurrency(trace)] == [[0, 1_000, 2_500, 6_000], [1, 2, 1, 0]]
    assert [v.tolist() for v in busy_executors(trace, 0)] == [[0, 1_000, 2_500], [1, 1, 0]]
    assert executor_share(trace).tolist() == [1.0, 0.8]
    assert [v.tolist() for v in steps(np.array([0, 5]), np.array([7, 9]))] == [
        [0, 5, 7, 9],
        [1, 2, 1, 0],
    ]


def test_jobs_that_the_end_cut_off_count_up_to_it_and_are_reported() -> None:
    summary = summarize(_trace((2_500, -1), clock_ms=5_000), _SEQUENCE)
    assert (summary.average_jct_ms, summary.unfinished, summary.last_completion_ms) == (
        3_250.0,
        1,
        5_000,
    )


def test_means_have_students_interval() -> None:
    estimate = mean_estimate([1.0, 2.0, 3.0])
    half = 4.302652729749462 / np.sqrt(3)
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx(
        (2.0, 2.0 - half, 2.0 + half)
    )


def test_paired_ratios_are_tight_where_policies_move_together() -> None:
    rng = np.random.default_rng(1)
    baseline = rng.uniform(50, 150, 40)
    estimate = ratio_estimate(0.8 * baseline, baseline, "bootstrap", np.random.default_rng(2))
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((0.8, 0.8, 0.8))
    noisy = ratio_estimate(
        0.8 * baseline + rng.normal(0, 5, 40), baseline, "bootstrap", np.random.default_rng(2)
    )
    assert 0.76 < noisy.low < noisy.mean < noisy.high < 0.84


def test_consecutive_tasks_of_a_job_are_one_segment() -> None:
    bars = merged(cluster_chart(_trace()).panels[0].shown_bars())
    rows = zip(bars.job, bars.row, bars.start, bars.finish, strict=True)
    assert list(rows) == [(0, 0, 0, 2_500), (1, 1, 2_000, 6_000)]


def test_lower_bounds_by_hand() -> None:
    bounds = lower_bounds(batch(job("a", (1, 10_000, ())), job("b", (1, 10_000, ()))), 1)
    assert (bounds.average_jct_ms, bounds.makespan_ms) == (15_000, 20_000)
    alone = lower_bounds(batch(job("a", (3, 1_000, ()), (1, 2_000, (0,)))), 2)
    assert (alone.average_jct_ms, alone.makespan_ms) == (4_000, 4_000)
