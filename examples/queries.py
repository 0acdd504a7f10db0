"""A typical Spark application: a dozen queries of different sizes, submitted at once from threads.

    spark-submit examples/queries.py [ROWS]

Every query has a job group, which gives it its name in the event log. The tables are generated in
memory; ROWS (default 3,000,000) sets the amount of work.
"""

from __future__ import annotations

import sys
import threading
import time

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

#: Rows of each query as shares of ROWS: a few large queries, many small ones.
SHARES = (1.0, 0.8, 0.03, 0.05, 0.6, 0.04, 0.02, 0.03, 0.3, 0.05, 0.02, 0.04)


def orders(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """A generated table of orders."""
    ids = spark.range(0, rows, 1, partitions)
    return ids.select(
        F.col("id").alias("order"),
        (F.xxhash64("id") % 1000).alias("customer"),
        (F.abs(F.xxhash64("id", F.lit(7))) % 97).alias("item"),
        F.rand(3).alias("price"),
    )


def query(spark: SparkSession, number: int, rows: int) -> int:
    """Run a query with joins, groups and sorts; returns the number of result rows."""
    table = orders(spark, rows, max(2, rows // 100_000))
    items = spark.range(97).select(F.col("id").alias("item"), (F.col("id") % 5).alias("shelf"))
    mean = table.agg(F.avg("price")).first()[0] if number % 3 == 0 else 0.5
    joined = table.filter(F.col("price") > mean).join(items, "item")
    grouped = joined.groupBy("shelf", "customer").agg(
        F.sum("price").alias("total"), F.countDistinct("order").alias("orders")
    )
    return len(grouped.orderBy(F.desc("total")).limit(100).collect())


def main() -> None:
    """Submit all queries at once, and print when they were done."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
    spark = SparkSession.builder.appName("queries").getOrCreate()
    query(spark, 0, 10_000)  # warm up: Spark loads most of its code with the first query
    start = time.monotonic()
    times: list[float] = []

    def run(number: int) -> None:
        spark.sparkContext.setJobGroup(f"query-{number:02d}", f"query {number}")
        query(spark, number, max(1000, int(SHARES[number] * rows)))
        times.append(time.monotonic() - start)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(SHARES))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(
        f"{len(times)} queries, on average done after {sum(times) / len(times):.2f} s, "
        f"the last after {max(times):.2f} s"
    )
    spark.stop()


if __name__ == "__main__":
    main()
