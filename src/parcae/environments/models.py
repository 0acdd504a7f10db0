"""Models of reinforcement-learning libraries as policies of Decima's world."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import gymnasium
import numpy as np

from parcae.base.errors import ConfigError, PolicyError
from parcae.cluster.observation import Decision, Observation
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
            observation as they are: not through `StableBaselinesEnv`, not normalised.
        env: the environment that it was trained on, or one with the same settings; wrappers that
            only leave entries of the observation out are understood.
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
        self._keys = _keys(model, self._episodes)

    def decide(self, observation: Observation) -> Decision:
        """The decision that the model's action means."""
        episodes = self._episodes
        if not episodes.follow(0, observation):
            return Decision()
        seen = {name: array[0] for name, array in episodes.observations().items()}
        options: dict[str, Any] = {"deterministic": self._is_deterministic}
        if self._is_masked:
            options["action_masks"] = seen["action_mask"]
        action, memory = self._model.predict({key: seen[key] for key in self._keys}, **options)
        if memory is not None:
            raise PolicyError(
                f"policy {self.name!r}: recurrent models cannot be policies, because what they "
                "remember is lost between decisions; train one without memory"
            )
        return episodes.decision(0, np.asarray(action))


def _keys(model: Model, episodes: ClusterEpisodes) -> tuple[str, ...]:
    """The entries of the observation that the model was trained on."""
    normalized = getattr(model, "get_vec_normalize_env", lambda: None)()
    if normalized is not None and normalized.norm_obs:
        raise ConfigError(
            "the model was trained on observations that VecNormalize scales, which this "
            "environment does not show; train with VecNormalize(..., norm_obs=False)"
        )
    spaces = getattr(model.observation_space, "spaces", None)
    known: dict[str, Any] = getattr(episodes.observation_space, "spaces", {})
    if spaces is None or any(name not in known or known[name] != spaces[name] for name in spaces):
        raise ConfigError(
            "the model was trained on another observation than this environment shows; "
            "give the environment that it was trained on"
        )
    return tuple(spaces)
