"""Models of reinforcement-learning libraries as policies of Decima's world."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import gymnasium
import numpy as np

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.observation import Decision, Observation
from parcae.environments.adapters import Array, Arrays, first_of
from parcae.environments.cluster import ClusterEpisodes


class Model(Protocol):
    """What the adapter needs of a model: Stable-Baselines3's `predict`."""

    observation_space: Any

    def predict(self, observation: Any, **options: Any) -> tuple[Any, Any]:
        """The action for an observation, and the model's state."""


class ModelPolicy:
    """A model that was trained on `parcae/Cluster-v0`, as a policy.

    It sees the simulator through the environment's own observation, and its actions mean what they
    mean there. Decisions without a choice are made without it, as in the environment. Its tables
    are those of one run at a time: give each thread a policy of its own.

    Args:
        model: a Stable-Baselines3 or sb3-contrib model that sees entries of the environment's
            observation, or `inputs` of it; not normalised.
        env: the environment that it was trained on (also many side by side), or one with the same
            settings; wrappers that only leave entries of the observation out are understood.
        inputs: the function that `StableBaselinesEnv` had; None: the model sees entries.
        name: how tables call it.
        deterministic: the most probable action instead of a drawn one.

    Raises:
        ConfigError: another environment, or a model that was trained on another observation or a
            normalised one.
    """

    def __init__(
        self,
        model: Model,
        env: gymnasium.Env[Any, Any],
        *,
        inputs: Callable[[Arrays], Array] | None = None,
        name: str = "",
        deterministic: bool = True,
    ) -> None:
        episodes = getattr(env.unwrapped, "episodes", None)
        if not isinstance(episodes, ClusterEpisodes):
            raise ConfigError(f"{env} is not parcae/Cluster-v0, on which the model was trained")
        self.name = name or type(model).__name__.lower()
        self._model = model
        self._episodes = ClusterEpisodes(1, episodes.settings)
        self._is_deterministic = deterministic
        # As sb3-contrib's MaskablePPO does.
        self._is_masked = "action_masks" in inspect.signature(model.predict).parameters
        _check_not_normalized(model)
        self._inputs = inputs
        self._keys = _keys(model, self._episodes) if inputs is None else ()
        if inputs is not None:
            shape = inputs(self._episodes.observations()).shape[1:]
            if shape != model.observation_space.shape:
                raise ConfigError(
                    f"inputs makes observations of shape {shape}, but the model was trained on "
                    f"{model.observation_space.shape}; give the function and the environment that "
                    "it was trained with"
                )

    def decide(self, observation: Observation) -> Decision:
        """The decision that the model's action means."""
        episodes = self._episodes
        if not episodes.follow(0, observation):
            return Decision()
        seen = episodes.observations()
        options: dict[str, Any] = {"deterministic": self._is_deterministic}
        if self._is_masked:
            options["action_masks"] = seen["action_mask"][0]
        inputs = self._inputs(seen) if self._inputs else {key: seen[key] for key in self._keys}
        action, memory = self._model.predict(first_of(inputs), **options)
        if memory is not None:
            raise PolicyError(
                f"policy {self.name!r}: recurrent models cannot be policies, because what they "
                "remember is lost between decisions; train one without memory"
            )
        return episodes.decision(0, np.asarray(action))


def _check_not_normalized(model: Model) -> None:
    normalized = getattr(model, "get_vec_normalize_env", lambda: None)()
    if normalized is not None and normalized.norm_obs:
        raise ConfigError(
            "the model was trained on observations that VecNormalize scales, which this "
            "environment does not show; train with VecNormalize(..., norm_obs=False)"
        )


def _keys(model: Model, episodes: ClusterEpisodes) -> tuple[str, ...]:
    """The entries of the observation that the model was trained on."""
    spaces = getattr(model.observation_space, "spaces", None)
    known: dict[str, Any] = getattr(episodes.observation_space, "spaces", {})
    if spaces is None or any(name not in known or known[name] != spaces[name] for name in spaces):
        raise ConfigError(
            "the model was trained on another observation than this environment shows; "
            "give the environment that it was trained on, and `inputs` if StableBaselinesEnv had "
            "them"
        )
    return tuple(spaces)
