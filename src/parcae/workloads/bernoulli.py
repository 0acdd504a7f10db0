"""DeepRM's jobs: at most one arrives a step, most are short, each asks for much of one resource and little of the others.

Source: DeepRM (HotNets'16), section 4.1.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.errors import ConfigError
from parcae.workloads.rigid import IntArray, RigidJobs

#: Units of each resource in DeepRM's experiments: with as many columns an image, its network has 89,451 parameters.
CAPACITY = (10, 10)
#: What rounding may do to a bound: 0.1 x 30 is a little more than 3.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class JobMix:
    """How long jobs are, and how much they ask for.

    Demands are drawn in whole units: the numbers of units in the range, so that no demand leaves it.

    Args:
        name: of the mix.
        dominant, other: smallest and largest share of the capacity that a job asks for, of the one resource that it needs
            most (each is equally often) and of every other.
        share_short: share of short jobs.
        short, long: steps that short and long jobs take, shortest and longest.

    Raises:
        ConfigError: a range that is empty or outside what can be.

    Example: `CODE.units(CODE.dominant, 10)` is (5, 10).
    """

    name: str
    dominant: tuple[float, float]
    other: tuple[float, float]
    share_short: float = 0.8
    short: tuple[int, int] = (1, 3)
    long: tuple[int, int] = (10, 15)

    def __post_init__(self) -> None:
        if not 0.0 <= self.share_short <= 1.0:
            raise ConfigError(
                f"mix {self.name!r}: the share of short jobs is {self.share_short}; it must be between 0 and 1"
            )
        for what, (low, high) in (("short", self.short), ("long", self.long)):
            if not 1 <= low <= high:
                raise ConfigError(
                    f"mix {self.name!r}: {what} jobs take {low}..{high} steps; write a range that begins at 1 or more"
                )
        for what, (least, most) in (("dominant", self.dominant), ("other", self.other)):
            if not 0.0 <= least <= most <= 1.0 or most == 0.0:
                raise ConfigError(
                    f"mix {self.name!r}: {what} demands are {least}..{most} of the capacity; write shares up to 1"
                )

    def units(self, share: tuple[float, float], capacity: int) -> tuple[int, int]:
        """The smallest and the largest whole number of units, at least 1, that lie in a range of shares of the capacity.

        Raises:
            ConfigError: there is none.
        """
        low = max(1, math.ceil(share[0] * capacity - _ROUNDING))
        high = math.floor(share[1] * capacity + _ROUNDING)
        if low > high:
            raise ConfigError(
                f"mix {self.name!r}: no whole number of {capacity} units is between {share[0]:g} and {share[1]:g} of them;"
                f" give each resource at least {math.ceil(1 / share[1] - _ROUNDING)}"
            )
        return low, high

    @property
    def mean_duration(self) -> float:
        """Steps that a job takes on average.

        Example: 4.1 for 0.8 of 1..3 and 0.2 of 10..15.
        """
        return (self.share_short * sum(self.short) + (1 - self.share_short) * sum(self.long)) / 2

    def mean_demand(self, capacity: Sequence[int]) -> npt.NDArray[np.float64]:
        """float64[num_resources]: units that a job asks for on average.

        Example: `CODE.mean_demand((10, 10))` is [4.5, 4.5].
        """
        dominant, other = (
            np.array([sum(self.units(share, c)) / 2 for c in capacity])
            for share in (self.dominant, self.other)
        )
        return np.asarray(other + (dominant - other) / len(capacity), np.float64)


#: What DeepRM's released code draws: 5..10 and 1..2 of 10 units.
CODE = JobMix("code", dominant=(0.5, 1.0), other=(0.1, 0.2))
# Deviation: DeepRM 4.1: of 10 units, demands are 3..5 and 1 because 2.5 and 0.5 are not whole, and the load is 1.025 x rate, not
# 0.9225 x rate. Capacity 20 holds the ranges exactly, but its images have more columns than the paper's network has inputs for.
#: What DeepRM's text says.
PAPER = JobMix("paper", dominant=(0.25, 0.5), other=(0.05, 0.1))
MIXES = {mix.name: mix for mix in (CODE, PAPER)}


def job_mix(name: str) -> JobMix:
    """The mix of that name: code, paper.

    Raises:
        ConfigError: no such mix.
    """
    if name in MIXES:
        return MIXES[name]
    close = difflib.get_close_matches(name, MIXES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(MIXES)}"
    raise ConfigError(f"no mix of jobs {name!r}; {hint}")


def load_of_rate(mix: JobMix, rate: float, capacity: Sequence[int] = CAPACITY) -> float:
    """Load of the busiest resource: rate x mean duration x mean demand / capacity.

    Raises:
        ConfigError: a rate outside 0..1.

    Example: `load_of_rate(CODE, 0.7)` is 1.2915.
    """
    _check_rates(np.array(rate))
    return rate * mix.mean_duration * float((mix.mean_demand(capacity) / capacity).max())


def rate_of_load(mix: JobMix, load: float, capacity: Sequence[int] = CAPACITY) -> float:
    """The rate of arrivals, jobs a step, that gives a load.

    Raises:
        ConfigError: a load that is not above 0, or more than one job a step would have to arrive.

    Example: `rate_of_load(CODE, 1.845)` is 1.
    """
    most = load_of_rate(mix, 1.0, capacity)
    if not 0.0 < load < math.inf:
        raise ConfigError(f"a load of {load} cannot be: write a number above 0, as in 1.3")
    if load > most * (1 + _ROUNDING):
        raise ConfigError(
            f"a load of {load:.1%} cannot be: at most one job arrives a step, which is {most:.1%} with the mix {mix.name!r}"
            f" and capacity {list(capacity)}; ask for at most {math.floor(most * 1e4 + _ROUNDING) / 1e4:g}"
        )
    return min(1.0, load / most)


def parse_load(text: str, mix: JobMix = CODE, capacity: Sequence[int] = CAPACITY) -> float:
    """Read a load, 1.3 or 130%, or the load of a rate, rate:0.7.

    Raises:
        ConfigError: anything else, or a load or rate that cannot be.

    Example: `parse_load("rate:0.7")` is 1.2915.
    """
    match = re.fullmatch(r"(rate:)?(\d+(?:\.\d*)?|\.\d+)(%?)", text.strip())
    if not match or (match[1] and match[3]):
        raise ConfigError(f"load {text!r} is not understood: write 1.3, 130% or rate:0.7")
    value = float(match[2])
    load = load_of_rate(mix, value, capacity) if match[1] else value / 100 if match[3] else value
    rate_of_load(mix, load, capacity)
    return load


class JobArrays(NamedTuple):
    """Many sequences of jobs side by side; the entries of sequence s from `num_jobs[s]` on are 0."""

    num_jobs: IntArray  # [num_sequences]
    arrival: IntArray  # [num_sequences, window], ascending
    duration: IntArray  # [num_sequences, window]
    demand: IntArray  # [num_sequences, window, num_resources]

    def sequence(self, row: int, capacity: Sequence[int], name: str = "bernoulli") -> RigidJobs:
        """One of the sequences by itself."""
        jobs = (row, slice(0, int(self.num_jobs[row])))
        return RigidJobs(
            name,
            self.arrival[jobs],
            self.duration[jobs],
            self.demand[jobs],
            np.array(capacity, np.int64),
        )


def draw_bernoulli(
    mix: JobMix,
    rate: float,
    window: int,
    capacity: Sequence[int],
    rng: np.random.Generator,
    name: str = "bernoulli",
) -> RigidJobs:
    """Draw one sequence: in each of the steps 0..window-1 a job arrives with probability `rate`.

    Raises:
        ConfigError: a rate outside 0..1, no steps, or a capacity that the mix's demands do not fit.
    """
    return draw_many(mix, rate, window, capacity, rng, 1).sequence(0, capacity, name)


def draw_many(
    mix: JobMix,
    rate: float | npt.NDArray[np.float64],
    window: int,
    capacity: Sequence[int],
    rng: np.random.Generator,
    count: int,
) -> JobArrays:
    """Draw `count` sequences at once, as `draw_bernoulli` does; `rate` is one for all or float64[count].

    Raises:
        ConfigError: as `draw_bernoulli`; rates that are not one for each sequence.
    """
    rates = np.asarray(rate, np.float64)
    _check_rates(rates)
    if rates.ndim and rates.shape != (count,):
        raise ConfigError(
            f"{count} sequences need one rate, or one for each, not rates of shape {rates.shape}"
        )
    if window < 1 or count < 1:
        raise ConfigError(
            f"{count} sequences of {window} steps: at least one of at least one step is needed"
        )
    is_arrival = rng.random((count, window)) < rates.reshape(-1, 1)
    row, step = np.nonzero(is_arrival)
    duration, demand = _draw_jobs(mix, len(row), capacity, rng)
    num_jobs = is_arrival.sum(axis=1)
    place = np.cumsum(is_arrival, axis=1)[row, step] - 1
    shape = (count, window)
    jobs = JobArrays(
        num_jobs,
        np.zeros(shape, np.int64),
        np.zeros(shape, np.int64),
        np.zeros((*shape, len(capacity)), np.int64),
    )
    jobs.arrival[row, place] = step
    jobs.duration[row, place] = duration
    jobs.demand[row, place] = demand
    return jobs


def _draw_jobs(
    mix: JobMix, count: int, capacity: Sequence[int], rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Durations [count] and demands [count, num_resources]."""
    ranges = [
        np.array([mix.units(share, c) for c in capacity]).T for share in (mix.dominant, mix.other)
    ]
    short, long = (rng.integers(low, high + 1, count) for low, high in (mix.short, mix.long))
    duration = np.where(rng.random(count) < mix.share_short, short, long)
    dominant, other = (rng.integers(low, high + 1, (count, len(capacity))) for low, high in ranges)
    is_dominant = rng.integers(0, len(capacity), count)[:, None] == np.arange(len(capacity))
    return duration, np.where(is_dominant, dominant, other)


def _check_rates(rates: npt.NDArray[np.float64]) -> None:
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ConfigError(
            f"a rate of arrivals is {rates.tolist()}: at most one job arrives a step, so write 0..1 jobs a step"
        )
