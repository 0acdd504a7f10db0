"""A2cScheduler's actor as a policy: needs no PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from parcae.errors import ConfigError, FormatError
from parcae.packing.config import PackingConfig
from parcae.packing.images import ImageSettings
from parcae.packing.kernels.stepping import begin_many, show_many, step_many
from parcae.packing.layout import VOID, Asked, Packing, View
from parcae.policies.a2c.layout import (
    FEATURE_VERSION,
    KIND,
    A2cSettings,
    Architecture,
    Weights,
    check_weights,
)
from parcae.policies.a2c.lookup import Eye, FirstLayer, FloatArray, IntArray, outputs
from parcae.policies.checkpoint import Checkpoint, read_checkpoint
from parcae.policies.packing.layout import LONGEST_PAUSE

#: Decisions in a row that may let time pass in an idle cluster while a job could be placed if the policy is drawn from.
_PATIENCE = 20


def fitting(
    config: PackingConfig,
    capacity: npt.ArrayLike,
    architecture: Architecture,
    hidden: int = 0,
    is_masked: bool = False,
) -> A2cSettings:
    """Settings of networks for clusters of a capacity.

    Raises:
        ConfigError: clusters that have no image, or one smaller than a window.
    """
    horizon, width = ImageSettings().shape(config, capacity)
    try:
        return A2cSettings(
            architecture=architecture,
            horizon=horizon,
            width=width,
            num_slots=config.num_slots,
            capacity=tuple(np.asarray(capacity, np.int64).tolist()),
            hidden=hidden,
            is_masked=is_masked,
        )
    except ValidationError as error:
        raise ConfigError(str(error.errors()[0]["msg"])) from None


def masks_of(views: View) -> npt.NDArray[np.bool_]:
    """bool[num_clusters, num_slots + 1]: slots whose job can start now; the last lets time pass.

    It is not there in a cluster that has been empty for LONGEST_PAUSE steps since the last arrival.
    """
    count, num_slots = views.jobs.shape
    masks = np.zeros((count, num_slots + 1), np.bool_)
    is_shown = np.arange(num_slots) < views.head["num_jobs"]
    row, at = np.nonzero(is_shown & (views.jobs["can_start"] == 1))
    masks[row, views.jobs["slot"][row, at]] = True
    may_idle = (views.head["num_running"][:, 0] > 0) | (
        views.head["since_arrival"][:, 0] < LONGEST_PAUSE
    )
    masks[:, -1] = may_idle | ~masks[:, :-1].any(axis=1)
    return masks


def draw_actions(logits: FloatArray, luck: npt.NDArray[np.float64]) -> IntArray:
    """An action for each row of logits, by softmax, with luck uniform in [0, 1)."""
    odds = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    below = np.cumsum(odds, axis=1)
    actions: IntArray = (below <= (luck * below[:, -1])[:, None]).sum(axis=1)
    return actions


def slots_of(actions: IntArray, num_slots: int) -> IntArray:
    """The slots that actions mean: the last action is VOID."""
    return np.where(actions == num_slots, VOID, actions)


class A2cPolicy:
    """The actor with its weights.

    It is drawn from, or greedy. A masked policy lets no cluster stand empty for long. So that no run of another
    lasts for ever, an idle cluster in which a job could be placed gets the most probable such job: at once if the policy is
    greedy, else after 20 decisions in a row that let time pass.

    Args:
        name: how reports call it. weights: the actor's, as `A2cSettings.shapes` names them, each with "actor." before it.
        is_greedy: the most probable action instead of a drawn one.

    Raises:
        FormatError: weights of other shapes.
    """

    wants_profile = False

    def __init__(
        self, name: str, weights: Weights, settings: A2cSettings, is_greedy: bool = False
    ) -> None:
        self.name = name
        self.settings = settings
        self.is_greedy = is_greedy
        self.weights = {
            key.removeprefix("actor."): array
            for key, array in weights.items()
            if key.startswith("actor.")
        }
        check_weights(self.weights, settings, settings.num_actions, name)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, name: str = KIND, is_greedy: bool = False
    ) -> A2cPolicy:
        """The policy of a checkpoint.

        Raises:
            FormatError: a checkpoint of another policy, or settings or weights that do not fit.
        """
        checkpoint.require(KIND, FEATURE_VERSION, name)
        try:
            settings = A2cSettings.model_validate(checkpoint.settings["network"])
        except (KeyError, ValidationError):
            raise FormatError(
                f"{name}: a checkpoint without the settings of its networks; train it again"
            ) from None
        return cls(name, checkpoint.weights, settings, is_greedy)

    @classmethod
    def read(cls, path: Path | str, name: str = KIND, is_greedy: bool = False) -> A2cPolicy:
        """The policy of a file.

        Raises:
            FormatError, FileNotFoundError: as `read_checkpoint` and `from_checkpoint`.
        """
        return cls.from_checkpoint(read_checkpoint(Path(path)), name, is_greedy)

    def play_many(
        self, states: Packing, asked: Asked, sequence: IntArray, views: View, first: int, last: int
    ) -> None:
        """Run clusters first..last-1 from start to end, one decision of all of them at a time.

        Raises:
            ConfigError: clusters with other images than those that the networks were made for.
        """
        states = Packing(*(table[first:last] for table in states))
        views = View(*(table[first:last] for table in views))
        sequence = sequence[first:last]
        self._check(states, asked)
        eye = Eye(self.settings)
        layer = FirstLayer(self.weights, eye)
        count = len(sequence)
        begin_many(states, asked, sequence, 0, count)
        is_placed = np.zeros(count, np.int64)
        held = np.zeros(count, np.int64)
        while (states.clock["is_over"] == 0).any():
            show_many(states, asked, sequence, views, 0, count)
            logits = outputs(
                layer.sums(eye.look(states, asked, sequence)), layer.blank, self.weights
            )
            actions = self._choose(logits, masks_of(views), states, views, held)
            step_many(
                states,
                asked,
                sequence,
                slots_of(actions, self.settings.num_slots),
                is_placed,
                0,
                count,
            )
            held = np.where(is_placed == 1, 0, held + 1)

    def _choose(
        self,
        logits: FloatArray,
        masks: npt.NDArray[np.bool_],
        states: Packing,
        views: View,
        held: IntArray,
    ) -> IntArray:
        can = np.where(masks, logits, np.float32(-np.inf))
        odds = can if self.settings.is_masked else logits
        luck = (views.head["luck"][:, 0] >> np.uint64(11)) * 2.0**-53
        actions = odds.argmax(axis=1) if self.is_greedy else draw_actions(odds, luck)
        is_stuck = (states.clock["num_running"][:, 0] == 0) & masks[:, :-1].any(axis=1)
        if self.is_greedy:
            is_stuck &= ~masks[np.arange(len(actions)), actions] | (
                actions == self.settings.num_slots
            )
        else:
            is_stuck &= held >= _PATIENCE
        return np.where(is_stuck, can[:, :-1].argmax(axis=1), actions)

    def _check(self, states: Packing, asked: Asked) -> None:
        own = (self.settings.horizon, self.settings.width, self.settings.num_slots)
        is_exact = bool(asked.rules["is_exact"].any())
        capacity = states.capacity
        backlog = -(-states.backlog.shape[1] // states.free.shape[1])
        slots = states.slots.shape[1]
        found = (states.free.shape[1], int(capacity[0].sum()) * (1 + slots) + backlog, slots)
        if is_exact or (capacity != capacity[0]).any() or found != own:
            raise ConfigError(
                f"{self.name}: made for images of {own[0]}x{own[1]} cells and {own[2]} slots, not {found[0]}x{found[1]} and "
                f"{found[2]}"
                f"{' with exact times' if is_exact else ''}: run it in a cluster like the one that it was trained for"
            )
        if self.settings.capacity and tuple(capacity[0].tolist()) != self.settings.capacity:
            raise ConfigError(
                f"{self.name}: made for a cluster of {list(self.settings.capacity)} units, not {capacity[0].tolist()}: run it in "
                "one like that"
            )


def named(weights: Mapping[str, npt.NDArray[Any]], prefix: str) -> Weights:
    """Copies of a network's weights, with the network's name before theirs."""
    return {f"{prefix}.{name}": np.array(array) for name, array in weights.items()}
