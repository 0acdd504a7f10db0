"""Decisions that a network made, for tests of what trainings do with them."""

from __future__ import annotations

from typing import Any

from parcae.decima.learning.simulators import RolloutWorker, Setup
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.policies.checkpoint import Weights


def collected(
    scenario: Scenario,
    family: Any,
    weights: Weights,
    seed: int = 5,
    teacher: Any = None,
    **sizes: int,
) -> Any:
    """What the family gathers of a collection with these weights."""
    config = TrainConfig(**{"num_groups": 2, "group_size": 2, "capacity": 200, **sizes})
    worker = RolloutWorker(Setup(scenario, family, config), seed=seed)
    groups = worker.collect(family.policy(weights).network, None, teacher)
    return family.gather([rollout for group in groups for rollout in group])
