"""Sources of rigid job sequences, one per seed: randomly drawn sequences, or pieces of a log.

Jobs are drawn as DeepRM's: at most one arrives per step, each has one dominant resource, and most
are short.

Source: DeepRM (HotNets'16), section 4.1.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from parcae.base.arrays import Float64Array, Int64Array
from parcae.base.errors import ConfigError, suggestion
from parcae.rigid.config import PackingConfig
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

    def mean_demand(self, capacity: Sequence[int]) -> Float64Array:
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


class PackingSource(ABC):
    """Draws job sequences; the same seed gives the same sequence."""

    #: Work that the jobs bring / work that the cluster can do, of its busiest resource: the largest
    #: of several, infinite for a log whose jobs arrive at once, 0 if it is not known.
    load: float = 0.0

    @property
    @abstractmethod
    def config(self) -> PackingConfig:
        """The settings of the cluster that the sequences are for."""

    @abstractmethod
    def one(self, seed: int) -> RigidJobs:
        """Return the sequence of a seed."""

    @abstractmethod
    def card(self) -> dict[str, Any]:
        """Return a description as plain JSON, enough to draw the same sequences again."""

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """Return one sequence for each seed."""
        return [self.one(seed) for seed in seeds]


@dataclass(frozen=True)
class DrawnSource(PackingSource):
    """Sequences of jobs that arrive at random and are drawn from a mix (DeepRM, section 4.1).

    Args:
        rates: arrivals per step; of several rates, each seed gets one at random.
        window: number of steps in which jobs arrive.
        mix: which jobs are drawn, see `MIXES`.
        num_units: capacity of each resource.
        num_resources: number of resources.
        settings: further settings of the cluster.
    """

    rates: tuple[float, ...] = (0.7,)
    window: int = 50
    mix: str = "code"
    num_units: int = 10
    num_resources: int = 2
    settings: PackingConfig = field(default_factory=PackingConfig)

    def __post_init__(self) -> None:
        if not self.rates:
            raise ConfigError(
                "there is no arrival rate: give one or more rates from 0 to 1 arrivals per step"
            )

    @property
    def config(self) -> PackingConfig:
        """The cluster's settings; runs last at least as long as jobs arrive."""
        return self.settings.model_copy(update={"window": self.window})

    @property
    def load(self) -> float:  # type: ignore[override]
        """That of the largest rate."""
        capacity = [self.num_units] * self.num_resources
        return load_of_rate(MIXES[self.mix], max(self.rates), capacity)

    def one(self, seed: int) -> RigidJobs:
        """Draw the sequence of a seed."""
        rng = np.random.default_rng(np.random.SeedSequence([0x6465_6570, seed]))
        rate = self.rates[int(rng.integers(len(self.rates)))]
        return draw_bernoulli(
            MIXES[self.mix], rate, self.window, [self.num_units] * self.num_resources, rng
        )

    def card(self) -> dict[str, Any]:
        """Return the source's description."""
        return {
            "rates": list(self.rates),
            "window": self.window,
            "mix": self.mix,
            "capacity": [self.num_units] * self.num_resources,
            "config": self.config.model_dump(mode="json"),
        }


def sped_up(jobs: RigidJobs, speed: float) -> RigidJobs:
    """Return the jobs with arrivals that are `speed` times as fast, without recorded waits."""
    return replace(jobs, arrival=(jobs.arrival / speed).astype(np.int64), waits=jobs.waits[:0])


