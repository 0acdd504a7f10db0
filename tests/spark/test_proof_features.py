"""Spark's own features beside an order: each has its effect, results are right, and the order stays in force."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.machine import Machine, start_machine, wait_until
from tests.spark.proofs import Guided, guided, processes_that

_CLUSTER = "local-cluster[2,2,1024]"
_FACTS = "select id, id % 97 as item, id % 1009 as customer from range(0, 200000, 1, 8)"
_ITEMS = "select id as item, id % 5 as shelf from range(97)"
_QUERIES = {
    "broadcast": f"select shelf, count(*) from ({_FACTS}) join ({_ITEMS}) using (item) group by shelf order by shelf",
    "subquery": f"select count(*) from ({_FACTS}) where item > (select avg(item) from ({_ITEMS})) and item in (select shelf from ({_ITEMS}))",
    "shuffle": f"select customer, count(*) as n from ({_FACTS}) group by customer order by n desc, customer limit 20",
}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = start_machine(tmp_path_factory.mktemp("spark"))
    yield started
    started.close()


def _answers(context: Any, *, at_once: bool) -> dict[str, list[Any]]:
    """Rows of the queries, one after the other or from a thread each."""
    from pyspark.sql import SparkSession

    session = SparkSession(context)
    found: dict[str, list[Any]] = {}

    def ask(name: str) -> None:
        found[name] = session.sql(_QUERIES[name]).collect()

    threads = [threading.Thread(target=ask, args=(name,)) for name in _QUERIES]
    for thread in threads:
        thread.start()
        if not at_once:
            thread.join(60)
    for thread in threads:
        thread.join(60)
    return found


def test_adaptive_queries_with_broadcasts_and_subqueries(machine: Machine, tmp_path: Path) -> None:
    with machine.context(0, spark_master="local[2]") as stock:
        expected = _answers(stock.context, at_once=False)
    assert [len(expected[name]) for name in _QUERIES] == [5, 1, 20]
    with guided(machine, tmp_path) as queries:
        assert _answers(queries.context, at_once=True) == expected
        queries.trace.await_settled()
        first = [job for job in queries.trace.jobs().values() if job["name"].startswith("plan-")]
        assert len(first) == len(_QUERIES)  # broadcasts and subqueries are part of their query
        assert {job["known"] for job in first} == {"unknown"}
        assert _answers(queries.context, at_once=True) == expected
        again = [job for job in queries.trace.jobs().values() if job["known"] == "learned"]
        assert sorted(job["name"] for job in again) == sorted(job["name"] for job in first)
