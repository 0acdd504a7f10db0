"""Plays episodes of environments, for the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from parcae.cluster.observation import Policy
from parcae.cluster.state import ANY_CLASS
from parcae.environments.cluster import ClusterEnv
from parcae.simulation.metrics import jct_ms
from parcae.simulation.simulator import simulate

Shown = dict[str, np.ndarray]  # type: ignore[type-arg]


class Played(NamedTuple):
    """What came of an episode."""

    total: float
    info: dict[str, Any]
    truncated: bool


def play(env: Any, choose: Callable[[Shown], Any], seed: int | None = None) -> Played:
    """Play an episode to its end, and check that all that is shown is in the space."""
    observation, _ = env.reset(seed=seed)
    assert env.observation_space.contains(observation)
    total = 0.0
    while True:
        assert (observation["action_mask"] == env.action_masks()).all()
        observation, reward, terminated, truncated, info = env.step(choose(observation))
        assert env.observation_space.contains(observation)
        total += reward
        if terminated or truncated:
            return Played(total, info, truncated)


def at_random(env: ClusterEnv, seed: int) -> Callable[[Shown], Any]:
    """Draws a stage and a limit, then a class and a slot that may be chosen with the stage."""
    rng = np.random.default_rng(seed)
    num_stages, num_limits = env.action_space.nvec[:2]

    def choose(shown: Shown) -> Any:
        mask = shown["action_mask"]
        stage = int(rng.choice(np.flatnonzero(mask[:num_stages])))
        limits = mask[num_stages : num_stages + num_limits]
        given = [shown[name][stage] for name in ("class_mask", "slot_mask") if name in shown]
        return np.array([stage, *(rng.choice(np.flatnonzero(one)) for one in (limits, *given))])

    return choose


def largest(shown: Shown) -> Any:
    """The first stage and the largest limit that may be chosen, where there is nothing else."""
    num_stages = len(shown["stages"]) + 1
    mask = shown["action_mask"]
    return np.array([mask[:num_stages].argmax(), np.flatnonzero(mask[num_stages:])[-1]])


def assert_same_run(env: ClusterEnv, policy: Policy, seed: int) -> tuple[int, int]:
    """Check that a policy gives the same run through the environment as in simulation.

    Returns how many classes and slots its decisions named.
    """
    settings = env.episodes.settings
    sequence = settings.sequence(env.episodes.workload, seed)
    trace = simulate(sequence, policy, settings.cluster, seed)
    decisions = []

    def choose(_: Shown) -> Any:
        decisions.append(policy.decide(env.episodes.observe(0)))
        return env.episodes.action(0, decisions[-1])

    info = play(env, choose, seed).info
    completion_ms = env.episodes.state(0).jobs.completion_ms
    assert (completion_ms - sequence.arrival_ms).tolist() == jct_ms(trace).tolist()
    assert (info["num_decisions"], info["num_masked_actions"]) == (trace.num_decisions, 0)
    return (
        sum(one.executor_class != ANY_CLASS for one in decisions),
        sum(one.hold_ms > 0 for one in decisions),
    )
