"""Named streams of random numbers from one seed; draws from one stream never shift another."""

from __future__ import annotations

from functools import cached_property

import numpy as np

#: Seed ranges. Comparisons use seeds below the first of these; tuning, training and the selection
#: of
#: checkpoints have separate ranges, so that no two of them ever use the same seed.
TUNING_SEED_START = 1 << 40
TRAINING_SEED_START = 1 << 41
SELECTION_SEED_START = 1 << 42

STREAMS = ("arrivals", "jobs", "durations", "actions")


class RandomStreams:
    """One random generator for each name in STREAMS, all derived from one seed.

    Example: `RandomStreams(7).arrivals.exponential()` does not depend on draws from the other
    streams.
    """

    def __init__(self, seed: int) -> None:
        self._children = np.random.SeedSequence(seed).spawn(len(STREAMS))

    @cached_property
    def arrivals(self) -> np.random.Generator:
        """The stream of arrival times."""
        return np.random.default_rng(self._children[0])

    @cached_property
    def jobs(self) -> np.random.Generator:
        """The stream that says which jobs arrive."""
        return np.random.default_rng(self._children[1])

    @cached_property
    def durations(self) -> np.random.Generator:
        """The stream of task durations."""
        return np.random.default_rng(self._children[2])

    @cached_property
    def actions(self) -> np.random.Generator:
        """The stream of a policy's choices."""
        return np.random.default_rng(self._children[3])
