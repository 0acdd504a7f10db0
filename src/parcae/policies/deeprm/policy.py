"""DeepRM as a policy object: needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from parcae.errors import ConfigError, FormatError
from parcae.packing.layout import Asked, Packing, View
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.deeprm.kernels import decide, play_many
from parcae.policies.deeprm.layout import (
    FEATURE_VERSION,
    KIND,
    Actions,
    DeepRMSettings,
    Network,
    allocate_work,
    checked,
    starts_of,
    sums_of,
)
from parcae.policies.networks.layout import Weights
from parcae.policies.packing.policy import IntArray

_ALLOWED = {Actions.ALL: 0, Actions.FILLED: 1, Actions.STARTABLE: 2}


def make_network(weights: Weights, settings: DeepRMSettings, path: str = "weights") -> Network:
    """What the kernels take.

    Raises:
        FormatError: weights of another shape.
    """
    own = checked(weights, settings, path)
    return Network(
        sums=sums_of(own["hidden.weight"], settings),
        bias=own["hidden.bias"],
        actions=own["actions.weight"].ravel(),
        actions_bias=own["actions.bias"],
        starts=starts_of(settings),
        limits=np.array(
            [settings.horizon, settings.horizon * settings.backlog_columns, settings.has_pause],
            np.int64,
        ),
        allowed=np.array([_ALLOWED[settings.actions]], np.int64),
    )


def check_fits(settings: DeepRMSettings, states: Packing) -> None:
    """Refuse clusters that the network is not for.

    Raises:
        ConfigError: another capacity, horizon, or number of slots.
    """
    horizon = states.free.shape[-2]
    slots = states.slots.shape[-1]
    backlog = states.backlog.shape[-1]
    for units in np.unique(states.capacity.reshape(-1, states.capacity.shape[-1]), axis=0).tolist():
        if tuple(units) != settings.capacity:
            raise ConfigError(
                f"DeepRM learned for clusters of {list(settings.capacity)} units, not {units}"
            )
    if (horizon, slots, backlog) != (settings.horizon, settings.num_slots, settings.backlog_size):
        raise ConfigError(
            f"DeepRM learned for a horizon of {settings.horizon}, {settings.num_slots} slots and a backlog of "
            f"{settings.backlog_size}, not for {horizon}, {slots} and {backlog}: run it with the same, in steps of time"
        )


def _check_shown(settings: DeepRMSettings, view: View) -> None:
    if view.points.shape[-1] != settings.horizon + 1 or view.jobs.shape[-1] != settings.num_slots:
        raise ConfigError(
            f"DeepRM must be shown {settings.num_slots} slots and what is free in {settings.horizon} steps: give it views "
            "with a profile (wants_profile) of clusters that run in steps"
        )


@dataclass
class DeepRMPolicy:
    """DeepRM with its weights.

    Args:
        is_greedy: takes the most probable action instead of drawing one; in an empty cluster it then starts a job whatever it
            thinks, or it could hold jobs for ever. The paper draws.

    Raises:
        FormatError: weights of another shape.
    """

    name: str
    weights: Weights
    settings: DeepRMSettings
    is_greedy: bool = False
    wants_profile: bool = field(default=True, init=False)
    _network: Network = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._network = make_network(self.weights, self.settings, self.name)

    @property
    def network(self) -> Network:
        """What the kernels take."""
        return self._network

    def play_many(
        self, states: Packing, asked: Asked, sequence: IntArray, views: View, first: int, last: int
    ) -> None:
        """Run clusters first..last-1 from start to end.

        Raises:
            ConfigError: clusters that the network is not for.
        """
        check_fits(self.settings, states)
        _check_shown(self.settings, views)
        work = allocate_work(self.settings)
        play_many(states, asked, sequence, views, self._network, work, self.is_greedy, first, last)

    def decide(self, view: View) -> int:
        """The slot whose job to place now, or VOID; `view` is of one cluster, with what is free when.

        Raises:
            ConfigError: a view of another shape, or without the profile.
        """
        _check_shown(self.settings, view)
        return int(decide(view, self._network, allocate_work(self.settings), self.is_greedy))

    def chances(self, view: View) -> npt.NDArray[np.float32]:
        """float32[num_slots + 1]: the chance of each slot, and last of letting time pass.

        Raises:
            ConfigError: as `decide`.
        """
        _check_shown(self.settings, view)
        work = allocate_work(self.settings)
        decide(view, self._network, work, self.is_greedy)
        chances: npt.NDArray[np.float32] = work.chances
        return chances


def deeprm_policy(
    checkpoint: Checkpoint, path: str, name: str = KIND, is_greedy: bool = False
) -> DeepRMPolicy:
    """The policy of a checkpoint.

    Raises:
        FormatError: a checkpoint of something else, or settings that cannot be.

    Example: `deeprm_policy(read_checkpoint(path), str(path))`
    """
    checkpoint.require(KIND, FEATURE_VERSION, path)
    try:
        settings = DeepRMSettings.model_validate(checkpoint.settings["network"])
    except (KeyError, ValidationError):
        raise FormatError(
            f"{path}: a DeepRM checkpoint without the settings of its network; train it again"
        ) from None
    return DeepRMPolicy(name, checked(checkpoint.weights, settings, path), settings, is_greedy)
