"""Faults in the kernels of the world of cores against the plain-Python oracle, start by start."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from parcae.cluster.trace import FaultCounts, Trace
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
from tests.oracle.spark_faults import FaultyWorld, Rules
from tests.oracle.spark_faults import simulate as simulate_plainly
from tests.oracle.spark_world import ORDERS, Key, RandomSet, random_set

_COUNTS = ("failed", "interrupted", "lost_executors", "copies", "copies_won", "wasted_ms")


def _faults_of(rules: Rules) -> Faults:
    return Faults(
        failure_rate=rules.failures,
        max_failures=rules.max_failures,
        lost_per_hour=rules.lost_per_hour,
        executor_cores=rules.executor_cores,
        restart_s=rules.restart_ms / 1000,
        straggler_share=rules.straggler_share,
        straggler_factor=rules.straggler_factor,
        speculation=rules.speculation,
        speculation_multiplier=rules.multiplier,
        speculation_quantile=rules.quantile,
        speculation_interval_ms=rules.check_ms,
        speculation_least_ms=rules.least_ms,
    )


def _random_rules(rng: random.Random, kind: str) -> Rules:
    """Faults so frequent that most of these runs of some 100 ms have several."""
    rules = Rules(seed=rng.randrange(1 << 40), executor_cores=rng.choice([1, 2, 3]))
    if kind in ("failures", "all"):
        rules = replace(
            rules, failures=rng.choice([0.05, 0.3, 0.8]), max_failures=rng.choice([1, 2, 4])
        )
    if kind in ("losses", "all"):
        rules = replace(
            rules, lost_per_hour=rng.choice([1e3, 1e4, 3e4]), restart_ms=rng.choice([1, 20, 300])
        )
    if kind in ("speculation", "all"):
        rules = replace(
            rules,
            straggler_share=rng.choice([0.0, 0.1, 0.4]),
            straggler_factor=rng.choice([1.5, 10.0, 40.0]),
            speculation=True,
            multiplier=rng.choice([1.0, 1.5, 3.0]),
            quantile=rng.choice([0.0, 0.5, 0.9]),
            check_ms=rng.choice([1, 4, 100]),
            least_ms=rng.choice([0, 3]),
        )
    return rules


def _counts_of(world: FaultyWorld) -> dict[str, int]:
    return {name: world.counts[name] for name in _COUNTS}


def _assert_as_the_oracle(
    drawn: RandomSet, rules: Rules, policy: object, key: Key, limited: bool
) -> FaultCounts:
    world = simulate_plainly(drawn.cores, drawn.jobs, key, rules, drawn.pools, limited)
    config = config_of(drawn.cores).model_copy(update={"faults": _faults_of(rules)})
    sequence = sequence_of(drawn.jobs)
    trace: Trace = simulate(sequence, policy, config, rules.seed, record=True)  # type: ignore[arg-type]
    assert starts(trace) == world.trace
    assert trace.tasks is not None
    places = [(int(row["task"]), int(row["executor"])) for row in trace.tasks]
    assert places == world.places
    assert trace.completion_ms.tolist() == world.completion_ms
    assert trace.faults is not None
    assert {name: getattr(trace.faults, name) for name in _COUNTS} == _counts_of(world)
    return trace.faults


@pytest.mark.parametrize("kind", ["failures", "losses", "speculation", "all"])
def test_random_faults_are_those_of_the_oracle(kind: str) -> None:
    seen = dict.fromkeys(_COUNTS, 0)
    for seed in range(40):
        rng = random.Random(seed)
        drawn = random_set(rng)
        if seed % 2:
            in_sessions(drawn, random.Random(seed))
        rules = _random_rules(rng, kind)
        order = sorted(KINDS)[seed % len(KINDS)]
        policy = policy_of(order, drawn.jobs, drawn.pools)
        counts = _assert_as_the_oracle(drawn, rules, policy, ORDERS[order], limited=False)
        for name in _COUNTS:
            seen[name] += getattr(counts, name)
    expected = {
        "failures": {"failed"},
        "losses": {"interrupted", "lost_executors"},
        "speculation": {"copies", "copies_won"},
        "all": set(_COUNTS) - {"wasted_ms"},
    }[kind]
    assert {name for name, count in seen.items() if count > 4} == expected | {"wasted_ms"}


@random_seeds
def test_faults_under_orders_with_tiers_weights_limits_and_pools(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        rules = _random_rules(rng, "all")
        planner = GivenOrders(drawn.jobs, (), drawn.pools if seed % 2 else None)
        _assert_as_the_oracle(drawn, rules, planner, orders_key(planner), limited=True)


@pytest.mark.slow
def test_many_more_faults() -> None:
    for seed in range(1_000, 2_000):
        rng = random.Random(seed)
        drawn = random_set(rng, max_jobs=8 if seed < 1_900 else 40)
        rules = _random_rules(rng, "all")
        for order in sorted(KINDS):
            policy = policy_of(order, drawn.jobs, drawn.pools)
            _assert_as_the_oracle(drawn, rules, policy, ORDERS[order], limited=False)
