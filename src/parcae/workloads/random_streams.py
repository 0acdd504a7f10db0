"""Named streams of random numbers from one seed; draws from one stream never shift another."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from parcae.errors import ConfigError

#: Seed ranges. Comparisons use seeds below the first of these; tuning, training and the selection
#: of checkpoints have separate ranges, so that no two of them ever use the same seed.
TUNING_SEED_START = 1 << 40
TRAINING_SEED_START = 1 << 41
SELECTION_SEED_START = 1 << 42

STREAMS = ("arrivals", "jobs", "durations", "actions")


def check_seed(seed: object) -> None:
    """Check the seed of a run.

    Raises:
        ConfigError: it is not a whole number of at least 0.
    """
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed is {seed!r}: give 0 or more, as a whole number")


class RandomStreams:
    """One random generator for each name in STREAMS, all derived from one seed.

    Example: `RandomStreams(7).arrivals.exponential()` does not depend on draws from the other
    streams.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def _stream(self, name: str) -> np.random.Generator:
        """The generator of a name: that of the child of the seed with the name's number."""
        child = np.random.SeedSequence(self._seed, spawn_key=(STREAMS.index(name),))
        return np.random.default_rng(child)

    @cached_property
    def arrivals(self) -> np.random.Generator:
        """The stream of arrival times."""
        return self._stream("arrivals")

    @cached_property
    def jobs(self) -> np.random.Generator:
        """The stream that says which jobs arrive."""
        return self._stream("jobs")

    @cached_property
    def durations(self) -> np.random.Generator:
        """The stream of task durations."""
        return self._stream("durations")

    @cached_property
    def actions(self) -> np.random.Generator:
        """The stream of a policy's choices."""
        return self._stream("actions")
