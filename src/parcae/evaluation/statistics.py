"""Paired statistics over seeds, with 95% confidence intervals.

`mean_estimate`, `ratio_estimate`, `mean_over_jobs` and `share_estimate` return an `Estimate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit  # scipy.stats takes half a second to import

from parcae.base.errors import ConfigError

FloatArray = npt.NDArray[np.float64]
#: A number and its standard error, or the values of both policies.
Pair = tuple[FloatArray, FloatArray]
Method = Literal["bootstrap-t", "t"]

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
#: The percentiles at the interval's ends.
_TAILS = (100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2)
#: Largest number of resampled values in memory at a time.
_CHUNK = 1 << 18

#: Seed of the bootstrap's resamples where the caller passes no generator: equal values then have
#: equal intervals, and all policies of a comparison the same resamples.
RESAMPLE_SEED = 20_190_819
#: With fewer values than this, resamples repeat too few values; with more than that, the mean is
#: as good as normal. Student's t is used in both cases.
_FEWEST = 8
_MOST = 2_000
#: One value far from all others makes resamples without it nearly constant, and the bootstrap-t
#: arbitrarily wide. So neither side is longer than this many times that of Student's t,
#: which costs no coverage: with 2 it is that of 4 on 10 to 50 streams.
_WIDEST = 2.0

#: Descriptions of the methods for confidence intervals; every result states its method.
#: The default is the first. `benchmarks/intervals.py` measures how often the intervals contain the
#: truth; `docs/comparing.md` has the result.
METHODS: dict[Method, str] = {
    "bootstrap-t": "95% confidence intervals over seeds: bootstrap-t (studentized bootstrap, "
    f"{NUM_RESAMPLES:,} resamples), paired by seed, for ratios of means on the logarithm; "
    f"Student's t with fewer than {_FEWEST} seeds or more than {_MOST:,}",
    "t": "95% confidence intervals over seeds: Student's t for means; for ratios of means, the "
    "delta method on the logarithm, paired by seed, with Student's t",
}
DEFAULT_METHOD: Method = "bootstrap-t"


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% confidence interval.

    With a single seed the interval is unknown: `low` and `high` are NaN.
    """

    mean: float
    low: float
    high: float

    @property
    def is_unknown(self) -> bool:
        """Whether the interval is unknown, for example because there is only one seed."""
        return math.isnan(self.low)

    def within(self, least: float, most: float = math.inf) -> Estimate:
        """The estimate with its interval clipped to the possible values; an unknown one stays."""
        if self.is_unknown:
            return self
        return replace(self, low=max(least, self.low), high=min(most, self.high))

    def complement(self) -> Estimate:
        """1 - the number: what is saved at this ratio, or the share of all others."""
        return Estimate(1 - self.mean, 1 - self.high, 1 - self.low)

    def to_json(self) -> dict[str, Any]:
        """{"mean":, "ci95": [low, high]}; null for unknown and infinite values."""
        mean, low, high = (
            value if math.isfinite(value) else None for value in (self.mean, self.low, self.high)
        )
        return {"mean": mean, "ci95": [low, high]}


#: A gain or a loss below this share is no difference worth having, however sure it is.
NO_MATTER = 0.02


def is_no_matter(ratio: Estimate) -> bool:
    """Whether a ratio is so close to 1 that nobody would change a scheduler for it."""
    return abs(ratio.mean - 1) < NO_MATTER


#: The estimate of what no run shows.
UNKNOWN = Estimate(math.nan, math.nan, math.nan)
#: What tables show for an unknown number.
UNKNOWN_TEXT = "–"


def with_half_width(estimate: Estimate, digits: int = 1) -> str:
    """The mean and the distance of its interval's farther end, as text.

    Example: 2 with the interval [1.5, 3] is "2.0 ± 1.0".
    """
    half = max(estimate.high - estimate.mean, estimate.mean - estimate.low)
    shown = "" if estimate.is_unknown else f" ± {half:,.{digits}f}"
    return f"{estimate.mean:,.{digits}f}{shown}"


