"""The vector environments as Stable-Baselines3 (and sb3-contrib's MaskablePPO) takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

from parcae.base.errors import ConfigError
from parcae.environments.adapters import Array, Arrays, EpisodeVectorEnv, first_of


class StableBaselinesEnv(VecEnv):
    """A vector environment of Parcae, for a learner of Stable-Baselines3.

    All episodes are of training seeds; the learner's seed decides which. The info of an episode's
    last step has the episode's metrics. Masks are those of `action_masks`, as sb3-contrib asks.
    """

    def __init__(
        self,
        env: EpisodeVectorEnv,
        inputs: Callable[[Arrays], Array] | None = None,
        input_space: spaces.Box | None = None,
    ) -> None:
        """Wrap a vector environment.

        Args:
            env: the environments, with autoreset_mode=SAME_STEP.
            inputs: makes what the learner sees, [num_envs, ...], of observations; None: the
                dictionaries themselves, as MultiInputPolicy takes them.
            input_space: the space of one input; None without `inputs`.
        """
        if env.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ConfigError("Stable-Baselines3 needs environments with autoreset_mode=SAME_STEP")
        self.env = env
        self._inputs: Callable[[Arrays], Any] = inputs or (lambda observations: observations)
        self._actions: Array = np.zeros(0)
        self._masks: Array = np.zeros(0)
        space = env.single_observation_space if input_space is None else input_space
        super().__init__(env.num_envs, space, env.single_action_space)

    def reset(self) -> Any:
        """Begin an episode of a training seed in every environment."""
        if self._seeds[0] is not None:
            self.env.reset(seed=self._seeds)  # seeds the generators that draw training seeds
        self._reset_seeds()
        observations, _ = self.env.reset()
        return self._seen(observations)

    def step_async(self, actions: Array) -> None:
        """Remember one action for every environment."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Apply the remembered actions. Returns inputs, rewards, whether the episode ended, and
        infos.
        """
        observations, rewards, terminated, truncated, infos = self.env.step(self._actions)
        is_over = terminated | truncated
        listed: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(is_over).tolist():
            last = {name: array[None] for name, array in infos["final_obs"][row].items()}
            metrics = infos["final_info"]
            listed[row] = {key: metrics[key][row] for key in metrics if not key.startswith("_")}
            listed[row]["terminal_observation"] = first_of(self._inputs(last))
            listed[row]["TimeLimit.truncated"] = bool(truncated[row] and not terminated[row])
        return self._seen(observations), rewards.astype(np.float32), is_over, listed

    def _seen(self, observations: Arrays) -> Any:
        """Remember the masks of observations and return the inputs; later steps change neither.

        A learner keeps the inputs until its next step, which writes over the observations of an
        environment with copy=False.
        """
        self._masks = observations["action_mask"].copy()
        seen = self._inputs(observations)
        if isinstance(seen, dict):
            return {name: array.copy() for name, array in seen.items()}
        return np.array(seen)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def has_attr(self, attr_name: str) -> bool:
        """Whether the environments have an attribute: their masks, or one that they share."""
        return attr_name == "action_masks" or hasattr(self.env, attr_name)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute that the environments share, once for each."""
        return [getattr(self.env, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse to set an attribute: the environments share them."""
        raise AttributeError(f"environments that share their attributes cannot set {attr_name}")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Return the masks of the environments; there is no other method."""
        if method_name != "action_masks":
            raise AttributeError(f"environments side by side have no method {method_name}")
        return [self._masks[row] for row in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        """Return that no environment is wrapped."""
        return [False for _ in self._get_indices(indices)]
