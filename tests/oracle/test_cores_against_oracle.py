"""The kernels of the world of cores against the plain-Python oracle, start by start."""

from __future__ import annotations

import functools
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, blank_orders
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.simulator import simulate
from parcae.workloads.job_sets import read_spark_world_sets
from tests.oracle.cores_runs import (
    KINDS,
    GivenOrders,
    PlayedOrders,
    among_tenants,
    config_of,
    deadline_table,
    in_sessions,
    orders_key,
    policy_of,
    random_seeds,
    run_kernels,
    starts,
)
from tests.oracle.spark_world import ORDERS, Job, Pool, RandomSet, random_set
from tests.oracle.spark_world import among_tenants as among_tenants_plainly
from tests.oracle.spark_world import simulate as simulate_plainly


def _assert_as_the_oracle(drawn: RandomSet, seed: int, policy: object, order: object) -> None:
    world = simulate_plainly(drawn.cores, drawn.jobs, order, drawn.pools)  # type: ignore[arg-type]
    trace = run_kernels(drawn.cores, drawn.jobs, policy, record=True)
    assert starts(trace) == world.trace, f"seed {seed}"
    assert trace.completion_ms.tolist() == world.completion_ms, f"seed {seed}"


@pytest.mark.parametrize("order", sorted(KINDS))
@random_seeds
def test_random_sets_start_every_task_when_the_oracle_does(order: str, seeds: range) -> None:
    for seed in seeds:
        drawn = random_set(random.Random(seed))
        _assert_as_the_oracle(drawn, seed, policy_of(order, drawn.jobs, drawn.pools), order)


@pytest.mark.parametrize("order", sorted(KINDS))
@random_seeds
def test_jobs_of_sessions_arrive_when_those_before_them_have_ended(
    order: str, seeds: range
) -> None:
    for seed in seeds:
        drawn = in_sessions(random_set(random.Random(seed), 12), random.Random(seed))
        _assert_as_the_oracle(drawn, seed, policy_of(order, drawn.jobs, drawn.pools), order)


@pytest.mark.slow
def test_many_and_larger_sets_too() -> None:
    for seed in range(1_000, 1_400):
        drawn = random_set(random.Random(seed), max_jobs=8 if seed < 1_350 else 40)
        for order in sorted(KINDS):
            _assert_as_the_oracle(drawn, seed, policy_of(order, drawn.jobs, drawn.pools), order)


def _with_zero_means(drawn: RandomSet, rng: random.Random) -> RandomSet:
    """Some stages whose tasks all take no time."""
    jobs = []
    for job in drawn.jobs:
        task_ms = [[0] * len(tasks) if rng.random() < 0.5 else tasks for tasks in job.task_ms]
        jobs.append(replace(job, task_ms=task_ms))
    return RandomSet(drawn.cores, jobs, drawn.pools)


@pytest.mark.parametrize("order", sorted(KINDS))
@random_seeds
def test_stages_that_are_known_to_take_no_time_are_no_work(order: str, seeds: range) -> None:
    for seed in seeds:
        drawn = _with_zero_means(random_set(random.Random(seed)), random.Random(seed))
        _assert_as_the_oracle(drawn, seed, policy_of(order, drawn.jobs, drawn.pools), order)


class _LateLast:
    """`edf:late-last` in plain Python, from its description, over the observation of a plan."""

    name = "late-last"

    def __init__(self, jobs: list[Job], cores: int) -> None:
        self._jobs = jobs
        self._cores = cores
        self.num_late = 0

    def plan(self, observation: Observation) -> Orders:
        orders = blank_orders(len(observation.jobs), len(observation.stages))
        for row in observation.active_jobs:
            orders.jobs.tier[row] = self._tier(observation, int(row))
        return orders

    def _tier(self, observation: Observation, row: int) -> float:
        job = self._jobs[row]
        left = {stage: self._left(observation, stage) for stage in observation.stages_of(row)}
        if job.deadline_ms is not None:
            time_ms = job.arrival_ms + job.deadline_ms - int(observation.now.clock_ms[0])
            work_ms = sum((waiting + 0.5 * running) * ms for waiting, running, ms in left.values())
            alone_ms = max(work_ms / self._cores, self._path_ms(observation, row, left))
            if alone_ms <= time_ms:
                return time_ms
            self.num_late += 1
        return 1e11 + sum(unstarted * ms for unstarted, _, ms in left.values())

    def _left(self, observation: Observation, stage: int) -> tuple[int, int, float]:
        """(tasks that have not started, running tasks, mean duration of a task)."""
        stages = observation.stages
        unstarted = int(stages.num_tasks[stage] - stages.num_started[stage])
        return unstarted, int(stages.num_bound[stage]), float(stages.task_ms[stage])

    def _path_ms(
        self, observation: Observation, row: int, left: dict[int, tuple[int, int, float]]
    ) -> float:
        """The longest path over what is left: of every stage its slowest task."""
        job = self._jobs[row]
        first = observation.stages_of(row).start

        @functools.cache
        def below(index: int) -> float:
            children = [child for parent, child in job.edges if parent == index]
            longest = max(map(below, children), default=0.0)
            return longest + (1.0 + (0.5 - 0.5 / len(job.task_ms[index]))) * left[first + index][2]

        paths = [0.0]
        for stage, (unstarted, running, ms) in left.items():
            if unstarted + running:
                paths.append(below(stage - first) - (0.0 if unstarted else 0.5 * ms))
        return max(paths)


