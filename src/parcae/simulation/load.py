"""The load: work that arrives, relative to the work that the cluster can do in the same time."""

from __future__ import annotations

import math

from parcae.simulation.config import SimulationConfig
from parcae.workloads.arrivals import ArrivalProcess, recorded_work_ms
from parcae.workloads.job import Workload


def offered_load(workload: Workload, config: SimulationConfig, arrivals: str) -> float:
    """Expected work of the arriving jobs / capacity of the cluster, with mean task durations.

    It is infinite if all jobs arrive at once (a batch).

    Args:
        workload: the jobs.
        config: the cluster.
        arrivals: the arrival process; "recorded" uses the arrival times of the workload's jobs.

    Example: a job of 40 s of work every 10 s on 10 executors is a load of 0.4.
    """
    gap_ms = mean_gap_ms(workload, config, arrivals)
    if gap_ms == 0:
        return math.inf
    if ArrivalProcess.parse(arrivals).kind in ("recorded", "trace"):
        work_ms = recorded_work_ms(workload, config.runs_vary)
    else:
        work_ms = workload.expected_work_ms(config.runs_vary)
    return work_ms / (gap_ms * config.total_executors)


def mean_gap_ms(workload: Workload, config: SimulationConfig, arrivals: str) -> float:
    """Return the mean time between arrivals in ms; 0 if all jobs arrive at once.

    Args:
        workload: the jobs.
        config: the cluster.
        arrivals: the arrival process; "recorded" uses the arrival times of the workload's jobs.
    """
    process = ArrivalProcess.parse(arrivals)
    if process.kind != "recorded":
        return process.mean_gap_ms(workload, config.total_executors, config.runs_vary)
    times = [job.arrival_ms or 0 for job in workload.jobs]
    return (max(times) - min(times)) / max(1, len(times) - 1)
