"""Where sequences of rigid jobs come from, a sequence a seed: drawn, or pieces of a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from parcae.errors import ConfigError
from parcae.packing.config import PackingConfig
from parcae.workloads.bernoulli import MIXES, draw_bernoulli
from parcae.workloads.rigid import RigidJobs


class PackingSource(Protocol):
    """Draws sequences; the same seed gives the same sequence."""

    @property
    def config(self) -> PackingConfig:
        """The cluster that they are for."""

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """A sequence for each seed."""

    def card(self) -> dict[str, Any]:
        """All that is needed to draw them again, as plain JSON."""


@dataclass(frozen=True)
class DrawnSource:
    """Jobs of a mix that arrive at random (DeepRM, section 4.1).

    Args:
        rates: arrivals a step; several: each seed has one of them.
        window: steps in which jobs arrive. mix: which jobs, see `parcae.workloads.bernoulli.MIXES`.
        num_units: capacity of each resource.

    Raises:
        ConfigError: no rate.
    """

    rates: tuple[float, ...] = (0.7,)
    window: int = 50
    mix: str = "code"
    num_units: int = 10
    num_resources: int = 2
    settings: PackingConfig = field(default_factory=PackingConfig)

    def __post_init__(self) -> None:
        if not self.rates:
            raise ConfigError("jobs arrive at no rate: give one of 0..1 a step, or several")

    @property
    def config(self) -> PackingConfig:
        """Runs last as long as jobs arrive, and until all are done."""
        return self.settings.model_copy(update={"window": self.window})

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """A sequence for each seed."""
        return [self._one(seed) for seed in seeds]

    def _one(self, seed: int) -> RigidJobs:
        rng = np.random.default_rng(np.random.SeedSequence([0x6465_6570, seed]))
        rate = self.rates[int(rng.integers(len(self.rates)))]
        return draw_bernoulli(
            MIXES[self.mix], rate, self.window, [self.num_units] * self.num_resources, rng
        )

    def card(self) -> dict[str, Any]:
        """All that is needed to draw them again."""
        own = {"rates": list(self.rates), "window": self.window, "mix": self.mix}
        return {
            **own,
            "capacity": [self.num_units] * self.num_resources,
            "config": self.config.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class LogSource:
    """Pieces of a log, each of `num_jobs` jobs from a random one on.

    Args:
        jobs: the log, or the part of it that may be used.
        num_jobs: of a piece; None: all of it, whatever the seed.
        speeds: the piece's jobs arrive so many times as fast; several: each seed has one of them. A log in which nobody waits
            teaches nothing; the same jobs at twice the speed do.

    Raises:
        ConfigError: a piece longer than the log.
    """

    jobs: RigidJobs
    num_jobs: int | None = 256
    settings: PackingConfig | None = None
    speeds: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.speeds or min(self.speeds) <= 0:
            raise ConfigError(f"speeds {self.speeds}: give one or more numbers above 0")
        if self.num_jobs is not None and not 1 <= self.num_jobs <= len(self.jobs):
            raise ConfigError(
                f"pieces of {self.num_jobs} jobs of a log of {len(self.jobs)}: give a number from 1 to {len(self.jobs)}"
            )

    @property
    def config(self) -> PackingConfig:
        """Exact times, unless another config is given."""
        return self.settings or PackingConfig.for_log(self.jobs)

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """A piece for each seed."""
        if self.num_jobs is None:
            return [self.jobs for _ in seeds]
        return [self._piece(seed, self.num_jobs) for seed in seeds]

    def _piece(self, seed: int, num_jobs: int) -> RigidJobs:
        rng = np.random.default_rng(np.random.SeedSequence([0x6C6F_6773, seed]))
        first = int(rng.integers(len(self.jobs) - num_jobs + 1))
        piece = self.jobs.piece(first, first + num_jobs)
        speed = self.speeds[int(rng.integers(len(self.speeds)))]
        return (
            piece
            if speed == 1.0
            else replace(piece, arrival=(piece.arrival / speed).astype(np.int64))
        )

    def card(self) -> dict[str, Any]:
        """All that is needed to draw them again, but the log."""
        first = int(self.jobs.ids[0])
        last = int(self.jobs.ids[-1])
        own = {
            "log": self.jobs.name,
            "jobs": len(self.jobs),
            "first_id": first,
            "last_id": last,
            "piece": self.num_jobs,
            "speeds": list(self.speeds),
        }
        return {
            **own,
            "capacity": self.jobs.capacity.tolist(),
            "config": self.config.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class MixedSource:
    """Sequences of several sources in turn.

    Raises:
        ConfigError: sources whose clusters run differently, or of different numbers of resources.
    """

    sources: tuple[PackingSource, ...]

    def __post_init__(self) -> None:
        if not self.sources or any(s.config != self.sources[0].config for s in self.sources):
            raise ConfigError(
                "sources that are mixed run their clusters alike: give them one config"
            )

    @property
    def config(self) -> PackingConfig:
        """That of all."""
        return self.sources[0].config

    def draw(self, seeds: Sequence[int]) -> list[RigidJobs]:
        """A sequence for each seed, of the source whose turn it is."""
        return [self.sources[seed % len(self.sources)].draw([seed])[0] for seed in seeds]

    def card(self) -> dict[str, Any]:
        """All that is needed to draw them again, but logs."""
        return {
            "mixed": [source.card() for source in self.sources],
            "config": self.config.model_dump(mode="json"),
        }
