import json
import math

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.evaluation.statistics import (
    METHODS,
    Estimate,
    Method,
    mean_estimate,
    ratio_estimate,
)


def test_the_interval_of_three_numbers_is_the_textbooks() -> None:
    estimate = mean_estimate([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.high - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2.0 - estimate.low == pytest.approx(estimate.high - 2.0)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_policy_against_itself_has_ratio_one_without_doubt(method: Method) -> None:
    values = [3.0, 5.0, 4.0, 9.0]
    estimate = ratio_estimate(values, values, method, np.random.default_rng(0))
    assert (estimate.mean, estimate.low, estimate.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("method", list(METHODS))
def test_pairing_takes_out_what_the_seeds_have_in_common(method: Method) -> None:
    baseline = np.array([1.0, 10.0, 100.0, 1_000.0])
    estimate = ratio_estimate(0.8 * baseline, baseline, method, np.random.default_rng(0))
    assert estimate.low == pytest.approx(0.8)
    assert estimate.high == pytest.approx(0.8)


def test_the_delta_interval_of_a_ratio_by_hand() -> None:
    # a / mean(a) - b / mean(b) is (2/3 - 1/2, 4/3 - 3/2) = (1/6, -1/6):
    # sd = sqrt(2) / 6, se = 1/6, t(0.975, 1) = 12.7062.
    estimate = ratio_estimate([2.0, 4.0], [1.0, 3.0])
    assert estimate.mean == 1.5
    assert estimate.high == pytest.approx(1.5 * math.exp(12.7062047 / 6))
    assert estimate.low == pytest.approx(1.5 / math.exp(12.7062047 / 6))


def test_the_bootstrap_t_extends_further_to_the_side_of_the_long_tail() -> None:
    values = np.exp(np.random.default_rng(4).normal(0.0, 1.0, 30))
    estimate = mean_estimate(values, "bootstrap-t", np.random.default_rng(5))
    assert estimate.high - estimate.mean > 1.3 * (estimate.mean - estimate.low)


@pytest.mark.parametrize("method", list(METHODS))
def test_one_seed_leaves_the_interval_unknown_and_the_json_valid(method: Method) -> None:
    estimate = ratio_estimate([3.0], [2.0], method, np.random.default_rng(0))
    assert json.dumps(estimate.to_json(), allow_nan=False) == '{"mean": 1.5, "ci95": [null, null]}'
    assert mean_estimate([3.0]).to_json() == {"mean": 3.0, "ci95": [None, None]}
    assert Estimate(3.0, -math.inf, math.inf).to_json() == {"mean": 3.0, "ci95": [None, None]}


def test_an_interval_of_times_does_not_reach_below_zero() -> None:
    assert mean_estimate([1.0, 9.0]).low < 0
    estimate = mean_estimate([1.0, 9.0]).within(0.0)
    assert (estimate.mean, estimate.low) == (5.0, 0.0)
    assert estimate.high == mean_estimate([1.0, 9.0]).high


@pytest.mark.parametrize(
    ("values", "baseline"),
    [([], []), ([1.0], [1.0, 2.0]), ([1.0, math.nan], [1.0, 1.0]), ([1.0, 1.0], [1.0, 0.0])],
)
def test_numbers_that_do_not_pair_are_refused(values: list[float], baseline: list[float]) -> None:
    with pytest.raises(ConfigError, match="paired statistics"):
        ratio_estimate(values, baseline)
