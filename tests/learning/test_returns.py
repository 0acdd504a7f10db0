import numpy as np
import pytest

from parcae.decima.learning.advantages import (
    aligned_baseline,
    costs_to_go,
    differential_costs,
    normalized,
)
from parcae.decima.learning.updates import Rate


def test_undiscounted_cost_to_go_is_what_is_left_of_the_cost() -> None:
    to_go = costs_to_go(np.array([0.0, 2.0, 5.0]), np.array([0.0, 3.0, 9.0]), 8.0, 10.0)
    assert to_go.tolist() == [10.0, 7.0, 1.0]


def test_discounting_fades_cost_that_accrues_evenly() -> None:
    # A cost of 1 per second for 10 s, discounted at 0.1 per second: the integral of exp(-0.1 t)
    # from 0 to 10.
    to_go = costs_to_go(np.array([0.0]), np.array([0.0]), 10.0, 10.0, rate=0.1)
    assert to_go[0] == pytest.approx((1 - np.exp(-1.0)) / 0.1)


def test_discounting_in_pieces_equals_discounting_at_once() -> None:
    whole = costs_to_go(np.array([0.0]), np.array([0.0]), 10.0, 10.0, rate=0.2)
    pieces = costs_to_go(np.array([0.0, 2.5, 7.0]), np.array([0.0, 2.5, 7.0]), 10.0, 10.0, rate=0.2)
    assert pieces[0] == pytest.approx(whole[0])


def test_decisions_at_one_time_have_the_same_cost_to_go_when_nothing_accrues_between() -> None:
    to_go = costs_to_go(np.array([1.0, 1.0]), np.array([4.0, 4.0]), 3.0, 8.0, rate=0.5)
    assert to_go[0] == pytest.approx(to_go[1])


def test_the_baseline_is_the_mean_of_all_rollouts_at_the_same_time() -> None:
    times = [np.array([0.0, 10.0]), np.array([0.0, 5.0, 10.0])]
    to_go = [np.array([10.0, 0.0]), np.array([20.0, 4.0, 0.0])]
    first, second = aligned_baseline(times, to_go)
    assert first.tolist() == [15.0, 0.0]
    assert second.tolist() == [15.0, 4.5, 0.0]  # at 5 s the first rollout has 5 to go, this one 4


def test_a_rollout_that_is_over_counts_with_nothing_to_go() -> None:
    times = [np.array([0.0, 2.0]), np.array([0.0, 8.0])]
    to_go = [np.array([6.0, 0.0]), np.array([8.0, 0.0])]
    assert aligned_baseline(times, to_go)[1].tolist() == [7.0, 0.0]


def test_differential_costs_count_beyond_the_mean_rate() -> None:
    assert differential_costs(np.array([0.0, 2.0]), np.array([1.0, 9.0]), 3.0).tolist() == [
        1.0,
        3.0,
    ]


def test_the_running_mean_forgets_old_rollouts() -> None:
    rate = Rate()
    rate.add(np.array([0.0, 1.0]), np.array([0.0, 20.0]), 2.0, 50.0)
    assert rate.mean == 25.0
    rate.add(np.zeros(200_000), np.zeros(200_000), 10.0, 10.0)
    assert rate.mean == pytest.approx(1.0)
    assert Rate.from_json(rate.to_json()).mean == rate.mean


def test_advantages_are_standardised_and_clipped() -> None:
    values = np.append(np.zeros(999), 1e6)
    scaled = normalized(values)
    assert scaled.max() == 5.0
    assert normalized(np.array([1.0, 3.0])).tolist() == pytest.approx([-1.0, 1.0])
