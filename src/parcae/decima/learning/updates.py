"""Proximal policy optimisation (PPO) and imitation: losses, and updates on a data set.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, equation 7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parcae.base.errors import DivergedError
from parcae.decima.learning.family import DataSet
from parcae.policies.networks.training import Surrogate

#: Adam's moments of one parameter.
_MOMENTS = ("exp_avg", "exp_avg_sq")


#: Log probabilities are clamped at this value when imitating, so that choices to which the network
#: gives almost no probability do not dominate the loss.
_LEAST_LOG_PROB = -20.0
#: Least standard deviation of costs to go that is a scale.
_LEAST_SPREAD = 1e-6


@dataclass
class CriticScale:
    """The mean and the standard deviation of costs to go, in whose units the critic learns.

    They are those of the first costs that differ (before these, perhaps no deadline was missed),
    and then stay the same.
    """

    mean: float = 0.0
    spread: float = 1.0

    @property
    def is_known(self) -> bool:
        """Whether there were costs that differ."""
        return self.spread != 1.0

    def targets(self, to_go: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """What the critic should say of these costs to go, float64[num_decisions]."""
        spread = float(to_go.std())
        if not self.is_known and spread > _LEAST_SPREAD:
            self.mean = float(to_go.mean())
            self.spread = spread
        return (to_go - self.mean) / self.spread


def clipped_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """The loss -mean(min(r A, clip(r, 1 - clip, 1 + clip) A)), where r is the probability ratio.

    Example: a choice whose probability doubled (r = 2) with advantage 1 and clip 0.2 counts -1.2.
    """
    ratio = torch.exp(log_prob - old_log_prob)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def imitate(
    network: Any,
    optimizer: torch.optim.Optimizer,
    data: DataSet,
    step: Step,
    rng: np.random.Generator,
    device: torch.device,
) -> UpdateReport:
    """Make recorded choices more likely in one pass over them (behaviour cloning)."""
    order = data.shuffled(rng)
    losses = 0.0
    entropies = 0.0
    count = 0
    for first in range(0, len(data), step.minibatch):
        index = order[first : first + step.minibatch]
        weight = np.full(len(index), 1.0 / len(index), np.float32)
        surrogate = Surrogate(weight, least=_LEAST_LOG_PROB)
        judged = network.judge(data.decisions(index, device), surrogate)
        loss = -judged.log_prob.clamp(min=_LEAST_LOG_PROB).mean()
        _descend(network, optimizer, loss, step.max_norm, "the loss of the imitation")
        losses = losses + float(loss.detach())
        entropies = entropies + float(judged.entropy.detach().mean())
        count = count + 1
    return UpdateReport(losses / count, entropies / count, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Step:
    """The settings of one update.

    Args:
        epochs: passes over the data.
        minibatch: decisions in a minibatch.
        clip: clipping range of the probability ratio.
        entropy: weight of the entropy bonus.
        value_weight: weight of the critic's loss.
        max_norm: maximum norm of the gradient.
    """

    epochs: int
    minibatch: int
    clip: float
    entropy: float
    value_weight: float
    max_norm: float


@dataclass(frozen=True)
class UpdateReport:
    """Means over the last epoch of an update."""

    loss: float
    entropy: float
    kl: float
    clipped: float
    value_loss: float


def update(
    network: Any,
    optimizer: torch.optim.Optimizer,
    data: DataSet,
    advantage: npt.NDArray[np.float64],
    target: npt.NDArray[np.float64] | None,
    step: Step,
    rng: np.random.Generator,
    device: torch.device,
) -> UpdateReport:
    """Train the network in several passes over the data in shuffled minibatches.

    Args:
        network: the network to train.
        optimizer: the optimizer of its weights.
        data: N recorded decisions.
        advantage: float64[N].
        target: float64[N], targets of the critic, or None to train no critic.
        step: the settings.
        rng: shuffles the data.
        device: where the network is.

    Raises:
        DivergedError: a loss or a gradient is not finite. The weights are then as they were before
            that minibatch.
    """
    advantages = advantage.astype(np.float32)
    old = data.log_prob
    sums = np.zeros(5)
    count = 0
    for epoch in range(step.epochs):
        order = data.shuffled(rng)
        for first in range(0, len(data), step.minibatch):
            index = order[first : first + step.minibatch]
            weight = advantages[index] / np.float32(len(index))
            surrogate = Surrogate(weight, old[index], step.clip, entropy=step.entropy / len(index))
            judged = network.judge(data.decisions(index, device), surrogate)
            old_log_prob = torch.from_numpy(old[index]).to(device)
            policy_loss = clipped_loss(
                judged.log_prob,
                old_log_prob,
                torch.from_numpy(advantages[index]).to(device),
                step.clip,
            )
            entropy = judged.entropy.mean()
            value_loss = torch.zeros((), device=device)
            if target is not None:
                targets = torch.from_numpy(target[index].astype(np.float32)).to(device)
                value_loss = torch.nn.functional.smooth_l1_loss(judged.value, targets)
            loss = policy_loss - step.entropy * entropy + step.value_weight * value_loss
            _descend(network, optimizer, loss, step.max_norm, "the loss")
            if epoch == step.epochs - 1:
                kl, clipped = _change(judged.log_prob, old_log_prob, step.clip)
                sums += [float(v.detach()) for v in (policy_loss, entropy, kl, clipped, value_loss)]
                count += 1
    return UpdateReport(*(sums / max(1, count)).tolist())


def _descend(
    network: Any, optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float, what: str
) -> None:
    """Take a step against the gradient of a loss, unless it or the gradient is not finite."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), max_norm)
    if not bool(torch.isfinite(norm)) or not bool(torch.isfinite(loss)):
        raise DivergedError(
            f"{what} ({loss.item():.3g}) or its gradient ({norm.item():.3g}) is not finite"
        )
    optimizer.step()


@torch.no_grad()
def _change(log_prob: Tensor, old_log_prob: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """The divergence from the policy that drew the decisions, and the share that was clipped."""
    change = log_prob - old_log_prob
    clipped = ((change.exp() - 1).abs() > clip).float().mean()
    # This estimate of the divergence has a low variance and is never negative.
    return (change.exp() - 1 - change).mean(), clipped


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
        """Add a rollout's cost and time, from its first decision to its end."""
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
