"""The kernels of elastic clusters against the plain-Python oracle, start by start."""

from __future__ import annotations

import random
from typing import Any

import pytest

from parcae.base.errors import ConfigError
from parcae.cluster.trace import Trace
from parcae.simulation.config import SimulationConfig
from parcae.simulation.elastic import Elastic
from parcae.simulation.faults import Faults
from parcae.simulation.simulator import simulate
from tests.oracle.cores_runs import (
    KINDS,
    GivenOrders,
    config_of,
    in_sessions,
    orders_key,
    policy_of,
    random_seeds,
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
@random_seeds
def test_random_sets_on_elastic_clusters_start_every_task_when_the_oracle_does(
    order: str, seeds: range
) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        allocation, drawn = random_allocation(rng, random_set(rng))
        if seed % 2:
            in_sessions(drawn, rng)
        policy = policy_of(order, drawn.jobs, drawn.pools)
        _assert_as_the_oracle(allocation, drawn, seed, policy, order)


@random_seeds
def test_orders_of_tiers_weights_and_limits_on_elastic_clusters(seeds: range) -> None:
    for seed in seeds:
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


_OFTEN = Faults(
    failure_rate=0.2,
    straggler_share=0.2,
    straggler_factor=20.0,
    speculation=True,
    speculation_quantile=0.5,
    speculation_interval_ms=4,
    speculation_least_ms=0,
)


def _played(drawn: RandomSet, config: SimulationConfig) -> Trace:
    policy = policy_of("fair", drawn.jobs, drawn.pools)
    trace: Trace = simulate(sequence_of(drawn.jobs), policy, config, 1, record=True)
    return trace


@random_seeds
def test_faults_that_never_happen_change_nothing_on_elastic_clusters(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        allocation, drawn = random_allocation(rng, random_set(rng))
        config = elastic_config(allocation)
        trace = _played(drawn, config.model_copy(update={"faults": Faults(speculation=False)}))
        without = _played(drawn, config)
        assert starts(trace) == starts(without), f"seed {seed}"
        assert trace.held_ms == without.held_ms, f"seed {seed}"


def test_faults_on_elastic_clusters_that_never_shrink_are_those_of_fixed_ones() -> None:
    copies = 0
    for seed in range(60):
        drawn = random_set(random.Random(seed))
        fixed = config_of(drawn.cores).model_copy(update={"faults": _OFTEN})
        elastic = Elastic(min_cores=drawn.cores, cores_per_executor=1)
        trace = _played(drawn, fixed)
        assert starts(_played(drawn, fixed.model_copy(update={"elastic": elastic}))) == starts(
            trace
        )
        assert trace.faults is not None
        copies += trace.faults.copies
    assert copies > 10


@random_seeds
def test_runs_with_faults_on_elastic_clusters_end_and_hold_what_they_use(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        allocation, drawn = random_allocation(rng, random_set(rng))
        trace = _played(drawn, elastic_config(allocation).model_copy(update={"faults": _OFTEN}))
        assert trace.is_complete
        assert trace.faults is not None
        assert trace.held_ms is not None
        assert trace.executed_ms.sum() + trace.faults.wasted_ms <= trace.held_ms


def test_losses_of_executors_are_refused_on_elastic_clusters() -> None:
    allocation, drawn = random_allocation(random.Random(0), random_set(random.Random(0)))
    config = elastic_config(allocation).model_copy(update={"faults": Faults(lost_per_hour=1.0)})
    with pytest.raises(ConfigError, match="fixed size only"):
        _played(drawn, config)
