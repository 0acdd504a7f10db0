"""Simulators that play rollouts, on the threads of one process.

A training asks for *shares*: some rollouts of one group in one collection. What comes of a share
depends on nothing but the share and the network, so that shares can be played anywhere: by threads
here, or by the workers of a cluster (`parcae.decima.learning.ray_workers`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError
from parcae.base.texts import MS_PER_S
from parcae.decima.learning.exploring import explore_many
from parcae.decima.learning.recipes import Family
from parcae.decima.learning.updates import Rollout
from parcae.decima.queries import Recordings, Teacher
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.simulation.future import NEVER_MS, Status
from parcae.simulation.kernels.playing import Costing, CostKind
from parcae.simulation.objectives import (
    DEADLINE_SLOWDOWN,
    Objective,
    ObjectiveFunction,
    objective_name,
)
from parcae.simulation.simulator import SimulatorRows, check_fits, check_status, room_for
from parcae.workloads.workload import TRAINING_SEED_START

#: One simulator's tables in the middle of a run: those of its state, then those of its future.
Snapshot = tuple[Any, ...]


def accruing(objective: Objective | ObjectiveFunction) -> Objective:
    """An objective whose cost accrues over time, as training by policy gradients needs it."""
    if isinstance(objective, Objective):
        return objective
    raise ConfigError(
        f"objective {objective_name(objective)} is a function, whose cost is known at the end of "
        "a run only. Training by policy gradients needs a cost that accrues: choose one of "
        f"{', '.join(Objective)}, or tune a rule or train in the cores world"
    )


def costing_for(scenario: Scenario, tail_ms: float) -> Costing:
    """The scenario's objective as a cost that accrues over time.

    `tail_ms` is the completion time from which the objective p95-jct counts a job.
    """
    objective = accruing(scenario.objective)
    executors = scenario.config.total_executors
    # A lower bound on the time that a job alone needs on the whole cluster.
    ideal = np.array([job.ideal_ms(executors, False) for job in scenario.workload.jobs])
    threshold = tail_ms if objective is Objective.P95_JCT else DEADLINE_SLOWDOWN
    kind = CostKind[objective.entry.cost]
    return Costing(np.array([kind], np.int64), np.array([threshold]), ideal)


@dataclass(frozen=True)
class Setup:
    """What all rollouts of a training have in common."""

    scenario: Scenario
    family: Family
    config: TrainConfig
    tail_ms: float = 0.0


@dataclass(frozen=True)
class RolloutShare:
    """Some rollouts of one group in one collection."""

    group: int
    seed: int
    draw_seeds: npt.NDArray[np.uint64]
    length_ms: int | None
    gap: float
    start: Snapshot | None

    def __len__(self) -> int:
        """The number of rollouts."""
        return len(self.draw_seeds)


@dataclass(frozen=True)
class PlayedRollouts:
    """What came of a share."""

    rollouts: list[Rollout]
    end: Snapshot | None


class Player(Protocol):
    """Plays shares."""

    shares_per_group: int

    def play(
        self, shares: Sequence[RolloutShare], network: Any, teacher: Teacher | None
    ) -> list[PlayedRollouts]:
        """Play shares, in any order, and return what came of them, in theirs.

        Args:
            shares: the shares.
            network: the network as the family's kernels take it.
            teacher: a rule whose choices are recorded instead of the network's, and the share of
                decisions that the rule takes.
        """


class Simulators:
    """Plays shares on the threads of this process; see `Player`.

    Without a `count` there is a simulator for each rollout of a collection.
    """

    #: Few groups keep more threads busy if each is played in two parts.
    shares_per_group = 2

    def __init__(self, setup: Setup, count: int | None = None) -> None:
        count = count or setup.config.num_groups * setup.config.group_size
        self._setup = setup
        scenario = setup.scenario
        workload = scenario.workload
        self._costing = costing_for(scenario, setup.tail_ms)
        self.many = SimulatorRows(
            count, workload, scenario.config, **room_for(workload, scenario.num_jobs)
        )
        self._works, self._records = setup.family.allocate(count, setup.config.capacity)
        self._draw_seeds = np.zeros(count, np.uint64)

    def play(
        self, shares: Sequence[RolloutShare], network: Any, teacher: Teacher | None
    ) -> list[PlayedRollouts]:
        """See `Player.play`. Rollouts are views, valid until the next call."""
        firsts = np.cumsum([0, *map(len, shares)]).tolist()
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            calls = [
                pool.submit(self._play, share, first, network, teacher)
                for share, first in zip(shares, firsts, strict=False)
            ]
            return [call.result() for call in calls]

    def _play(
        self, share: RolloutShare, first: int, network: Any, teacher: Teacher | None
    ) -> PlayedRollouts:
        """Play a share in the simulators from `first` on."""
        rows = range(first, first + len(share))
        run_end_ms = self._prepare(share, rows)
        # Where there is no window, nothing estimates the cost after a record is full; of
        # demonstrations, nothing is learned from the cost.
        is_whole = self._setup.config.window_s is None and teacher is None
        recordings = Recordings(
            self._works, self._records, self._costing, self._draw_seeds, is_whole
        )
        is_new = share.start is None
        explore_many(
            self.many.simulations, network, recordings, teacher, is_new, rows.start, rows.stop
        )
        return self._played(rows, run_end_ms)

    def _prepare(self, share: RolloutShare, rows: range) -> int:
        """Give the simulators the share's sequence or start, and set the end of its window.

        Returns when the scenario ends their runs, in ms; NEVER_MS: when all jobs are complete.
        """
        states, futures = self.many.states, self.many.futures
        these = slice(rows.start, rows.stop)
        ends_ms = futures.events.end_ms
        now_ms = 0
        if share.start is None:
            scenario = self._setup.scenario
            sequence = scenario.sequence(share.seed)
            check_fits(sequence, scenario.config)
            # Longer gaps mean a lower load.
            stretched = replace(sequence, arrival_ms=np.rint(sequence.arrival_ms * share.gap))
            ends_ms[these] = NEVER_MS  # unless the scenario has an end
            for row in rows:
                self.many.put(row, stretched, share.seed)
        else:
            for table, start in zip((*states, *futures), share.start, strict=True):
                table[these] = start
            now_ms = int(states.now.clock_ms[rows.start, 0])
        run_end_ms = int(ends_ms[rows.start, 0])
        if share.length_ms is not None:
            # A run stops at this time, as if it ended there.
            ends_ms[these] = min(run_end_ms, now_ms + share.length_ms)
        self._draw_seeds[these] = share.draw_seeds
        return run_end_ms

    def _played(self, rows: range, run_end_ms: int) -> PlayedRollouts:
        """What came of a share in these simulators, whose runs end at `run_end_ms`."""
        simulators = self.many
        # A share that goes on from elsewhere has no sequence of its own; only errors name one.
        any_sequence = self._setup.scenario.sequence(0)
        rollouts = []
        for row in rows:
            status = check_status(int(simulators.status[row]), simulators.state(row), any_sequence)
            is_over = simulators.states.now.clock_ms[row, 0] >= run_end_ms
            record = type(self._records)(*(table[row] for table in self._records))
            rollouts.append(Rollout(record, bool(status is Status.COMPLETE or is_over)))
        # The window is over; a run that goes on from here ends where the scenario says.
        simulators.futures.events.end_ms[rows.start : rows.stop] = run_end_ms
        unfinished = [row for row, one in zip(rows, rollouts, strict=True) if not one.is_complete]
        if not unfinished:
            return PlayedRollouts(rollouts, None)
        tables = (*simulators.states, *simulators.futures)
        return PlayedRollouts(rollouts, tuple(table[unfinished[0]].copy() for table in tables))


#: Every training has 2^28 seeds for its sequences.
_SEQUENCE_BITS = 28
_TAG = 0x726F6C6C


class RolloutWorker:
    """Collects rollouts of a scenario: groups of simulators that share their random bits.

    What it collects depends on the seed, the number of the collection and the network only, not on
    who plays it.
    """

    def __init__(self, setup: Setup, *, seed: int, player: Player | None = None) -> None:
        config = setup.config
        self._config = config
        self._window_ms = None if config.window_s is None else round(config.window_s * MS_PER_S)
        self._seed = seed
        self._player = player or Simulators(setup)
        #: The collections so far; a training goes on where it is set, with new sequences.
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """Let every group begin a new sequence in the next collection."""
        self._starts: list[Snapshot | None] = [None] * self._config.num_groups

    def collect(
        self,
        network: Any,
        episode_s: float | None = None,
        teacher: Teacher | None = None,
        gap: float = 1.0,
    ) -> list[list[Rollout]]:
        """Simulate one window (or whole runs) of all groups. Returns a list of groups, each a list
        of its rollouts. They are views, valid until the next collection.
        """
        groups: list[list[Rollout]] = [[] for _ in range(self._config.num_groups)]
        shares = [
            share for group in range(len(groups)) for share in self._shares(group, episode_s, gap)
        ]
        played = self._player.play(shares, network, teacher)
        self.number += 1
        self.restart()
        for share, one in zip(shares, played, strict=True):
            groups[share.group] += one.rollouts
            # The rollouts of a group are alike: the first unfinished one is a random one.
            if self._window_ms is not None and self._starts[share.group] is None:
                self._starts[share.group] = one.end
        return groups

    def _shares(self, group: int, episode_s: float | None, gap: float) -> Iterator[RolloutShare]:
        """The parts of a group in the present collection."""
        entropy = [_TAG, self._seed, self.number, group]
        rng = np.random.default_rng(np.random.SeedSequence(entropy))
        start = self._starts[group]
        length_ms = self._window_ms
        if length_ms is not None and start is None:
            # The first window of a sequence has a random length, so that groups are not in step.
            length_ms = int(rng.integers(1, length_ms + 1))
        if episode_s is not None:
            length_ms = max(1, round(episode_s * MS_PER_S))
        number = self.number * self._config.num_groups + group
        seed = TRAINING_SEED_START + ((self._seed & 0xFFF) << _SEQUENCE_BITS) + number
        draw_seeds = rng.integers(0, 1 << 63, self._config.group_size, dtype=np.uint64)
        count = min(self._player.shares_per_group, self._config.group_size)
        for part in np.array_split(draw_seeds, count):
            yield RolloutShare(group, seed, part, length_ms, gap, start)
