"""Draws DeepRM's jobs: at most one arrives per step, and each has one dominant resource.

Most jobs are short.

Source: DeepRM (HotNets'16), section 4.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, suggestion
from parcae.rigid.jobs import RigidJobs

#: Units of each resource in DeepRM's experiments; with this many image columns per resource its
#: network has 89,451 parameters.
CAPACITY = (10, 10)
#: Tolerance for rounding errors of bounds: 0.1 x 30 is slightly more than 3.
_ROUNDING = 1e-9


class JobMix(NamedTuple):
    """The distribution of job durations and demands.

    Demands are drawn uniformly from the whole numbers of units within the range.

    Example: `CODE.units(CODE.dominant, 10)` is (5, 10).
    """

    name: str
    dominant: tuple[float, float]
    other: tuple[float, float]
    share_short: float = 0.8
    short: tuple[int, int] = (1, 3)
    long: tuple[int, int] = (10, 15)

    def units(self, share: tuple[float, float], capacity: int) -> tuple[int, int]:
        """The smallest and largest whole number of units, at least 1, within shares of a
        capacity.
        """
        low = max(1, math.ceil(share[0] * capacity - _ROUNDING))
        high = math.floor(share[1] * capacity + _ROUNDING)
        if low > high:
            raise ConfigError(
                f"mix {self.name!r}: no whole number of {capacity} units is between "
                f"{share[0]:g} and {share[1]:g} of them; "
                f"give each resource at least {math.ceil(1 / share[1] - _ROUNDING)}"
            )
        return low, high

    @property
    def mean_duration(self) -> float:
        """Mean duration of a job in steps.

        Example: 4.1 for 0.8 of 1..3 and 0.2 of 10..15.
        """
        return (self.share_short * sum(self.short) + (1 - self.share_short) * sum(self.long)) / 2

    def mean_demand(self, capacity: Sequence[int]) -> npt.NDArray[np.float64]:
        """float64[num_resources]: mean demand of a job in units.

        Example: `CODE.mean_demand((10, 10))` is [4.5, 4.5].
        """
        dominant, other = (
            np.array([sum(self.units(share, c)) / 2 for c in capacity])
            for share in (self.dominant, self.other)
        )
        return np.asarray(other + (dominant - other) / len(capacity), np.float64)


#: The mix of DeepRM's released code: 5..10 and 1..2 of 10 units.
CODE = JobMix("code", dominant=(0.5, 1.0), other=(0.1, 0.2))
# Deviation: DeepRM, section 4.1: of 10 units, demands are 3..5 and 1, because 2.5 and 0.5 units are
# not whole; the load is 1.025 x rate instead of 0.9225 x rate. A capacity of 20 represents the
# ranges exactly, but its images have more columns than the paper's network has inputs.
#: The mix of DeepRM's text.
PAPER = JobMix("paper", dominant=(0.25, 0.5), other=(0.05, 0.1))
MIXES = {mix.name: mix for mix in (CODE, PAPER)}


def job_mix(name: str) -> JobMix:
    """The mix of a name: code or paper."""
    if name in MIXES:
        return MIXES[name]
    raise ConfigError(f"no mix of jobs {name!r}; {suggestion(name, MIXES)}")


def load_of_rate(mix: JobMix, rate: float, capacity: Sequence[int] = CAPACITY) -> float:
    """Load of the busiest resource: rate x mean duration x mean demand / capacity.

    Example: `load_of_rate(CODE, 0.7)` is 1.2915.
    """
    return rate * mix.mean_duration * float((mix.mean_demand(capacity) / capacity).max())


def rate_of_load(mix: JobMix, load: float, capacity: Sequence[int] = CAPACITY) -> float:
    """The arrival rate, in jobs per step, that gives a load.

    Example: `rate_of_load(CODE, 1.845)` is 1.
    """
    most = load_of_rate(mix, 1.0, capacity)
    if not 0.0 < load < math.inf:
        raise ConfigError(f"a load of {load} is not possible: write a number above 0, as in 1.3")
    if load > most * (1 + _ROUNDING):
        raise ConfigError(
            f"a load of {load:.1%} is not possible: at most one job arrives per step, "
            f"which is a load of {most:.1%} with the mix {mix.name!r} "
            f"and capacity {list(capacity)}; "
            f"ask for at most {math.floor(most * 1e4 + _ROUNDING) / 1e4:g}"
        )
    return min(1.0, load / most)


def parse_load(text: str, mix: JobMix = CODE, capacity: Sequence[int] = CAPACITY) -> float:
    """The arrival rate of a load, as in 1.3 or 130%, or of a rate, as in rate:0.7.

    Example: `parse_load("rate:0.7")` is 0.7.
    """
    match = re.fullmatch(r"(rate:)?(\d+(?:\.\d*)?|\.\d+)(%?)", text.strip())
    if not match or (match[1] and match[3]):
        raise ConfigError(f"load {text!r} is not understood: write 1.3, 130% or rate:0.7")
    value = float(match[2])
    if not match[1]:
        return rate_of_load(mix, value / 100 if match[3] else value, capacity)
    if not 0 < value <= 1:
        raise ConfigError(
            f"a rate of {match[2]} is not possible: write arrivals per step, above 0 and at most "
            "1, since at most one job arrives per step"
        )
    return value


def draw_bernoulli(
    mix: JobMix,
    rate: float,
    window: int,
    capacity: Sequence[int],
    rng: np.random.Generator,
    name: str = "bernoulli",
) -> RigidJobs:
    """Draw one sequence: in each of the steps 0..window-1 a job arrives with probability `rate`.

    For every job both alternatives (short and long, dominant and other) are drawn; then one is
    selected.
    """
    if not 0.0 <= rate <= 1.0 or window < 1:
        raise ConfigError(
            f"a rate of arrivals of {rate} in {window} steps: at most one job arrives per step, "
            "so write 0..1 jobs per step, and at least one step"
        )
    arrival = np.flatnonzero(rng.random(window) < rate)
    count = len(arrival)
    short, long = (rng.integers(low, high + 1, count) for low, high in (mix.short, mix.long))
    duration = np.where(rng.random(count) < mix.share_short, short, long)
    amounts = []
    for share in (mix.dominant, mix.other):
        low, high = np.array([mix.units(share, units) for units in capacity]).T
        amounts.append(rng.integers(low, high + 1, (count, len(capacity))))
    is_dominant = rng.integers(0, len(capacity), count)[:, None] == np.arange(len(capacity))
    return RigidJobs(name, arrival, duration, np.where(is_dominant, *amounts), np.array(capacity))
