"""Proximal policy optimisation (PPO) and imitation: losses, and updates on a data set.

Source: Schulman et al., "Proximal Policy Optimization Algorithms", 2017, equation 7.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from parcae.base.errors import DivergedError
from parcae.base.texts import MS_PER_S
from parcae.learning.config import TrainConfig
from parcae.policies.networks.training import Surrogate

FloatArray = npt.NDArray[np.float64]
#: Log probabilities are clamped at this value when imitating, so that choices to which the network
#: gives almost no probability do not dominate the loss.
_LEAST_LOG_PROB = -20.0
#: Least standard deviation of costs to go that is a scale.
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Rollout:
    """One recorded run, or window of a run."""

    record: Any
    is_complete: bool

    @property
    def count(self) -> int:
        """The number of recorded decisions."""
        return int(self.record.count[0])

    def span(self, end: bool) -> tuple[int, int]:
        """The rows of the decisions, or with `end` that of the state in which the run ended."""
        return (self.count, self.count + 1) if end else (0, self.count)


class DataSet(Protocol):
    """Recorded decisions of many rollouts."""

    @property
    def log_prob(self) -> npt.NDArray[np.float32]:
        """Log probability of each decision under the policy that drew it, float32[N]."""

    def __len__(self) -> int: ...

    def decisions(self, index: npt.NDArray[np.int64], device: torch.device) -> Any:
        """The decisions with these indices as tensors, for the network."""

    def shuffled(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """All indices, in random order. What belongs together may stay together."""


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


@dataclass(frozen=True)
class UpdateReport:
    """Means over the last epoch of an update."""

    loss: float
    entropy: float
    kl: float = 0.0
    clipped: float = 0.0
    value_loss: float = 0.0

    @property
    def scalars(self) -> dict[str, float]:
        """The numbers by their names in logs."""
        return {
            "loss/policy": self.loss,
            "loss/value": self.value_loss,
            "policy/entropy": self.entropy,
            "policy/kl": self.kl,
            "policy/clipped": self.clipped,
        }


@dataclass
class Trainee:
    """A network in training: its optimizer, what shuffles the data, and where it is."""

    network: Any
    optimizer: torch.optim.Optimizer
    rng: np.random.Generator
    device: torch.device

    def backward(
        self,
        data: DataSet,
        index: npt.NDArray[np.int64],
        surrogate: Surrogate,
        target: FloatArray | None = None,
        value_weight: float = 0.0,
    ) -> FloatArray:
        """Add the gradient of the loss of some decisions. Returns the numbers of an UpdateReport.

        `target` is what the critic should say of all decisions, float64[N].
        """
        loss, judged = self.network.judge(data.decisions(index, self.device), surrogate)
        value_loss = torch.zeros((), device=self.device)
        if target is not None:
            targets = torch.from_numpy(target[index].astype(np.float32)).to(self.device)
            value_loss = torch.nn.functional.smooth_l1_loss(judged.value, targets)
        (loss + value_weight * value_loss).backward()
        change = np.zeros(1)
        if surrogate.old_log_prob is not None:
            change = judged.log_prob.detach().cpu().numpy() - surrogate.old_log_prob
        gained = np.expm1(change)
        return np.array(
            [
                loss.item(),
                judged.entropy.mean().item(),
                # This estimate of the divergence has a low variance and is never negative.
                (gained - change).mean(),
                (np.abs(gained) > surrogate.clip).mean(),
                value_loss.item(),
            ]
        )

    def step(self, loss: float, max_norm: float) -> None:
        """Take a step against the gradient of a loss, unless it or the gradient is not finite."""
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), max_norm).item()
        if not math.isfinite(norm) or not math.isfinite(loss):
            raise DivergedError(f"the loss ({loss:.3g}) or its gradient ({norm:.3g}) is not finite")
        self.optimizer.step()

    def descend(
        self,
        data: DataSet,
        surrogate_of: Callable[[npt.NDArray[np.int64]], Surrogate],
        config: Any,
        epochs: int,
        target: FloatArray | None = None,
    ) -> UpdateReport:
        """Take a step for every minibatch in several passes over the data, in random order.

        `surrogate_of` makes the loss of the decisions with some indices; `config` has the settings.
        """
        for _ in range(epochs):
            order = data.shuffled(self.rng)
            numbers = []
            for first in range(0, len(data), config.minibatch):
                index = order[first : first + config.minibatch]
                self.optimizer.zero_grad(set_to_none=True)
                value_weight = 0.0 if target is None else config.value_weight
                numbers.append(
                    self.backward(data, index, surrogate_of(index), target, value_weight)
                )
                self.step(numbers[-1][0], config.max_norm)
        return UpdateReport(*np.mean(numbers, axis=0).tolist())


def imitate(trainee: Trainee, data: DataSet, config: TrainConfig) -> UpdateReport:
    """Make recorded choices more likely in one pass over them (behaviour cloning)."""

    def surrogate(index: npt.NDArray[np.int64]) -> Surrogate:
        weight = np.full(len(index), 1.0 / len(index), np.float32)
        return Surrogate(weight, least=_LEAST_LOG_PROB)

    return trainee.descend(data, surrogate, config, epochs=1)


def update(
    trainee: Trainee,
    data: DataSet,
    advantage: FloatArray,
    target: FloatArray | None,
    config: Any,
    entropy: float,
) -> UpdateReport:
    """Train the network by PPO in several passes over the data in shuffled minibatches.

    Args:
        trainee: the network to train.
        data: N recorded decisions.
        advantage: float64[N].
        target: float64[N], targets of the critic, or None to train no critic.
        config: a `TrainConfig`, or other settings with its names.
        entropy: weight of the entropy bonus.

    Raises:
        DivergedError: a loss or a gradient is not finite. The weights are then as they were before
            that minibatch.
    """
    advantages = advantage.astype(np.float32)

    def surrogate(index: npt.NDArray[np.int64]) -> Surrogate:
        weight = advantages[index] / np.float32(len(index))
        old = data.log_prob[index]
        return Surrogate(weight, old, config.clip, entropy=entropy / len(index))

    return trainee.descend(data, surrogate, config, config.epochs, target)


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
    # Deviation: the released code divides by log(stages in the system x limits). Here it is the
    # scale of about 1,000 choices, because the exact number hardly changes a logarithm.
    entropy = entropy_weight / math.log(1000.0)
    weights = advantage.astype(np.float32)
    count = len(data)
    total = np.zeros(5)
    trainee.optimizer.zero_grad(set_to_none=True)
    for first in range(0, count, chunk):
        index = np.arange(first, min(count, first + chunk))
        found = trainee.backward(data, index, Surrogate(weights[index], entropy=entropy))
        # All but the loss are means.
        total += found * np.where(np.arange(5) > 0, len(index), 1.0)
    # The norm is only checked: the released code does not clip gradients.
    trainee.step(total[0], math.inf)
    return UpdateReport(*(total / count).tolist())


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


def normalized(advantages: FloatArray) -> FloatArray:
    """The advantages scaled to mean 0 and standard deviation 1, then clipped at +-5."""
    spread = advantages.std()
    return np.asarray(np.clip((advantages - advantages.mean()) / (spread + 1e-8), -5.0, 5.0))


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
