"""REINFORCE with an entropy bonus: one update on the decisions of one iteration.

Source: Decima, section 5.3, Equation 3 and Algorithm 1; the released code for the scale of the
entropy and the running mean of costs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from parcae.errors import DivergedError
from parcae.learning.family import DataSet
from parcae.learning.ppo import UpdateReport
from parcae.policies.networks.ragged import Surrogate

FloatArray = npt.NDArray[np.float64]

#: The running mean covers about this many decisions, as in the released code.
_MEMORY = 100_000


class Rate:
    """Running mean of the cost per second over the last decisions.

    Example: after accrued costs of 0, 20 and 50 at 0, 1 and 2 seconds the mean is 25 per second.
    """

    def __init__(self) -> None:
        # Of each rollout: number of decisions, cost, seconds.
        self._pieces: list[tuple[int, float, float]] = []

    def add(self, clock_s: FloatArray, cost: FloatArray, end_s: float, end_cost: float) -> None:
        """Add a rollout's cost and time, from its first decision to its end.

        Args:
            clock_s: float64[num_decisions], time of each decision.
            cost: float64[num_decisions], cost accrued up to each decision.
            end_s: time at which the rollout ended.
            end_cost: cost accrued up to its end.
        """
        if len(clock_s):
            self._pieces.append(
                (len(clock_s), float(end_cost - cost[0]), float(end_s - clock_s[0]))
            )
        # Drop the oldest rollouts as long as the others alone fill the memory.
        while sum(count for count, _, _ in self._pieces[1:]) > _MEMORY:
            self._pieces.pop(0)

    @property
    def mean(self) -> float:
        """Mean cost per second; 0 before the first rollout."""
        seconds = sum(s for _, _, s in self._pieces)
        return sum(cost for _, cost, _ in self._pieces) / seconds if seconds > 0 else 0.0

    def to_json(self) -> list[list[float]]:
        """The state of the mean, for `from_json`."""
        return [list(piece) for piece in self._pieces]

    @classmethod
    def from_json(cls, pieces: list[list[float]]) -> Rate:
        """Restore the mean from what `to_json` returned."""
        rate = cls()
        rate._pieces = [(int(count), cost, seconds) for count, cost, seconds in pieces]
        return rate


def reinforce(
    network: Any,
    optimizer: torch.optim.Optimizer,
    data: DataSet,
    advantage: FloatArray,
    entropy_weight: float,
    chunk: int,
    device: torch.device,
) -> UpdateReport:
    """One step of Adam on -sum_k log pi(a_k) A_k - weight x sum_k H_k / log(1000).

    These are sums over decisions, not means, as in the released code. The gradient is accumulated
    over chunks of decisions.

    Args:
        network: the network to train.
        optimizer: the optimizer of its weights.
        data: N recorded decisions.
        advantage: float64[N].
        entropy_weight: weight of the entropy bonus.
        chunk: decisions in a chunk.
        device: where the network is.

    Raises:
        DivergedError: the loss or its gradient is not finite. The weights are then unchanged.
    """
    # Deviation: Decima, Algorithm 1 has no entropy bonus; this is the released code's, with two
    # differences. The entropy of the limits is that of the chosen job's limits, because only these
    # are computed. The released code weighs the entropies of all jobs' limits by the probability of
    # a stage of the job: the value is the same in expectation, but its gradient is not, because it
    # also moves the stages' probabilities to jobs whose limits have a larger entropy.
    optimizer.zero_grad(set_to_none=True)
    losses = 0.0
    entropies = 0.0
    # Deviation: the released code divides by log(stages in the system x limits). Here it is the
    # scale of about 1,000 choices, because the exact number hardly changes a logarithm.
    scale = 1.0 / math.log(1000.0)
    for first in range(0, len(data), chunk):
        index = np.arange(first, min(len(data), first + chunk))
        weights = advantage[index].astype(np.float32)
        surrogate = Surrogate(weights, entropy=entropy_weight * scale)
        judged = network.judge(data.decisions(index, device), surrogate)
        weight = torch.from_numpy(weights).to(device)
        loss = -(judged.log_prob * weight).sum() - entropy_weight * scale * judged.entropy.sum()
        loss.backward()
        losses = losses + float(loss.detach())
        entropies = entropies + float(judged.entropy.detach().sum())
    # The norm is only checked: the released code does not clip gradients.
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), math.inf)
    if not math.isfinite(losses) or not bool(torch.isfinite(norm)):
        raise DivergedError(
            f"the loss ({losses:.3g}) or its gradient ({norm.item():.3g}) is not finite"
        )
    optimizer.step()
    return UpdateReport(losses / len(data), entropies / len(data), 0.0, 0.0, 0.0)
