"""Sources of rigid job sequences, one per seed: randomly drawn sequences, or pieces of a log."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.rigid.bernoulli import MIXES, draw_bernoulli
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs


class PackingSource(Protocol):
    """Draws job sequences; the same seed gives the same sequence."""

    @property
    def config(self) -> PackingConfig:
        """The settings of the cluster that the sequences are for."""

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """Return one sequence for each seed."""

    def card(self) -> dict[str, Any]:
        """Return a description as plain JSON, enough to draw the same sequences again."""


@dataclass(frozen=True)
class DrawnSource:
    """Sequences of jobs that arrive at random and are drawn from a mix (DeepRM, section 4.1).

    Args:
        rates: arrivals per step; of several rates, each seed gets one at random.
        window: number of steps in which jobs arrive.
        mix: which jobs are drawn, see `parcae.rigid.bernoulli.MIXES`.
        num_units: capacity of each resource.
        num_resources: number of resources.
        settings: further settings of the cluster.

    Raises:
        ConfigError: there is no rate.
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

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """Return one sequence for each seed."""
        return [self._one(seed) for seed in seeds]

    def _one(self, seed: int) -> RigidJobs:
        """Draw the sequence of one seed."""
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
class RigidLogSource:
    """Pieces of a log: `num_jobs` consecutive jobs, starting at a random one.

    Args:
        jobs: the log, or the part of it that may be used.
        num_jobs: length of a piece; None takes all jobs, whatever the seed.
        settings: settings of the cluster; by default, exact times.
        speeds: factors that arrivals are sped up by; of several, each seed gets one at random. A
            log in which no job waits teaches nothing; the same jobs at twice the speed do.

    Raises:
        ConfigError: a piece is longer than the log, or a speed is not from 0.001 to 1000.
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

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """Return one piece for each seed."""
        return [self._piece(seed) for seed in seeds]

    def _piece(self, seed: int) -> RigidJobs:
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
class MixedSource:
    """Draws from several sources in turn.

    Args:
        sources: the sources; seed s draws from source s modulo their number.

    Raises:
        ConfigError: there is no source, or the sources' clusters have different settings.
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

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """Return one sequence for each seed."""
        return [self.sources[seed % len(self.sources)].draw([seed])[0] for seed in seeds]

    def card(self) -> dict[str, Any]:
        """Return the descriptions of all sources."""
        return {
            "mixed": [source.card() for source in self.sources],
            "config": self.config.model_dump(mode="json"),
        }


def origins(source: PackingSource, seeds: Sequence[int]) -> npt.NDArray[np.int64]:
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
