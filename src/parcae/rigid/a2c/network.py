"""A2cScheduler's networks in PyTorch, and the part of them that training differentiates."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from parcae.rigid.a2c.layout import A2cSettings, Architecture, Weights, check_weights


class A2cNetwork(nn.Module):
    """An actor (outputs: a logit for each action) or a critic (one output: the state's value).

    The parameters share memory with the result of `arrays`. `dense.weight` is [places, filters,
    outputs].

    Raises:
        FormatError: the weights do not fit the settings.

    Source: A2cScheduler, section 4.3 and Table 3: 3x3 filters, rectified, 2x2 max-pooling or none,
    flattened, dense.
    """

    def __init__(
        self, weights: Weights, settings: A2cSettings, num_outputs: int, path: str = "weights"
    ) -> None:
        super().__init__()
        check_weights(weights, settings, num_outputs, path)
        self.settings = settings
        self.table = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(torch.from_numpy(np.array(array, np.float32)))
                for name, array in weights.items()
            }
        )

    def arrays(self) -> Weights:
        """Return the weights by name; they share the parameters' memory."""
        return {
            name.replace("_", "."): parameter.detach().numpy()
            for name, parameter in self.table.items()
        }

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs [B, num_outputs] of images float32[B, horizon, width]."""
        table = self.table
        if self.settings.architecture is Architecture.FC:
            x = images.flatten(1)
        else:
            x = nn.functional.conv2d(
                images.unsqueeze(1), table["conv_weight"].unsqueeze(1), table["conv_bias"]
            ).relu()
            x = nn.functional.max_pool2d(x, 2) if self.settings.architecture.has_pool else x
            x = x.flatten(2).transpose(1, 2).flatten(1)
        return self._last(x @ table["dense_weight"].flatten(0, 1) + table["dense_bias"])

    def outputs(self, sums: Tensor) -> Tensor:
        """Return the same outputs, given the first layers' sums beyond those of a blank image.

        See `lookup.FirstLayer`.
        """
        table = self.table
        filters = table["dense_weight"].shape[1]
        blank = table["conv_bias"].relu() if "conv_bias" in table else sums.new_zeros(filters)
        return self._last(sums + blank @ table["dense_weight"].sum(0) + table["dense_bias"])

    def _last(self, x: Tensor) -> Tensor:
        return (
            torch.addmm(self.table["out_bias"], x.relu(), self.table["out_weight"])
            if self.settings.hidden
            else x
        )