def test_jobs_that_cannot_meet_their_deadline_come_last() -> None:
    num_late = 0
    for seed in range(30):
        drawn = random_set(random.Random(seed))
        table = plan_tables(deadline_ms=deadline_table(drawn.jobs))
        compiled = OrderPolicy("edf:late-last", OrderKind.EDF_LATE_LAST, table)
        plain = _LateLast(drawn.jobs, drawn.cores)
        expected = run_kernels(drawn.cores, drawn.jobs, plain, record=True)
        found = run_kernels(drawn.cores, drawn.jobs, compiled, record=True)
        assert starts(found) == starts(expected), f"seed {seed}"
        num_late += plain.num_late
    assert num_late > 50


def _ranks(rng: random.Random, jobs: list[Job]) -> list[list[float]]:
    return [[rng.choice([0.0, 1.0, -1.5]) for _ in job.task_ms] for job in jobs]


@random_seeds
def test_orders_of_tiers_weights_limits_and_ranks(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        planner = GivenOrders(drawn.jobs, _ranks(rng, drawn.jobs))
        _assert_as_the_oracle(drawn, seed, planner, orders_key(planner))


@random_seeds
def test_orders_with_weights_but_without_limits_which_are_given_on_in_one_step(
    seeds: range,
) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        for job in drawn.jobs:
            job.limit = None
            job.limits = None
            job.weight = rng.choice([None, 1, 1, 2, 0.5])
        planner = GivenOrders(drawn.jobs, _ranks(rng, drawn.jobs))
        _assert_as_the_oracle(drawn, seed, planner, orders_key(planner))


@random_seeds
def test_orders_inside_pools(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        drawn.pools.setdefault("zz-empty", Pool())
        planner = GivenOrders(drawn.jobs, _ranks(rng, drawn.jobs), drawn.pools)
        _assert_as_the_oracle(drawn, seed, planner, orders_key(planner))


def _with_priorities(jobs: list[Job], rng: random.Random) -> None:
    for job in jobs:
        job.priority = rng.choice([0, 0, 5, -1])


@pytest.mark.parametrize("order", ["fair", "fifo", "sjf", "srpt"])
@random_seeds
def test_policies_order_jobs_inside_the_pools_and_priorities_of_tenants(
    order: str, seeds: range
) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        for job in drawn.jobs:
            job.limit = None
            job.limits = None
        if seed % 2:
            _with_priorities(drawn.jobs, rng)
        policy = among_tenants(policy_of(order, drawn.jobs, {}), drawn.jobs, drawn.pools)
        _assert_as_the_oracle(drawn, seed, policy, among_tenants_plainly(ORDERS[order]))


@random_seeds
def test_tiers_weights_limits_and_ranks_count_inside_tenants(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        if seed % 2:
            _with_priorities(drawn.jobs, rng)
        ranks = _ranks(rng, drawn.jobs)
        policy = among_tenants(PlayedOrders(drawn.jobs, ranks), drawn.jobs, drawn.pools)
        inside = orders_key(GivenOrders(drawn.jobs, ranks))
        _assert_as_the_oracle(drawn, seed, policy, among_tenants_plainly(inside))


@random_seeds
def test_without_pools_and_priorities_tenants_change_nothing(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        drawn = random_set(rng)
        for job in drawn.jobs:
            job.pool = "default"
        ranks = _ranks(rng, drawn.jobs)
        policy = among_tenants(PlayedOrders(drawn.jobs, ranks), drawn.jobs, {})
        planner = GivenOrders(drawn.jobs, ranks)
        _assert_as_the_oracle(drawn, seed, policy, orders_key(planner))


def test_a_set_that_went_through_a_file_runs_alike(tmp_path: Path) -> None:
    drawn = {f"set-{seed}": random_set(random.Random(seed)) for seed in range(15)}
    entries = [one.as_entry(name) for name, one in drawn.items()]
    for entry in entries:
        for job in entry["jobs"]:
            random.Random(len(job["edges"])).shuffle(job["edges"])  # edges in any order
    path = tmp_path / "sets.json"
    path.write_text(json.dumps({"format": "parcae spark world conformance 1", "sets": entries}))
    for name, one in read_spark_world_sets(path).items():
        own = drawn[name]
        for order in sorted(KINDS):
            policy = policy_of(order, own.jobs, own.pools)
            trace = simulate(one.sequence, policy, config_of(one.cores), 7)
            world = simulate_plainly(own.cores, own.jobs, order, own.pools)
            assert one.by_position(trace.completion_ms) == world.completion_ms, (name, order)


def test_a_compiled_policy_and_its_plans_one_by_one_give_one_run() -> None:
    for seed in range(6):
        drawn = random_set(random.Random(seed))
        for order in sorted(KINDS):
            policy = policy_of(order, drawn.jobs, drawn.pools)
            whole = run_kernels(drawn.cores, drawn.jobs, policy, record=True)
            stepped = run_kernels(drawn.cores, drawn.jobs, _OnlyPlans(policy), record=True)
            assert whole.tasks is not None
            assert stepped.tasks is not None
            np.testing.assert_array_equal(whole.tasks, stepped.tasks)
            assert whole.num_decisions == stepped.num_decisions


class _OnlyPlans:
    """A policy without its compiled `play`."""

    def __init__(self, policy: object) -> None:
        self.name = "plans"
        self.plan = policy.plan  # type: ignore[attr-defined]
