"""Costs to go, baselines and advantages, as pure functions of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def costs_to_go(
    clock_s: FloatArray, cost: FloatArray, end_s: float, end_cost: float, rate: float = 0.0
) -> FloatArray:
    """Cost from each decision to the end of the run; later cost is discounted by exp(-rate x s).

    Args:
        clock_s: float64[num_decisions], time of each decision in seconds, ascending.
        cost: float64[num_decisions], cost accrued up to each decision.
        end_s: time at which the run ended.
        end_cost: cost accrued up to the end of the run.
        rate: discount rate per second; 0 for no discount.

    Returns:
        float64[num_decisions].

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

    Between decisions the cost to go is interpolated linearly. Before a rollout's first decision it
    is that of the first decision, after its end that of the end.

    Args:
        times: of each rollout, the ascending times of its decisions, then that of its end.
        to_go: of each rollout, the cost to go at these times.

    Returns:
        For each rollout, the baseline at each of its times.

    Source: Decima, section 5.3, Algorithm 1 (input-dependent baseline).
    Example: two rollouts decide at 0 s with 10 and 14 to go: both have baseline 12.
    """
    return [
        np.mean([np.interp(own, t, g) for t, g in zip(times, to_go, strict=True)], axis=0)
        for own in times
    ]


def differential_costs(clock_s: FloatArray, cost: FloatArray, mean_rate: float) -> FloatArray:
    """Accrued cost minus what would have accrued at the mean rate: the average-cost formulation.

    Args:
        clock_s: float64[num_decisions], time of each decision in seconds.
        cost: float64[num_decisions], cost accrued up to each decision.
        mean_rate: mean cost per second.

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
