"""Paired statistics over seeds, with 95% confidence intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

FloatArray = npt.NDArray[np.float64]

CONFIDENCE = 0.95
#: How the intervals are made; stated beside every result.
METHOD = (
    "95% confidence intervals over seeds: Student's t for means; for ratios of means, a paired percentile bootstrap over "
    "seeds (10,000 resamples)"
)
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    high: float

    def to_json(self) -> dict[str, Any]:
        """{"mean":, "ci95": [low, high]}"""
        return {"mean": self.mean, "ci95": [self.low, self.high]}


def mean_estimate(values: npt.ArrayLike) -> Estimate:
    """Mean over seeds with Student's t interval.

    Example: of 1, 2, 3 it is 2 with an interval of 2 +- 4.303 x 1 / sqrt(3).
    """
    array = np.asarray(values, np.float64)
    mean = float(array.mean())
    if len(array) < 2:
        return Estimate(mean, float("-inf"), float("inf"))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Estimate(mean, mean - half, mean + half)


def ratio_estimate(values: npt.ArrayLike, baseline: npt.ArrayLike, rng: np.random.Generator) -> Estimate:
    """Ratio of means, mean(values) / mean(baseline), paired by seed, with a percentile bootstrap interval.

    Args:
        values, baseline: float64[num_seeds], the same seeds in the same order.
        rng: the generator of the resamples.

    Example: equal values give exactly 1 with the interval [1, 1].
    """
    above, below = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
    rows = rng.integers(0, len(above), (_RESAMPLES, len(above)))
    ratios = above[rows].mean(axis=1) / below[rows].mean(axis=1)
    low, high = np.percentile(ratios, [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2])
    return Estimate(float(above.mean() / below.mean()), float(low), float(high))
