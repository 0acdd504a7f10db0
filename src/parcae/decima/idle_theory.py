"""Two jobs and one machine: when an idle slot before the first job pays, and how long.

Job 1 has arrived and could start now; job 2 arrives `gap` later. All times are in one unit, which
the caller chooses.

Source: Duan & Wu, section IV-A. The functions differ from the text in these places:

- Theorem 1 states x <= (l1 - l2) / 2, its proof x < (l1 - l2) / 2. At equality the best slot gains
  exactly nothing. Their own example of section IV-B (30 s against 10 s, a gap of 10 s: "no
  benefit") needs the strict form, which is used here.
- The proof says that the second job is served at once "if x <= b2" (correct: x > b1) and calls the
  slot d2 (correct: d1). It demands d1 > x, although d1 = x is enough, and warns that d1 <= x
  "cannot guarantee" a gain (correct: d1 >= x cannot).
- Theorem 2 puts job 2 first whenever it arrives within the slot, even if it is the longer one, and
  lets job 1 wait through a slot that is longer than job 2 needs. A scheduler that decides again at
  every event does neither: see `is_redecided`.
- "If an idle slot is inserted before J_i when analyzing pair (J_{i-1}, J_i)": that pair's slot lies
  before J_{i-1}.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import integrate, optimize

from parcae.base.errors import ConfigError

#: Number of slots on the grid; the best slot is then searched between the neighbours of the best.
_NUM_TRIED = 33
#: Relative tolerance of the integrals.
_TOLERANCE = 1e-8


class GapDistribution(Protocol):
    """The distribution of the time to the next arrival; scipy.stats' frozen distributions fit."""

    def sf(self, x: float) -> float:
        """Return the probability that the gap is longer than x (the survival function)."""


@dataclass(frozen=True)
class DiscreteDistribution:
    """A discrete distribution.

    Args:
        values: the possible values.
        probabilities: the probability of each value.

    Raises:
        ConfigError: there are no values, not one probability for each value, or probabilities that
            are negative or do not sum to 1.

    Example: `DiscreteDistribution((10.0, 50.0), (0.5, 0.5))` is the distribution of lengths in the
    synthetic data set.
    """

    values: tuple[float, ...]
    probabilities: tuple[float, ...]

    def __post_init__(self) -> None:
        is_distribution = (
            math.isclose(sum(self.probabilities), 1.0, abs_tol=1e-9)
            and min(self.probabilities, default=-1.0) >= 0
        )
        if len(self.values) != len(self.probabilities) or not is_distribution:
            raise ConfigError(
                "a distribution needs one probability for each value, and they must sum to 1, "
                f"not {self.probabilities} for {self.values}"
            )

    def expect(self, func: Callable[[float], float] = float) -> float:
        """Return the mean of func(value); by default, of the values themselves."""
        return sum(
            probability * func(value)
            for value, probability in zip(self.values, self.probabilities, strict=True)
        )


def idle_pays(length_1: float, length_2: float, gap: float) -> bool:
    """Return whether some idle slot before job 1 lowers the average JCT of the two jobs.

    Source: Duan & Wu, Theorem 1, in the strict form of its proof.
    Example: before a job of 50 s an idle slot pays if a job of 10 s arrives less than 20 s later.
    """
    return 0 < gap < (length_1 - length_2) / 2


def average_jct(length_1: float, length_2: float, gap: float, slot: float = 0.0) -> float:
    """Return the average JCT of both jobs with an idle slot of fixed length before job 1.

    Source: Duan & Wu, eta (no slot) and eta' in the proofs of Theorems 1 and 2. Example: 50 s and,
    5 s later, 10 s: (50 + 55) / 2 = 52.5 s without a slot, (65 + 10) / 2 = 37.5 s with a slot of 5
    s.
    """
    if slot < gap or slot == 0:
        return (max(gap, length_1 + slot) + length_1 + slot + length_2 - gap) / 2
    return (max(gap + length_2, slot) + length_1 + length_2) / 2


def expected_average_jct(
    length_1: float,
    slot: float,
    gaps: GapDistribution,
    lengths_2: DiscreteDistribution,
    *,
    is_redecided: bool = False,
) -> float:
    """Return the expected average JCT over random gaps and random lengths of job 2.

    The gap and the length of job 2 are independent.

    Args:
        length_1: length of job 1, which could start now.
        slot: length of the idle slot.
        gaps: distribution of the time until job 2 arrives.
        lengths_2: distribution of the length of job 2.
        is_redecided: end the slot when job 2 arrives, and start the shorter of the two.

    Source: Duan & Wu, Theorem 2; by parts, so that only integrals of P(gap > x) are left.
    """
    mean_2 = lengths_2.expect()
    after = length_1 + slot
    late = float(gaps.sf(slot))
    if is_redecided:
        shorter = lengths_2.expect(lambda length: min(length, length_1))
        within = _area(gaps, 0.0, slot) - slot * late + (1 - late) * (length_1 + mean_2 + shorter)
    else:
        # E[max(x + l2, slot); x < slot]
        #     = (slot + l2) P(x < slot) - the integral of P(x < t) over the last l2 of the slot.
        served = lengths_2.expect(
            lambda length: (slot + length) * (1 - late) - _arrived(gaps, slot, min(slot, length))
        )
        within = served + (1 - late) * (length_1 + mean_2)
    waits = length_1 * late - _area(gaps, slot, after)  # E[max(x, after) - x; x > slot]
    return (within + waits + late * (after + mean_2)) / 2


