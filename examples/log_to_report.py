"""From your own Spark event logs to a report: what would another order of jobs save?"""

from __future__ import annotations

import sys
from pathlib import Path

import parcae

LOG = Path(parcae.__file__).parent / "workloads" / "bundled" / "example-event-log.zstd"

log = Path(sys.argv[1]) if len(sys.argv) > 1 else LOG
report = Path(sys.argv[2]) if len(sys.argv) > 2 else Path("report.html")

workload = parcae.read_event_logs(log, key="spark.jobGroup.id")
cluster = parcae.Cluster(cores=8)
jobs = workload.draw(20, "load:0.8", cluster, seed=1)
comparison = parcae.compare(jobs, ["fair", "fifo", "srpt", "tuned"], cluster, seeds=10)

for row in comparison.to_frame().iter_rows(named=True):
    interval = f"[{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
    print(
        f"{row['policy']:6} {row['average_jct_s']:6.1f} s  {row['ratio_to_first']:.2f} {interval}"
    )
parcae.report(comparison, report)
