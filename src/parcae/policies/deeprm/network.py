"""DeepRM in PyTorch, over images: for further work, and as a reference for the compiled kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.deeprm.layout import DeepRMSettings, checked, shapes
from parcae.policies.networks.layout import Weights


class DeepRMNetwork(nn.Module):
    """DeepRM's network; `layout` describes the architecture.

    Parameters are named as in `layout`, with _ for the dot; matrices are [in, out].

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    def __init__(self, weights: Weights, settings: DeepRMSettings) -> None:
        super().__init__()
        self.settings = settings
        self.names = list(shapes(settings))
        checked_weights = checked(weights, settings)
        self.table = nn.ParameterDict(
            {
                n.replace(".", "_"): nn.Parameter(torch.from_numpy(checked_weights[n]))
                for n in self.names
            }
        )

    def hidden(self, images: Tensor) -> Tensor:
        """Return the hidden units before the rectifier, float32[B, HIDDEN].

        `images` is float32[B, horizon, width].
        """
        return torch.addmm(
            self.table["hidden_bias"], images.flatten(1), self.table["hidden_weight"]
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the log probabilities of all actions, float32[B, num_actions].

        No action is excluded.
        """
        hidden = torch.relu(self.hidden(images))
        return torch.log_softmax(
            torch.addmm(self.table["actions_bias"], hidden, self.table["actions_weight"]), 1
        )

    def export(self) -> Weights:
        """Return the weights as arrays, by the names of the layout."""
        return {
            n: self.table[n.replace(".", "_")].detach().cpu().numpy().astype(np.float32)
            for n in self.names
        }

    def load_arrays(self, weights: Weights) -> None:
        """Set all weights.

        Raises:
            FormatError: a weight is missing or has another shape.
        """
        checked_weights = checked(weights, self.settings)
        with torch.no_grad():
            for name in self.names:
                parameter = self.table[name.replace(".", "_")]
                parameter.copy_(torch.from_numpy(checked_weights[name]).to(parameter.device))
