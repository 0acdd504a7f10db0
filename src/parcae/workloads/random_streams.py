"""Named streams of random numbers from one seed; draws from one stream never shift another."""

from __future__ import annotations

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
        arrivals, jobs, durations, actions = np.random.SeedSequence(seed).spawn(len(STREAMS))
        self.arrivals = np.random.default_rng(arrivals)
        self.jobs = np.random.default_rng(jobs)
        self.durations = np.random.default_rng(durations)
        self.actions = np.random.default_rng(actions)
