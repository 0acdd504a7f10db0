"""An application for the tests of clusters: jobs that sleep, two of them at once.

Usage: app.py RESULT [PAUSE_S]; it goes on while RESULT.go-on exists.
"""

import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

RESULT = Path(sys.argv[1])
PAUSE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
spark = SparkSession.builder.getOrCreate()
context = spark.sparkContext


def slowly(number):
    """The number, after 0.4 s."""
    time.sleep(0.4)
    return number


def named(group, tasks):
    """Run a job under a name."""
    context.setJobGroup(group, group)
    sums[group] = context.parallelize(range(tasks), tasks).map(slowly).sum()


found = {
    "sum": context.parallelize(range(8), 8).map(slowly).sum(),
    "sql": [
        row[1] for row in spark.range(0, 90, 1, 6).groupBy("id").count().orderBy("id").collect()
    ],
    "own file": Path("own.txt").read_text() if Path("own.txt").exists() else "",
    "own jar": bool(
        spark._jvm.java.lang.Thread.currentThread().getContextClassLoader().getResource("own.txt")
    ),
}
time.sleep(PAUSE_S)
RESULT.with_suffix(".started").touch()
sums = {}
rounds = 0
while not rounds or RESULT.with_suffix(".go-on").exists():
    threads = [threading.Thread(target=named, args=pair) for pair in (("long", 40), ("short", 4))]
    for thread in threads:
        thread.start()
        time.sleep(0.8)
    for thread in threads:
        thread.join()
    rounds += 1
RESULT.write_text(json.dumps({**found, **sums, "rounds": rounds, "user": context.sparkUser()}))
spark.stop()
