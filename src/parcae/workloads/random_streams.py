"""Named streams of random numbers, spawned from one seed, so that one draw never shifts another."""

from __future__ import annotations

import numpy as np

#: Comparisons use seeds below the first of these; tuning, training and the choice of checkpoints have ranges of their own, so
#: that none ever meets another.
TUNING_SEED_START = 1 << 40
TRAINING_SEED_START = 1 << 41
SELECTION_SEED_START = 1 << 42

STREAMS = ("arrivals", "jobs", "durations", "actions")


class RandomStreams:
    """One generator for each name in STREAMS, all from one seed.

    Example: `RandomStreams(7).arrivals.exponential()` is the same whatever was drawn from the other streams.
    """

    def __init__(self, seed: int) -> None:
        arrivals, jobs, durations, actions = np.random.SeedSequence(seed).spawn(len(STREAMS))
        self.arrivals = np.random.default_rng(arrivals)
        self.jobs = np.random.default_rng(jobs)
        self.durations = np.random.default_rng(durations)
        self.actions = np.random.default_rng(actions)
