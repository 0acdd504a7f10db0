"""The state of PyTorch's Adam as arrays, for exact resuming."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from parcae.errors import saved_by_older_version
from parcae.policies.checkpoint import Weights

#: Adam's moments of one parameter.
_MOMENTS = ("exp_avg", "exp_avg_sq")


def adam_state(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Weights:
    """Copies of Adam's moments and numbers of steps, by key and the parameter's name."""
    return {
        f"{key}.{name}": np.atleast_1d(value.detach().cpu().numpy()).copy()
        for name, parameter in network.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_adam(
    network: torch.nn.Module, optimizer: torch.optim.Optimizer, state: Mapping[str, np.ndarray]
) -> None:
    """Restore what `adam_state` returned.

    Args:
        network: the network, on its device.
        optimizer: the optimizer of its parameters, changed in place.
        state: the arrays; parameters that no step has changed yet are not among them.

    Raises:
        FormatError: they belong to other parameters: an older version wrote them.
    """
    names = {f"step.{name}" for name, _ in network.named_parameters()}
    if any(key.startswith("step.") and key not in names for key in state):
        raise saved_by_older_version()
    for name, parameter in network.named_parameters():
        if f"step.{name}" not in state:
            optimizer.state.pop(parameter, None)
            continue
        moments = {
            key: torch.from_numpy(state[f"{key}.{name}"].copy())
            .reshape(parameter.shape)
            .to(parameter.device)
            for key in _MOMENTS
        }
        step = torch.tensor(float(state[f"step.{name}"][0]))
        optimizer.state[parameter] = {"step": step, **moments}
