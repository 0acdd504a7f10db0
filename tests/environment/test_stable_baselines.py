"""Stable-Baselines3 sees the environments as they are."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from sb3_contrib import MaskablePPO

import parcae
from parcae.base.errors import ConfigError
from parcae.environments import CLUSTER_ID, PACKING_ID
from parcae.environments.stable_baselines import StableBaselinesEnv
from parcae.workloads.workload import TRAINING_SEED_START

_SETTINGS: dict[str, dict[str, Any]] = {
    CLUSTER_ID: {"num_jobs": 3, "executors": 3},
    PACKING_ID: {"window": 6, "num_slots": 4, "has_image": False},
}
_EACH = pytest.mark.parametrize("name", list(_SETTINGS))


def _vector(name: str, mode: str = "SAME_STEP", **settings: Any) -> VectorEnv:
    return gymnasium.make_vec(
        name,
        num_envs=3,
        vectorization_mode="vector_entry_point",
        autoreset_mode=mode,
        **{**_SETTINGS[name], **settings},
    ).unwrapped


def _jobs(observations: dict[str, np.ndarray]) -> np.ndarray:
    return 2 * observations["jobs"]


def _wrapped(env: VectorEnv) -> StableBaselinesEnv:
    shape = env.single_observation_space["jobs"].shape
    return StableBaselinesEnv(env, _jobs, spaces.Box(0, 20, shape))


def _first_allowed(env: VectorEnv, mask: np.ndarray) -> np.ndarray:
    """The first unmasked stage, at the first limit; or the first unmasked slot."""
    first = mask.argmax(1)
    is_single = isinstance(env.single_action_space, spaces.Discrete)
    return first if is_single else np.stack([first, 0 * first], axis=1)


@_EACH
def test_steps_are_those_of_the_environment(name: str) -> None:
    bare = _vector(name)
    learned = _wrapped(_vector(name))
    learned.seed(7)
    bare.reset(seed=7)
    observations, _ = bare.reset()
    inputs = learned.reset()
    num_ends = 0
    for _ in range(150):
        assert np.array_equal(inputs, _jobs(observations))
        assert np.array_equal(learned.env_method("action_masks"), list(observations["action_mask"]))
        actions = _first_allowed(bare, observations["action_mask"])
        observations, rewards, terminated, truncated, infos = bare.step(actions)
        inputs, same_rewards, is_over, listed = learned.step(actions)
        assert np.array_equal(same_rewards, rewards.astype(np.float32))
        assert np.array_equal(is_over, terminated | truncated)
        for row in np.flatnonzero(is_over):
            num_ends += 1
            assert listed[row]["seed"] == infos["final_info"]["seed"][row] >= TRAINING_SEED_START
            last = _jobs({"jobs": infos["final_obs"][row]["jobs"]})
            assert np.array_equal(listed[row]["terminal_observation"], last)
            assert listed[row]["TimeLimit.truncated"] == truncated[row]
        assert not any(listed[row] for row in np.flatnonzero(~is_over))
    assert num_ends >= 3


def test_an_episode_that_is_cut_off_is_truncated() -> None:
    env = _wrapped(_vector(CLUSTER_ID, end_ms=500))
    env.reset()
    listed: list[dict[str, Any]] = [{}]
    while not listed[0]:
        mask = np.array(env.env_method("action_masks"))
        _, _, _, listed = env.step(_first_allowed(env.env, mask))
    assert listed[0]["TimeLimit.truncated"]
    assert listed[0]["num_unfinished"] > 0


def test_environments_have_nothing_but_masks() -> None:
    env = _wrapped(_vector(CLUSTER_ID))
    assert env.has_attr("action_masks")
    assert not env.has_attr("nothing")
    assert env.env_is_wrapped(object) == [False] * 3
    with pytest.raises(AttributeError, match="no method close"):
        env.env_method("close")
    with pytest.raises(AttributeError, match="cannot set"):
        env.set_attr("num_envs", 4)


def test_the_next_episode_begins_at_once() -> None:
    with pytest.raises(ConfigError, match="SAME_STEP"):
        _wrapped(_vector(CLUSTER_ID, "NEXT_STEP"))


def test_a_step_leaves_what_the_learner_saw_before() -> None:
    env = _vector(CLUSTER_ID, copy=False)
    space = spaces.Box(0, 10, env.single_observation_space["jobs"].shape)
    learned = StableBaselinesEnv(env, lambda observations: observations["jobs"], space)
    inputs = learned.reset()
    masks = learned.env_method("action_masks")
    kept = inputs.copy(), np.array(masks)
    learned.step(_first_allowed(env, kept[1]))
    assert not np.array_equal(env.episodes.observations()["jobs"], kept[0])
    assert np.array_equal(inputs, kept[0])
    assert np.array_equal(masks, kept[1])


@pytest.mark.parametrize("sees_dictionaries", [True, False])
@pytest.mark.parametrize("world", ["executors", "cores"])
def test_a_model_that_was_trained_on_many_environments_is_compared(
    world: str, sees_dictionaries: bool
) -> None:
    env = _vector(CLUSTER_ID, world=world)
    inputs = None if sees_dictionaries else _jobs
    learned = StableBaselinesEnv(env) if sees_dictionaries else _wrapped(env)
    policy = "MultiInputPolicy" if sees_dictionaries else "MlpPolicy"
    model = MaskablePPO(policy, learned, n_steps=8, batch_size=24, n_epochs=1, device="cpu")
    model.learn(24)
    cluster = parcae.Cluster(**{"cores" if world == "cores" else world: 3})
    jobs = parcae.workload("tpch").draw(3, "batch", cluster, seed=1)
    compared = parcae.ModelPolicy(model, env, inputs=inputs, name="learned")
    frame = parcae.compare(jobs, ["fair", compared], cluster, seeds=2).to_frame()
    assert frame["policy"].to_list() == ["fair", "learned"]
    assert 0.5 < frame["ratio_to_first"][1] < 5
    with pytest.raises(ConfigError, match="inputs makes observations of shape"):
        parcae.ModelPolicy(model, env, inputs=lambda observations: observations["cluster"])
