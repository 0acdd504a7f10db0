"""Proximal policy optimisation (PPO) and imitation: losses, and updates on a data set.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, equation 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parcae.errors import DivergedError
from parcae.learning.family import DataSet
from parcae.policies.networks.ragged import Surrogate

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

    Args:
        log_prob: float32[N], log probabilities under the present weights.
        old_log_prob: float32[N], log probabilities under the policy that drew the decisions.
        advantage: float32[N].
        clip: clipping range of the ratio.

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
    """Make recorded choices more likely in one pass over them (behaviour cloning).

    Args:
        network: the network to train.
        optimizer: the optimizer of its weights.
        data: the recorded choices.
        step: minibatch size and gradient norm; nothing else of it is used.
        rng: shuffles the data.
        device: where the network is.

    Raises:
        DivergedError: the loss or its gradient is not finite.
    """
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
    """Means over the last epoch of an update.

    Args:
        loss: the policy's loss.
        entropy: of the policy, in nats.
        kl: estimated divergence from the policy that drew the decisions.
        clipped: share of decisions whose ratio was outside the clipping range.
        value_loss: the critic's loss.
    """

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
