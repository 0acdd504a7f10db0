"""A policy and an objective of your own: dashboards first, judged by their 95th percentile."""

from __future__ import annotations

import parcae

DASHBOARD_S = 20.0
"""A job with less work than this (core-seconds) is a dashboard."""


def dashboards_first(view: parcae.SchedulerView) -> list[parcae.JobView]:
    """Small jobs first, in order of arrival; then large ones by remaining work."""
    small = [job for job in view.jobs if job.total_s <= DASHBOARD_S]
    large = [job for job in view.jobs if job.total_s > DASHBOARD_S]
    return small + sorted(large, key=lambda job: job.remaining_s)


def p95_of_dashboards_s(run: parcae.Run, dashboards: set[str]) -> float:
    """The objective: the 95th percentile of the completion times of the dashboards."""
    times_ms = [
        row["jct_ms"] for row in run.to_frame().iter_rows(named=True) if row["job"] in dashboards
    ]
    return sorted(times_ms)[int(0.95 * (len(times_ms) - 1))] / 1000


cluster = parcae.Cluster(cores=20)
workload = parcae.workload("tpch")
jobs = workload.draw(60, "load:0.95", cluster, seed=1)
dashboards = {job.name for job in jobs.jobs if job.work_ms <= DASHBOARD_S * 1000}

for policy in ("fifo", "fair", "srpt", dashboards_first):
    run = parcae.simulate(jobs, policy, cluster, seed=1)
    p95_s = p95_of_dashboards_s(run, dashboards)
    print(f"{run.policy:17} mean {run.average_jct_s:6.1f} s  dashboards' p95 {p95_s:6.1f} s")
