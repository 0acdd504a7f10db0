"""DeepRM as a policy object; it decides without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parcae.base.compiled.tables import empty_tables
from parcae.base.errors import ConfigError
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import Weights
from parcae.rigid.deeprm.kernels import (
    FEATURE_VERSION,
    KIND,
    Actions,
    DeepRM,
    DeepRMNetwork,
    DeepRMSettings,
    Work,
    checked,
    starts_of,
    sums_of,
)
from parcae.rigid.layout import Packing, View
from parcae.rigid.policies.policy import CompiledPackingPolicy, require_cluster


def make_network(
    weights: Weights, settings: DeepRMSettings, path: str = "weights"
) -> DeepRMNetwork:
    """Return the network in the form that the kernels read."""
    checked_weights = checked(weights, settings, path)
    return DeepRMNetwork(
        sums=sums_of(checked_weights["hidden.weight"], settings),
        bias=checked_weights["hidden.bias"],
        actions=checked_weights["actions.weight"].ravel(),
        actions_bias=checked_weights["actions.bias"],
        starts=starts_of(settings),
        limits=np.array(
            [settings.horizon, settings.horizon * settings.backlog_columns, settings.has_pause],
            np.int64,
        ),
        allowed=np.array([list(Actions).index(settings.actions)], np.int64),
    )


def check_fits(settings: DeepRMSettings, states: Packing) -> None:
    """Check that the network fits the clusters."""
    require_cluster(
        "this DeepRM network",
        states,
        units=settings.capacity,
        horizon=settings.horizon,
        slots=settings.num_slots,
        backlog=settings.backlog_size,
    )


@dataclass
class DeepRMPolicy(CompiledPackingPolicy):
    """DeepRM with its weights.

    Args:
        name: name of the policy in reports.
        weights: arrays by name.
        settings: shape of the network.
        is_greedy: take the most probable action instead of drawing one, as the paper does. In an
            empty cluster a greedy policy always starts a job, because it could hold jobs for ever.
    """

    name: str
    weights: Weights
    settings: DeepRMSettings
    is_greedy: bool = False
    wants_profile: bool = field(default=True, init=False)
    network: DeepRMNetwork = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.network = make_network(self.weights, self.settings, self.name)

    def check_states(self, states: Packing) -> None:
        """Check that the network fits the clusters."""
        check_fits(self.settings, states)

    def check_view(self, views: View) -> None:
        """Check that views have the network's slots and a profile of its horizon."""
        settings = self.settings
        if (
            views.points.shape[-1] != settings.horizon + 1
            or views.jobs.shape[-1] != settings.num_slots
        ):
            raise ConfigError(
                f"this DeepRM network needs views of {settings.num_slots} slots and of the free "
                f"resources in {settings.horizon} steps: use clusters that run in steps, and views "
                "with a profile (wants_profile)"
            )
        super().check_view(views)

    def tables(self, views: View) -> DeepRM:
        """The network, and a buffer for one decision."""
        work = Work(**empty_tables(Work, **self.settings.sizes))
        return DeepRM(self.network, work, self.is_greedy)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, path: str, name: str = KIND, is_greedy: bool = False
    ) -> DeepRMPolicy:
        """Return the policy of a checkpoint."""
        checkpoint.require(KIND, FEATURE_VERSION, path)
        settings = checkpoint.network_settings(DeepRMSettings, path)
        return cls(name, checked(checkpoint.weights, settings, path), settings, is_greedy)
