"""PyTorch networks whose weights have names, as in their layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from parcae.policies.networks.layout import Shapes, Weights, require_shapes
from parcae.policies.networks.ragged import Judged, Surrogate


class NamedNetwork(nn.Module, ABC):
    """A network whose weights have names; matrices are [in, out].

    Args:
        names: the names in the layout.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self.names = tuple(names)

    @abstractmethod
    def array(self, name: str) -> Tensor:
        """Return the weights with this name; they share memory with the network."""

    def by_name(self) -> dict[str, Tensor]:
        """Return all weights by their names in the layout; they share memory with the network."""
        return {name: self.array(name) for name in self.names}

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Return x times the matrix NAME.weight, plus NAME.bias."""
        return torch.addmm(self.array(f"{name}.bias"), x, self.array(f"{name}.weight"))

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
        shapes: the shapes of the parameters by name.

    Raises:
        FormatError: a weight is missing or has another shape.
    """

    def __init__(self, weights: Weights, shapes: Shapes) -> None:
        super().__init__(shapes)
        require_shapes(weights, shapes, "the weights to start from")
        self.table = nn.ParameterDict(
            {
                name.replace(".", "_"): nn.Parameter(
                    torch.from_numpy(np.array(weights[name], np.float32))
                )
                for name in self.names
            }
        )

    def array(self, name: str) -> Tensor:
        """Return the parameter with this name."""
        parameter: Tensor = self.table[name.replace(".", "_")]
        return parameter
