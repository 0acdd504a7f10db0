"""Many environments at once are the single ones, one beside the other."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv

from parcae.environment import CLUSTER_ID
from parcae.errors import ConfigError

_CLUSTER = {"num_jobs": 2, "executors": 3}


def _vector(mode: str = "vector_entry_point", num_envs: int = 3) -> VectorEnv:
    return gymnasium.make_vec(CLUSTER_ID, num_envs=num_envs, vectorization_mode=mode, **_CLUSTER)


def _first_allowed(mask: np.ndarray, num_choices: int) -> np.ndarray:
    return np.stack([mask[:, :num_choices].argmax(1), np.zeros(len(mask), np.int64)], axis=1)


def test_it_says_how_it_begins_anew() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = _vector()
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.num_envs == 3
    assert env.observation_space["stages"].shape == (3, *env.single_observation_space["stages"].shape)
    assert env.action_space.shape == (3, 2)


def test_it_is_gymnasiums_own_vector_of_single_ones() -> None:
    ours, theirs = _vector(), _vector("sync")
    num_choices, ends = int(ours.single_action_space.nvec[0]), 0
    (a, info_a), (b, info_b) = ours.reset(seed=1000), theirs.reset(seed=1000)
    for _ in range(120):
        assert data_equivalence(dict(sorted(a.items())), dict(sorted(b.items())), exact=True)
        assert ours.observation_space.contains(a)
        actions = _first_allowed(a["action_mask"], num_choices)
        a, *results_a, info_a = ours.step(actions)
        b, *results_b, info_b = theirs.step(actions)
        assert all(np.array_equal(x, y) for x, y in zip(results_a, results_b, strict=True))
        assert info_a.keys() == info_b.keys()
        assert all(np.array_equal(info_a[key], info_b[key]) for key in info_a)
        ends += int(results_a[1].sum())
    assert ends >= 6


def test_observations_are_the_users_own() -> None:
    env = _vector()
    before, _ = env.reset(seed=1000)
    kept = before["stages"].copy()
    env.step(_first_allowed(before["action_mask"], int(env.single_action_space.nvec[0])))
    assert (before["stages"] == kept).all()


def test_every_environment_may_have_a_seed_of_its_own() -> None:
    env = _vector()
    together, _ = env.reset(seed=[5, 1000, 5])
    assert (together["stages"][0] == together["stages"][2]).all()
    assert (together["stages"][0] != together["stages"][1]).any()
    with pytest.raises(ConfigError, match="2 seeds for 3 environments; give one for each"):
        env.reset(seed=[5, 6])
