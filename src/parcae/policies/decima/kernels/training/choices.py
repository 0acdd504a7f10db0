"""From the logits of choices to log probabilities and entropies, and back."""

from __future__ import annotations

import math

import numpy as np

from parcae.kernels import inlined
from parcae.policies.decima.kernels.training.data import DECISIONS

#: Log probabilities below this count as those of impossible choices, as in `networks.ragged`.
_LEAST = -50.0


@inlined
def _judge_choice(logs, shares, first, last):  # type: ignore[no-untyped-def]
    """Turn logits into log probabilities, write probabilities, and return their entropy."""
    top = -math.inf
    for row in range(first, last):
        top = max(top, logs[row])
    total = 0.0
    for row in range(first, last):
        shares[row] = math.exp(logs[row] - top)
        total += shares[row]
    log_total = top + math.log(total)
    entropy = 0.0
    for row in range(first, last):
        logs[row] -= log_total
        shares[row] /= total
        if logs[row] > _LEAST:
            entropy -= shares[row] * logs[row]
    return entropy


@inlined
def judge_choices(work, head, log_prob, entropy):  # type: ignore[no-untyped-def]
    """Turn the logits of a head into log probabilities, and add what was chosen.

    Args:
        work: the Passes.
        head: the Head.
        log_prob: float32[decisions], the log probabilities of the chosen options are added.
        entropy: float32[decisions], the entropies are added.
    """
    for at in range(work.size[DECISIONS]):
        entropy[at] += _judge_choice(head.logs, head.shares, head.first[at], head.first[at + 1])
        log_prob[at] += head.logs[head.chosen[at]]


@inlined
def _choice_back(head, at, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace log probabilities by the gradient of their logits.

    Args:
        head: the Head; `logs` is changed.
        at: the decision.
        d_log_prob: gradient of the log probability of the chosen option.
        d_entropy: gradient of the entropy.
    """
    logs = head.logs
    shares = head.shares
    total = np.float64(d_log_prob)
    for row in range(head.first[at], head.first[at + 1]):
        if logs[row] > _LEAST:
            total -= d_entropy * shares[row] * (logs[row] + 1.0)
    for row in range(head.first[at], head.first[at + 1]):
        slope = -shares[row] * total
        if logs[row] > _LEAST:
            slope -= d_entropy * shares[row] * (logs[row] + 1.0)
        logs[row] = slope
    logs[head.chosen[at]] += d_log_prob


@inlined
def choices_back(work, head, d_log_prob, d_entropy):  # type: ignore[no-untyped-def]
    """Replace the log probabilities of a head by the gradient of its logits."""
    for at in range(work.size[DECISIONS]):
        _choice_back(head, at, d_log_prob[at], d_entropy[at])
