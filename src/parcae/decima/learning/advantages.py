"""Advantages of recorded decisions: how much less their cost is than their group's mean.

The rollouts of a group share a job sequence and random bits. Their mean cost to go at the same time
is the baseline (Decima, section 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.decima.learning.family import Rollout
from parcae.decima.learning.updates import Rate
from parcae.learning.config import TrainConfig


def costs_to_go(
    clock_s: FloatArray, cost: FloatArray, end_s: float, end_cost: float, rate: float = 0.0
) -> FloatArray:
    """Cost from each decision to the end of the run; later cost is discounted by exp(-rate x s).
    Returns float64[num_decisions].

    Example: accrued costs of 0 and 3 at two decisions and 10 at the end leave 10 and 7 to go.
    """
    times = np.append(clock_s, end_s)
    costs = np.append(cost, end_cost)
    if rate == 0.0:
        return np.asarray(end_cost - cost)
    to_go = np.zeros(len(times))
    for k in range(len(times) - 2, -1, -1):
        step = times[k + 1] - times[k]
        fade = np.exp(-rate * step)
        # Cost accrues evenly between decisions, so its discounted sum is
        # (cost / step) x (1 - fade) / rate.
        spread = (1.0 - fade) / (rate * step) if step > 0 else 1.0
        to_go[k] = (costs[k + 1] - costs[k]) * spread + fade * to_go[k + 1]
    return to_go[:-1]


def aligned_baseline(times: Sequence[FloatArray], to_go: Sequence[FloatArray]) -> list[FloatArray]:
    """Mean cost to go of all rollouts of one job sequence, at the times of each one's decisions.
    Returns for each rollout, the baseline at each of its times.

    Between decisions the cost to go is interpolated linearly. Before a rollout's first decision it
    is that of the first decision, after its end that of the end.

    Source: Decima, section 5.3, Algorithm 1 (input-dependent baseline).
    Example: two rollouts decide at 0 s with 10 and 14 to go: both have baseline 12.
    """
    return [
        np.mean([np.interp(own, t, g) for t, g in zip(times, to_go, strict=True)], axis=0)
        for own in times
    ]


def differential_costs(clock_s: FloatArray, cost: FloatArray, mean_rate: float) -> FloatArray:
    """Accrued cost minus what would have accrued at the mean rate: the average-cost formulation.

    Source: Decima, Appendix B (differential reward).
    """
    # Deviation: Decima, Appendix B subtracts the mean reward of a step from that of every step,
    # however much time passes in it. Here it is the mean rate x the time, as in the released code,
    # because the objective is the mean over time (section 5.3).
    return np.asarray(cost - mean_rate * clock_s)


def normalized(advantages: FloatArray, clip: float = 5.0) -> FloatArray:
    """The advantages scaled to mean 0 and standard deviation 1, then clipped at +-`clip`."""
    spread = advantages.std()
    return np.asarray(np.clip((advantages - advantages.mean()) / (spread + 1e-8), -clip, clip))


FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AccruedCosts:
    """The cost of one run as it accrues. Units of time and cost are the caller's.

    Args:
        clock: float64[num_decisions], time of each decision.
        cost: float64[num_decisions], cost accrued up to each decision.
        end: time at which the run ended.
        end_cost: cost accrued up to its end.
    """

    clock: FloatArray
    cost: FloatArray
    end: float
    end_cost: float

    @property
    def times(self) -> FloatArray:
        """The times of the decisions, then that of the end."""
        return np.append(self.clock, self.end)

    def to_go(self, after: float, horizon: float | None) -> FloatArray:
        """Discounted cost to go at the decisions, then at the end.

        `after` is the cost after the end of the run; `horizon` is the time constant of the
        discount, None for no discount.
        """
        rate = 0.0 if horizon is None else 1.0 / horizon
        within = costs_to_go(self.clock, self.cost, self.end, self.end_cost, rate)
        return np.append(within + after * np.exp(-rate * (self.end - self.clock)), after)

    def differential_to_go(self, mean_rate: float) -> FloatArray:
        """Cost to go beyond a mean cost per time, at the decisions, then 0 at the end."""
        cost = differential_costs(self.times, np.append(self.cost, self.end_cost), mean_rate)
        return np.append(costs_to_go(self.clock, cost[:-1], self.end, cost[-1]), 0.0)


def _accrued(rollout: Rollout, scale: float = 1.0) -> AccruedCosts:
    """A rollout's times in s, and its costs divided by `scale`."""
    record = rollout.record
    count = rollout.count
    return AccruedCosts(
        record.clock_ms[:count] / MS_PER_S,
        record.cost[:count] / scale,
        float(record.end_ms[0]) / MS_PER_S,
        float(record.end_cost[0]) / scale,
    )


def gains(group: Sequence[AccruedCosts], to_go: Sequence[FloatArray]) -> list[FloatArray]:
    """The group's mean cost to go at the time of each decision, minus the decision's. Returns for
    each run, float64[num_decisions].
    """
    baselines = aligned_baseline([one.times for one in group], to_go)
    return [(baseline - curve)[:-1] for curve, baseline in zip(to_go, baselines, strict=True)]


def reinforce_advantages(
    groups: Sequence[Sequence[Rollout]], config: TrainConfig, rate: Rate
) -> FloatArray:
    """Advantages of Algorithm 1: differential costs, input-dependent baseline. Returns
    float64[num_decisions], in the order of the rollouts.
    """
    advantages: list[FloatArray] = []
    for rollouts in groups:
        group = [_accrued(rollout) for rollout in rollouts]
        for one in group:
            rate.add(one.clock, one.cost, one.end, one.end_cost)
        # The running mean includes this group's rollouts.
        mean_rate = rate.mean if config.is_differential else 0.0
        to_go = [one.differential_to_go(mean_rate) for one in group]
        if config.is_aligned:
            advantages += gains(group, to_go)
        else:
            # Without alignment the baseline is one number for all decisions of the group.
            mean = float(np.concatenate(to_go).mean())
            advantages += [mean - curve[:-1] for curve in to_go]
    return np.concatenate(advantages) / config.cost_scale


def window_advantages(
    groups: Sequence[Sequence[Rollout]], ends: FloatArray, horizon_s: float | None
) -> tuple[FloatArray, FloatArray]:
    """Advantages of rollouts that a window may have cut off, and their costs to go. Returns
    advantages and costs to go in s of job time, both float64[num_decisions].
    """
    later = iter(ends)
    advantages: list[FloatArray] = []
    curves: list[FloatArray] = []
    for rollouts in groups:
        group = [_accrued(rollout, MS_PER_S) for rollout in rollouts]
        to_go = [one.to_go(float(next(later)), horizon_s) for one in group]
        advantages += gains(group, to_go)
        curves += [curve[:-1] for curve in to_go]
    return np.concatenate(advantages), np.concatenate(curves)
