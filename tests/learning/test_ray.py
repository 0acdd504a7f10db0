"""Rollouts on a Ray cluster of two nodes (on this machine)."""

from collections.abc import Iterator

import numpy as np
import pytest

from parcae.errors import ConfigError
from parcae.learning.config import TrainConfig
from parcae.learning.gradients import gradient_learner
from parcae.learning.loop import Plan, train
from parcae.learning.parcae_family import ParcaeFamily
from parcae.learning.ray_workers import ray_workers
from parcae.learning.request import TrainRequest
from parcae.learning.scenario import Scenario
from parcae.policies.rule.policy import start_parameters
from parcae.simulation.config import SimulationConfig
from parcae.workloads.synthetic import RandomDags, random_dags

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'parcae[ray]'")

_WORKLOAD = random_dags(RandomDags(num_jobs=6, mean_tasks=4.0), np.random.default_rng(0), "made up")
_SCENARIO = Scenario(_WORKLOAD, SimulationConfig(num_executors=4), "batch", 4)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster.address
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.slow
def test_rollouts_come_from_both_nodes_and_train_a_policy(address: str) -> None:
    family = ParcaeFamily(_SCENARIO, start_parameters(), (2.0, 2.0, 2.0))
    workers = ray_workers(
        address, _SCENARIO, family, TrainConfig(num_groups=4, group_size=2, capacity=64), seed=0
    )
    groups = workers.collect(
        family.policy(family.initial_weights(np.random.default_rng(0))).network
    )
    assert [len(group) for group in groups] == [2, 2, 2, 2]
    data = family.gather([rollout for group in groups for rollout in group])
    assert len(data) == sum(rollout.count for group in groups for rollout in group) > 50
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    with pytest.raises(ConfigError, match="2"):
        workers.restore_rng({"actors": []})
    workers.restore_rng(workers.rng_state())
    workers.close()
    config = TrainConfig(num_groups=2, group_size=2, capacity=64, num_selection=4, select_every=2)
    request = TrainRequest([_SCENARIO], config, parameters=start_parameters(), ray_address=address)
    result = train(gradient_learner(request), Plan(1e6, max_iterations=2))
    assert result.iterations == 2
    assert result.ending == "done"
