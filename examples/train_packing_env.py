"""Trains sb3-contrib's MaskablePPO on parcae/Packing-v0 and prints the result before and after.

Usage: train_packing_env.py [STEPS]. Needs `pip install 'parcae-scheduler[rl]'`. Both figures are
means over the same ten episodes, whose seeds are not used for training.
"""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
from gymnasium.wrappers import FilterObservation
from sb3_contrib import MaskablePPO

import parcae.environments

WORLD = {
    "rates": (0.7,),
    "window": 30,
    "num_slots": 5,
    "has_image": False,
    "reward_scale": 0.1,
    "max_decisions": 300,
}
EPISODES = range(1000, 1010)


def make_env() -> gymnasium.Env:
    """The packing world with its jobs as rows of features (no image)."""
    return FilterObservation(
        gymnasium.make(parcae.environments.PACKING_ID, **WORLD), ["jobs", "free", "cluster"]
    )


def mean_slowdown(model: MaskablePPO, env: gymnasium.Env) -> float:
    """The mean of the mean slowdowns of the episodes."""
    results = []
    for seed in EPISODES:
        observation, info = env.reset(seed=seed)
        while "mean_slowdown" not in info:
            mask = env.get_wrapper_attr("action_masks")()
            action, _ = model.predict(observation, action_masks=mask, deterministic=True)
            observation, _, _, _, info = env.step(action)
        results.append(info["mean_slowdown"])
    return float(np.mean(results))


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8192
env = make_env()
settings = {
    "n_steps": 512,
    "batch_size": 128,
    "learning_rate": 5e-4,
    "gamma": 0.99,
    "ent_coef": 0.01,
}
model = MaskablePPO("MultiInputPolicy", make_env(), **settings, seed=1, device="cpu")
print(f"before: mean slowdown {mean_slowdown(model, env):.2f}")
model.learn(steps)
print(f"after {steps} steps: mean slowdown {mean_slowdown(model, env):.2f}")
