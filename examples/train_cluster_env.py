"""Trains sb3-contrib's MaskablePPO on parcae/Cluster-v0 and prints the result before and after.

Usage: train_cluster_env.py [STEPS]. Needs `pip install 'parcae[rl]'`. Both figures are means over
the same ten episodes, whose seeds are not used for training.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from gymnasium.wrappers import FilterObservation
from sb3_contrib import MaskablePPO

import parcae.environment

CLUSTER = {
    "workload": "tpch",
    "num_jobs": 5,
    "executors": 5,
    "num_limits": 5,
    "max_stages": 20,
    "moving_delay_ms": 200,
}
EPISODES = range(1000, 1010)


def make_env() -> gymnasium.Env:
    """The cluster without its graph, which a network without graph layers cannot use."""
    env = gymnasium.make(parcae.environment.CLUSTER_ID, **CLUSTER)
    return FilterObservation(env, ["stages", "jobs", "cluster"])


def average_jct_s(model: MaskablePPO, env: gymnasium.Env) -> float:
    """The mean of the average job completion times of the episodes."""
    results = []
    for seed in EPISODES:
        observation, info = env.reset(seed=seed)
        while "average_jct_s" not in info:
            mask = env.get_wrapper_attr("action_masks")()
            action, _ = model.predict(observation, action_masks=mask, deterministic=True)
            observation, _, _, _, info = env.step(action)
        results.append(info["average_jct_s"])
    return float(np.mean(results))


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
env = make_env()
settings = {
    "n_steps": 512,
    "batch_size": 128,
    "learning_rate": 1e-3,
    "gamma": 1.0,
    "gae_lambda": 1.0,
    "ent_coef": 0.01,
}
model = MaskablePPO("MultiInputPolicy", make_env(), **settings, seed=1, device="cpu")
print(f"before: average JCT {average_jct_s(model, env):.2f} s")
model.learn(steps)
print(f"after {steps} steps: average JCT {average_jct_s(model, env):.2f} s")
