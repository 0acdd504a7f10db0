"""Costs to go, baselines and advantages: pure functions of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def costs_to_go(
    clock_s: FloatArray, cost: FloatArray, end_s: float, end_cost: float, rate: float = 0.0
) -> FloatArray:
    """Cost from each decision to the end, later cost discounted by exp(-rate x seconds).

    Args:
        clock_s, cost: float64[num_decisions], time of each decision and cost accrued up to it.
        end_s, end_cost: time and cost at which the run ended, final cost included.

    Example: costs accrued of 0 and 3 at two decisions and 10 at the end leave 10 and 7 to go.
    """
    times = np.append(clock_s, end_s)
    costs = np.append(cost, end_cost)
    if rate == 0.0:
        return np.asarray(end_cost - cost)
    to_go = np.zeros(len(times))
    for k in range(len(times) - 2, -1, -1):
        step = times[k + 1] - times[k]
        fade = np.exp(-rate * step)
        # Cost accrues evenly between decisions: its discounted sum is (cost / step) x (1 - fade) / rate.
        spread = (1.0 - fade) / (rate * step) if step > 0 else 1.0
        to_go[k] = (costs[k + 1] - costs[k]) * spread + fade * to_go[k + 1]
    return to_go[:-1]


def aligned_baseline(
    times: Sequence[FloatArray], to_go: Sequence[FloatArray], own: bool = True
) -> list[FloatArray]:
    """Mean cost to go of all rollouts of one arrival sequence, at the times of each rollout's decisions.

    Rollouts that are over have nothing to go; between decisions the cost to go is linear, before the first it is the first.

    Args:
        times, to_go: of each rollout, ascending times; both end with the rollout's end, where what is to go is final.
        own: whether a rollout's own curve is part of its baseline.

    Source: Decima, section 5.3, Algorithm 1 (input-dependent baseline).
    Example: two rollouts decide at 0 s with 10 and 14 to go: both have baseline 12.
    """
    baselines = []
    for row, own_times in enumerate(times):
        curves = [
            np.interp(own_times, t, g)
            for other, (t, g) in enumerate(zip(times, to_go, strict=True))
            if own or other != row
        ]
        baselines.append(np.mean(curves, axis=0))
    return baselines


def differential_costs(clock_s: FloatArray, cost: FloatArray, mean_rate: float) -> FloatArray:
    """Cost accrued beyond what `mean_rate` (cost a second) would have: the average-cost formulation.

    Source: Decima, Appendix B (differential reward).
    """
    return np.asarray(cost - mean_rate * clock_s)


def normalized(advantages: FloatArray, clip: float = 5.0) -> FloatArray:
    """Mean 0, standard deviation 1, clipped at +-`clip`."""
    spread = advantages.std()
    return np.asarray(np.clip((advantages - advantages.mean()) / (spread + 1e-8), -clip, clip))
