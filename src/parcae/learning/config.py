"""The settings of a training, and how "key=value" texts change them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from parcae.base.errors import ConfigError, FormatError, suggestion
from parcae.policies.checkpoint import Checkpoint, Weights, read_checkpoint, write_checkpoint

#: The file in the folder of a training from which it resumes.
STATE_FILE = "training.safetensors"
#: What is written of the progress of every training.
_PROGRESS = frozenset({"iteration", "seconds", "best", "curve"})


@dataclass(frozen=True)
class TrainingState:
    """All that a resumed training needs."""

    weights: Weights
    best_weights: Weights
    learner: dict[str, Any]
    progress: Mapping[str, Any]


def write_state(
    state: TrainingState, identity: Mapping[str, Any], feature_version: int, folder: Path
) -> None:
    """Write the state of a training into `folder`, atomically."""
    arrays = {key: one for key, one in state.learner.items() if isinstance(one, np.ndarray)}
    numbers = {key: one for key, one in state.learner.items() if key not in arrays}
    parts = {"now": state.weights, "best": state.best_weights, "state": arrays}
    weights = {
        f"{part}.{name}": array for part, table in parts.items() for name, array in table.items()
    }
    settings = {**state.progress, "learner": numbers, "identity": dict(identity)}
    checkpoint = Checkpoint("training", feature_version, weights, settings)
    write_checkpoint(checkpoint, folder / STATE_FILE)


def read_state(
    fresh: TrainingState, identity: Mapping[str, Any], feature_version: int, folder: Path
) -> TrainingState:
    """Read the state of the training in `folder`, from which a fresh one of its kind goes on."""
    path = folder / STATE_FILE
    if not path.exists():
        raise ConfigError(
            f"{folder} has no training to resume ({STATE_FILE} is written at each measurement): "
            "leave out --resume to begin one"
        )
    saved = read_checkpoint(path)
    before = saved.settings.get("identity")
    if not isinstance(before, dict) or not saved.settings.keys() >= _PROGRESS:
        raise _foreign(path, f"version {saved.card.get('parcae', 'unknown')} wrote it")
    # Through JSON, so that it compares equal to what was read from a file (lists, not tuples).
    now = json.loads(json.dumps(identity))
    for key in (*now, *before):
        if before.get(key) != now.get(key):
            raise ConfigError(
                f"{path}: a training with another {key}; use the same settings, or another folder"
            )
    # The kind of the learner is part of the identity.
    saved.require(saved.kind, feature_version, str(path))
    parts: dict[str, Weights] = {"now": {}, "best": {}, "state": {}}
    for key, array in saved.weights.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = array
    learner = {**parts["state"], **saved.settings.get("learner", {})}
    state = TrainingState(parts["now"], parts["best"], learner, saved.settings)
    for part in ("weights", "best_weights", "learner"):
        found = getattr(state, part)
        for name, value in getattr(fresh, part).items():
            is_array = isinstance(value, np.ndarray)
            if name not in found or (is_array and np.shape(found[name]) != value.shape):
                raise _foreign(path, f"it has no {name!r} of this training")
    return state


def _foreign(path: Path, why: str) -> FormatError:
    return FormatError(
        f"{path}: not the state of a training that this version of Parcae can resume ({why}): use "
        "the version that wrote it, or train again"
    )


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Algorithm(StrEnum):
    """How the weights are updated."""

    PPO = "ppo"
    REINFORCE = "reinforce"


class TrainConfig(BaseModel):
    """The settings of a training. Unknown keys are rejected.

    Args:
        algorithm: proximal policy optimisation (PPO), or Decima's Algorithm 1 (REINFORCE).
        num_groups: groups of simulators in one collection.
        group_size: simulators of a group; they share arrivals and random bits.
        window_s: simulated seconds of one collection, or None for whole runs (batches).
        horizon_s: time constant of the discount of later cost, or None for no discount (PPO).
        capacity: maximum number of decisions that one rollout records. A window ends there; a whole
            run goes on unrecorded, so that its cost is known.
        learning_rate: of Adam.
        final_share: the learning rate falls linearly to this share of it by the end of the budget
            (PPO).
        epochs: passes over the data in an update (PPO).
        minibatch: decisions in a minibatch.
        clip: clipping range of the probability ratio (PPO).
        max_norm: maximum norm of the gradient (PPO and imitation).
        value_weight: weight of the critic's loss (PPO).
        entropy: weight of the entropy bonus; it falls like the learning rate (PPO), or by
            `entropy_decay` (REINFORCE).
        prior: initial logits of the rule's choices of job, hold and limit (network "parcae").
        imitation: share of the training, at its start, in which the network imitates a tuned rule.
        averaging: share of the running mean of the weights that each iteration keeps. The mean is
            measured beside the weights themselves, since it is less noisy. 0 for no mean.
        select_every: iterations between checkpoints, when the policy is measured on the selection
            runs.
        num_selection: number of selection runs.
        max_jobs_factor: the training has diverged when the mean number of jobs in the system is
            this many times that under fair sharing.
        episode_s: mean length of the first episodes (memoryless termination); None to run episodes
            to their end.
        episode_growth_s: growth of the mean length in each iteration.
        episode_max_s: largest mean length; None for no limit.
        is_differential: subtract the running mean cost per second from costs (REINFORCE only).
        is_aligned: whether the baseline depends on the time; else it is one number for each group
            (an ablation; REINFORCE only).
        cost_scale: costs are divided by this (REINFORCE only; in ms of job time).
        early_gap: initial factor on the gaps between arrivals. It falls linearly to 1 over the
            first half of the training, so that the load grows as the policy learns (Duan & Wu,
            section V-A).
        entropy_decay: decrease of the entropy's weight in each iteration (REINFORCE only).
        entropy_least: smallest weight of the entropy (REINFORCE only).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    algorithm: Algorithm = Algorithm.PPO
    num_groups: Count = 8
    group_size: int = Field(default=8, ge=2)
    window_s: float | None = Field(default=None, ge=0.001)
    horizon_s: Positive | None = None
    capacity: int = Field(default=1024, ge=8)
    learning_rate: Positive = 1e-3
    final_share: Share = 0.05
    epochs: Count = 2
    minibatch: Count = 2048
    clip: Positive = 0.2
    max_norm: Positive = 0.5
    value_weight: NotNegative = 0.5
    entropy: NotNegative = 0.003
    prior: tuple[float, float, float] = (5.5, 5.5, 4.0)
    imitation: Share = 0.0
    averaging: float = Field(default=0.0, ge=0, lt=1)
    select_every: Count = 20
    num_selection: int = Field(default=100, ge=2)
    max_jobs_factor: float = Field(default=10.0, gt=1)
    episode_s: Positive | None = None
    episode_growth_s: NotNegative = 0.0
    episode_max_s: Positive | None = None
    early_gap: float = Field(default=1.0, ge=1)
    is_differential: bool = False
    is_aligned: bool = True
    cost_scale: Positive = 1e5
    entropy_decay: NotNegative = 1e-3
    entropy_least: NotNegative = 1e-4


Model = TypeVar("Model", bound=BaseModel)


def override(config: Model, settings: Sequence[str]) -> Model:
    """A copy of the config with changed values, each given as "key=value"."""
    values: dict[str, Any] = config.model_dump()
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(f"setting {setting!r}: write key=value")
        if key not in values:
            raise ConfigError(f"setting {key!r} does not exist; {suggestion(key, values)}")
        # Only tuples need splitting here: pydantic converts texts to numbers and enums itself.
        may_be_none = NoneType in get_args(type(config).model_fields[key].annotation)
        values[key] = (
            None
            if value == "none" and may_be_none
            else value.split(",")
            if isinstance(values[key], tuple)
            else value
        )
    return type(config).model_validate(values)


def recipe_settings(
    recipes: Mapping[str, Model], name: str, kind: str, changes: Sequence[str]
) -> Model:
    """The settings of a recipe, with changes that are given as "key=value"."""
    if name not in recipes:
        raise ConfigError(f"no recipe {name!r} of {kind}; {suggestion(name, recipes)}")
    return override(recipes[name], changes)
