"""The race between options, and the budget of a decision."""

from __future__ import annotations

import numpy as np
import pytest

from parcae.decima.rollouts.playing import ROUNDS, Clock, Costs, choose, mean_differences, race


class _Samples:
    """Samples with known means; counts what was asked for."""

    def __init__(self, means: list[float], spread: float = 1.0, common: float = 50.0) -> None:
        self._means = np.array(means)
        self._spread = spread
        self._common = common
        self._rng = np.random.default_rng(1)
        self.counts = np.zeros(len(means), int)

    def __call__(self, rows: list[int], count: int) -> Costs | None:
        self.counts[rows] += count
        # What all options have in common is much larger than what distinguishes them.
        common = self._common * self._rng.standard_normal(count)
        noise = self._spread * self._rng.standard_normal((len(rows), count))
        return self._means[rows][:, None] + common + noise


@pytest.mark.parametrize(
    ("means", "winner", "counts"),
    [
        # The best option wins, if it is surely better than the base; worse ones leave early.
        ([0.0, 3.0, -2.0, 1.0], 2, {2: sum(ROUNDS)}),
        ([0.0, 20.0, -1.0, 30.0], 2, {1: ROUNDS[0], 2: sum(ROUNDS), 3: ROUNDS[0]}),
        ([0.0, 0.0], 0, {}),
        # The race ends when only the base is left.
        ([0.0, 5.0, 7.0], 0, {0: ROUNDS[0]}),
        ([0.0, 50.0, 60.0], 0, dict.fromkeys(range(3), ROUNDS[0])),
    ],
)
def test_an_option_wins_that_is_surely_better(
    means: list[float], winner: int, counts: dict[int, int]
) -> None:
    samples = _Samples(means)
    assert race(samples, len(means), Clock()) == winner
    assert {row: samples.counts[row] for row in counts} == counts


class _Slow(_Samples):
    """Each rollout takes 1 ms."""

    now_s = 0.0

    def __call__(self, rows: list[int], count: int) -> Costs | None:
        _Slow.now_s += 1e-3 * len(rows) * count
        return super().__call__(rows, count)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock of 100 ms, which only rollouts of `_Slow` move."""
    monkeypatch.setattr(_Slow, "now_s", 0.0)
    monkeypatch.setattr("time.perf_counter", lambda: _Slow.now_s)
    return Clock(100.0)


def test_a_budget_of_time_ends_the_race(clock: Clock) -> None:
    race(_Slow([0.0, -0.01, -0.02]), 3, clock)
    assert 80.0 <= clock.used_ms <= 110.0


@pytest.mark.parametrize(("among_arrivals", "row"), [(-2.0, 2), (2.0, 0)])
def test_the_winner_stands_if_it_is_better_among_jobs_to_come(
    among_arrivals: float, row: int
) -> None:
    present = _Samples([0.0, 3.0, -2.0])
    to_come = _Samples([0.0, -9.0, among_arrivals])
    assert choose(present, 3, Clock(), to_come) == row
    # Only the winner is compared with the base's decision.
    assert to_come.counts.tolist() == [sum(ROUNDS), 0, sum(ROUNDS)]


def test_where_the_base_wins_no_jobs_to_come_are_played() -> None:
    to_come = _Samples([0.0, -9.0])
    assert choose(_Samples([0.0, 5.0]), 2, Clock(), to_come) == 0
    assert not to_come.counts.any()


def test_a_budget_of_time_has_room_for_jobs_to_come(clock: Clock) -> None:
    to_come = _Slow([0.0, -2.0])
    assert choose(_Slow([0.0, -2.0]), 2, clock, to_come) == 1
    assert to_come.counts.min() >= 10
    assert 80.0 <= clock.used_ms <= 100.0


def test_without_time_for_a_second_sample_the_base_stays() -> None:
    def late(rows: list[int], count: int) -> Costs | None:
        return None

    assert race(late, 3, Clock(5.0)) == 0


def test_differences_are_paired_by_sample() -> None:
    costs = np.array([[10.0, 20.0, 30.0], [11.0, 21.0, 31.0]])
    means, errors = mean_differences(costs)
    assert means.tolist() == [0.0, 1.0]
    assert errors.tolist() == [0.0, 0.0]
