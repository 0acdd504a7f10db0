"""The plain-Python oracle of Spark's own world against the 72 runs of the conformance file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED_DATA
from tests.oracle.spark_world import ORDERS, Job, Pool, random_set, run, simulate

CONFORMANCE = SHARED_DATA / "conformance/spark-world.json"


def jobs_of(entry: dict[str, Any]) -> tuple[list[Job], dict[str, Pool]]:
    """The jobs and pools of one of the file's sets."""
    pools = {name: Pool(**pool) for name, pool in entry["pools"].items()}
    jobs = [
        Job(
            job["arrival_ms"],
            [(parent, child) for parent, child in job["edges"]],
            job["task_ms"],
            pool=job["pool"],
            tier=job["tier"],
            limits=job["limits"],
        )
        for job in entry["jobs"]
    ]
    return jobs, pools


def recorded_sets(path: Path) -> list[dict[str, Any]]:
    sets: list[dict[str, Any]] = json.loads(path.read_text())["sets"]
    return sets


@pytest.mark.skipif(not CONFORMANCE.exists(), reason="the shared conformance file is not here")
# The file has no deadlines.
@pytest.mark.parametrize("order", sorted(ORDERS.keys() - {"edf", "fifo-spark-jobs"}))
def test_every_run_of_the_file_is_reproduced(order: str) -> None:
    sets = recorded_sets(CONFORMANCE)
    assert len(sets) == 12
    for entry in sets:
        jobs, pools = jobs_of(entry)
        world = simulate(entry["cores"], jobs, order, pools)
        expected = entry["expected"][order]
        assert world.completion_ms == expected["completion_ms"], entry["name"]
        assert len(world.trace) == expected["tasks"], entry["name"]


def test_a_core_is_offered_before_the_children_are_runnable() -> None:
    # One core. The end of job 0's parent offers the core to job 1; only then is the child runnable.
    jobs = [Job(0, [(0, 1)], [[10], [10]]), Job(0, [], [[5]])]
    assert run(1, jobs, "fifo") == [25, 15]


def test_idle_cores_go_to_the_parentless_stage_that_is_revealed_first() -> None:
    # Final stage 2 with parents 0 and 1: stage 0 is revealed first and takes both cores.
    jobs = [Job(0, [(0, 2), (1, 2)], [[7, 7], [3], [1]])]
    assert simulate(2, jobs, "fifo").trace == [(0, 0, 0), (0, 0, 0), (7, 0, 1), (10, 0, 2)]
    # Depth first from stages without children: from stage 0 to its parent 2, then stage 1.
    turned = [Job(0, [(2, 0)], [[1], [3], [7]])]
    assert simulate(1, turned, "fifo").trace == [(0, 0, 2), (7, 0, 1), (10, 0, 0)]


def test_fair_gives_the_first_of_a_batch_all_cores_and_evens_out_as_tasks_end() -> None:
    jobs = [Job(0, [], [[4, 5, 6, 4]]), Job(0, [], [[4, 4]])]
    world = simulate(3, jobs, "fair")
    assert world.trace == [(0, 0, 0), (0, 0, 0), (0, 0, 0), (4, 1, 0), (5, 0, 0), (6, 1, 0)]
    assert world.completion_ms == [9, 10]


def test_a_pool_below_its_minimum_share_comes_first() -> None:
    jobs = [Job(0, [], [[2] * 4], pool="a"), Job(0, [], [[3] * 2], pool="b")]
    pools = {"a": Pool(weight=3), "b": Pool(min_share=9), "empty": Pool(min_share=50)}
    assert run(1, jobs, "fair-pools", pools) == [14, 8]
    assert run(1, jobs, "fair-pools", {}) == [8, 14]  # pools without a definition: a before b


def test_fair_inside_a_pool_goes_by_running_tasks_and_then_by_name_as_text() -> None:
    # Twelve stages of one task each: TaskSet_10.0 and TaskSet_11.0 sort before TaskSet_2.0.
    jobs = [Job(0, [], [[1]], pool="p") for _ in range(12)]
    world = simulate(1, jobs, "fair-pools", {"p": Pool(mode="FAIR")})
    assert [start[1] for start in world.trace] == [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]
    assert run(1, jobs, "fair-pools", {"p": Pool()}) == list(range(1, 13))


def test_orders_know_tiers_weights_and_limits() -> None:
    jobs = [Job(0, [], [[2, 2]], tier=1), Job(0, [], [[2, 2]], tier=0, limits=[1])]
    assert simulate(2, jobs, "orders").trace == [(0, 0, 0), (0, 0, 0), (2, 1, 0), (4, 1, 0)]
    bounded = [Job(0, [], [[2], [2]], limit=1), Job(0, [], [[5]])]
    assert run(4, bounded, "orders") == [4, 5]
    weighted = [Job(0, [], [[3, 4, 5]], weight=1), Job(0, [], [[9, 9]], weight=2)]
    assert [start[1] for start in simulate(2, weighted, "orders").trace] == [0, 0, 1, 0, 1]
    with pytest.raises(ValueError, match="stalls"):
        run(1, [Job(0, [], [[1]], limits=[0])], "orders")


def test_tasks_of_no_length_end_at_once() -> None:
    jobs = [Job(3, [(0, 1)], [[0, 0], [0]]), Job(3, [], [[0]])]
    world = simulate(1, jobs, "fifo")
    assert world.trace == [(3, 0, 0), (3, 0, 0), (3, 1, 0), (3, 0, 1)]
    assert world.completion_ms == [3, 3]


def test_random_sets_cover_what_is_hard() -> None:
    sets = [random_set(random.Random(seed)) for seed in range(300)]
    jobs = [job for drawn in sets for job in drawn.jobs]
    assert any(len(job.task_ms) == 1 for job in jobs)
    assert any(parent > child for job in jobs for parent, child in job.edges)
    assert any(0 in tasks for job in jobs for tasks in job.task_ms)
    assert any(len({job.arrival_ms for job in drawn.jobs}) < len(drawn.jobs) for drawn in sets)
    assert any(set(drawn.pools) - {job.pool for job in drawn.jobs} for drawn in sets)
    assert any(pool.min_share > drawn.cores for drawn in sets for pool in drawn.pools.values())
    assert any(pool.mode == "FAIR" for drawn in sets for pool in drawn.pools.values())
