"""Recipes: the settings of a training, by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from parcae.errors import ConfigError


class Algorithm(StrEnum):
    """How the weights are updated."""

    PPO = "ppo"
    REINFORCE = "reinforce"


class TrainConfig(BaseModel):
    """The settings of a training; an unknown key is refused.

    Args:
        algorithm: proximal policy optimisation, or Decima's Algorithm 1.
        num_groups, group_size: simulators of one collection; those of a group share arrivals and luck.
        window_s: simulated seconds of one collection, or None for whole runs (batches).
        horizon_s: time in which the cost of a decision fades, or None for none.
        capacity: decisions that one rollout can record.
        learning_rate, final_share: Adam's, falling linearly to `final_share` of it at the end of the budget.
        epochs, minibatch, clip, max_norm, value_weight: of the proximal update.
        entropy: weight of the entropy bonus, falling like the learning rate.
        prior: what the rule's choices weigh at the start (job, hold, limit), as logits.
        imitation: share of the training in which the network imitates a tuned rule, before it learns by itself.
        averaging: what an iteration keeps of the running mean of all weights so far, which is measured beside the weights
            themselves at every checkpoint (noise averages out); 0 for none.
        select_every: iterations between checkpoints, at which the policy is measured on runs of its own.
        num_selection: runs on which it is measured.
        max_jobs_factor: the guard: queues this many times longer than those of fair sharing mean divergence.
        episode_s, episode_growth_s, episode_max_s: mean length of an episode, what it grows by in every iteration, and its
            largest (memoryless termination); None to run episodes to their end.
        is_differential: costs count beyond their running mean a second (REINFORCE only).
        is_aligned: the baseline knows the time; else it is one number a group (an ablation; REINFORCE only).
        cost_scale: costs are divided by this (REINFORCE only; in ms of job time).
        early_gap: gaps between arrivals are so many times longer at first, and fall linearly to the scenario's over the first
            half of the training: load that grows as the policy learns (Duan & Wu, section V-A).
        entropy_decay, entropy_least: what the entropy's weight loses in every iteration, down to which (REINFORCE only).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    algorithm: Algorithm = Algorithm.PPO
    num_groups: int = Field(default=8, ge=1)
    group_size: int = Field(default=8, ge=2)
    window_s: float | None = Field(default=None, gt=0)
    horizon_s: float | None = Field(default=None, gt=0)
    capacity: int = Field(default=1024, ge=8)
    learning_rate: float = Field(default=1e-3, gt=0)
    final_share: float = Field(default=0.05, ge=0, le=1)
    epochs: int = Field(default=2, ge=1)
    minibatch: int = Field(default=2048, ge=1)
    clip: float = Field(default=0.2, gt=0)
    max_norm: float = Field(default=0.5, gt=0)
    value_weight: float = Field(default=0.5, ge=0)
    entropy: float = Field(default=0.003, ge=0)
    prior: tuple[float, float, float] = (5.5, 5.5, 4.0)
    imitation: float = Field(default=0.0, ge=0, le=1)
    averaging: float = Field(default=0.0, ge=0, lt=1)
    select_every: int = Field(default=20, ge=1)
    num_selection: int = Field(default=100, ge=2)
    max_jobs_factor: float = Field(default=10.0, gt=1)
    episode_s: float | None = Field(default=None, gt=0)
    episode_growth_s: float = Field(default=0.0, ge=0)
    episode_max_s: float | None = Field(default=None, gt=0)
    early_gap: float = Field(default=1.0, ge=1)
    is_differential: bool = False
    is_aligned: bool = True
    cost_scale: float = Field(default=1e5, gt=0)
    entropy_decay: float = Field(default=1e-3, ge=0)
    entropy_least: float = Field(default=1e-4, ge=0)


Model = TypeVar("Model", bound=BaseModel)


def override(config: Model, settings: Sequence[str]) -> Model:
    """The config with other values, each given as "key=value".

    Raises:
        ConfigError: an unknown key (the message suggests one), or not key=value.
        pydantic.ValidationError: a value out of range.
    """
    values: dict[str, Any] = config.model_dump()
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(f"setting {setting!r}: write key=value")
        if key not in values:
            close = difflib.get_close_matches(key, values, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(values)}"
            raise ConfigError(f"setting {key!r} does not exist; {hint}")
        values[key] = (
            None
            if value == "none"
            else value.split(",")
            if isinstance(values[key], tuple)
            else value
        )
    return type(config).model_validate(values)
