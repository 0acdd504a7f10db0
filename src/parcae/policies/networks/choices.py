"""What a network's logits say of a decision's choices, for whoever looks on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def ranked_choices(stages: Sequence[int], logits: npt.NDArray[Any]) -> list[tuple[int, float]]:
    """Softmax over the choices that can be taken (others are -inf): (stage row, probability), the most probable first.

    Example: `ranked_choices([4, 7], np.array([0.0, 0.0]))` is `[(4, 0.5), (7, 0.5)]`.
    """
    can = np.flatnonzero(np.isfinite(logits))
    if can.size == 0:
        return []
    odds = np.exp(np.asarray(logits, np.float64)[can] - float(np.max(logits[can])))
    odds /= odds.sum()
    order = np.argsort(-odds, kind="stable")
    return [(int(stages[can[row]]), float(odds[row])) for row in order]
