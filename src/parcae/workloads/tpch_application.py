"""Runs one Spark application of a TPC-H measurement, in a separate process.

The process is started with `python -m parcae.workloads.tpch_application` and its request as JSON.
It appends a line to a file for every finished query.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: The Spark property that names the recurring job in the event log.
JOB_KEY = "parcae.job"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
#: Number of the first round, whose durations are not used.
WARM_UP = 0


@dataclass(frozen=True)
class QueryRun:
    """One run of a query.

    `round` is WARM_UP, then 1, 2, ...; `query` is the query's number; `job` is the recurring job's
    name.
    """

    round: int
    query: int
    job: str


@dataclass(frozen=True)
class ApplicationRequest:
    """The task of one Spark application."""

    name: str
    master: str
    data_dir: str
    runs: tuple[QueryRun, ...]
    conf: Mapping[str, str]
    finished: str

    def to_json(self) -> str:
        """The request as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ApplicationRequest:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "runs": tuple(QueryRun(**run) for run in fields["runs"])})


def query_texts() -> dict[int, str]:
    """The 22 query texts by number, from the TPC-H extension that is built into duckdb."""
    import duckdb

    rows = duckdb.connect().execute("SELECT query_nr, query FROM tpch_queries()").fetchall()
    return {int(number): str(text).strip().rstrip(";") for number, text in rows}


def run_application(request: ApplicationRequest) -> None:
    """Start Spark, run the queries one after another, and stop Spark."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(request.master).appName(request.name)
    for key, value in request.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        for table in TABLES:
            spark.read.parquet(f"{request.data_dir}/{table}.parquet").createOrReplaceTempView(table)
        _run_queries(spark, request.runs, Path(request.finished))
    finally:
        spark.stop()


def _run_queries(spark: Any, runs: Sequence[QueryRun], finished: Path) -> None:
    texts = query_texts()
    for run in runs:
        spark.sparkContext.setLocalProperty(JOB_KEY, run.job)
        spark.sparkContext.setJobDescription(run.job)
        started = time.monotonic()
        spark.sql(texts[run.query]).collect()
        line = {
            "round": run.round,
            "query": run.query,
            "seconds": round(time.monotonic() - started, 3),
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 1),
        }
        with finished.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    run_application(ApplicationRequest.from_json(sys.argv[1]))
