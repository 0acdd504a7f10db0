"""Trains sb3-contrib's MaskablePPO on parcae/Cluster-v0 and compares it with fair and random.

Usage: train_cluster_env.py [STEPS] [EPISODES]. Needs `pip install 'parcae-scheduler[rl]'`. The
comparison plays episodes whose seeds are not used for training; ratios are to fair on the same
seeds, with 95% confidence intervals.
"""

from __future__ import annotations

import sys
import time

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO

import parcae
import parcae.environments
from parcae.environments.layout import BOUND
from parcae.environments.stable_baselines import StableBaselinesEnv
from parcae.evaluation.statistics import ratio_estimate, with_interval

CLUSTER = {"executors": 5, "moving_delay_ms": 200}
SETTINGS = {"workload": "tpch", "num_jobs": 5, "num_limits": 5, "max_stages": 20, **CLUSTER}
FIRST_SEED = 1000
Arrays = dict[str, np.ndarray]


def make_envs(num_envs: int) -> gymnasium.vector.VectorEnv:
    """Clusters side by side, whose episodes follow each other at once."""
    return gymnasium.make_vec(
        parcae.environments.CLUSTER_ID,
        num_envs=num_envs,
        vectorization_mode="vector_entry_point",
        autoreset_mode="SAME_STEP",
        **SETTINGS,
    )


def rows(observations: Arrays) -> np.ndarray:
    """A row for each stage: its features, those of its job and those of the cluster.

    The graph is left out: a network without graph layers cannot use it.
    """
    stages = observations["stages"]
    job_of_row = np.maximum(observations["stage_job"], 0)[:, :, None]
    jobs = np.take_along_axis(observations["jobs"], job_of_row, axis=1)
    cluster = observations["cluster"][:, None]
    cluster = np.broadcast_to(cluster, (*stages.shape[:2], cluster.shape[2]))
    return np.concatenate([stages, jobs, cluster], axis=2)


def learned_jct_s(num_episodes: int) -> np.ndarray:
    """The average job completion time of each episode in seconds, as the model decides."""
    envs = make_envs(num_episodes)
    observations, _ = envs.reset(seed=FIRST_SEED)
    results = np.full(num_episodes, np.nan)
    while np.isnan(results).any():
        mask = observations["action_mask"]
        actions, _ = model.predict(rows(observations), action_masks=mask, deterministic=True)
        observations, _, _, _, infos = envs.step(actions)
        if "final_info" in infos:
            # Each environment's first episode counts; what it plays after that does not.
            is_first = infos["_final_info"] & np.isnan(results)
            results[is_first] = infos["final_info"]["average_jct_s"][is_first]
    return results


def simulated_jct_s(policy: str, num_episodes: int) -> np.ndarray:
    """The same under one of Parcae's policies."""
    cluster = parcae.Cluster(**CLUSTER)
    workload = parcae.workload(SETTINGS["workload"])
    results = []
    for seed in range(FIRST_SEED, FIRST_SEED + num_episodes):
        jobs = workload.draw(SETTINGS["num_jobs"], "batch", cluster, seed=seed)
        results.append(parcae.simulate(jobs, policy, cluster, seed=seed).average_jct_s)
    return np.array(results)


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
num_episodes = int(sys.argv[2]) if len(sys.argv) > 2 else 200
torch.set_num_threads(1)  # the network is small: threads would wait for each other
envs = make_envs(64)
shape = rows(envs.reset()[0]).shape[1:]
model = MaskablePPO(
    "MlpPolicy",
    StableBaselinesEnv(envs.unwrapped, rows, spaces.Box(0, BOUND, shape)),
    n_steps=128,
    batch_size=1024,
    n_epochs=4,
    learning_rate=lambda remaining: 1e-3 * remaining,
    gamma=1.0,
    gae_lambda=0.95,
    ent_coef=0.005,
    policy_kwargs={"net_arch": [128, 128]},
    seed=1,
    device="cpu",
)
begin_s = time.monotonic()
model.learn(steps)
print(f"{model.num_timesteps:,} steps in {time.monotonic() - begin_s:.0f} s")
fair_s = simulated_jct_s("fair", num_episodes)
for name, jct_s in (
    ("fair", fair_s),
    ("random", simulated_jct_s("random", num_episodes)),
    ("learned", learned_jct_s(num_episodes)),
):
    ratio = with_interval(ratio_estimate(jct_s, fair_s))
    print(f"{name}: average JCT {jct_s.mean():.2f} s, ratio to fair {ratio}")
