"""Softmax over sets of different sizes, in PyTorch.

The rows of all sets lie one after another; `owner` gives the set of each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: Choices with log probabilities below this count as impossible.
_LEAST = -50.0


@dataclass(frozen=True)
class Judged:
    """What a network returns for a batch of B recorded decisions.

    Args:
        log_prob: float32[B], log probability of each recorded choice.
        entropy: float32[B], entropy of the distributions that the choice was drawn from.
        value: float32[B], the critic's value of the state.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


@dataclass(frozen=True)
class Surrogate:
    """The loss of a batch of B decisions, for networks that differentiate while they judge.

    The loss is -sum_k weight_k g(log_prob_k) - entropy x sum_k entropy_k, plus terms that do not
    depend on the policy. With old log probabilities, g is PPO's clipped probability ratio; else it
    is the log probability, or `least` if that is higher.

    Args:
        weight: float32[B].
        old_log_prob: float32[B], log probabilities under the policy that drew the decisions.
        clip: clipping range of the ratio.
        least: smallest log probability that differs from smaller ones.
        entropy: weight of the entropies.
    """

    weight: npt.NDArray[np.float32]
    old_log_prob: npt.NDArray[np.float32] | None = None
    clip: float = 0.0
    least: float = -np.inf
    entropy: float = 0.0


def ragged_log_softmax(
    logits: Tensor, owner: Tensor, size: int, extra: Tensor | None = None
) -> Tensor:
    """Return the log probabilities within each of `size` sets, float32[R].

    Args:
        logits: float32[R]; -inf marks an impossible choice.
        owner: int64[R], the set of each row.
        size: number of sets.
        extra: float32[size], one more logit for every set. Its log probabilities are appended to
            the result.
    """
    top = logits.new_full((size,), -1e30) if extra is None else extra.detach().clamp(min=-1e30)
    top = top.scatter_reduce(0, owner, logits.detach(), "amax").clamp(min=-1e30)
    total = logits.new_zeros(size).index_add(0, owner, torch.exp(logits - top[owner]))
    if extra is not None:
        total = total + torch.exp(extra - top)
    log_total = top + torch.log(total.clamp(min=1e-30))
    log_prob = logits - log_total.index_select(0, owner)
    return log_prob if extra is None else torch.cat([log_prob, extra - log_total])


def entropy_terms(log_prob: Tensor) -> Tensor:
    """Return -p log p for each log probability, 0 for impossible choices."""
    finite = log_prob.clamp(min=_LEAST)
    return -torch.exp(finite) * finite * (log_prob > _LEAST)
