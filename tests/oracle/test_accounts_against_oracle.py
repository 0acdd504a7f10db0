"""Orders with the accounts of users against the plain-Python oracle, and what must hold of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parcae.policies.additions import Accounted, TenantPolicy, user_pools
from parcae.policies.orders.kernels import OrderKind
from parcae.policies.orders.policy import OrderPolicy, plan_tables
from parcae.simulation.simulator import simulate
from parcae.workloads.workload import JobSequence, Workload
from tests.oracle.accounts import Account, Ledger, Use, Work, all_work, least_work, play
from tests.oracle.cores_runs import (
    config_of,
    in_sessions,
    random_seeds,
    sequence_of,
    starts,
)
from tests.oracle.spark_world import Job, Pool, RandomSet, among_tenants, fair_pools, random_set
from tests.oracle.spark_world import simulate as simulate_plainly
from tests.oracle.spark_world import srpt as srpt_plainly

_WORKS: dict[OrderKind, Work] = {OrderKind.SRPT: least_work, OrderKind.SJF: all_work}


def _of_users(jobs: Sequence[Job], users: Sequence[str]) -> JobSequence:
    """The sequence of the jobs, each of its user."""
    sequence = sequence_of(jobs)
    pairs = zip(sequence.workload.jobs, users, strict=True)
    specs = tuple(replace(spec, user=user) for spec, user in pairs)
    return replace(sequence, workload=Workload("set", specs))


def _drawn(seed: int) -> tuple[RandomSet, list[str], dict[str, float]]:
    """Jobs, the user of each, and weights."""
    rng = random.Random(seed)
    drawn = random_set(rng, 16)
    if seed % 3 == 0:
        drawn = in_sessions(drawn, rng)
    names = [f"u{row}" for row in range(rng.randint(1, 5))]
    weights = {name: rng.choice([1.0, 1.0, 2.0, 0.5]) for name in names if seed % 2}
    return drawn, [rng.choice(names) for _ in drawn.jobs], weights


def _order(kind: OrderKind) -> OrderPolicy:
    return OrderPolicy(kind.name.lower(), kind, plan_tables())


def _assert_same(
    drawn: RandomSet, sequence: JobSequence, policy: Any, world: Any, why: str
) -> None:
    trace = simulate(sequence, policy, config_of(drawn.cores), 1, record=True)
    assert starts(trace) == world.trace, why
    assert trace.completion_ms.tolist() == world.completion_ms, why


@pytest.mark.parametrize("kind", sorted(_WORKS))
@random_seeds
def test_every_task_starts_when_the_oracle_says(kind: OrderKind, seeds: range) -> None:
    for seed in seeds:
        drawn, users, weights = _drawn(seed)
        sequence = _of_users(drawn.jobs, users)
        world = play(drawn.cores, drawn.jobs, users, weights, _WORKS[kind])
        by_user = tuple(weights.get(user, 1.0) for user in dict.fromkeys(users))
        policy = Accounted("accounts", _order(kind), by_user)
        _assert_same(drawn, sequence, policy, world, f"seed {seed}")


@random_seeds
def test_one_user_gets_the_policys_own_order(seeds: range) -> None:
    for seed in seeds:
        drawn, _, _ = _drawn(seed)
        sequence = _of_users(drawn.jobs, ["one"] * len(drawn.jobs))
        config = config_of(drawn.cores)
        plain = simulate(sequence, _order(OrderKind.SRPT), config, 1, record=True)
        charged = simulate(sequence, Accounted("x", _order(OrderKind.SRPT)), config, 1, record=True)
        np.testing.assert_array_equal(plain.tasks, charged.tasks)
        assert plain.num_decisions == charged.num_decisions


def test_a_loop_does_not_keep_another_users_large_job_waiting() -> None:
    etl = Job(0, [], [[100] * 8])
    loops = [Job(0, [], [[10] * 8]) for _ in range(80)]
    for place, job in enumerate(loops):  # two loops in turn, behind the large job
        job.follows = place - 1 if place >= 2 else None
    sequence = _of_users([etl, *loops], ["etl"] + ["loop"] * len(loops))
    pools = user_pools(sequence.workload, "", "FAIR")
    shared = TenantPolicy("fair", _order(OrderKind.FIFO), pools)
    charged = Accounted("account", _order(OrderKind.SRPT))
    ends_ms = [
        int(simulate(sequence, policy, config_of(4), 1).completion_ms[0])
        for policy in (_order(OrderKind.SRPT), shared, charged)
    ]
    split_ms = 8 * 100 / 2  # two users share four cores
    assert ends_ms[0] > 3 * split_ms
    assert max(ends_ms[1:]) <= 1.2 * split_ms


@pytest.mark.parametrize("is_fair", [True, False])
@random_seeds
def test_pools_of_users_are_those_of_spark(is_fair: bool, seeds: range) -> None:
    for seed in seeds:
        drawn, users, _ = _drawn(seed)
        sequence = _of_users(drawn.jobs, users)
        mode = "FAIR" if is_fair else "FIFO"
        kind = OrderKind.FIFO if is_fair else OrderKind.SRPT
        tenants = user_pools(sequence.workload, "", "FAIR" if is_fair else "FIFO")
        policy = TenantPolicy("pools", _order(kind), tenants)
        for job, user in zip(drawn.jobs, users, strict=True):
            job.pool = user
            job.limit, job.limits = None, None
        pools = {user: Pool(mode=mode) for user in users}
        key = fair_pools if is_fair else among_tenants(srpt_plainly)
        world = simulate_plainly(drawn.cores, drawn.jobs, key, pools)
        _assert_same(drawn, sequence, policy, world, f"seed {seed}")


def _ledger(rng: random.Random) -> tuple[Ledger, dict[str, Use], int]:
    """A ledger with some history, and what its users do."""
    names = [f"u{row}" for row in range(rng.randint(1, 6))]
    ledger = Ledger({name: rng.choice([1.0, 2.0, 0.5]) for name in names})
    uses = {}
    for name in names:
        ledger.accounts[name] = Account(rng.uniform(0, 900), rng.uniform(0, 900))
        jobs = rng.randint(0, 2)
        uses[name] = Use(jobs, *(rng.randint(0, 9) * min(1, jobs) for _ in range(2)))
    running = sum(use.running for use in uses.values())
    return ledger, uses, running + rng.choice([0, 0, 3, 20])


def test_several_short_steps_are_one_long_one_and_the_split_gives_what_there_is() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        state = rng.getstate()
        whole, uses, cores = _ledger(rng)
        rng.setstate(state)
        parts, _, _ = _ledger(rng)
        whole.move(0, cores, uses)  # closes what is settled
        parts.move(0, cores, uses)
        before = sum(one.split for one in whole.accounts.values())
        whole.move(700, cores, uses)
        for step in (1, 49, 150, 500):
            parts.move(step, cores, uses)
        for user in uses:
            assert parts.overdraft(user) == pytest.approx(whole.overdraft(user), abs=1e-6), seed
        running = sum(use.running for use in uses.values())
        waits = any(use.waiting for use in uses.values())
        given = sum(one.split for one in whole.accounts.values()) - before
        most = (running if waits else cores) * 700
        assert given == pytest.approx(most) if waits else given <= most + 1e-6, seed
