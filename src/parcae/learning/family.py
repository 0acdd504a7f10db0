"""What a training needs to know of a kind of network: everything else is the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from parcae.cluster.decision import Policy
from parcae.policies.networks.ragged import Judged

Weights = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Rollout:
    """One rollout's record (views into the buffers, true until the next collection) and how it ended."""

    record: Any
    is_complete: bool

    @property
    def count(self) -> int:
        """Decisions that were recorded."""
        return int(self.record.count[0])


class DataSet(Protocol):
    """Recorded decisions of many rollouts."""

    @property
    def log_prob(self) -> npt.NDArray[np.float32]:
        """Of the policy that drew the decisions, float32[N]."""

    def __len__(self) -> int: ...

    def decisions(self, index: npt.NDArray[np.int64], device: torch.device) -> Any:
        """The decisions `index` as tensors, for the network."""


class TrainedNetwork(Protocol):
    """The batched network (a torch module)."""

    def __call__(self, batch: Any) -> Judged: ...

    def value(self, batch: Any) -> torch.Tensor:
        """The critic's value of every state."""

    def export(self) -> Weights:
        """The weights by name."""

    def load_arrays(self, weights: Weights) -> None:
        """Take these weights."""


class TrainedPolicy(Policy, Protocol):
    """A policy that plays many runs in compiled calls, and shows the kernels its network."""

    @property
    def network(self) -> Any:
        """What the family's kernels take."""

    def play_many(
        self,
        states: Any,
        futures: Any,
        tables: Any,
        first: int,
        last: int,
        status: npt.NDArray[np.int64],
    ) -> None:
        """Run simulators first..last-1 of many to their end; fills `status`."""


class Family(Protocol):
    """A kind of network, bound to a scenario."""

    name: str
    feature_version: int

    @property
    def settings(self) -> dict[str, Any]:
        """Shape of the network and choice of features, for the checkpoint."""

    @property
    def fixed_weights(self) -> Weights:
        """What a checkpoint holds besides the trained weights."""

    def initial_weights(self, rng: np.random.Generator) -> Weights:
        """Fresh weights."""

    def network(self, weights: Weights) -> torch.nn.Module:
        """The batched network (a TrainedNetwork)."""

    def policy(self, weights: Weights) -> TrainedPolicy:
        """The policy of these weights."""

    def allocate(self, num_simulators: int, capacity: int) -> tuple[Any, Any]:
        """Workspaces and records of so many simulators."""

    def explore_many(self, *args: Any) -> None:
        """The kernel that collects rollouts."""

    def demonstrate_many(self, *args: Any) -> None:
        """The kernel that collects what a rule would choose.

        Raises:
            ConfigError: a network that does not learn by imitation.
        """

    def gather(self, rollouts: list[Rollout], ends: bool = False) -> DataSet:
        """The decisions of the rollouts; or, with `ends`, the states in which they ended."""

    def num_jobs(self, rollout: Rollout) -> int:
        """Jobs in the system, summed over the decisions."""

    def trimmed(self, rollout: Rollout) -> Any:
        """A copy of the rollout's record, cut to what was recorded: for sending elsewhere."""
