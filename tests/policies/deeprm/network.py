"""DeepRM in PyTorch, over images: a reference for the compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def log_probabilities(parts: Mapping[str, Tensor], images: Tensor) -> Tensor:
    """Return the log probabilities of all actions, none of which is excluded."""
    hidden = images.flatten(1) @ parts["hidden.weight"] + parts["hidden.bias"]
    return torch.log_softmax(hidden.relu() @ parts["actions.weight"] + parts["actions.bias"], 1)
