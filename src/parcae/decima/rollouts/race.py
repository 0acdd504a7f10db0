"""The race: samples of every option, until the best is known or the budget is spent.

Where jobs are to come, two samples of an option differ far more than two options do. So the race
itself is about the jobs in the system, and its winner is then compared with the base's decision
among jobs to come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain, repeat

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S

#: Samples of each option that is still in the race, by round. After these, the last repeats.
ROUNDS = (4, 8, 16)
#: An option leaves the race if it is worse than the best by more than this many standard errors.
_KEEP = 1.5
#: It also leaves if it is worse than the base's decision by more than this many standard errors.
_HOPE = 1.0
#: An option wins the race if it is better than the base's decision by more than this many standard
#: errors.
_ACCEPT = 1.0
#: Among jobs to come, the winner must be better by more than this many standard errors.
_CONFIRM = 0.5
#: Share of a time that the race may use where the winner is to be confirmed.
_RACE_SHARE = 0.7
#: A race that takes this many times its budget ends with the base's decision.
_DEADLINE = 2.0
#: Fewest samples that are worth another round.
_FEWEST = 2

Costs = npt.NDArray[np.float64]
#: Plays samples of options: (rows of the options, number of samples) -> costs[options, samples];
#: None: the deadline passed. Sample i of every option has the same random bits.
PlaySamples = Callable[[list[int], int], Costs | None]


class Clock:
    """The wall-clock time that a decision has used of its budget in ms, if it has one."""

    def __init__(self, ms: float | None = None) -> None:
        self.ms = ms
        self._began_s = time.perf_counter()
        #: Rollouts that were played in the time used so far.
        self.played = 0

    @property
    def used_ms(self) -> float:
        """Time since the decision was asked for."""
        return (time.perf_counter() - self._began_s) * MS_PER_S

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.ms is not None and self.used_ms > _DEADLINE * self.ms

    def affordable(self, wanted: int, num_options: int, share: float = 1.0) -> int:
        """How many samples of so many options the rest of the budget pays for."""
        if self.ms is None or self.played == 0:
            return wanted
        used_ms = self.used_ms
        each_ms = used_ms / self.played
        return min(wanted, int((share * self.ms - used_ms) / (each_ms * num_options)))


def choose(
    play: PlaySamples,
    num_options: int,
    clock: Clock,
    play_with_arrivals: PlaySamples | None = None,
) -> int:
    """Return the row of the option to take; row 0 is the base's decision."""
    if play_with_arrivals is None:
        return race(play, num_options, clock)
    row = race(play, num_options, clock, _RACE_SHARE)
    return row if row != 0 and _is_confirmed(play_with_arrivals, row, clock) else 0


def _is_confirmed(play: PlaySamples, row: int, clock: Clock) -> bool:
    """Whether an option is better than the base's decision in these samples, too."""
    count = clock.affordable(sum(ROUNDS), num_options=2)
    if count < _FEWEST:
        return False
    costs = play([0, row], count)
    if costs is None:
        return False
    means, errors = mean_differences(costs)
    return bool(means[1] < -_CONFIRM * errors[1])


def race(play: PlaySamples, num_options: int, clock: Clock, share: float = 1.0) -> int:
    """Return the row of the option that wins the race; row 0 is the base's decision.

    Source: Bertsekas and Castanon 1999; racing after Maron and Moore, "Hoeffding races" (1994).
    """
    alive = list(range(num_options))
    costs = np.zeros((num_options, 0))
    # Without a time there is an end to the rounds.
    for wanted in ROUNDS if clock.ms is None else chain(ROUNDS, repeat(ROUNDS[-1])):
        count = clock.affordable(wanted, len(alive), share)
        if count < _FEWEST:
            break
        sample = play(alive, count)
        if sample is None:
            return 0
        clock.played += len(alive) * count
        costs = np.concatenate([costs, sample], axis=1)
        means, errors = mean_differences(costs)
        best = int(np.argmin(means))
        limit = np.minimum(means[best] + _KEEP * np.hypot(errors, errors[best]), _HOPE * errors)
        # The base's decision always stays in the race.
        kept = [row for row in range(len(means)) if row == 0 or means[row] <= limit[row]]
        alive = [alive[row] for row in kept]
        costs = costs[kept]
        if len(alive) == 1:
            return 0
    if costs.shape[1] < _FEWEST:
        return 0
    means, errors = mean_differences(costs)
    best = int(np.argmin(means))
    return alive[best] if means[best] < -_ACCEPT * errors[best] else 0


def mean_differences(costs: Costs) -> tuple[Costs, Costs]:
    """Mean difference of every option's cost from the base's, and its standard error."""
    differences = costs - costs[0]
    errors = differences.std(axis=1, ddof=1) / np.sqrt(costs.shape[1])
    return differences.mean(axis=1), errors
