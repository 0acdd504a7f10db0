"""Makes a small real Spark event log: six recurring queries, three runs each, on two executors.

    pip install -r benchmarks/spark/requirements.txt
    python examples/make_example_event_log.py example-event-log.zstd

This script made the log that ships with the package
(`parcae/workloads/bundled/example-event-log.zstd`). Lines are as Spark wrote them, except that
large parts (task starts, the tasks' accumulables, stack traces, plans as text) are left out, and
that the environment contains only Spark's settings (no paths, no user names).

The script needs Java 17 and takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import zstandard
from pyspark.sql import SparkSession

NUM_ORDERS = 400_000
REPETITIONS = 3
KEPT_SETTINGS = (
    "spark.sql.",
    "spark.master",
    "spark.app.name",
    "spark.task.cpus",
    "spark.executor.cores",
)

QUERIES = {
    "daily-revenue": """
        SELECT day, SUM(price * quantity) AS revenue, COUNT(DISTINCT orders.order_id) AS num_orders
        FROM orders JOIN items ON orders.order_id = items.order_id GROUP BY day ORDER BY day""",
    "top-customers": """
        SELECT customer_id, SUM(price * quantity) AS spent
        FROM orders JOIN items ON orders.order_id = items.order_id
        GROUP BY customer_id ORDER BY spent DESC LIMIT 20""",
    "segment-report": """
        SELECT segment, day % 7 AS weekday, COUNT(*) AS num_orders
        FROM orders JOIN customers ON orders.customer_id = customers.customer_id
        GROUP BY segment, day % 7""",
    "often-together": """
        SELECT a.product_id AS left_id, b.product_id AS right_id, COUNT(*) AS times
        FROM items a JOIN items b ON a.order_id = b.order_id AND a.product_id < b.product_id
        GROUP BY a.product_id, b.product_id ORDER BY times DESC, left_id, right_id LIMIT 50""",
    "dear-products": """
        SELECT product_id, AVG(price) AS price FROM items
        WHERE price > (SELECT AVG(price) * 1.5 FROM items)
        GROUP BY product_id ORDER BY product_id""",
    "returning-buyers": """
        SELECT segment, AVG(gap) AS mean_gap FROM (
          SELECT customer_id, day - LAG(day) OVER (PARTITION BY customer_id ORDER BY day) AS gap
          FROM orders) gaps
        JOIN customers ON gaps.customer_id = customers.customer_id GROUP BY segment""",
}


def write_tables(folder: Path) -> None:
    """Generate orders, items and customers as parquet, in a separate session that writes no log."""
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    orders = f"""SELECT id AS order_id, pmod(hash(id), 20000) AS customer_id,
        CAST(id * 365 / {NUM_ORDERS} AS INT) AS day FROM range(0, {NUM_ORDERS}, 1, 6)"""
    items = f"""SELECT id DIV 3 AS order_id, pmod(hash(id, 7), 300) AS product_id,
        pmod(hash(id, 9), 9) + 1 AS quantity,
        pmod(hash(id, 11), 10000) / 100 AS price FROM range(0, {3 * NUM_ORDERS}, 1, 8)"""
    customers = """SELECT CAST(id AS INT) AS customer_id,
        concat('segment-', pmod(hash(id), 5)) AS segment
        FROM range(0, 20000, 1, 2)"""
    for name, query in (("orders", orders), ("items", items), ("customers", customers)):
        spark.sql(query).write.parquet(str(folder / name))
    spark.stop()


def start_measured_session(log_folder: Path) -> SparkSession:
    """A session with two executors of one core each (`local-cluster`) that writes one event log."""
    settings = {
        "spark.app.name": "example shop",
        "spark.ui.enabled": "false",
        "spark.sql.warehouse.dir": (log_folder.parent / "warehouse").as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": log_folder.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "6",
        "spark.sql.files.maxPartitionBytes": "1m",
        "spark.sql.autoBroadcastJoinThreshold": "1m",
        "spark.executor.memory": "1g",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run_queries(spark: SparkSession, tables: Path) -> None:
    """Run every query REPETITIONS times; the job group is the recurring job's name."""
    for table in ("orders", "items", "customers"):
        spark.read.parquet(str(tables / table)).createOrReplaceTempView(table)
    for _ in range(REPETITIONS):
        for name, query in QUERIES.items():
            spark.sparkContext.setJobGroup(name, name)
            spark.sql(query).collect()


def shortened(line: str) -> str:
    """The event without large parts and details of the machine; "" for an event that is dropped."""
    event = json.loads(line)
    match event["Event"]:
        case "SparkListenerTaskStart":
            return ""
        case "SparkListenerTaskEnd":
            event["Task Info"]["Accumulables"] = []
            event.pop("Task Executor Metrics", None)
        case "SparkListenerEnvironmentUpdate":
            settings = event["Spark Properties"].items()
            kept = {
                k: v for k, v in settings if k.startswith(KEPT_SETTINGS) and "dir" not in k.lower()
            }
            event = {"Event": event["Event"], "Spark Properties": kept}
    for stage in [event.get("Stage Info", {}), *event.get("Stage Infos", [])]:
        stage.pop("Details", None)
    event.pop("physicalPlanDescription", None)
    return json.dumps(event, separators=(",", ":")) + "\n"


def without_paths(text: str, folder: Path) -> str:
    """The log without the paths and the user of the machine that it was made on."""
    text = text.replace(folder.as_uri(), "file:/shop").replace(str(folder), "/shop")
    text = text.replace(str(Path(__file__).resolve().parent) + "/", "")
    return re.sub(r'"User":"[^"]*"', '"User":"example"', text)


def main() -> None:
    """Generate the data, run the queries, write the compressed log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "output", type=Path, help="where to write the log, e.g. example-event-log.zstd"
    )
    output = parser.parse_args().output.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "log").mkdir()
        write_tables(folder / "tables")
        spark = start_measured_session(folder / "log")
        run_queries(spark, folder / "tables")
        spark.stop()
        (log,) = (path for path in (folder / "log").iterdir() if not path.name.startswith("."))
        with log.open(encoding="utf-8") as lines:
            text = without_paths("".join(shortened(line) for line in lines), folder)
    partial = output.with_suffix(".partial")
    partial.write_bytes(zstandard.ZstdCompressor(level=22).compress(text.encode()))
    partial.rename(output)
    print(f"{output}: {len(text):,} bytes of log, {output.stat().st_size:,} compressed")


if __name__ == "__main__":
    main()
