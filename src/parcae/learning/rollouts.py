"""Collects rollouts in groups of simulators.

The simulators of a group start from one state and share the random bits of task durations. They
differ only in the draws of their decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from parcae.errors import PolicyError, saved_by_older_version
from parcae.learning.family import Rollout
from parcae.learning.simulators import Player, Setup, Share, Snapshot, Threads
from parcae.policies.networks.kernels import Teacher
from parcae.units import MS_PER_S
from parcae.workloads.random_streams import TRAINING_SEED_START

#: Every training has 2^28 seeds for its sequences.
_SEQUENCE_BITS = 28
_TAG = 0x726F6C6C


class RolloutWorker:
    """Collects rollouts of a scenario: groups of simulators that share their random bits.

    What it collects depends on the seed, the number of the collection and the network only, not on
    who plays it.

    Args:
        setup: what to simulate, number and size of the groups, length of a window and capacity of a
            record. After a window, each group continues from the state of its first unfinished
            rollout, so that long streams are simulated window by window.
        seed: seed of the job sequences and of all draws.
        player: who plays the rollouts; by default the threads of this process.
    """

    def __init__(self, setup: Setup, *, seed: int, player: Player | None = None) -> None:
        config = setup.config
        self._num_groups = config.num_groups
        self._group_size = config.group_size
        self._window_ms = None if config.window_s is None else round(config.window_s * MS_PER_S)
        self._seed = seed
        self._player = player or Threads(setup)
        self._number = 0
        self._starts: list[Snapshot | None] = [None] * self._num_groups

    def restart(self) -> None:
        """Let every group begin a new sequence in the next collection."""
        self._starts = [None] * self._num_groups

    def state(self) -> dict[str, int]:
        """The number of collections, for `restore`."""
        return {"collections": self._number}

    def restore(self, state: dict[str, int]) -> None:
        """Continue from what `state` returned; all groups begin new sequences.

        Raises:
            FormatError: an older version wrote it.
        """
        if "collections" not in state:
            raise saved_by_older_version()
        self._number = state["collections"]
        self.restart()

    def collect(
        self,
        network: Any,
        episode_s: float | None = None,
        teacher: Teacher | None = None,
        gap: float = 1.0,
    ) -> list[list[Rollout]]:
        """Simulate one window (or whole runs) of all groups.

        Args:
            network: the network as the family's kernels take it.
            episode_s: end every run after this many simulated seconds, whatever the window.
            teacher: a rule whose choices are recorded instead of the network's, and the share of
                decisions that the rule takes.
            gap: factor by which the gaps between arrivals of new sequences are stretched.

        Returns:
            A list of groups, each a list of its rollouts. They are views, valid until the next
            collection.
        """
        shares = [
            share
            for group in range(self._num_groups)
            for share in self._shares(group, episode_s, gap)
        ]
        played = self._player.play(shares, network, teacher)
        self._number += 1
        self.restart()
        groups: list[list[Rollout]] = [[] for _ in range(self._num_groups)]
        for share, one in zip(shares, played, strict=True):
            groups[share.group] += one.rollouts
            # The rollouts of a group are alike: the first unfinished one is a random one.
            if self._window_ms is not None and self._starts[share.group] is None:
                self._starts[share.group] = one.end
        return groups

    def _shares(self, group: int, episode_s: float | None, gap: float) -> Iterator[Share]:
        """The parts of a group in the present collection."""
        entropy = [_TAG, self._seed, self._number, group]
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        start = self._starts[group]
        length_ms = self._window_ms
        if length_ms is not None and start is None:
            # The first window of a sequence has a random length, so that groups are not in step.
            length_ms = int(rng.integers(1, length_ms + 1))
        if episode_s is not None:
            length_ms = max(1, round(episode_s * MS_PER_S))
        number = self._number * self._num_groups + group
        seed = TRAINING_SEED_START + ((self._seed & 0xFFF) << _SEQUENCE_BITS) + number
        draw_seeds = rng.integers(0, 1 << 63, self._group_size, dtype=np.uint64)
        count = min(self._player.shares_per_group, self._group_size)
        for part in np.array_split(draw_seeds, count):
            yield Share(group, seed, part, length_ms, gap, start)


def require_decisions(groups: list[list[Rollout]]) -> int:
    """The number of recorded decisions of all groups.

    Raises:
        PolicyError: there were no decisions.
    """
    total = sum(rollout.count for group in groups for rollout in group)
    if total == 0:
        raise PolicyError(
            "the runs contain no decision to learn from: use more executors, or arrivals at which "
            "jobs compete"
        )
    return total
