from __future__ import annotations

import numpy as np
import pytest

from parcae.base.errors import ConfigError
from parcae.rigid.sources import (
    CODE,
    PAPER,
    draw_bernoulli,
    load_of_rate,
    parse_load,
    rate_of_load,
)


def _rng() -> np.random.Generator:
    return np.random.default_rng(20_260)


def test_the_load_of_a_rate_is_that_of_the_released_code() -> None:
    assert (CODE.mean_duration, CODE.mean_demand((10, 10)).tolist()) == (
        pytest.approx(4.1),
        [4.5, 4.5],
    )
    assert load_of_rate(CODE, 0.7) == pytest.approx(1.2915)
    assert rate_of_load(CODE, 0.7) == pytest.approx(0.7 / 1.845)
    assert rate_of_load(CODE, 1.845) == 1.0


def test_the_papers_demands_are_whole_units_within_its_range() -> None:
    assert (PAPER.units(PAPER.dominant, 10), PAPER.units(PAPER.other, 10)) == ((3, 5), (1, 1))
    assert (PAPER.units(PAPER.dominant, 20), PAPER.units(PAPER.other, 20)) == ((5, 10), (1, 2))
    assert load_of_rate(PAPER, 1.0) == pytest.approx(1.025)
    assert load_of_rate(PAPER, 1.0, (20, 20)) == pytest.approx(0.9225)


def test_a_bound_that_rounding_lifts_is_still_in_the_range() -> None:
    assert CODE.units((0.1, 0.3), 30) == (3, 9)


def test_a_drawn_sequence_is_that_of_the_mix() -> None:
    jobs = draw_bernoulli(CODE, 0.7, 20_000, (10, 10), _rng(), "drawn")
    assert (jobs.name, jobs.capacity.tolist()) == ("drawn", [10, 10])
    assert np.diff(jobs.arrival).min() == 1
    assert (jobs.arrival.min() <= 5, jobs.arrival.max() < 20_000) == (True, True)
    assert sorted(set(jobs.duration.tolist())) == [1, 2, 3, 10, 11, 12, 13, 14, 15]
    assert len(jobs) / 20_000 == pytest.approx(0.7, abs=0.015)
    assert (jobs.duration <= 3).mean() == pytest.approx(0.8, abs=0.02)
    low = jobs.demand.min(axis=1)
    high = jobs.demand.max(axis=1)
    assert (low.min(), low.max(), high.min(), high.max()) == (1, 2, 5, 10)
    assert (jobs.demand[:, 0] > jobs.demand[:, 1]).mean() == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(jobs.load, 1.2915, rtol=0.04)


def test_three_resources_have_one_dominant_demand() -> None:
    jobs = draw_bernoulli(CODE, 1.0, 300, (10, 20, 40), _rng())
    assert jobs.arrival.tolist() == list(range(300))
    is_dominant = jobs.demand * 2 >= jobs.capacity
    assert set(is_dominant.sum(axis=1).tolist()) == {1}
    assert is_dominant.sum(axis=0).min() > 60


def test_a_load_is_read_as_a_number_a_percentage_or_a_rate() -> None:
    assert (parse_load("1.3"), parse_load("130%"), parse_load("rate:0.7")) == (
        pytest.approx(1.3 / 1.845),
        pytest.approx(1.3 / 1.845),
        0.7,
    )
    assert parse_load("184.5%") == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "1.9",
            r"190\.0% is not possible: at most one job arrives per step, "
            r"which is a load of 184\.5% .* ask for at most 1\.845",
        ),
        ("0", "a number above 0"),
        ("rate:1.2", r"a rate of 1\.2 is not possible: .* at most one job arrives per step"),
        ("rate:0", "a rate of 0 is not possible: write arrivals per step, above 0"),
        ("rate:70%", "write 1.3, 130% or rate:0.7"),
        ("high", "not understood"),
    ],
)
def test_a_load_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_load(text)


def test_the_papers_demands_cannot_fill_the_cluster_twice() -> None:
    with pytest.raises(ConfigError, match=r"102\.5% with the mix 'paper'"):
        parse_load("1.3", PAPER)


def test_a_cluster_too_small_for_the_mix_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no whole number of 5 units is between 0\.05 and 0\.1 of them; "
        r"give each .* at least 10",
    ):
        draw_bernoulli(PAPER, 0.5, 10, (5, 5), _rng())


@pytest.mark.parametrize(("rate", "window"), [(1.5, 10), (-0.1, 10), (np.nan, 10), (0.5, 0)])
def test_draws_that_cannot_be_are_refused(rate: float, window: int) -> None:
    with pytest.raises(ConfigError, match="and at least one step"):
        draw_bernoulli(CODE, rate, window, (10, 10), _rng())