def with_interval(estimate: Estimate, number: Callable[[float], str] = "{:.3f}".format) -> str:
    """The mean and its interval, as text, or UNKNOWN_TEXT; `number` writes a number.

    Example: 0.9 with the interval [0.8, 1] is "0.900 [0.800, 1.000]".
    """
    if math.isnan(estimate.mean):
        return UNKNOWN_TEXT
    ends = f" [{number(estimate.low)}, {number(estimate.high)}]"
    return number(estimate.mean) + ("" if estimate.is_unknown else ends)


def with_distances(
    estimates: Sequence[Estimate],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The means, and how far the intervals extend below and above them; 0 where it is unknown."""
    means, low, high = np.array([(one.mean, one.low, one.high) for one in estimates]).T
    return means, np.nan_to_num(means - low), np.nan_to_num(high - means)


def _seeds(
    values: npt.ArrayLike, baseline: npt.ArrayLike | None = None
) -> tuple[FloatArray, FloatArray]:
    """Check the values of both policies; without a baseline, the second array is all ones."""
    above = np.asarray(values, np.float64)
    below = np.ones(len(above)) if baseline is None else np.asarray(baseline, np.float64)
    if above.ndim != 1 or above.shape != below.shape or above.size == 0:
        raise ConfigError(
            "paired statistics need one number per seed from both policies, "
            f"not arrays of shape {above.shape} and {below.shape}"
        )
    if not (np.isfinite(above).all() and np.isfinite(below).all() and (below > 0).all()):
        raise ConfigError(
            "paired statistics need finite numbers, and baseline values above 0 on every seed"
        )
    return above, below


def _t_quantile(count: int) -> float:
    return float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))


def _resampled(above: FloatArray, below: FloatArray, rng: np.random.Generator) -> Iterator[Pair]:
    """The values of both policies on resampled seeds, in chunks of [resamples, num_seeds]."""
    rows = max(1, _CHUNK // len(above))
    for first in range(0, NUM_RESAMPLES, rows):
        seeds = rng.integers(0, len(above), (min(rows, NUM_RESAMPLES - first), len(above)))
        yield above[seeds], below[seeds]


def _ratio_and_error(above: FloatArray, below: FloatArray) -> Pair:
    """Ratios of means over the last axis, and their standard errors by the delta method.

    Source: Cochran, Sampling Techniques (3rd ed.), section 6.5 (variance of a ratio estimator).
    """
    mean_below = below.mean(axis=-1)
    ratio = above.mean(axis=-1) / mean_below
    residuals = above - ratio[..., np.newaxis] * below
    spread = residuals.std(axis=-1, ddof=1) / mean_below
    return ratio, spread / math.sqrt(above.shape[-1])


def _log_ratio_and_error(above: FloatArray, below: FloatArray) -> Pair:
    """The same for the logarithm of the ratio."""
    ratio, error = _ratio_and_error(above, below)
    return np.log(ratio), error / ratio


def _interval(
    above: FloatArray,
    below: FloatArray,
    measured: Callable[[FloatArray, FloatArray], Pair],
    method: Method,
    rng: np.random.Generator | None,
) -> tuple[float, float]:
    """Interval of a number by Student's t or by the bootstrap-t.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, section 12.5.
    """
    number, error = (float(value) for value in measured(above, below))
    quantile = _t_quantile(len(above))
    # How many standard errors the interval extends to each side.
    down = up = quantile
    if method == "bootstrap-t" and _FEWEST <= len(above) <= _MOST and error > 0:
        generator = np.random.default_rng(RESAMPLE_SEED) if rng is None else rng
        up, down = _studentized(above, below, measured, number, generator)
    return number - down * error, number + up * error


def _studentized(
    above: FloatArray,
    below: FloatArray,
    measured: Callable[[FloatArray, FloatArray], Pair],
    number: float,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """How many standard errors the interval extends above and below `number`.

    A resample's number is off by so many of its own standard errors; the largest 2.5% of these
    distances at either end are left out. Where resamples are far below, the truth may be far above.
    """
    distances = []
    with np.errstate(divide="ignore", invalid="ignore"):
        for a, b in _resampled(above, below, rng):
            resampled, error = measured(a, b)
            distances.append((resampled - number) / error)
    widest = _WIDEST * _t_quantile(len(above))
    # A resample without a spread, or whose ratio has no logarithm, counts as far away.
    bounded = np.clip(np.nan_to_num(np.concatenate(distances), nan=-widest), -widest, widest)
    low, high = np.percentile(bounded, _TAILS)
    return -float(low), float(high)


def _estimated(
    pair: Pair,
    method: Method,
    rng: np.random.Generator | None,
    measured: Callable[[FloatArray, FloatArray], Pair] = _ratio_and_error,
) -> Estimate:
    """The ratio of the means of both rows with its interval; unknown with fewer than two values.

    `measured` gives the number whose interval is computed, and its standard error.
    """
    above, below = pair
    mean = float(above.mean() / below.mean())
    if len(above) < 2:
        return Estimate(mean, math.nan, math.nan)
    return Estimate(mean, *_interval(above, below, measured, method, rng))


def mean_estimate(
    values: npt.ArrayLike,
    method: Method = DEFAULT_METHOD,
    rng: np.random.Generator | None = None,
) -> Estimate:
    """Mean over seeds with its interval.

    With Student's t, the interval is mean +- t(0.975, n - 1) s / sqrt(n). The bootstrap-t replaces
    t(0.975, n - 1) by quantiles of resampled (mean* - mean) / (s* / sqrt(n)), one for each side,
    so that it extends further to the side of the long tail.

    Example: with Student's t, for 1, 2, 3 it is 2 +- 4.303 x 1 / sqrt(3) = 2 +- 2.484.
    """
    return _estimated(_seeds(values), method, rng)


def ratio_estimate(
    values: npt.ArrayLike,
    baseline: npt.ArrayLike,
    method: Method = DEFAULT_METHOD,
    rng: np.random.Generator | None = None,
) -> Estimate:
    """Ratio of means r = mean(a) / mean(b), paired by seed, with its interval.

    By the delta method, log r has the standard error
    se = sd(a / mean(a) - b / mean(b)) / sqrt(n). With Student's t, the interval is
    r exp(+- t(0.975, n - 1) se); the bootstrap-t replaces t(0.975, n - 1) as in `mean_estimate`.
    Both are always above 0.

    Example: equal values give exactly 1 with the interval [1, 1].
    """
    pair = _seeds(values, baseline)
    ratio = float(pair[0].mean() / pair[1].mean())
    # The logarithm needs a positive ratio.
    if ratio <= 0 or len(pair[0]) < 2:
        return Estimate(ratio, math.nan, math.nan)
    log = _estimated(pair, method, rng, _log_ratio_and_error)
    return Estimate(ratio, math.exp(log.low), math.exp(log.high))


def mean_over_jobs(
    sums: npt.ArrayLike, totals: npt.ArrayLike, rng: np.random.Generator | None = None
) -> Estimate:
    """The mean over the jobs of all seeds, sum(sums) / sum(totals), with its interval over seeds.

    Jobs of one seed are not independent, so the seeds are the samples. With Student's t, the
    interval is mean +- t(0.975, n - 1) se with
    se = sd(sums - mean x totals) / (mean(totals) sqrt(n)); the bootstrap-t replaces t(0.975, n - 1)
    as in `mean_estimate`.

    Source: Cochran, Sampling Techniques (3rd ed.), chapter 3 (means in cluster sampling).
    Example: sums of 1, 2 and 3 over 10 jobs each: 0.2 +- 4.303 x 0.1 / sqrt(3).
    """
    above, below = _seeds(sums, totals)
    mean = float(above.sum() / below.sum())
    return replace(_estimated((above, below), DEFAULT_METHOD, rng), mean=mean)


def share_estimate(
    counts: npt.ArrayLike, totals: npt.ArrayLike, rng: np.random.Generator | None = None
) -> Estimate:
    """The share of jobs with a property, sum(counts) / sum(totals), with its interval over seeds.

    The interval is that of `mean_over_jobs`, clipped to [0, 1]. If no seed has such a job, it is
    [0, 0]. That means that none was observed, not that none exists.

    Example: 1, 2 and 3 of 10 jobs each: 0.2 +- 4.303 x 0.1 / sqrt(3), clipped to 0 below.
    """
    return mean_over_jobs(counts, totals, rng=rng).within(0.0, 1.0)
