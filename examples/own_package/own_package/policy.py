"""The policy `aged`: jobs by remaining work, the older the sooner."""

from __future__ import annotations

import numpy as np

from parcae.base.errors import PolicyError
from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, first_come
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.names import PolicyName
from parcae.policies.own import SchedulerView
from parcae.policies.registry import CheckpointKind, PolicyEntry, PolicySetting

KIND = "aged"
VERSION = 1


class Aged:
    """A job's tier is its remaining work - `weight` x its age, both in seconds."""

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight

    def plan(self, observation: Observation) -> Orders:
        """Smaller tiers are served first."""
        orders = first_come(observation)
        for job in SchedulerView(observation, ()).jobs:
            orders.jobs.tier[job.row] = job.remaining_s - self.weight * job.age_s
        return orders


def _by_name(name: PolicyName, setting: PolicySetting) -> Aged:
    try:
        return Aged(name.name, float(name.argument or 1.0))
    except ValueError:
        raise PolicyError(f"policy {name.name!r}: the weight is a number, e.g. aged:0.5") from None


def _by_checkpoint(checkpoint: Checkpoint, name: str, setting: PolicySetting) -> Aged:
    return Aged(name, float(np.sum(checkpoint.weights["weight"])))


POLICIES = (
    PolicyEntry("aged[:WEIGHT]", "least remaining work - WEIGHT x age first", "mine", _by_name),
)
KINDS = (CheckpointKind(KIND, VERSION, _by_checkpoint),)
