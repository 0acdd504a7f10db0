"""Advantages of recorded decisions: how much less their cost is than their group's mean.

The rollouts of a group share a job sequence and random bits. Their mean cost to go at the same time
is the baseline (Decima, section 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from parcae.base.texts import MS_PER_S
from parcae.decima.learning.family import Rollout
from parcae.decima.learning.updates import Rate
from parcae.learning.config import TrainConfig

FloatArray = npt.NDArray[np.float64]


def costs_to_go(
    times: FloatArray, costs: FloatArray, rate: float = 0.0, after: float = 0.0
) -> FloatArray:
    """Cost from each decision to the end of the run, and at the end, discounted by exp(-rate x s).

    The last of the times and of the costs that have accrued are those of the end; `after` is the
    cost that is to come after it.

    Example: costs of 0 and 3 at two decisions and 10 at the end leave 10, 7 and 0 to go.
    """
    if rate == 0.0:
        return np.asarray(costs[-1] - costs + after)
    to_go = np.zeros(len(times))
    for k in range(len(times) - 2, -1, -1):
        step = times[k + 1] - times[k]
        fade = np.exp(-rate * step)
        # Cost accrues evenly between decisions, so its discounted sum is
        # (cost / step) x (1 - fade) / rate.
        spread = (1.0 - fade) / (rate * step) if step > 0 else 1.0
        to_go[k] = (costs[k + 1] - costs[k]) * spread + fade * to_go[k + 1]
    return np.asarray(to_go + after * np.exp(-rate * (times[-1] - times)))


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


def normalized(advantages: FloatArray, clip: float = 5.0) -> FloatArray:
    """The advantages scaled to mean 0 and standard deviation 1, then clipped at +-`clip`."""
    spread = advantages.std()
    return np.asarray(np.clip((advantages - advantages.mean()) / (spread + 1e-8), -clip, clip))


def _accrued(rollout: Rollout, scale: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Times in s and accrued costs / `scale` of a rollout's decisions, and of its end."""
    record = rollout.record
    times_ms = np.append(record.clock_ms[: rollout.count], record.end_ms)
    return times_ms / MS_PER_S, np.append(record.cost[: rollout.count], record.end_cost) / scale


def gains(times: Sequence[FloatArray], to_go: Sequence[FloatArray]) -> list[FloatArray]:
    """The group's mean cost to go at the time of each decision, minus the decision's. Returns for
    each run, float64[num_decisions].
    """
    baselines = aligned_baseline(times, to_go)
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
        for times, costs in group:
            rate.add(times, costs)
        # The running mean includes this group's rollouts.
        mean_rate = rate.mean if config.is_differential else 0.0
        # Source: Decima, Appendix B (differential reward).
        # Deviation: Decima, Appendix B subtracts the mean reward of a step from that of every step,
        # however much time passes in it. Here it is the mean rate x the time, as in the released
        # code, because the objective is the mean over time (section 5.3).
        to_go = [costs_to_go(times, costs - mean_rate * times) for times, costs in group]
        if config.is_aligned:
            advantages += gains([times for times, _ in group], to_go)
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
    rate = 0.0 if horizon_s is None else 1.0 / horizon_s
    later = iter(ends.tolist())
    advantages: list[FloatArray] = []
    curves: list[FloatArray] = []
    for rollouts in groups:
        group = [_accrued(rollout, MS_PER_S) for rollout in rollouts]
        to_go = [costs_to_go(times, costs, rate, next(later)) for times, costs in group]
        advantages += gains([times for times, _ in group], to_go)
        curves += [curve[:-1] for curve in to_go]
    return np.concatenate(advantages), np.concatenate(curves)
