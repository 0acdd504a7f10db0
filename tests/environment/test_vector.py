"""A vector environment behaves like single environments side by side."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import VectorEnv

from parcae.base.errors import ConfigError
from parcae.environments import CLUSTER_ID, PACKING_ID

_SETTINGS = {CLUSTER_ID: {"num_jobs": 2, "executors": 3}, PACKING_ID: {"window": 6, "num_slots": 4}}
_EACH = pytest.mark.parametrize("name", list(_SETTINGS))


def _vector(name: str, mode: str = "vector_entry_point") -> VectorEnv:
    return gymnasium.make_vec(name, num_envs=3, vectorization_mode=mode, **_SETTINGS[name])


def _first_allowed(name: str, env: VectorEnv, mask: np.ndarray) -> np.ndarray:
    if name == PACKING_ID:
        return mask.argmax(1)
    choices = mask[:, : int(env.single_action_space.nvec[0])].argmax(1)
    return np.stack([choices, np.zeros(len(mask), np.int64)], axis=1)


@_EACH
def test_it_is_gymnasiums_own_vector_of_single_ones(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = _vector(name)
    assert ours.action_space.shape == (3, *ours.single_action_space.shape)
    theirs = _vector(name, "sync")
    first, _ = ours.reset(seed=1000)
    kept = first["jobs"].copy()
    ends = 0
    (a, _) = ours.reset(seed=1000)
    (b, _) = theirs.reset(seed=1000)
    for _ in range(120):
        assert data_equivalence(dict(sorted(a.items())), dict(sorted(b.items())), exact=True)
        assert ours.observation_space.contains(a)
        actions = _first_allowed(name, ours, a["action_mask"])
        a, *results_a, info_a = ours.step(actions)
        b, *results_b, info_b = theirs.step(actions)
        assert all(np.array_equal(x, y) for x, y in zip(results_a, results_b, strict=True))
        assert info_a.keys() == info_b.keys()
        assert all(np.array_equal(info_a[key], info_b[key]) for key in info_a)
        ends += int(results_a[1].sum())
    assert ends >= 6
    assert (first["jobs"] == kept).all(), "observations are copies"


@_EACH
def test_every_environment_can_have_its_own_seed_also_of_numpy(name: str) -> None:
    env = _vector(name)
    one, _ = env.reset(seed=7)
    for seeds in (np.int64(7), np.arange(7, 10), [7, 8, 9]):
        assert data_equivalence(one, env.reset(seed=seeds)[0], exact=True)
    with pytest.raises(ConfigError, match="2 seeds for 3 environments; give one for each"):
        env.reset(seed=[5, 6])


@_EACH
@pytest.mark.parametrize(
    "seed",
    [1.5, -1, 2**63, 2**63 - 2, [1, 2, -3], [1, 2, "three"], np.array([1.0, 2.0, 3.0])],
    ids=str,
)
def test_other_seeds_are_refused(name: str, seed: object) -> None:
    env = _vector(name)
    with pytest.raises(ConfigError, match=r"seed .*: give a whole number of at least 0"):
        env.reset(seed=seed)


@_EACH
def test_the_largest_seeds_are_played_to_the_end(name: str) -> None:
    env = gymnasium.make_vec(name, num_envs=1, render_mode=None, **_SETTINGS[name])
    observation, _ = env.reset(seed=2**63 - 1)
    infos: dict[str, Any] = {}
    while "seed" not in infos:
        observation, *_, infos = env.step(_first_allowed(name, env, observation["action_mask"]))
    assert infos["seed"].tolist() == [2**63 - 1]


@_EACH
def test_nothing_is_rendered(name: str) -> None:
    with pytest.raises(ConfigError, match="setting 'render_mode' does not exist"):
        gymnasium.make_vec(name, num_envs=1, render_mode="human", **_SETTINGS[name])


@_EACH
@pytest.mark.parametrize("num_envs", [-1, 0, 1.5, "2"])
def test_there_is_at_least_one_environment(name: str, num_envs: object) -> None:
    with pytest.raises(ConfigError, match=r"num_envs = .*: give a whole number of at least 1"):
        gymnasium.make_vec(name, num_envs=num_envs, vectorization_mode="vector_entry_point")


@_EACH
def test_a_step_before_the_first_reset_is_refused(name: str) -> None:
    env = _vector(name)
    with pytest.raises(ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step(env.action_space.sample())
