"""Adapters from episodes that run side by side to Gymnasium's single and vector environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from parcae.base.errors import ConfigError, PolicyError
from parcae.environments.kernels import find_outside
from parcae.environments.layout import NO_ROW
from parcae.workloads.workload import TRAINING_SEED_START

Array = npt.NDArray[Any]
BoolArray = npt.NDArray[np.bool_]
Arrays = dict[str, Array]

#: Episodes without a given seed draw one from this many training seeds, which no comparison uses.
_NUM_TRAINING_SEEDS = 1 << 40
_LARGEST_SEED = (1 << 63) - 1


class Episodes(Protocol):
    """Episodes of one world, `count` of them side by side; a single environment has one."""

    count: int
    observation_space: gymnasium.Space[Any]  # of one episode: a Dict with an entry "action_mask"
    action_space: gymnasium.Space[Any]

    def start(self, rows: npt.NDArray[np.int64], seeds: Sequence[int]) -> None:
        """Begin an episode in each of the given rows, which have one seed each."""

    def step(
        self, actions: Array, rows: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float64], BoolArray, BoolArray]:
        """Apply one action in each of the given rows.

        Args:
            actions: [count, ...]; actions of other rows are ignored.
            rows: int64[...], the rows that act.

        Returns:
            rewards, terminated and truncated, each [count].
        """

    def observations(self) -> Arrays:
        """Return the observation of every episode, each [count, ...]."""

    def outcome(self, row: int) -> dict[str, float]:
        """Return the metrics of an episode that is over."""


def checked_actions(
    actions: Array, rows: npt.NDArray[np.int64], space: gymnasium.Space[Any], count: int
) -> npt.NDArray[np.int64]:
    """Return the choices of every action, int64[count, number of choices]."""
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    # How many values each choice has, in the shape of one action.
    sizes = np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec)
    choices = np.zeros((count, sizes.size), np.int64)
    outside = next(iter(rows.tolist()), NO_ROW)
    if actions.shape == (count, *sizes.shape) and actions.dtype.kind in "iu":
        choices[:] = actions.reshape(choices.shape)
        outside = find_outside(choices, sizes.ravel(), rows)
    if outside != NO_ROW:
        action = actions[outside] if actions.shape[:1] == (count,) else actions
        raise PolicyError(
            f"action {action} is not in {space}; "
            f"call action_space.sample() for an example of an action"
        )
    return choices


def first_of(seen: Any) -> Any:
    """The first one of many observations, which are arrays or dictionaries of them."""
    return {name: array[0] for name, array in seen.items()} if isinstance(seen, dict) else seen[0]


def checked_num_envs(num_envs: int) -> int:
    """Return the number of environments."""
    if not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise ConfigError(f"num_envs = {num_envs!r}: give a whole number of at least 1")
    return int(num_envs)


def _drawn_seed(rng: np.random.Generator) -> int:
    """Draw a training seed."""
    return TRAINING_SEED_START + int(rng.integers(_NUM_TRAINING_SEEDS))


class EpisodeEnv(gymnasium.Env[Arrays, Array]):
    """A single environment.

    `reset(seed=s)` plays the episode of seed s; `reset()` plays that of a random training seed.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    episodes: Episodes

    def __init__(self, episodes: Episodes) -> None:
        self.episodes = episodes
        self.observation_space = episodes.observation_space
        self.action_space = episodes.action_space
        self._is_over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode. Returns the first observation, and an empty info."""
        super().reset(seed=seed)
        episode_seed = _drawn_seed(self.np_random) if seed is None else seed
        self.episodes.start(np.zeros(1, np.int64), [episode_seed])
        self._is_over = False
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Arrays, float, bool, bool, dict[str, Any]]:
        """Apply an action and advance to the next decision.

        At the end of the episode the info contains its metrics.
        """
        if self._is_over:
            raise ResetNeeded("the episode is over: call reset() before step()")
        rewards, terminated, truncated = self.episodes.step(
            np.asarray(action)[None], np.zeros(1, np.int64)
        )
        self._is_over = bool(terminated[0] or truncated[0])
        info = self.episodes.outcome(0) if self._is_over else {}
        return self._observation(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), info

    def action_masks(self) -> BoolArray:
        """Return the mask of the present observation, bool[sum of the choices].

        sb3-contrib calls this method.
        """
        mask: BoolArray = self.episodes.observations()["action_mask"][0]
        return mask

    def _observation(self) -> Arrays:
        seen: Arrays = first_of(self.episodes.observations())
        return seen


class EpisodeVectorEnv(VectorEnv[Arrays, Array, Array]):
    """Several environments side by side, each the same as a single one with its seed.

    With AutoresetMode.NEXT_STEP, the step after the end of an episode begins the environment's next
    episode. With SAME_STEP the step that ends an episode also begins the next one: its info has the
    last observation (`final_obs`) and the metrics (`final_info`).
    """

    def __init__(
        self, episodes: Episodes, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP
    ) -> None:
        """Make an environment of each episode."""
        self.metadata = {"render_modes": [], "autoreset_mode": _known_mode(autoreset_mode)}
        self._begins_at_once = self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        self.episodes = episodes
        self.num_envs = episodes.count
        self.single_observation_space = episodes.observation_space
        self.single_action_space = episodes.action_space
        self.observation_space = batch_space(episodes.observation_space, self.num_envs)
        self.action_space = batch_space(episodes.action_space, self.num_envs)
        self._rngs = [seeding.np_random()[0] for _ in range(self.num_envs)]
        self._is_over = np.ones(self.num_envs, np.bool_)
        self._has_begun = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Arrays, dict[str, Any]]:
        """Begin an episode in every environment."""
        seeds = self._seeds(seed)
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        episode_seeds = []
        for row, row_seed in enumerate(seeds):
            if row_seed is not None:
                self._rngs[row] = seeding.np_random(row_seed)[0]
            episode_seeds.append(_drawn_seed(self._rngs[row]) if row_seed is None else row_seed)
        self.episodes.start(np.arange(self.num_envs), episode_seeds)
        self._is_over[:] = False
        self._has_begun = True
        return self.episodes.observations(), {}

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        """Return the seed of every environment."""
        if seed is None:
            return [None] * self.num_envs
        if not isinstance(seed, Sequence | np.ndarray):
            first = _checked_seed(seed)
            return [_checked_seed(first + row) for row in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigError(
                f"{len(seed)} seeds for {self.num_envs} environments; "
                f"give one for each, or a single number"
            )
        return [None if row_seed is None else _checked_seed(row_seed) for row_seed in seed]

    def step(self, actions: Array) -> tuple[Arrays, Array, Array, Array, dict[str, Any]]:
        """Apply one action in every environment. Returns observations, rewards, terminated,
        truncated and infos; the info of an episode that ended contains its metrics.

        With NEXT_STEP, an environment whose episode was over begins the next one instead, with
        reward 0.
        """
        if not self._has_begun:
            raise ResetNeeded("no episode has begun: call reset() before step()")
        # Environments that were over before this step ignore their action and begin a new episode.
        restarted = np.flatnonzero(self._is_over)
        rewards, terminated, truncated = self.episodes.step(
            np.asarray(actions), np.flatnonzero(~self._is_over)
        )
        self._start(restarted)
        is_over = terminated | truncated
        infos = self._infos(np.flatnonzero(is_over))
        if self._begins_at_once:
            self._start(np.flatnonzero(is_over))
        else:
            self._is_over = is_over
        return self.episodes.observations(), rewards, terminated, truncated, infos

    def _start(self, rows: npt.NDArray[np.int64]) -> None:
        """Begin an episode of a training seed in each of the given rows."""
        if len(rows):
            self.episodes.start(rows, [_drawn_seed(self._rngs[row]) for row in rows])

    def _infos(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return the infos of a step in which the episodes of the given rows ended."""
        infos: dict[str, Any] = {}
        last = self.episodes.observations() if self._begins_at_once and len(rows) else {}
        for row in rows.tolist():
            info: dict[str, Any] = self.episodes.outcome(row)
            if self._begins_at_once:
                final_obs = {name: array[row].copy() for name, array in last.items()}
                info = {"final_obs": final_obs, "final_info": info}
            infos = self._add_info(infos, info, row)
        return infos


def _checked_seed(seed: object) -> int:
    """Return a seed as a Python integer; infos hold seeds in arrays of 64-bit integers."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed <= _LARGEST_SEED:
        raise ConfigError(f"seed {seed!r}: give a whole number of at least 0 and below 2^63")
    return int(seed)


def _known_mode(mode: AutoresetMode | str) -> AutoresetMode:
    """Return the autoreset mode of an environment, by itself or by name."""
    modes = {AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP}
    found = next((known for known in modes if mode in (known, known.name, known.value)), None)
    if found is None:
        raise ConfigError(f"setting autoreset_mode = {mode}: choose NEXT_STEP or SAME_STEP")
    return found
