"""The kernels of elastic clusters against the plain-Python oracle, start by start."""

from __future__ import annotations

import random
from typing import Any

import pytest

from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import Elastic
from parcae.simulation.run import simulate
from tests.oracle.cores_runs import (
    KINDS,
    GivenOrders,
    config_of,
    orders_key,
    policy_of,
    sequence_of,
    starts,
)
from tests.oracle.spark_elastic import Allocation, random_allocation
from tests.oracle.spark_elastic import simulate as simulate_plainly
from tests.oracle.spark_world import RandomSet, random_set


def elastic_config(allocation: Allocation) -> SimulationConfig:
    """The allocation as the simulator takes it; durations are listed."""
    cores = allocation.executor_cores
    elastic = Elastic(
        min_cores=allocation.least * cores,
        cores_per_executor=cores,
        initial_cores=allocation.first * cores,
        backlog_ms=allocation.backlog_ms,
        sustained_backlog_ms=allocation.sustained_ms,
        idle_ms=allocation.idle_ms,
        start_ms=allocation.start_ms,
    )
    settings = config_of(allocation.most * cores).model_dump() | {"elastic": elastic}
    return SimulationConfig.model_validate(settings)


def _assert_as_the_oracle(
    allocation: Allocation, drawn: RandomSet, seed: int, policy: Any, order: Any
) -> None:
    world = simulate_plainly(allocation, drawn.jobs, order, drawn.pools)
    config = elastic_config(allocation)
    trace = simulate(sequence_of(drawn.jobs), policy, config, 1, record=True)
    assert starts(trace) == world.trace, f"seed {seed}"
    assert trace.completion_ms.tolist() == world.completion_ms, f"seed {seed}"
    assert trace.held_ms == world.held_ms, f"seed {seed}"


@pytest.mark.parametrize("order", sorted(KINDS))
def test_random_sets_on_elastic_clusters_start_every_task_when_the_oracle_does(order: str) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        allocation, drawn = random_allocation(rng, random_set(rng))
        policy = policy_of(order, drawn.jobs, drawn.pools)
        _assert_as_the_oracle(allocation, drawn, seed, policy, order)


def test_orders_of_tiers_weights_and_limits_on_elastic_clusters() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        allocation, drawn = random_allocation(rng, random_set(rng))
        planner = GivenOrders(drawn.jobs)
        _assert_as_the_oracle(allocation, drawn, seed, planner, orders_key(planner))


@pytest.mark.slow
def test_many_sets_on_elastic_clusters() -> None:
    for seed in range(1_000, 2_000):
        rng = random.Random(seed)
        allocation, drawn = random_allocation(rng, random_set(rng))
        for order in sorted(KINDS):
            policy = policy_of(order, drawn.jobs, drawn.pools)
            _assert_as_the_oracle(allocation, drawn, seed, policy, order)
