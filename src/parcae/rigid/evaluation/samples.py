"""The samples behind the intervals of packing policies: sums over runs, or blocks of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.evaluation.statistics import UNKNOWN, Estimate, ratio_estimate

FloatArray = npt.NDArray[np.float64]
#: For its intervals, a single run is divided into this many consecutive blocks of jobs.
NUM_BLOCKS = 20


@dataclass(frozen=True)
class Samples:
    """Sum of a measure over the jobs that started, and their number, per run or per block.

    Several runs give one sample each. A single run is divided into blocks of jobs.
    """

    total: FloatArray
    count: FloatArray

    def mean(self) -> Estimate:
        """Mean over all jobs."""
        is_known = self.count > 0
        return (
            ratio_estimate(self.total[is_known], self.count[is_known], "t")
            if is_known.any()
            else UNKNOWN
        )

    def ratio(self, first: Samples) -> Estimate:
        """Ratio of the means over all jobs; runs in which no job started in both are left out."""
        is_known = (self.count > 0) & (first.count > 0)
        if not is_known.any():
            return UNKNOWN
        above, below = (one.total[is_known] / one.count[is_known].mean() for one in (self, first))
        return ratio_estimate(above, below, "t")

    def correlation(self) -> float:
        """Correlation between neighbouring means (lag 1)."""
        if len(self.total) < 3 or not (self.count > 0).all():
            return math.nan
        means = self.total / self.count
        deviation = means - means.mean()
        return (
            float((deviation[1:] * deviation[:-1]).sum() / (deviation**2).sum())
            if deviation.any()
            else 0.0
        )


def num_blocks(num_jobs: int) -> int:
    """Number of blocks into which a single run of so many jobs is divided."""
    return max(1, min(NUM_BLOCKS, num_jobs))


def samples_of(values: Sequence[FloatArray]) -> Samples:
    """The samples of a measure, by its values in every run; NaN for jobs that never started."""
    parts = values if len(values) > 1 else np.array_split(values[0], num_blocks(len(values[0])))
    total = np.array([np.nansum(part) for part in parts], np.float64)
    return Samples(
        total, np.array([np.count_nonzero(~np.isnan(part)) for part in parts], np.float64)
    )
