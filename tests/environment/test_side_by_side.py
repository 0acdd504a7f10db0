"""Episodes that run side by side, one after another in the same tables, equal single ones."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, VectorEnv

from parcae.base.errors import ConfigError
from parcae.cluster.state import ExecutorClass
from parcae.environments import CLUSTER_ID, PACKING_ID
from parcae.environments.cluster import ClusterEnv, ClusterVectorEnv
from parcae.simulation.elastic import Elastic
from parcae.simulation.faults import Faults
from parcae.workloads.archive import load_workload
from parcae.workloads.demands import with_drawn_memory
from tests.environment.episodes import play

_MEMORY, _ = with_drawn_memory("uniform:1")(load_workload("tpch"))
_CLASSES = (ExecutorClass(2, 1.0, 0.4), ExecutorClass(1, 2.0, 0.7), ExecutorClass(2, 2.0, 1.0))
_CASES: dict[str, dict[str, Any]] = {
    "batch": {"num_jobs": 4, "executors": 5},
    "levels": {"num_jobs": 4, "executors": 7, "num_limits": 3},
    "few rows": {"num_jobs": 6, "executors": 4, "max_jobs": 3, "max_stages": 5},
    "one row": {"num_jobs": 5, "executors": 4, "max_stages": 1},
    "classes": {"num_jobs": 4, "workload": _MEMORY, "executor_classes": _CLASSES},
    "idle slots": {"num_jobs": 3, "executors": 4, "idle_lengths": 3},
    "classes and slots": {
        "num_jobs": 3,
        "workload": _MEMORY,
        "executor_classes": _CLASSES,
        "idle_lengths": 2,
        "max_stages": 8,
    },
    "stream": {"num_jobs": 8, "executors": 4, "arrivals": "poisson:2s", "max_jobs": 4},
    "makespan": {"num_jobs": 4, "executors": 4, "objective": "makespan"},
    "cut off": {"num_jobs": 5, "executors": 4, "arrivals": "poisson:3s", "end_ms": 9_000},
    "drawn ends": {"num_jobs": 5, "executors": 4, "mean_episode_ms": 8_000.0},
    "unknown durations": {"num_jobs": 4, "executors": 4, "unknown_share": 0.5},
    "wrong estimates": {"num_jobs": 4, "executors": 4, "estimate_error": 0.4},
    "cores": {"num_jobs": 3, "executors": 4, "world": "cores", "num_limits": 2},
    "cores with faults": {
        "num_jobs": 3,
        "executors": 4,
        "world": "cores",
        "faults": Faults(failure_rate=0.05, straggler_share=0.05, speculation=True),
    },
    "elastic": {
        "num_jobs": 3,
        "executors": 4,
        "world": "cores",
        "elastic": Elastic(min_cores=1, cores_per_executor=1),
    },
}


@dataclass
class _Episode:
    """What one environment of several showed from the beginning to the end of an episode."""

    seed: int
    shown: list[dict[str, np.ndarray]]
    actions: list[np.ndarray] = field(default_factory=list)
    results: list[tuple[float, bool, bool]] = field(default_factory=list)
    info: dict[str, float] = field(default_factory=dict)


def _row(observations: dict[str, np.ndarray], row: int) -> dict[str, np.ndarray]:
    return {name: array[row] for name, array in observations.items()}


def _random_actions(
    env: ClusterVectorEnv, masks: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw actions whose choices are unmasked one by one; one in ten is any action."""
    sizes = env.single_action_space.nvec  # type: ignore[attr-defined]
    ends = np.cumsum(sizes)
    drawn = [
        (rng.random((len(masks), size)) * masks[:, end - size : end]).argmax(1)
        for size, end in zip(sizes, ends, strict=True)
    ]
    anything = rng.integers(0, sizes, (len(masks), len(sizes)))
    return np.where(rng.random((len(masks), 1)) < 0.1, anything, np.stack(drawn, 1))


def _played(env: ClusterVectorEnv, num_steps: int) -> list[_Episode]:
    """Play at random, and return the episodes that ended."""
    rng = np.random.default_rng(3)
    observations, _ = env.reset(seed=1)
    running = [_Episode(1 + row, [_row(observations, row)]) for row in range(env.num_envs)]
    ended: list[_Episode] = []
    for _ in range(num_steps):
        actions = _random_actions(env, observations["action_mask"], rng)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for row in range(env.num_envs):
            episode = running[row]
            episode.actions.append(actions[row])
            episode.results.append((rewards[row], terminated[row], truncated[row]))
            if terminated[row] or truncated[row]:
                episode.shown.append(infos["final_obs"][row])
                final = infos["final_info"]
                episode.info = {k: v[row] for k, v in final.items() if not k.startswith("_")}
                ended.append(episode)
                running[row] = _Episode(env.episodes.seeds[row], [])
            running[row].shown.append(_row(observations, row))
    return ended


