"""PyTorch networks whose weights have names, as in their layouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.networks.layout import Weights
from parcae.policies.networks.ragged import Judged, Surrogate


class NamedNetwork(nn.Module):
    """A network whose weights have names; matrices are [in, out]."""

    def by_name(self) -> dict[str, Tensor]:
        """Return all weights by their names in the layout; they share memory with the network."""
        raise NotImplementedError

    def judge(self, batch: Any, surrogate: Surrogate) -> Judged:
        """Judge decisions whose loss will be `surrogate`; a network may use that to save time."""
        del surrogate
        judged: Judged = self(batch)
        return judged

    def load_arrays(self, weights: Weights) -> None:
        """Set all weights."""
        with torch.no_grad():
            for name, parameter in self.by_name().items():
                array = torch.from_numpy(np.array(weights[name], np.float32))
                parameter.copy_(array.to(parameter.device))

    def export(self) -> Weights:
        """Return the weights as arrays, by the names of the layout."""
        return {
            name: parameter.detach().cpu().numpy().astype(np.float32)
            for name, parameter in self.by_name().items()
        }


class TableNetwork(NamedNetwork):
    """A network with a table of parameters.

    Parameters are named as in the layout, with _ for the dot.

    Args:
        weights: initial values by name; they are copied.
        names: the names of the parameters.
    """

    def __init__(self, weights: Weights, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.table = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(torch.from_numpy(weights[name].copy()))
                for name in self.names
            }
        )

    def by_name(self) -> dict[str, Tensor]:
        """Return all parameters by their names in the layout."""
        return {name: self.table[name.replace(".", "_")] for name in self.names}

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return x times the matrix NAME.weight, plus NAME.bias."""
        return torch.addmm(self.table[f"{name}_bias"], x, self.table[f"{name}_weight"])
