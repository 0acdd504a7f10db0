"""Measure how rollouts scale over the nodes of a Ray cluster on this machine.

    python -m benchmarks.ray_scaling

Needs `pip install 'parcae-scheduler[train,ray]'`. For each number of workers it starts a cluster of
so many nodes with one CPU each, and measures collections: recorded decisions a second, and that
relative to one worker. Updates of the weights are not measured; they run in the training's own
process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from parcae.decima.graph.family import DecimaFamily
from parcae.decima.graph.layout import DecimaSettings
from parcae.decima.learning.ray_workers import RayCluster
from parcae.decima.learning.simulators import RolloutWorker, Setup
from parcae.learning.config import TrainConfig
from parcae.learning.scenario import Scenario
from parcae.simulation.config import SimulationConfig
from parcae.workloads.archive import load_workload


@contextmanager
def cluster_of(num_nodes: int) -> Iterator[str]:
    """A Ray cluster of nodes with one CPU each, on this machine; its address."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    for _ in range(num_nodes - 1):
        cluster.add_node(num_cpus=1)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]


def rates(address: str, setup: Setup, collections: int) -> list[float]:
    """Recorded decisions a second of some collections, after one that warms up."""
    network = setup.family.policy(setup.family.initial_weights(np.random.default_rng(0))).network
    worker = RolloutWorker(setup, seed=0, player=RayCluster(address, setup))
    found = []
    for _ in range(collections + 2):
        begin_s = time.perf_counter()
        groups = worker.collect(network)
        count = sum(rollout.count for group in groups for rollout in group)
        found.append(count / (time.perf_counter() - begin_s))
    # Workers load their kernels in the first collections.
    return found[2:]


def main() -> None:
    """Measure every number of workers and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers")
    parser.add_argument("--workload", default="tpch", help="name or file of a workload")
    parser.add_argument("--collections", type=int, default=8, help="collections that are measured")
    options = parser.parse_args()
    scenario = Scenario(load_workload(options.workload), SimulationConfig(), "batch", 20)
    family = DecimaFamily(scenario, DecimaSettings())
    setup = Setup(scenario, family, TrainConfig(capacity=2048))
    print(f"load average {os.getloadavg()[0]:.1f}")
    single: float | None = None
    for count in options.workers:
        with cluster_of(count) as address:
            rate = statistics.median(rates(address, setup, options.collections))
        single = single or rate / count
        print(f"{count} workers: {rate:,.0f} decisions/s, {rate / single:.2f} times one worker's")


if __name__ == "__main__":
    main()
