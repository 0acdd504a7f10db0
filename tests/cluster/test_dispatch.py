"""Offer rounds with literal numbers: which core starts which task.

Also to be run with NUMBA_DISABLE_JIT=1.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from parcae.cluster.kernels.cores import accept_orders
from parcae.cluster.kernels.dispatch import (
    begin_task,
    finish_task,
    is_plain,
    name_goes_before,
    next_stage,
    task_begun,
)
from parcae.cluster.observation import observe
from parcae.cluster.orders import Orders, first_come, put
from parcae.cluster.state import NO_JOB, NO_STAGE, POOL
from tests.cluster.cores import Cores
from tests.cluster.invariants import check_invariants


def _jobs(cores: Cores, *num_tasks: int) -> None:
    """Add jobs with one runnable stage each; `num_tasks` tasks of 100 ms."""
    for count in num_tasks:
        cores.reveal(cores.arrive([(count, 100.0, ())]), 0)


def test_first_come_gives_the_first_job_all_that_it_can_run() -> None:
    cores = Cores(3)
    _jobs(cores, 2, 5)
    assert cores.follow()
    assert cores.offer() == [(0, 0, 0), (1, 0, 0), (2, 1, 0)]
    check_invariants(cores.state)
    assert cores.state.jobs.num_attached[:2].tolist() == [2, 1]
    assert cores.state.jobs.remaining_ms[:2].tolist() == [0.0, 400.0]
    assert cores.offer() == []


def test_the_core_that_is_free_for_longest_is_given_away_first() -> None:
    cores = Cores(3)
    _jobs(cores, 4)
    cores.follow()
    cores.offer()
    cores.end(2)
    cores.end(0)
    assert cores.offer() == [(2, 0, 0)]
    assert cores.offer() == []
    assert cores.state.now.num_idle[0] == 1


def test_a_smaller_tier_goes_first_and_a_stage_s_tier_is_added_to_its_job_s() -> None:
    cores = Cores(4)
    _jobs(cores, 1, 1, 1)
    cores.follow(tier=[5.0, 0.0, 2.0], stage_tier=[-6.0, 1.5, 0.0])
    assert [job for _, job, _ in cores.offer()] == [0, 1, 2]  # tiers -1, 1.5, 2


def test_within_a_job_and_tier_the_smaller_rank_goes_first_then_the_row() -> None:
    cores = Cores(1)
    job = cores.arrive([(1, 1.0, ()), (1, 1.0, ()), (1, 1.0, ())])
    for stage in range(3):
        cores.reveal(job, stage)
    cores.follow(stage_rank=[3.0, -2.0, 3.0])
    served = []
    for _ in range(3):
        core, _, stage = cores.offer()[0]
        served.append(stage)
        cores.end_stage(core)
    assert served == [1, 0, 2]


def test_jobs_of_a_tier_share_by_running_tasks_over_weight() -> None:
    cores = Cores(4)
    _jobs(cores, 9, 9)
    cores.follow(weight=[1.0, 3.0])
    # Sorted once a round: the first takes all cores.
    assert [job for _, job, _ in cores.offer()] == [0, 0, 0, 0]
    for core, job in ((0, 1), (1, 1), (2, 1)):
        cores.end(core)  # 3 / 1 against 0 / 3, 2 / 1 against 1 / 3, 1 / 1 against 2 / 3
        assert cores.offer() == [(core, job, 0)]
        check_invariants(cores.state)
    cores.end(0)
    assert cores.offer() == [(0, 1, 0)]  # 1 / 1 against 2 / 3
    cores.end(3)
    assert cores.offer() == [(3, 0, 0)]  # 0 / 1 against 3 / 3


def test_limits_of_jobs_and_stages_hold_and_the_next_in_order_goes_on() -> None:
    cores = Cores(8)
    job = cores.arrive([(5, 1.0, ()), (5, 1.0, ())])
    cores.reveal(job, 0)
    cores.reveal(job, 1)
    _jobs(cores, 5)
    cores.follow(limit=[3, 2], stage_limit=[2])
    assert [start[1:] for start in cores.offer()] == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 0)]
    check_invariants(cores.state)
    assert cores.state.contest[1] == NO_JOB
    cores.end(0)
    assert [start[1:] for start in cores.offer()] == [(0, 0)]
    cores.end(3)
    assert [start[1:] for start in cores.offer()] == [(1, 0)]


def test_a_limit_counts_the_tasks_that_run_already() -> None:
    cores = Cores(4)
    _jobs(cores, 9)
    for limits in ({"limit": [2]}, {"stage_limit": [3]}):
        cores.follow(**limits)
        assert len(cores.offer()) == (2 if "limit" in limits else 1)


def _pools(cores: Cores, pool_of: list[int], *pools: tuple[float, int, bool]) -> None:
    """Put pools of (weight, minimum share, is fair) into force."""
    orders: Orders = first_come(observe(cores.state))
    table = np.zeros(len(pools), POOL).view(np.recarray)
    for row, (weight, min_share, is_fair) in enumerate(pools):
        table[row] = (weight, min_share, is_fair, row, 0, 0)
    orders.jobs.pool[: len(pool_of)] = pool_of
    put(orders._replace(pools=table), cores.state)
    assert accept_orders(cores.state)


def test_a_pool_below_its_minimum_share_goes_first_then_running_over_weight() -> None:
    cores = Cores(1)
    _jobs(cores, 9, 9, 9)
    _pools(cores, [0, 1, 2], (1.0, 0, False), (1.0, 2, False), (5.0, 0, False))
    assert cores.offer() == [(0, 1, 0)]
    check_invariants(cores.state)
    cores = Cores(6)
    _jobs(cores, 1, 2, 9)
    _pools(cores, [0, 1, 2], (1.0, 0, False), (1.0, 2, False), (5.0, 0, False))
    # The needy pool, then 0 / 1 and 0 / 5 by name.
    assert [job for _, job, _ in cores.offer()] == [1, 1, 0, 2, 2, 2]
    assert cores.state.pools.num_running[:3].tolist() == [1, 2, 3]
    cores.end(3)
    assert [job for _, job, _ in cores.offer()] == [2]


def test_one_pool_that_is_fair_shares_among_task_sets() -> None:
    cores = Cores(2)
    _jobs(cores, 9, 9)
    _pools(cores, [0, 0], (1.0, 0, True))
    assert [job for _, job, _ in cores.offer()] == [0, 0]
    cores.end(0)
    assert cores.offer() == [(0, 1, 0)]  # 1 running task against none
    check_invariants(cores.state)
    assert cores.state.pools.num_running[0] == 2


def test_orders_without_pools_follow_those_with_pools() -> None:
    cores = Cores(1)
    _jobs(cores, 1, 1, 2)
    _pools(cores, [0, 0, 0], (1.0, 0, False), (1.0, 0, False))
    assert cores.offer() == [(0, 0, 0)]
    cores.end_stage(0)
    check_invariants(cores.state)
    cores.follow()
    check_invariants(cores.state)
    assert cores.offer() == [(0, 1, 0)]


@pytest.mark.parametrize(
    ("first", "second"),
    list(itertools.permutations([0, 1, 2, 9, 10, 11, 19, 100, 101, 110, 2_000], 2)),
)
def test_task_sets_go_by_name_as_spark_writes_it(first: int, second: int) -> None:
    assert bool(name_goes_before(first, second)) is (f"TaskSet_{first}.0" < f"TaskSet_{second}.0")


def _continue(cores: Cores, core: int) -> int:
    """End the core's task and let the core go on by the fast path. Returns the stage that it runs.

    If nothing can start, the core stays without a task.
    """
    state = cores.state
    assert is_plain(state)
    previous = int(state.executors.job[core])
    finish_task(state, core)
    stage = int(next_stage(state, previous))
    if stage != NO_STAGE:
        begin_task(state, core, stage)
        task_begun(state, stage, previous)
        check_invariants(state)
    return stage


def test_the_fast_path_applies_if_the_core_of_the_next_end_is_the_only_free_one() -> None:
    cores = Cores(2)
    state = cores.state
    _jobs(cores, 3)
    assert not is_plain(state)  # cores are idle and a plan is due
    cores.follow()
    cores.offer()
    assert is_plain(state)
    cores.follow(limit=[2])
    assert not is_plain(state)
    _pools(cores, [0], (1.0, 0, True))
    assert not is_plain(state)


def test_on_the_fast_path_the_first_job_keeps_its_core_until_it_has_no_task_left() -> None:
    cores = Cores(1)
    _jobs(cores, 3, 2)
    cores.follow()
    assert cores.offer() == [(0, 0, 0)]
    assert _continue(cores, 0) == 0
    assert _continue(cores, 0) == 0  # the job's last task: a plan is due
    assert not is_plain(cores.state)
    cores.follow()
    assert _continue(cores, 0) == 1


def test_on_the_fast_path_a_core_goes_to_the_job_with_the_smaller_share() -> None:
    cores = Cores(3)
    _jobs(cores, 9, 9)
    cores.follow(weight=[1.0, 2.0])
    assert [job for _, job, _ in cores.offer()] == [0, 0, 0]
    assert _continue(cores, 0) == 1  # 2 / 1 against 0 / 2
    assert _continue(cores, 1) == 1  # 1 / 1 against 1 / 2
    assert _continue(cores, 2) == 0  # 0 / 1 against 2 / 2: the job takes its core back
    assert _continue(cores, 0) == 1  # 1 / 2 against 1 / 1: the other one, too
    assert cores.state.jobs.num_attached[:2].tolist() == [1, 2]
