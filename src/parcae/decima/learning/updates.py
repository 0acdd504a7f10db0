"""Proximal policy optimisation (PPO) and imitation: losses, and updates on a data set.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, equation 7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parcae.base.errors import DivergedError
from parcae.decima.learning.family import DataSet
from parcae.policies.networks.training import Judged, Surrogate

FloatArray = npt.NDArray[np.float64]
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

    def targets(self, to_go: FloatArray) -> FloatArray:
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
    kl: float = 0.0
    clipped: float = 0.0
    value_loss: float = 0.0


@dataclass
class Trainee:
    """A network in training: its optimizer, what shuffles the data, and where it is."""

    network: Any
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    device: torch.device

    def minibatches(self, data: DataSet, size: int) -> Iterator[npt.NDArray[np.int64]]:
        """The indices of all decisions in random order, in pieces."""
        order = data.shuffled(self.rng)
        for first in range(0, len(data), size):
            yield order[first : first + size]

    def judge(self, data: DataSet, index: npt.NDArray[np.int64], surrogate: Surrogate) -> Judged:
        """Judge decisions whose loss will be `surrogate`."""
        judged: Judged = self.network.judge(data.decisions(index, self.device), surrogate)
        return judged

    def descend(self, loss: Tensor, max_norm: float, what: str) -> None:
        """Take a step against the gradient of a loss, unless it or the gradient is not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.step(loss.item(), max_norm, what)

    def step(self, loss: float, max_norm: float, what: str) -> None:
        """Take a step against the gradient of a loss, unless it or the gradient is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), max_norm).item()
        if not math.isfinite(norm) or not math.isfinite(loss):
            raise DivergedError(f"{what} ({loss:.3g}) or its gradient ({norm:.3g}) is not finite")
        self.optimizer.step()


def imitate(trainee: Trainee, data: DataSet, step: Step) -> UpdateReport:
    """Make recorded choices more likely in one pass over them (behaviour cloning)."""
    reports = []
    for index in trainee.minibatches(data, step.minibatch):
        weight = np.full(len(index), 1.0 / len(index), np.float32)
        judged = trainee.judge(data, index, Surrogate(weight, least=_LEAST_LOG_PROB))
        loss = -judged.log_prob.clamp(min=_LEAST_LOG_PROB).mean()
        trainee.descend(loss, step.max_norm, "the loss of the imitation")
        reports.append((float(loss.detach()), float(judged.entropy.detach().mean())))
    losses, entropies = zip(*reports, strict=True)
    return UpdateReport(sum(losses) / len(reports), sum(entropies) / len(reports))


def update(
    trainee: Trainee,
    data: DataSet,
    advantage: FloatArray,
    target: FloatArray | None,
    step: Step,
) -> UpdateReport:
    """Train the network in several passes over the data in shuffled minibatches.

    Args:
        trainee: the network to train.
        data: N recorded decisions.
        advantage: float64[N].
        target: float64[N], targets of the critic, or None to train no critic.
        step: the settings.

    Raises:
        DivergedError: a loss or a gradient is not finite. The weights are then as they were before
            that minibatch.
    """
    device = trainee.device
    advantages = advantage.astype(np.float32)
    old = data.log_prob
    sums = np.zeros(5)
    count = 0
    for epoch in range(step.epochs):
        for index in trainee.minibatches(data, step.minibatch):
            weight = advantages[index] / np.float32(len(index))
            surrogate = Surrogate(weight, old[index], step.clip, entropy=step.entropy / len(index))
            judged = trainee.judge(data, index, surrogate)
            old_log_prob = torch.from_numpy(old[index]).to(device)
            gained = torch.from_numpy(advantages[index]).to(device)
            policy_loss = clipped_loss(judged.log_prob, old_log_prob, gained, step.clip)
            entropy = judged.entropy.mean()
            value_loss = torch.zeros((), device=device)
            if target is not None:
                targets = torch.from_numpy(target[index].astype(np.float32)).to(device)
                value_loss = torch.nn.functional.smooth_l1_loss(judged.value, targets)
            loss = policy_loss - step.entropy * entropy + step.value_weight * value_loss
            trainee.descend(loss, step.max_norm, "the loss")
            if epoch == step.epochs - 1:
                kl, clipped = _change(judged.log_prob, old_log_prob, step.clip)
                sums += [float(v.detach()) for v in (policy_loss, entropy, kl, clipped, value_loss)]
                count += 1
    return UpdateReport(*(sums / max(1, count)).tolist())


@torch.no_grad()
def _change(log_prob: Tensor, old_log_prob: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """The divergence from the policy that drew the decisions, and the share that was clipped."""
    change = log_prob - old_log_prob
    clipped = ((change.exp() - 1).abs() > clip).float().mean()
    # This estimate of the divergence has a low variance and is never negative.
    return (change.exp() - 1 - change).mean(), clipped


#: The running mean covers about this many decisions, as in the released code.
_MEMORY = 100_000


@dataclass
class Rate:
    """Running mean of the cost per second over the last decisions.

    Example: after accrued costs of 0, 20 and 50 at 0, 1 and 2 seconds the mean is 25 per second.
    """

    #: Of each rollout: number of decisions, cost, seconds.
    pieces: list[list[float]] = field(default_factory=list)

    def add(self, times: FloatArray, costs: FloatArray) -> None:
        """Add a rollout's times in s and accrued costs, from its first decision to its end."""
        if len(times) > 1:
            cost, seconds = float(costs[-1] - costs[0]), float(times[-1] - times[0])
            self.pieces.append([len(times) - 1, cost, seconds])
        # Drop the oldest rollouts as long as the others alone fill the memory.
        while sum(count for count, _, _ in self.pieces[1:]) > _MEMORY:
            self.pieces.pop(0)

    @property
    def mean(self) -> float:
        """Mean cost per second; 0 before the first rollout."""
        seconds = sum(s for _, _, s in self.pieces)
        return sum(cost for _, cost, _ in self.pieces) / seconds if seconds > 0 else 0.0


def reinforce(
    trainee: Trainee, data: DataSet, advantage: FloatArray, entropy_weight: float, chunk: int
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
    trainee.optimizer.zero_grad(set_to_none=True)
    losses = 0.0
    entropies = 0.0
    # Deviation: the released code divides by log(stages in the system x limits). Here it is the
    # scale of about 1,000 choices, because the exact number hardly changes a logarithm.
    scale = 1.0 / math.log(1000.0)
    for first in range(0, len(data), chunk):
        index = np.arange(first, min(len(data), first + chunk))
        weights = advantage[index].astype(np.float32)
        surrogate = Surrogate(weights, entropy=entropy_weight * scale)
        judged = trainee.judge(data, index, surrogate)
        weight = torch.from_numpy(weights).to(trainee.device)
        loss = -(judged.log_prob * weight).sum() - entropy_weight * scale * judged.entropy.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        losses = losses + float(loss.detach())
        entropies = entropies + float(judged.entropy.detach().sum())
    # The norm is only checked: the released code does not clip gradients.
    trainee.step(losses, math.inf, "the loss")
    return UpdateReport(losses / len(data), entropies / len(data))
