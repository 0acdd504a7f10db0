"""Draws the README's picture: one batch of bundled TPC-H jobs under four schedulers.

Usage: readme_picture.py [FILE.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

from parcae.decima.catalog import make_policy
from parcae.evaluation.gantt import cluster_charts, write_gantt
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.archive import load_workload
from parcae.workloads.arrivals import RandomStreams, draw_sequence
from parcae.workloads.demands import with_parallelism_model

EXECUTORS = 20
JOBS = 20
SEED = 4
POLICIES = ("fifo", "sjf-cp", "fair", "srpt-cap:10")

workload = with_parallelism_model(load_workload("tpch"), "decima-cluster")
config = SimulationConfig(num_executors=EXECUTORS, moving_delay_ms=200, warmup_delay_ms=100)
sequence = draw_sequence(workload, "batch", JOBS, EXECUTORS, RandomStreams(SEED))
traces = {
    name: simulate(sequence, make_policy(name, EXECUTORS), config, SEED, record=True)
    for name in POLICIES
}
target = Path(sys.argv[1] if len(sys.argv) > 1 else "gantt.png")
write_gantt(cluster_charts(traces), target)
for name, trace in traces.items():
    print(f"{name}: average JCT {(trace.completion_ms - trace.arrival_ms).mean() / 1000:.1f} s")