@pytest.mark.parametrize("settings", _CASES.values(), ids=_CASES.keys())
def test_every_episode_is_that_of_a_single_environment(settings: dict[str, Any]) -> None:
    env = ClusterVectorEnv(3, AutoresetMode.SAME_STEP, **settings)
    episodes = _played(env, 400)
    assert len(episodes) >= 4
    assert [episode.seed for episode in episodes if episode.seed <= 3]
    for episode in episodes[:12]:
        single = ClusterEnv(**settings)
        observation, _ = single.reset(seed=episode.seed)
        info: dict[str, Any] = {}
        for step, action in enumerate(episode.actions):
            assert data_equivalence(observation, episode.shown[step], exact=True)
            observation, reward, terminated, truncated, info = single.step(action)
            assert (reward, terminated, truncated) == episode.results[step]
        assert data_equivalence(observation, episode.shown[-1], exact=True)
        assert info == episode.info


@pytest.mark.parametrize("name", [CLUSTER_ID, PACKING_ID])
def test_the_next_episode_can_begin_in_the_step_that_ends_one(name: str) -> None:
    settings: dict[str, Any] = (
        {"num_jobs": 2, "executors": 3} if name == CLUSTER_ID else {"window": 6}
    )
    settings |= {"num_envs": 2, "vectorization_mode": "vector_entry_point"}
    at_once, later = (
        gymnasium.make_vec(name, autoreset_mode=mode, **settings)
        for mode in ("SAME_STEP", AutoresetMode.NEXT_STEP)
    )
    assert at_once.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert later.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    a, _ = at_once.reset(seed=[5, 5])
    b, _ = later.reset(seed=[5, 5])
    action = np.zeros_like(at_once.action_space.sample())
    infos_a: dict[str, Any] = {}
    while not infos_a:
        a, _, is_over_a, _, infos_a = at_once.step(action)
        b, _, is_over_b, _, infos_b = later.step(action)
        assert (is_over_a == is_over_b).all()
    assert data_equivalence(infos_a["final_obs"][0], _row(b, 0), exact=True)
    assert infos_a["final_info"]["seed"].tolist() == infos_b["seed"].tolist() == [5, 5]
    b, *_ = later.step(action)
    assert data_equivalence(a, b, exact=True)


def test_another_autoreset_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose NEXT_STEP or SAME_STEP"):
        ClusterVectorEnv(2, AutoresetMode.DISABLED)


def test_without_copies_a_step_writes_over_the_observations_before_it() -> None:
    settings = {"num_envs": 2, "num_jobs": 2, "executors": 3, "autoreset_mode": "SAME_STEP"}
    copied = ClusterVectorEnv(**settings)
    shared = ClusterVectorEnv(**settings, copy=False)
    first, _ = copied.reset(seed=3)
    written, _ = shared.reset(seed=3)
    num_ends = 0
    for _ in range(60):
        actions = np.stack([written["action_mask"].argmax(1), [0, 0]], axis=1)
        observations, *_, infos = copied.step(actions)
        seen, *_, same_infos = shared.step(actions)
        assert data_equivalence(observations, seen, exact=True)
        assert data_equivalence(infos, same_infos, exact=True)
        num_ends += len(infos)
        assert all(np.shares_memory(seen[name], written[name]) for name in seen)
        assert not any(np.shares_memory(observations[name], first[name]) for name in seen)
    assert num_ends > 0


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("settings", [_CASES["stream"], _CASES["elastic"]], ids=["stream", "cores"])
def test_a_copy_in_an_episode_goes_on_alone_and_plays_other_episodes_of_its_own(
    settings: dict[str, Any], copied: Callable[[ClusterEnv], ClusterEnv]
) -> None:
    env = ClusterEnv(**settings)
    observation, _ = env.reset(seed=3)
    env.step(_first(observation))
    other = copied(env)
    assert _rest(env) == _rest(other)
    for seed in (4, 5):
        assert play(other, _first, seed) == play(ClusterEnv(**settings), _first, seed)


def _first(shown: dict[str, np.ndarray]) -> np.ndarray:
    return np.array([shown["action_mask"].argmax(), 0])


def _rest(env: ClusterEnv) -> tuple[list[float], dict[str, Any]]:
    """The rewards and the info of the rest of an episode that takes the first choices."""
    rewards: list[float] = []
    info: dict[str, Any] = {}
    while not info:
        _, reward, _, _, info = env.step(np.array([env.action_masks().argmax(), 0]))
        rewards.append(reward)
    return rewards, info


_SETTINGS = {CLUSTER_ID: {"num_jobs": 2, "executors": 3}, PACKING_ID: {"window": 6, "num_slots": 4}}
_EACH = pytest.mark.parametrize("name", list(_SETTINGS))


def _vector(name: str, mode: str = "vector_entry_point") -> VectorEnv:
    return gymnasium.make_vec(name, num_envs=3, vectorization_mode=mode, **_SETTINGS[name])


def _first_unmasked(name: str, env: VectorEnv, mask: np.ndarray) -> np.ndarray:
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
        actions = _first_unmasked(name, ours, a["action_mask"])
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
        observation, *_, infos = env.step(_first_unmasked(name, env, observation["action_mask"]))
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
