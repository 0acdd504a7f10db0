"""DeepRM in PyTorch, over images: for further work, and as a reference for the compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from parcae.policies.networks.layout import Weights
from parcae.policies.networks.training import TableNetwork
from parcae.rigid.deeprm.layout import DeepRMSettings, checked, shapes


class DeepRMNetwork(TableNetwork):
    """DeepRM's network; `layout` describes the architecture.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    def __init__(self, weights: Weights, settings: DeepRMSettings) -> None:
        super().__init__(checked(weights, settings), shapes(settings))
        self.settings = settings

    def hidden(self, images: Tensor) -> Tensor:
        """Return the hidden units before the rectifier, float32[B, HIDDEN].

        `images` is float32[B, horizon, width].
        """
        return self.linear("hidden", images.flatten(1))

    def forward(self, images: Tensor) -> Tensor:
        """Return the log probabilities of all actions, float32[B, num_actions].

        No action is excluded.
        """
        hidden = torch.relu(self.hidden(images))
        return torch.log_softmax(self.linear("actions", hidden), 1)

    def load_arrays(self, weights: Weights) -> None:
        """Set all weights.

        Raises:
            FormatError: a weight is missing or has another shape.
        """
        super().load_arrays(checked(weights, self.settings))
