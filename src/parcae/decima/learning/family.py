"""The interface between the training loop and a kind of network.

Everything else of a training is the same for all networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from parcae.cluster.observation import Policy
from parcae.policies.checkpoint import Weights
from parcae.simulation.kernels.playing import Simulations


@dataclass(frozen=True)
class Rollout:
    """One recorded run, or window of a run."""

    record: Any
    is_complete: bool

    @property
    def count(self) -> int:
        """The number of recorded decisions."""
        return int(self.record.count[0])

    def span(self, end: bool) -> tuple[int, int]:
        """The rows of the decisions, or with `end` that of the state in which the run ended."""
        return (self.count, self.count + 1) if end else (0, self.count)


class DataSet(Protocol):
    """Recorded decisions of many rollouts."""

    @property
    def log_prob(self) -> npt.NDArray[np.float32]:
        """Log probability of each decision under the policy that drew it, float32[N]."""

    def __len__(self) -> int: ...

    def decisions(self, index: npt.NDArray[np.int64], device: torch.device) -> Any:
        """The decisions with these indices as tensors, for the network."""

    def shuffled(self, rng: np.random.Generator) -> npt.NDArray[np.int64]:
        """All indices, in random order. What belongs together may stay together."""


class TrainedPolicy(Policy, Protocol):
    """A policy that plays many runs in compiled calls, and offers its network to kernels."""

    @property
    def network(self) -> Any:
        """The network as the family's kernels take it."""

    def play_many(self, simulations: Simulations, first: int, last: int) -> None:
        """Run the simulators first .. last - 1 to their end.

        Args:
            simulations: the runs, changed in place.
            first: index of the first simulator.
            last: index after the last simulator.
        """


class Family(Protocol):
    """A kind of network for a scenario: all that the training loop knows about it."""

    name: str
    feature_version: int
    #: Whether the network can learn by imitation.
    imitates: bool

    @property
    def settings(self) -> dict[str, Any]:
        """The network's shape and choice of features, for the checkpoint."""

    @property
    def fixed_weights(self) -> Weights:
        """Arrays that a checkpoint holds besides the trained weights."""

    def initial_weights(self, rng: np.random.Generator) -> Weights:
        """Random initial weights."""

    def network(self, weights: Weights) -> torch.nn.Module:
        """The batched network with these weights."""

    def fit(self, network: Any) -> None:
        """Let a network of the same kind and settings judge decisions of this scenario.

        Raises:
            ConfigError: the network's shape depends on the scenario.
        """

    def policy(self, weights: Weights) -> TrainedPolicy:
        """The policy with these weights."""

    def allocate(self, num_simulators: int, capacity: int) -> tuple[Any, Any]:
        """Workspaces and records for this many simulators.

        `capacity` is the number of decisions that one record can hold.
        """

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> DataSet:
        """The rollouts' decisions, concatenated; with `ends` the states in which they ended."""
