"""Trains sb3-contrib's MaskablePPO on parcae/Cluster-v0 and compares it with Parcae's policies.

Usage: train_cluster_env.py [STEPS] [SEEDS]. Needs `pip install 'parcae-scheduler[rl]'`. The
comparison has seeds that are not used for training; ratios are to fair on the same seeds, with 95%
confidence intervals.
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


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
num_seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 200
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
policy = parcae.ModelPolicy(model, envs, inputs=rows, name="learned")
cluster = parcae.Cluster(**CLUSTER)
jobs = parcae.workload(SETTINGS["workload"]).draw(SETTINGS["num_jobs"], "batch", cluster, seed=1)
policies = ["fair", "random", "sjf-cp", policy]
comparison = parcae.compare(jobs, policies, cluster, seeds=num_seeds, seed_start=FIRST_SEED)
columns = ["policy", "average_jct_s", "ratio_to_first", "ratio_low", "ratio_high"]
for row in comparison.to_frame().select(columns).iter_rows():
    print("{}: average JCT {:.2f} s, ratio to fair {:.3f} [{:.3f}, {:.3f}]".format(*row))
