"""Measure the steps per second and core of the cluster's vector environment.

    python -m benchmarks.environments

Needs `pip install 'parcae-scheduler[rl]'`. Actions are random and unmasked; drawing them is not
timed.
"""

from __future__ import annotations

import argparse
import time

import gymnasium
import numpy as np

import parcae.environments

#: The world, jobs of an episode, and executors.
CASES = (
    ("executors", 10, 10),
    ("executors", 10, 50),
    ("executors", 20, 50),
    ("cores", 10, 50),
    ("cores", 20, 50),
)


def random_actions(
    env: gymnasium.vector.VectorEnv, masks: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Draw a stage (or idling) and a limit for each environment, among those that are unmasked.

    Args:
        env: the environments.
        masks: bool[num_envs, number of choices], `action_mask` of the observations.
        rng: the random generator.
    """
    assert isinstance(env.single_action_space, gymnasium.spaces.MultiDiscrete)
    num_stages = int(env.single_action_space.nvec[0])
    drawn = rng.random(masks.shape, np.float32) * masks
    return np.stack([drawn[:, :num_stages].argmax(1), drawn[:, num_stages:].argmax(1)], axis=1)


def steps_per_second(env: gymnasium.vector.VectorEnv, seconds: float) -> float:
    """Step for so many seconds of processor time; a tenth of it before warms up."""
    observations, _ = env.reset(seed=1)
    rng = np.random.default_rng(1)
    num_steps = 0
    spent_s = -0.1 * seconds
    while spent_s < seconds:
        actions = random_actions(env, observations["action_mask"], rng)
        begin_s = time.process_time()
        observations, *_ = env.step(actions)
        spent_s += time.process_time() - begin_s
        num_steps += env.num_envs if spent_s > 0 else 0
    return num_steps / spent_s


def main() -> None:
    """Measure every case and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=64, help="number of environments")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds for each case")
    options = parser.parse_args()
    for world, num_jobs, executors in CASES:
        speeds = []
        for copy in (True, False):
            env = gymnasium.make_vec(
                parcae.environments.CLUSTER_ID,
                num_envs=options.envs,
                vectorization_mode="vector_entry_point",
                world=world,
                num_jobs=num_jobs,
                executors=executors,
                copy=copy,
            )
            speeds.append(steps_per_second(env, options.seconds))
        print(
            f"{num_jobs} jobs, {executors} {world}: {speeds[0]:,.0f} steps per second and core; "
            f"{speeds[1]:,.0f} with copy=False"
        )


if __name__ == "__main__":
    main()
