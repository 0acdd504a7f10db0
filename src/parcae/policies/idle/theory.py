"""Two jobs and one machine: when an idle slot before the first pays, and how long the best one is.

Job 1 has come and could start now; job 2 will come `gap` later. All times are in one unit, of the caller's choice.

Source: Duan & Wu, section IV-A. Where their text does not hold, the functions say so:

- Theorem 1 states x <= (l1 - l2) / 2, its proof x < (l1 - l2) / 2. At equality the best slot gains exactly nothing, and their own
  example of section IV-B (30 s against 10 s, a gap of 10 s: "no benefit") needs the strict form, which is ours.
- The proof says that the second job is served at once "if x <= b2" (it is x > b1), calls the slot d2 (d1), demands d1 > x where
  d1 = x is enough, and warns that d1 <= x "cannot guarantee" a gain (d1 >= x cannot).
- Theorem 2 puts job 2 first whenever it arrives within the slot, be it the longer one, and lets job 1 sit out a slot that is
  longer than job 2 needs. A scheduler that decides anew at every event does neither: `is_redecided`.
- "If an idle slot is inserted before J_i when analyzing pair (J_{i-1}, J_i)": that pair's slot lies before J_{i-1}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import integrate, optimize

from parcae.errors import ConfigError

#: Slots tried before the best is looked for between its neighbours.
_NUM_TRIED = 33
#: Relative error of the integrals.
_TOLERANCE = 1e-8


class Gaps(Protocol):
    """How the time to the next arrival is distributed: any density; scipy.stats' frozen distributions are such laws."""

    def sf(self, x: float) -> float:
        """The probability of more than x."""


@dataclass(frozen=True)
class Points:
    """A law of a few values.

    Raises:
        ConfigError: no values, another number of odds, odds below 0 or that do not sum to 1.

    Example: `Points((10.0, 50.0), (0.5, 0.5))` are the lengths of the synthetic data set.
    """

    values: tuple[float, ...]
    odds: tuple[float, ...]

    def __post_init__(self) -> None:
        is_whole = (
            math.isclose(sum(self.odds), 1.0, abs_tol=1e-9) and min(self.odds, default=-1.0) >= 0
        )
        if len(self.values) != len(self.odds) or not is_whole:
            raise ConfigError(
                f"a law needs one probability a value, together 1, not {self.odds} for {self.values}"
            )

    @classmethod
    def of(cls, quantile: Callable[[float], float], count: int = 16) -> Points:
        """`count` values that stand for any law, given by its quantiles: Gauss's points of the integral over them.

        Example: `Points.of(scipy.stats.expon(scale=10.0).ppf)`.
        """
        nodes, weights = np.polynomial.legendre.leggauss(count)
        return cls(
            tuple(float(quantile((1 + node) / 2)) for node in nodes),
            tuple(float(weight) / 2 for weight in weights),
        )

    def expect(self, func: Callable[[float], float] = float) -> float:
        """The mean of the values, or of `func` of them."""
        return sum(
            chance * func(value) for value, chance in zip(self.values, self.odds, strict=True)
        )


def idle_pays(length_1: float, length_2: float, gap: float) -> bool:
    """Whether some idle slot before job 1 lowers the average JCT of both.

    Source: Duan & Wu, Theorem 1, in the strict form of its proof.
    Example: before 50 s an idle slot pays for 10 s that come less than 20 s later.
    """
    return 0 < gap < (length_1 - length_2) / 2


def average_jct(length_1: float, length_2: float, gap: float, slot: float = 0.0) -> float:
    """Average JCT of both jobs with an idle slot of that length before job 1, which is not shortened by what comes.

    Source: Duan & Wu, eta (no slot) and eta' in the proofs of Theorems 1 and 2.
    Example: 50 s and, 5 s later, 10 s: (50 + 55) / 2 = 52.5 s at once, (65 + 10) / 2 = 37.5 s with a slot of 5 s.
    """
    if slot < gap or slot == 0:
        return (max(gap, length_1 + slot) + length_1 + slot + length_2 - gap) / 2
    return (max(gap + length_2, slot) + length_1 + length_2) / 2


def expected_average_jct(
    length_1: float, slot: float, gaps: Gaps, lengths_2: Points, *, is_redecided: bool = False
) -> float:
    """Mean of the average JCT over the gap and, independent of it, the length of job 2.

    Args:
        is_redecided: end the slot when job 2 comes, and start the shorter of both.

    Source: Duan & Wu, Theorem 2; by parts, so that only integrals of P(gap > x) are left.
    """
    mean_2 = lengths_2.expect()
    after = length_1 + slot
    late = float(gaps.sf(slot))
    if is_redecided:
        shorter = lengths_2.expect(lambda length: min(length, length_1))
        within = _area(gaps, 0.0, slot) - slot * late + (1 - late) * (length_1 + mean_2 + shorter)
    else:
        # E[max(x + l2, slot); x < slot] = (slot + l2) P(x < slot) - the integral of P(x < t) over the last l2 of the slot.
        served = lengths_2.expect(
            lambda length: (slot + length) * (1 - late) - _arrived(gaps, slot, min(slot, length))
        )
        within = served + (1 - late) * (length_1 + mean_2)
    waits = length_1 * late - _area(gaps, slot, after)  # E[max(x, after) - x; x > slot]
    return (within + waits + late * (after + mean_2)) / 2


