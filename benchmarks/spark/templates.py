"""Thirty templates of SQL on the TPC-H tables: the 22 queries, three lookups and five ETL jobs.

Every run of a template has literals of its own, as the reports of a company have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks.spark.tables import NUM_QUERIES

#: Templates beside the 22, from number 23 on: lookups, then ETL jobs that write Parquet.
_LOOKUPS = (
    "SELECT * FROM customer WHERE c_custkey = {key}",
    "SELECT count(*), sum(o_totalprice) FROM orders WHERE o_orderdate = CAST('1995-03-15' AS date)",
    "SELECT s_name, s_acctbal FROM supplier JOIN nation ON s_nationkey = n_nationkey "
    "WHERE s_acctbal > {key} % 9000 ORDER BY s_acctbal DESC LIMIT 20",
)
_ETL = (
    "SELECT * FROM lineitem WHERE l_shipdate >= CAST('1994-06-01' AS date) "
    "ORDER BY l_shipdate, l_orderkey",
    "SELECT c_custkey, c_name, count(*) n, sum(l_extendedprice * (1 - l_discount)) revenue, "
    "max(o_orderdate) latest FROM customer JOIN orders ON c_custkey = o_custkey "
    "JOIN lineitem ON l_orderkey = o_orderkey GROUP BY c_custkey, c_name",
    "SELECT DISTINCT l_partkey, l_suppkey, l_shipmode, l_returnflag FROM lineitem",
    "SELECT o.*, c_name, c_mktsegment, n_name FROM orders o JOIN customer ON c_custkey = o_custkey "
    "JOIN nation ON n_nationkey = c_nationkey WHERE o_orderdate > CAST('1993-01-01' AS date)",
    "SELECT ps_partkey, ps_suppkey, p_name, p_brand, s_name, ps_supplycost * ps_availqty stock "
    "FROM partsupp JOIN part ON p_partkey = ps_partkey JOIN supplier ON s_suppkey = ps_suppkey",
)
NUM_TEMPLATES = NUM_QUERIES + len(_LOOKUPS) + len(_ETL)
#: The classes of a mixed load; the queries that are in neither are of medium size.
SHORT = (2, 11, 16, *range(NUM_QUERIES + 1, NUM_QUERIES + len(_LOOKUPS) + 1))
ETL = tuple(range(NUM_QUERIES + len(_LOOKUPS) + 1, NUM_TEMPLATES + 1))
MEDIUM = tuple(number for number in range(1, NUM_QUERIES + 1) if number not in SHORT)

_DATE = re.compile(r"'(199[2-8])-(\d\d)-(\d\d)'")
_MOST_DAYS = 120
_MOST_KEYS = 10_000


def drawn_text(number: int, queries: Mapping[int, str], folder: Path, random: Any) -> str:
    """The text of a run of a template; ETL jobs write below the folder."""
    shift = timedelta(days=int(random.integers(-_MOST_DAYS, 1)))
    key = int(random.integers(1, _MOST_KEYS))
    if number <= NUM_QUERIES:
        text = queries[number]
    else:
        text = (*_LOOKUPS, *_ETL)[number - NUM_QUERIES - 1].format(key=key)
    if number in ETL:
        target = (folder / f"etl-{number}-{random.integers(1 << 30)}").resolve()
        text = f"INSERT OVERWRITE DIRECTORY '{target}' USING parquet {text}"

    def moved(match: re.Match[str]) -> str:
        return f"'{date(*map(int, match.groups())) + shift}'"

    return _DATE.sub(moved, text)