def _area(gaps: GapDistribution, low: float, high: float) -> float:
    return float(integrate.quad(gaps.sf, low, high, epsrel=_TOLERANCE)[0]) if high > low else 0.0


def _arrived(gaps: GapDistribution, slot: float, last: float) -> float:
    """Return the integral of P(gap < x) over the last part of the slot."""
    return last - _area(gaps, slot - last, slot)


def best_slot(
    length_1: float,
    gaps: GapDistribution,
    lengths_2: DiscreteDistribution,
    *,
    is_redecided: bool = False,
) -> float:
    """Search the slot with the least expected average JCT, for any distributions.

    As in the paper, no slot is longer than job 1.

    Args:
        length_1: length of job 1, which could start now.
        gaps: distribution of the time until job 2 arrives.
        lengths_2: distribution of the length of job 2.
        is_redecided: end the slot when job 2 arrives, and start the shorter of the two.

    Source: Duan & Wu, Theorem 2; by search, because the expectation may have several local minima.
    """
    tried = np.linspace(0.0, length_1, _NUM_TRIED)

    def cost(slot: float) -> float:
        return expected_average_jct(length_1, slot, gaps, lengths_2, is_redecided=is_redecided)

    costs = [cost(float(slot)) for slot in tried]
    best = int(np.argmin(costs))
    bounds = tried[max(0, best - 1)], tried[min(_NUM_TRIED - 1, best + 1)]
    result = optimize.minimize_scalar(
        cost, bounds=bounds, method="bounded", options={"xatol": 1e-7 * max(1.0, length_1)}
    )
    return float(result.x) if result.fun < costs[best] else float(tried[best])


def best_slot_exponential(
    length_1: float, mean_gap: float, lengths_2: DiscreteDistribution
) -> float:
    """Return the best slot in closed form, for exponential gaps and a discrete length of job 2.

    With rate r, twice the expectation's derivative is P(x + l2 < d) - A exp(-r d), where A = r (l1
    - E l2) - 2 + exp(-r l1) is the gain of waiting (`waiting_gain`). For A <= 0 no slot pays.
    Otherwise d* is the only root: with the k shortest lengths below it, of probabilities p that sum
    to P, exp(r d*) = (A + sum p exp(r l2)) / P. For a single length, d* = log(A + exp(r l2)) / r.

    Source: derived from Duan & Wu, Theorem 2, which only says that a closed form exists.
    Example: 50 s, a mean gap of 10 s and 10 s: A = 2.0067 and d* = 10 log(2.0067 + e) = 15.5 s.
    """
    rate = 1.0 / mean_gap
    gain = waiting_gain(length_1, mean_gap, lengths_2.expect())
    if gain <= 0:
        return 0.0
    total = 0.0
    weighed = gain
    at = 0.0  # `weighed` is in units of exp(r at), which may exceed float64
    root = math.inf
    for length, probability in sorted(zip(lengths_2.values, lengths_2.probabilities, strict=True)):
        if root <= length:
            break
        total = total + probability
        weighed = weighed * math.exp(rate * (at - length)) + probability
        at = length
        root = at + math.log(weighed / total) / rate if total > 0 else math.inf
    return root


def waiting_gain(length_1: float, mean_gap: float, mean_2: float) -> float:
    """Return the gain of both jobs from waiting one more mean gap, in mean gaps.

    An idle slot pays if the gain is above 0. The gain is rate (l1 - E l2) - (2 - exp(-rate l1)):
    job 2 may arrive and save the difference of the lengths; job 1 waits, and so does job 2 if it
    arrives before job 1 is done. Exponential gaps have no memory, so the gain is the same at every
    moment: a slot that is decided again at every event ends with the next arrival or never begins.
    In that case `mean_2` is the mean of min(l1, l2).

    Source: derived from Duan & Wu, Theorem 2, at d = 0.
    """
    rate = 1.0 / mean_gap
    return rate * (length_1 - mean_2) - 2.0 + math.exp(-rate * length_1)


def sequential_slots(pair_slots: Sequence[float]) -> list[float]:
    """Return the slots before jobs in order of arrival, given the slot of each pair of neighbours.

    Where a job waits in an idle slot for the next job, the next job gets no slot, so that the first
    cannot starve.

    Source: Duan & Wu, section IV-A, "skip the pair (J_i, J_{i+1}) to prevent starvation".
    Example: pairs of 5, 3, 2 give slots 5, 0, 2.
    """
    slots: list[float] = []
    for slot in pair_slots:
        slots.append(0.0 if slots and slots[-1] > 0 else float(slot))
    return slots
