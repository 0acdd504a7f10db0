"""Probabilities of a decision's choices, computed from a network's logits, for display."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def ranked_choices(stages: Sequence[int], logits: npt.NDArray[Any]) -> list[tuple[int, float]]:
    """Return (stage row, probability) of the possible choices, the most probable first.

    The probabilities are a softmax over the finite logits; a logit of -inf marks an impossible
    choice.

    Example: `ranked_choices([4, 7], np.array([0.0, 0.0]))` is `[(4, 0.5), (7, 0.5)]`.
    """
    can = np.flatnonzero(np.isfinite(logits))
    if can.size == 0:
        return []
    probabilities = np.exp(np.asarray(logits, np.float64)[can] - float(np.max(logits[can])))
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    return [(int(stages[can[row]]), float(probabilities[row])) for row in order]
