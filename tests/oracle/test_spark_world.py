"""The plain-Python oracle of Spark's own world against the 72 runs of the conformance file."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.conftest import shared_data
from tests.oracle.spark_world import ORDERS, Job, Pool, random_set, run, simulate


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


# The file has no deadlines.
@pytest.mark.parametrize("order", sorted(ORDERS.keys() - {"edf", "fifo-spark-jobs"}))
def test_every_run_of_the_file_is_reproduced(order: str) -> None:
    sets = json.loads(shared_data("conformance/spark-world.json").read_text())["sets"]
    assert len(sets) == 12
    for entry in sets:
        jobs, pools = jobs_of(entry)
        world = simulate(entry["cores"], jobs, order, pools)
        expected = entry["expected"][order]
        assert world.completion_ms == expected["completion_ms"], entry["name"]
        assert len(world.trace) == expected["tasks"], entry["name"]


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
