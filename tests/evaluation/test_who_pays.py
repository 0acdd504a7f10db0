"""Who pays, over seeds and by recurring job, against numbers written down by hand."""

import json
import math

import numpy as np
import pytest

from parcae.evaluation.statistics import (
    METHODS,
    RESAMPLE_SEED,
    Estimate,
    Method,
    ratio_estimate,
    share_estimate,
)
from parcae.evaluation.who_pays import PairedRuns, recurring_jobs, verdict, who_pays


def _runs(names: tuple[str, ...], *completion_ms: tuple[int, ...]) -> PairedRuns:
    ends = np.array(completion_ms, np.int64)
    return PairedRuns(
        names, np.zeros(len(names), np.int64), ends, np.maximum(ends.max(axis=1), 9_000)
    )


def test_a_share_is_of_all_jobs_with_seeds_as_the_sample() -> None:
    estimate = share_estimate([1, 2, 3], [10, 10, 10])
    assert estimate.mean == 0.2
    assert estimate.low == 0.0  # 0.2 - 4.303 x 0.1 / sqrt(3) is below
    assert estimate.high == pytest.approx(0.2 + 4.302653 * 0.1 / math.sqrt(3))
    assert share_estimate([4, 4], [8, 8]).to_json() == {"mean": 0.5, "ci95": [0.5, 0.5]}


def test_a_share_of_seeds_of_unequal_size_weighs_jobs_alike() -> None:
    estimate = share_estimate([1, 3], [2, 10])
    assert estimate.mean == pytest.approx(1 / 3)
    # the residuals 1 - 2/3 and 3 - 10/3 are a third each: sd sqrt(2)/3, over a mean of 6 jobs
    half = 12.706205 * math.sqrt(2) / 3 / 6 / math.sqrt(2)
    assert estimate.high == pytest.approx(min(1.0, 1 / 3 + half))


def test_a_bootstrap_share_stays_within_0_and_1() -> None:
    estimate = share_estimate(
        [0, 5, 10, 10], [10, 10, 10, 10], "bootstrap", np.random.default_rng(0)
    )
    assert estimate.mean == 0.625
    assert 0 <= estimate.low < 0.625 < estimate.high <= 1


def test_later_jobs_are_counted_over_all_seeds() -> None:
    paid = who_pays([np.array([1.0, 1.2]), np.array([0.5, 1.07])])
    assert paid.later_share.mean == 0.5
    assert paid.later_than_promise_share.mean == 0.25
    assert paid.worst_later == 1.2


def test_seeds_of_which_nothing_is_known_are_left_out() -> None:
    paid = who_pays([np.array([math.nan]), np.array([1.0, 1.2])])
    assert paid.later_share.mean == 0.5
    assert paid.later_share.is_unknown
    nothing = who_pays([np.array([math.nan])])
    assert json.loads(json.dumps(nothing.to_json(), allow_nan=False)) == {
        "later_than_first_share": {"mean": None, "ci95": [None, None]},
        "later_than_first_by_10_percent_share": {"mean": None, "ci95": [None, None]},
        "worst_ratio_to_first": None,
    }


def test_recurring_jobs_are_averaged_over_all_their_runs_and_losers_come_first() -> None:
    first = _runs(("q1", "q2", "q1"), (4_000, 1_000, 6_000), (2_000, 3_000, 4_000))
    second = _runs(("q3", "q2"), (1_000, 3_000), (1_000, 3_000))
    jobs = recurring_jobs([first, second], 1)
    assert [(job.name, job.num_runs, job.mean_jct_s) for job in jobs] == [
        ("q2", 2, (2.0, 3.0)),
        ("q3", 1, (1.0, 1.0)),
        ("q1", 2, (5.0, 3.0)),
    ]
    assert recurring_jobs([first], 1)[1].ratio_to_first(1) == 0.6


def test_runs_that_a_policy_cut_off_are_no_part_of_a_recurring_jobs_mean() -> None:
    (job,) = recurring_jobs([_runs(("q1", "q1", "q2"), (4_000, 5_000, 1), (2_000, -1, -1))], 1)
    assert (job.name, job.num_runs, job.mean_jct_s) == ("q1", 1, (4.0, 2.0))


def test_a_recurring_job_has_its_spread_over_seeds_its_worst_run_and_a_paired_ratio() -> None:
    runs = [
        _runs(("q", "q"), (2_000, 4_000), (1_000, 3_000)),
        _runs(("q",), (6_000,), (3_000,)),
    ]
    (job,) = recurring_jobs(runs, 1)
    # The seeds' means under the first policy are 3 and 6 s, the sums 6 and 6; the second's 4 and 3.
    assert job.spread_s(0) == pytest.approx(3 / math.sqrt(2))
    assert (job.worst_s(0), job.worst_s(1)) == (6.0, 3.0)
    assert job.percentile_s(0, 50) == 4.0
    assert job.ratio(1) == ratio_estimate([4.0, 3.0], [6.0, 6.0])
    assert job.ratio(1).mean == pytest.approx(job.ratio_to_first(1))


def test_a_job_gains_or_loses_only_if_the_interval_says_so() -> None:
    assert verdict(Estimate(0.9, 0.8, 0.99)) == "gains"
    assert verdict(Estimate(1.1, 1.01, 1.3)) == "loses"
    assert verdict(Estimate(0.9, 0.8, 1.01)) == "unclear"
    assert verdict(Estimate(0.9, math.nan, math.nan)) == "unclear"


@pytest.mark.parametrize("method", METHODS)
def test_intervals_of_recurring_jobs_are_of_the_comparisons_method(method: Method) -> None:
    drawn = np.random.default_rng(4).integers(1_000, 9_000, (10, 2, 1))
    runs = [_runs(("a",), *map(tuple, run.tolist())) for run in drawn]
    (job,) = recurring_jobs(runs, 1, method)
    above, below = (drawn[:, row, 0] / 1_000 for row in (1, 0))
    rng = np.random.default_rng(RESAMPLE_SEED)
    assert job.ratio(1) == ratio_estimate(above, below, method, rng)
    others = {recurring_jobs(runs, 1, other)[0].ratio(1).low for other in METHODS}
    assert len(others) == len(METHODS)


@pytest.mark.parametrize("unit_ms", [1_014, 1_042])
def test_an_order_of_equal_jobs_is_no_gain_or_loss_by_rounding(unit_ms: int) -> None:
    # In seconds, the sum of the three times depends on their order.
    times = (unit_ms, 2 * unit_ms, 3 * unit_ms)
    (etl,) = recurring_jobs([_runs(("etl",) * 3, times, times[::-1])] * 8, 1)
    assert etl.ratio(1) == Estimate(1.0, 1.0, 1.0)
    assert verdict(etl.ratio(1)) == "unclear"
