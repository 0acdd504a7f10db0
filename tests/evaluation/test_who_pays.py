"""Who pays, over seeds and by recurring job, against numbers written down by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from parcae.evaluation.statistics import (
    DEFAULT_METHOD,
    RESAMPLE_SEED,
    Estimate,
    ratio_estimate,
    share_estimate,
)
from parcae.evaluation.who_pays import Group, by_group, later_counts, later_estimates
from tests.evaluation.made import jobs_of, run_of


def _groups(*runs: pl.DataFrame, key: str = "job") -> dict[str, list[Group]]:
    """By name: the group under every policy."""
    found: dict[str, list[Group]] = {}
    for group in by_group(jobs_of(*runs), key):
        found.setdefault(group.name, []).append(group)
    return found


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


def _later(*ratios: Sequence[float | None]) -> dict[str, Estimate]:
    """Of the ratios of each seed."""
    schema = {"ratio_to_first": pl.Float64}
    seeds = [pl.DataFrame({"ratio_to_first": one}, schema) for one in ratios]
    return later_estimates(pl.concat(seed.select(later_counts()) for seed in seeds))


def test_later_jobs_are_counted_over_all_seeds() -> None:
    paid = _later([1.0, 1.2], [0.5, 1.07])
    assert paid["later_than_first_share"].mean == 0.5
    assert paid["later_than_first_by_10_percent_share"].mean == 0.25


def test_seeds_of_which_nothing_is_known_are_left_out() -> None:
    paid = _later([None], [1.0, 1.2])["later_than_first_share"]
    assert paid.mean == 0.5
    assert paid.is_unknown
    assert {one.to_json()["mean"] for one in _later([None]).values()} == {None}


def test_recurring_jobs_are_averaged_over_all_their_runs() -> None:
    first = run_of(("q1", "q2", "q1"), (4_000, 1_000, 6_000), (2_000, 3_000, 4_000))
    second = run_of(("q3", "q2"), (1_000, 3_000), (1_000, 3_000))
    means = {
        name: (job[0].runs, [one.mean_s for one in job])
        for name, job in _groups(first, second).items()
    }
    assert means == {"q1": (2, [5.0, 3.0]), "q2": (2, [2.0, 3.0]), "q3": (1, [1.0, 1.0])}
    assert _groups(first)["q1"][1].ratio.mean == pytest.approx(0.6)


def test_runs_that_a_policy_cut_off_are_no_part_of_a_recurring_jobs_mean() -> None:
    found = _groups(run_of(("q1", "q1", "q2"), (4_000, 5_000, 1), (2_000, -1, -1)))
    assert [one.mean_s for one in found.pop("q1")] == [4.0, 2.0]
    assert not found


def test_a_recurring_job_has_its_spread_over_seeds_its_worst_run_and_a_paired_ratio() -> None:
    runs = (run_of(("q", "q"), (2_000, 4_000), (1_000, 3_000)), run_of(("q",), (6_000,), (3_000,)))
    first, second = _groups(*runs)["q"]
    # The seeds' means under the first policy are 3 and 6 s, the sums 6 and 6; the second's 4 and 3.
    assert first.spread_s == pytest.approx(3 / math.sqrt(2))
    assert (first.worst_s, second.worst_s) == (6.0, 3.0)
    assert first.p99_s == pytest.approx(5.96)
    expected = ratio_estimate([4.0, 3.0], [6.0, 6.0])
    for end in ("mean", "low", "high"):
        assert getattr(second.ratio, end) == pytest.approx(getattr(expected, end))


def test_a_job_gains_or_loses_only_if_the_interval_says_so() -> None:
    (group,) = _groups(run_of(("q",), (1_000,)))["q"]
    for ratio, verdict in (
        (Estimate(0.9, 0.8, 0.99), "gains"),
        (Estimate(1.1, 1.01, 1.3), "loses"),
        (Estimate(0.9, 0.8, 1.01), "unclear"),
        (Estimate(0.9, math.nan, math.nan), "unclear"),
        (Estimate(0.99, 0.97, 1.01), "unclear"),
        (Estimate(0.985, 0.97, 0.999), "same"),
        (Estimate(1.0, 0.99, 1.01), "same"),
    ):
        assert replace(group, ratio=ratio).verdict == verdict


def test_intervals_of_recurring_jobs_are_those_of_the_method_that_is_stated() -> None:
    drawn = np.random.default_rng(4).integers(1_000, 9_000, (10, 2, 1))
    runs = [run_of(("a",), *run.tolist()) for run in drawn]
    above, below = (drawn[:, row, 0] / 1_000 for row in (1, 0))
    rng = np.random.default_rng(RESAMPLE_SEED)
    expected = ratio_estimate(above, below, DEFAULT_METHOD, rng)
    assert _groups(*runs)["a"][1].ratio.low == pytest.approx(expected.low)


@pytest.mark.parametrize("unit_ms", [1_014, 1_042])
def test_an_order_of_equal_jobs_is_no_gain_or_loss_by_rounding(unit_ms: int) -> None:
    # In seconds, the sum of the three times depends on their order.
    times = (unit_ms, 2 * unit_ms, 3 * unit_ms)
    _, etl = _groups(*[run_of(("etl",) * 3, times, times[::-1])] * 8)["etl"]
    assert etl.ratio == Estimate(1.0, 1.0, 1.0)
    assert etl.verdict == "same"


def test_jobs_are_grouped_by_pool() -> None:
    ends = ((100, 300, 500), (200, 300, 400))
    runs = (
        run_of("abc", *ends, pools=pools)
        for pools in (("web", "etl", "web"), ("web", "etl", "etl"))
    )
    found = _groups(*runs, key="pool")
    etl, web = found["etl"], found["web"]
    assert (etl[0].runs, web[0].runs) == (3, 3)
    assert etl[1].ratio.mean == pytest.approx((300 + 300 + 400) / (300 + 300 + 500))
    assert [one.mean_s for one in web] == pytest.approx([0.7 / 3, 0.8 / 3])
    assert web[1].later_share == pytest.approx(2 / 3)
    # 1.05 times as long is not later.
    (_, exact) = _groups(run_of("a", (2_260,), (2_373,), pools=["etl"]), key="pool")["etl"]
    assert exact.later_share == 0
