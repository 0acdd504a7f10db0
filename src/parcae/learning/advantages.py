"""Advantages of recorded decisions: how much less their cost is than their group's mean.

The rollouts of a group share a job sequence and random bits. Their mean cost to go at the same time
is the baseline (Decima, section 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parcae.learning.config import TrainConfig
from parcae.learning.family import Rollout
from parcae.learning.reinforce import Rate
from parcae.learning.returns import aligned_baseline, costs_to_go, differential_costs
from parcae.units import MS_PER_S

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Costs:
    """The costs of one rollout, in ms of job time (or the unit of the objective).

    Args:
        clock_s: float64[num_decisions], time of each decision.
        cost: float64[num_decisions], cost accrued up to each decision.
        end_s: time at which the rollout ended.
        end_cost: cost accrued up to its end.
    """

    clock_s: FloatArray
    cost: FloatArray
    end_s: float
    end_cost: float

    @classmethod
    def of(cls, rollout: Rollout) -> _Costs:
        """The costs of a rollout."""
        record = rollout.record
        count = rollout.count
        return cls(
            record.clock_ms[:count] / MS_PER_S,
            record.cost[:count],
            float(record.end_ms[0]) / MS_PER_S,
            float(record.end_cost[0]),
        )

    @property
    def times(self) -> FloatArray:
        """The times of the decisions, then that of the end."""
        return np.append(self.clock_s, self.end_s)


def reinforce_advantages(
    groups: Sequence[Sequence[Rollout]], config: TrainConfig, rate: Rate
) -> FloatArray:
    """Advantages of Algorithm 1: differential costs, input-dependent baseline.

    Args:
        groups: groups of rollouts.
        config: the settings of the training.
        rate: running mean of the cost per second; the rollouts are added to it.

    Returns:
        float64[num_decisions], in the order of the rollouts.
    """
    advantages: list[FloatArray] = []
    for rollouts in groups:
        group = [_Costs.of(rollout) for rollout in rollouts]
        for one in group:
            rate.add(one.clock_s, one.cost, one.end_s, one.end_cost)
        # The running mean includes this group's rollouts.
        mean_rate = rate.mean if config.is_differential else 0.0
        curves = [_differential_to_go(one, mean_rate) for one in group]
        if config.is_aligned:
            baselines = aligned_baseline([one.times for one in group], curves)
        else:
            # Without alignment the baseline is one number for all decisions of the group.
            mean = float(np.concatenate(curves).mean())
            baselines = [np.full(len(curve), mean) for curve in curves]
        advantages += [
            (baseline - curve)[:-1] / config.cost_scale
            for curve, baseline in zip(curves, baselines, strict=True)
        ]
    return np.concatenate(advantages)


def _differential_to_go(costs: _Costs, mean_rate: float) -> FloatArray:
    """Differential cost to go at the decisions, then 0 at the end."""
    times = costs.times
    cost = differential_costs(times, np.append(costs.cost, costs.end_cost), mean_rate)
    return np.append(costs_to_go(times[:-1], cost[:-1], costs.end_s, cost[-1]), 0.0)


def window_advantages(
    groups: Sequence[Sequence[Rollout]], ends: FloatArray, horizon_s: float | None
) -> tuple[FloatArray, FloatArray]:
    """Advantages of rollouts that a window may have cut off, and their costs to go.

    Args:
        groups: groups of rollouts.
        ends: float64[num_rollouts], expected cost after the end of each rollout, in s of job time.
        horizon_s: time constant of the discount of later cost; None for no discount.

    Returns:
        Advantages and costs to go in s of job time, both float64[num_decisions].
    """
    rate = 0.0 if horizon_s is None else 1.0 / horizon_s
    later = iter(ends)
    advantages: list[FloatArray] = []
    to_go: list[FloatArray] = []
    for rollouts in groups:
        group = [_Costs.of(rollout) for rollout in rollouts]
        curves = [_discounted_to_go(one, float(next(later)), rate) for one in group]
        baselines = aligned_baseline([one.times for one in group], curves)
        for curve, baseline in zip(curves, baselines, strict=True):
            advantages.append((baseline - curve)[:-1])
            to_go.append(curve[:-1])
    return np.concatenate(advantages), np.concatenate(to_go)


def _discounted_to_go(costs: _Costs, after: float, rate: float) -> FloatArray:
    """Discounted cost to go in s at the decisions, then at the end.

    Args:
        costs: the costs of the rollout.
        after: cost after its end, in s.
        rate: discount rate per second.
    """
    end_s = costs.end_s
    within = costs_to_go(
        costs.clock_s, costs.cost / MS_PER_S, end_s, costs.end_cost / MS_PER_S, rate
    )
    return np.append(within + after * np.exp(-rate * (end_s - costs.clock_s)), after)