@dataclass(frozen=True)
class RigidLogSource(PackingSource):
    """Pieces of a log: `num_jobs` consecutive jobs, starting at a random one.

    Args:
        jobs: the log, or the part of it that may be used.
        num_jobs: length of a piece; None takes all jobs, whatever the seed.
        settings: settings of the cluster; by default, exact times.
        speeds: factors that arrivals are sped up by; of several, each seed gets one at random. A
            log in which no job waits teaches nothing; the same jobs at twice the speed do.
    """

    jobs: RigidJobs
    num_jobs: int | None = 256
    settings: PackingConfig | None = None
    speeds: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        # NaN fails every comparison.
        if not self.speeds or not all(0.001 <= speed <= 1_000 for speed in self.speeds):
            raise ConfigError(
                f"the speeds {self.speeds} are not valid: give one or more numbers from 0.001 to "
                "1000"
            )
        if self.num_jobs is not None and not 1 <= self.num_jobs <= len(self.jobs):
            raise ConfigError(
                f"{self.jobs.name}: pieces of {self.num_jobs} jobs cannot be taken from a "
                f"log of {len(self.jobs)} jobs: give a number from 1 to {len(self.jobs)}"
            )

    @property
    def config(self) -> PackingConfig:
        """The given settings, or exact times."""
        return self.settings or PackingConfig.for_log(self.jobs)

    @property
    def load(self) -> float:  # type: ignore[override]
        """That of the log at the largest speed."""
        return float(self.jobs.load.max()) * max(self.speeds)

    def one(self, seed: int) -> RigidJobs:
        """Return the piece of a seed."""
        rng = np.random.default_rng(np.random.SeedSequence([0x6C6F_6773, seed]))
        piece = self.jobs
        if self.num_jobs is not None:
            first = int(rng.integers(len(self.jobs) - self.num_jobs + 1))
            piece = self.jobs.piece(first, first + self.num_jobs)
        speed = self.speeds[int(rng.integers(len(self.speeds)))]
        return piece if speed == 1.0 else sped_up(piece, speed)

    def card(self) -> dict[str, Any]:
        """Return the source's description.

        The log itself is not part of it, but a digest tells other jobs apart, such as those of the
        same file with other estimates.
        """
        return {
            "log": self.jobs.name,
            "jobs": len(self.jobs),
            "first_id": int(self.jobs.ids[0]),
            "last_id": int(self.jobs.ids[-1]),
            "first_row": int(self.jobs.rows[0]),
            "last_row": int(self.jobs.rows[-1]),
            "digest": _digest(self.jobs),
            "piece": self.num_jobs,
            "speeds": list(self.speeds),
            "capacity": self.jobs.capacity.tolist(),
            "config": self.config.model_dump(mode="json"),
        }


def _digest(jobs: RigidJobs) -> str:
    """A text that differs between jobs with other times or demands."""
    columns = (jobs.arrival, jobs.duration, jobs.estimate, jobs.demand)
    return hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest()


@dataclass(frozen=True)
class MixedSource(PackingSource):
    """Draws from several sources in turn.

    Args:
        sources: the sources; seed s draws from source s modulo their number.
    """

    sources: tuple[PackingSource, ...]

    def __post_init__(self) -> None:
        if not self.sources or any(s.config != self.sources[0].config for s in self.sources):
            raise ConfigError(
                "a mixed source needs at least one source, and all must have the same cluster "
                "settings"
            )

    @property
    def config(self) -> PackingConfig:
        """The cluster settings that all sources share."""
        return self.sources[0].config

    def one(self, seed: int) -> RigidJobs:
        """Return the sequence that the seed's source draws."""
        return self.sources[seed % len(self.sources)].one(seed)

    def card(self) -> dict[str, Any]:
        """Return the descriptions of all sources."""
        return {
            "mixed": [source.card() for source in self.sources],
            "config": self.config.model_dump(mode="json"),
        }


def origins(source: PackingSource, seeds: Sequence[int]) -> Int64Array:
    """Return which of a mixed source's sources each seed draws from; 0 for other sources."""
    count = len(source.sources) if isinstance(source, MixedSource) else 1
    return np.array(seeds, np.int64) % count


def require_waiting(source: PackingSource) -> None:
    """Check that jobs have to wait somewhere in the logs of a source, so that order matters.

    Drawn jobs pass: even at a small load, some sequences have jobs that wait.
    """
    logs = source.sources if isinstance(source, MixedSource) else (source,)
    names = []
    for log in logs:
        if (
            not isinstance(log, RigidLogSource)
            or not sped_up(log.jobs, max(log.speeds)).never_waits
        ):
            return
        names.append(log.jobs.name)
    raise ConfigError(
        f"in {', '.join(names)} every job can start when it arrives, so there is nothing to learn: "
        "let the jobs arrive faster (--speeds 2,4), or give a busier log"
    )
