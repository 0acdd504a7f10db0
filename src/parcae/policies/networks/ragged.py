"""Softmax over sets of different sizes, in PyTorch: rows of all sets follow each other, `owner` says whose a row is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Log probabilities below this count as impossible.
_LEAST = -50.0


@dataclass(frozen=True)
class Judged:
    """log_prob: float32[B] of the recorded choices; entropy: float32[B]; value: float32[B]."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


def ragged_log_softmax(
    logits: Tensor, owner: Tensor, size: int, extra: Tensor | None = None
) -> Tensor:
    """Log probabilities within each of `size` sets, float32[R]; -inf logits are impossible.

    Args:
        extra: float32[size], one more logit of every set; its log probabilities are appended to the result.
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
    """-p log p, 0 where impossible."""
    finite = log_prob.clamp(min=_LEAST)
    return -torch.exp(finite) * finite * (log_prob > _LEAST)
