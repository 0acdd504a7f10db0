"""Gymnasium environments of Parcae's worlds; importing this package registers their ids.

Example:
    import gymnasium
    import parcae.environments

    env = gymnasium.make("parcae/Cluster-v0", workload="tpch", num_jobs=10, executors=10)
"""

from __future__ import annotations

import gymnasium

#: The ids of the environments: Decima's cluster, DeepRM's cluster.
CLUSTER_ID = "parcae/Cluster-v0"
PACKING_ID = "parcae/Packing-v0"

gymnasium.register(
    CLUSTER_ID,
    entry_point="parcae.environments.cluster:ClusterEnv",
    vector_entry_point="parcae.environments.cluster:ClusterVectorEnv",
)
gymnasium.register(
    PACKING_ID,
    entry_point="parcae.environments.packing:PackingEnv",
    vector_entry_point="parcae.environments.packing:PackingVectorEnv",
)
