"""A2cScheduler's actor as a policy; it decides without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from parcae.base.arrays import AnyArray, BoolArray, Float32Array, Float64Array, Int64Array
from parcae.base.errors import ConfigError, problem
from parcae.policies.checkpoint import Checkpoint
from parcae.policies.networks.layout import Weights, require_shapes
from parcae.rigid.a2c.layout import (
    FEATURE_VERSION,
    KIND,
    A2cSettings,
    Architecture,
    LookupNetwork,
    encode_clusters,
)
from parcae.rigid.config import PackingConfig
from parcae.rigid.kernels.stepping import begin_many, show_many, step_many
from parcae.rigid.layout import VOID, Clusters, Packing, View
from parcae.rigid.policies.policy import PackingPolicy, require_cluster
from parcae.rigid.policies.scores import LONGEST_PAUSE
from parcae.rigid.world import image_shape

# Deviation: A2cScheduler 3.1 draws every action from the policy, however often it lets time pass.
# Here an idle cluster starts a job at last, because an unmasked policy could make a run last for
# ever.
#: A policy that draws may let time pass so many times in a row in an idle cluster where a job could
#: be placed; then a job is started.
_PATIENCE = 20


def settings_for(
    config: PackingConfig,
    capacity: npt.ArrayLike,
    architecture: Architecture,
    hidden: int = 0,
    is_masked: bool = False,
) -> A2cSettings:
    """Return the settings of networks for a cluster."""
    horizon, width = image_shape(config, capacity)
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
        raise ConfigError(problem(error.errors()[0])) from None


def masks_of(views: View) -> BoolArray:
    """Return which actions are allowed, bool[num_clusters, num_slots + 1].

    These are the slots whose job can start now, and the last action, which lets time pass. The last
    action is excluded if a job can start and the cluster has been empty for LONGEST_PAUSE steps
    since the last arrival.
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


def draw_actions(logits: Float32Array, draws: Float64Array) -> Int64Array:
    """Draw an action for each row of logits, by softmax.

    `logits` is float32[count, num_actions]; `draws` are float64[count], uniform in [0, 1).
    """
    odds = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    below = np.cumsum(odds, axis=1)
    actions: Int64Array = (below <= (draws * below[:, -1])[:, None]).sum(axis=1)
    return actions


def slots_of(actions: Int64Array, num_slots: int) -> Int64Array:
    """Return the slots that actions stand for; the last action is VOID."""
    return np.where(actions == num_slots, VOID, actions)


class A2cPolicy(PackingPolicy):
    """The actor with its weights.

    It draws actions, or takes the most probable ones. A masked policy never leaves a cluster empty
    for long. An unmasked policy could make a run last for ever. To prevent this, it must start the
    most probable job in an idle cluster in which a job could be placed: at once if the policy is
    greedy, else after 20 decisions in a row that let time pass.

    Args:
        name: name of the policy in reports.
        weights: the actor's arrays by the names of `A2cSettings.shapes`, each with "actor." before
            it; other names are ignored.
        settings: shape of the networks.
        is_greedy: take the most probable action instead of drawing one.
    """

    wants_profile = False

    def __init__(
        self, name: str, weights: Weights, settings: A2cSettings, is_greedy: bool = False
    ) -> None:
        self.name = name
        self.settings = settings
        self.is_greedy = is_greedy
        shapes = settings.shapes(settings.num_actions)
        require_shapes(weights, {f"actor.{key}": shape for key, shape in shapes.items()}, name)
        self.weights = {key: weights[f"actor.{key}"] for key in shapes}

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, path: str, name: str = KIND, is_greedy: bool = False
    ) -> A2cPolicy:
        """Return the policy of a checkpoint."""
        checkpoint.require(KIND, FEATURE_VERSION, path)
        settings = checkpoint.network_settings(A2cSettings, path)
        return cls(name, checkpoint.weights, settings, is_greedy)

    def play_many(self, clusters: Clusters, views: View, first: int, last: int) -> None:
        """Run clusters from start to end; the decisions of all are taken side by side."""
        self.check_view(views)
        states = Packing(*(table[first:last] for table in clusters.states))
        views = View(*(table[first:last] for table in views))
        clusters = Clusters(states, clusters.sequences, clusters.sequence_rows[first:last])
        self._check(states)
        network = LookupNetwork(self.weights, self.settings)
        count = len(clusters.sequence_rows)
        begin_many(clusters, 0, count)
        is_placed = np.zeros(count, np.int64)
        held = np.zeros(count, np.int64)
        while not (is_over := states.clock["is_over"][:, 0] == 1).all():
            show_many(clusters, views, 0, count)
            logits = network.outputs(encode_clusters(clusters, is_over, self.settings))
            actions = self._choose(logits, masks_of(views), states, views, held)
            slots = slots_of(actions, self.settings.num_slots)
            step_many(clusters, slots, is_placed, 0, count)
            held = np.where(is_placed == 1, 0, held + 1)

    def _choose(
        self,
        logits: Float32Array,
        masks: BoolArray,
        states: Packing,
        views: View,
        held: Int64Array,
    ) -> Int64Array:
        """Choose an action for each cluster.

        `held` counts the decisions in a row that placed no job.
        """
        startable = np.where(masks, logits, np.float32(-np.inf))
        chosen_from = startable if self.settings.is_masked else logits
        # The upper 53 bits as a float64 in [0, 1).
        draws = (views.head["random_bits"][:, 0] >> np.uint64(11)) * 2.0**-53
        actions = chosen_from.argmax(axis=1) if self.is_greedy else draw_actions(chosen_from, draws)
        is_stuck = (states.clock["num_running"][:, 0] == 0) & masks[:, :-1].any(axis=1)
        if self.is_greedy:
            is_stuck &= ~masks[np.arange(len(actions)), actions] | (
                actions == self.settings.num_slots
            )
        else:
            is_stuck &= held >= _PATIENCE
        return np.where(is_stuck, startable[:, :-1].argmax(axis=1), actions)

    def _check(self, states: Packing) -> None:
        """Check that the clusters have the images that the networks were made for."""
        settings = self.settings
        shape = {"horizon": settings.horizon, "columns": settings.width}
        units = {"units": settings.capacity} if settings.capacity else {}
        require_cluster(self.name, states, slots=settings.num_slots, **units, **shape)


def prefixed(weights: Mapping[str, AnyArray], prefix: str) -> Weights:
    """Return copies of a network's weights, with `prefix` and a dot before their names."""
    return {f"{prefix}.{name}": np.array(array) for name, array in weights.items()}