def _area(gaps: Gaps, low: float, high: float) -> float:
    """The integral of P(gap > x) from `low` to `high`."""
    return float(integrate.quad(gaps.sf, low, high, epsrel=_TOLERANCE)[0]) if high > low else 0.0


def _arrived(gaps: Gaps, slot: float, last: float) -> float:
    """The integral of P(gap < x) over the last part of the slot."""
    return last - _area(gaps, slot - last, slot)


def best_slot(
    length_1: float,
    gaps: Gaps,
    lengths_2: Points,
    *,
    is_redecided: bool = False,
    longest: float | None = None,
) -> float:
    """The slot that makes the expected average JCT least, for any density of gaps and any law of lengths.

    Args:
        longest: slots up to here; job 1's length unless given (the paper's actions go no further).

    Source: Duan & Wu, Theorem 2; by search, since the expectation may have several valleys.
    """
    tried = np.linspace(0.0, length_1 if longest is None else longest, _NUM_TRIED)

    def cost(slot: float) -> float:
        return expected_average_jct(length_1, slot, gaps, lengths_2, is_redecided=is_redecided)

    costs = [cost(float(slot)) for slot in tried]
    best = int(np.argmin(costs))
    bounds = tried[max(0, best - 1)], tried[min(_NUM_TRIED - 1, best + 1)]
    found = optimize.minimize_scalar(
        cost, bounds=bounds, method="bounded", options={"xatol": 1e-7 * max(1.0, length_1)}
    )
    return float(found.x) if found.fun < costs[best] else float(tried[best])


def best_slot_exponential(length_1: float, mean_gap: float, lengths_2: Points) -> float:
    """The best slot in closed form, for exponential gaps and a few lengths of job 2.

    With rate r, twice the expectation's derivative is P(x + l2 < d) - A exp(-r d), where A = r (l1 - E l2) - 2 + exp(-r l1) is
    what waiting gains (`waiting_gain`). For A <= 0 no slot pays. Otherwise d* is the one root: with the k shortest lengths below
    it, of probabilities p and together P, exp(r d*) = (A + sum p exp(r l2)) / P. For one length, d* = log(A + exp(r l2)) / r.

    Source: derived from Duan & Wu, Theorem 2, which only says that a closed form exists.
    Example: 50 s, a mean gap of 10 s and 10 s: A = 2.0067 and d* = 10 log(2.0067 + e) = 15.5 s.
    """
    rate = 1.0 / mean_gap
    gain = waiting_gain(length_1, mean_gap, lengths_2.expect())
    if gain <= 0:
        return 0.0
    total = 0.0
    weighed = gain
    root = math.inf
    for length, chance in sorted(zip(lengths_2.values, lengths_2.odds, strict=True)):
        if root <= length:
            break
        total = total + chance
        weighed = weighed + chance * math.exp(rate * length)
        root = math.log(weighed / total) / rate if total > 0 else math.inf
    return root


def waiting_gain(length_1: float, mean_gap: float, mean_2: float) -> float:
    """What one more mean gap of waiting gains for both jobs together, in mean gaps; above 0 an idle slot pays.

    rate (l1 - E l2) - (2 - exp(-rate l1)): job 2 may come and spare the difference of lengths; job 1 waits, and job 2 with it
    where it comes before job 1 is done. Memoryless gaps make it the same at every moment: a slot that is decided anew ends with
    the next arrival or never begins. `mean_2` is then the mean of min(l1, l2).

    Source: derived from Duan & Wu, Theorem 2, at d = 0.
    """
    rate = 1.0 / mean_gap
    return rate * (length_1 - mean_2) - 2.0 + math.exp(-rate * length_1)


def sequential_slots(pair_slots: Sequence[float]) -> list[float]:
    """Slots before jobs in order of arrival, from the slot that each pair (job, next job) has when taken by itself.

    Where a job waits in an idle slot for the next, the next gets none, so that the first cannot starve.

    Source: Duan & Wu, section IV-A, "skip the pair (J_i, J_{i+1}) to prevent starvation".
    Example: pairs of 5, 3, 2 give slots 5, 0, 2.
    """
    slots: list[float] = []
    for slot in pair_slots:
        slots.append(0.0 if slots and slots[-1] > 0 else float(slot))
    return slots


def known_slots(arrivals: Sequence[float], lengths: Sequence[float]) -> list[float]:
    """Slots of a sequence whose future is known: a pair for which a slot pays waits exactly for the next arrival.

    Raises:
        ConfigError: not one length an arrival.

    Source: Duan & Wu, Theorem 1 and section IV-A.
    """
    if len(arrivals) != len(lengths):
        raise ConfigError(
            f"slots need one length an arrival, not {len(lengths)} for {len(arrivals)}"
        )
    pairs = zip(
        zip(arrivals, lengths, strict=True),
        zip(arrivals[1:], lengths[1:], strict=True),
        strict=False,
    )
    gaps = [(l1, l2, a2 - a1) for (a1, l1), (a2, l2) in pairs]
    return sequential_slots(
        [gap if idle_pays(l1, l2, gap) else 0.0 for l1, l2, gap in gaps] + [0.0]
    )
