"""A client of Spark Connect.

`python connect_client.py URL QUERY...` prints the queries' first columns as JSON, a line each.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    url, *queries = sys.argv[1:]
    spark = SparkSession.builder.remote(url).getOrCreate()
    for query in queries:
        print(json.dumps([row[0] for row in spark.sql(query).collect()]), flush=True)
    spark.stop()
