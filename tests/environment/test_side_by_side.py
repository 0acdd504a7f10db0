"""Episodes that run side by side, one after another in the same tables, equal single ones."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

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
