"""Draws the README's picture: the same TPC-H jobs in Spark's order and in a learned one.

Usage: readme_picture.py [FILE.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import parcae
from parcae.evaluation.gantt import cluster_charts, write_gantt

cluster = parcae.Cluster(cores=16)
jobs = parcae.workload("tpch").draw(12, "batch", cluster, seed=5)
runs = {
    title: parcae.simulate(jobs, name, cluster)
    for title, name in (("Spark's FIFO", "fifo"), ("learned (parcae)", "parcae"))
}
target = Path(sys.argv[1] if len(sys.argv) > 1 else "gantt.png")
write_gantt(cluster_charts({title: run.trace for title, run in runs.items()}), target)
for title, run in runs.items():
    print(f"{title}: average completion time {run.average_jct_s:.1f} s")
