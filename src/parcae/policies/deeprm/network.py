"""DeepRM in PyTorch, over images: for whoever goes on from here, and what the compiled pass is checked against."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.deeprm.layout import DeepRMSettings, checked, shapes
from parcae.policies.networks.layout import Weights


class DeepRMNetwork(nn.Module):
    """See `layout` for the architecture; parameters are named as there, with _ for the dot, matrices are [in, out].

    Raises:
        FormatError: weights of another shape.
    """

    def __init__(self, weights: Weights, settings: DeepRMSettings) -> None:
        super().__init__()
        self.settings = settings
        self.names = list(shapes(settings))
        own = checked(weights, settings)
        self.table = nn.ParameterDict(
            {n.replace(".", "_"): nn.Parameter(torch.from_numpy(own[n])) for n in self.names}
        )

    def hidden(self, images: Tensor) -> Tensor:
        """float32[B, HIDDEN] of images float32[B, horizon, width], before the rectifier."""
        return torch.addmm(
            self.table["hidden_bias"], images.flatten(1), self.table["hidden_weight"]
        )

    def forward(self, images: Tensor) -> Tensor:
        """Log chances of all actions, float32[B, num_actions], none left out."""
        hidden = torch.relu(self.hidden(images))
        return torch.log_softmax(
            torch.addmm(self.table["actions_bias"], hidden, self.table["actions_weight"]), 1
        )

    def export(self) -> Weights:
        """The weights as arrays, by the names of the layout."""
        return {
            n: self.table[n.replace(".", "_")].detach().cpu().numpy().astype(np.float32)
            for n in self.names
        }

    def load_arrays(self, weights: Weights) -> None:
        """Take these weights.

        Raises:
            FormatError: weights of another shape.
        """
        own = checked(weights, self.settings)
        with torch.no_grad():
            for name in self.names:
                parameter = self.table[name.replace(".", "_")]
                parameter.copy_(torch.from_numpy(own[name]).to(parameter.device))
