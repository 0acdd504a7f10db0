"""REINFORCE with an entropy bonus: one update on the decisions of one iteration.

Source: Decima, section 5.3, Equation 3 and Algorithm 1; the released code for the entropy's scale and the running mean of costs.
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

FloatArray = npt.NDArray[np.float64]

#: The running mean is over about this many decisions, as in the released code.
_MEMORY = 100_000


class Rate:
    """Running mean of the cost a second over the last decisions.

    Example: after costs of 0, 20 and 50 at 0, 1 and 2 seconds the mean is 25 a second.
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[int, float, float]] = []

    def add(self, clock_s: FloatArray, cost: FloatArray, end_s: float, end_cost: float) -> None:
        """Count a rollout's cost and time, from its first decision to its end."""
        if len(clock_s):
            self._pieces.append(
                (len(clock_s), float(end_cost - cost[0]), float(end_s - clock_s[0]))
            )
        while sum(count for count, _, _ in self._pieces[1:]) > _MEMORY:
            self._pieces.pop(0)

    @property
    def mean(self) -> float:
        """Cost a second; 0 before anything was counted."""
        seconds = sum(s for _, _, s in self._pieces)
        return sum(cost for _, cost, _ in self._pieces) / seconds if seconds > 0 else 0.0

    def to_json(self) -> list[list[float]]:
        """What `from_json` takes."""
        return [list(piece) for piece in self._pieces]

    @classmethod
    def from_json(cls, pieces: list[list[float]]) -> Rate:
        """The mean as it was saved."""
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
    """One step of Adam on - sum_k log pi(a_k) A_k - weight x sum_k H_k / log(number of choices).

    Sums over decisions, not means, as in the released code; the gradient is added up over chunks of decisions.

    # Deviation: the entropy of the limits is that of the chosen job's, where the released code weighs all jobs' by their
    probability: the same in expectation.

    Raises:
        DivergedError: a loss or a gradient that is not finite; the weights are then as they were.
    """
    optimizer.zero_grad(set_to_none=True)
    losses = 0.0
    entropies = 0.0
    scale = 1.0 / math.log(1000.0)
    for first in range(0, len(data), chunk):
        index = np.arange(first, min(len(data), first + chunk))
        judged = network(data.decisions(index, device))
        weight = torch.from_numpy(advantage[index].astype(np.float32)).to(device)
        loss = -(judged.log_prob * weight).sum() - entropy_weight * scale * judged.entropy.sum()
        loss.backward()
        losses = losses + float(loss.detach())
        entropies = entropies + float(judged.entropy.detach().sum())
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), math.inf)
    if not math.isfinite(losses) or not bool(torch.isfinite(norm)):
        raise DivergedError(
            f"the loss ({losses:.3g}) or its gradient ({norm.item():.3g}) is not finite"
        )
    optimizer.step()
    return UpdateReport(losses / len(data), entropies / len(data), 0.0, 0.0, 0.0)
