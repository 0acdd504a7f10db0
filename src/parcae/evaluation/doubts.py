"""Warnings where conclusions from simulated runs would be wrong.

`setting_warnings` judges a workload, a cluster and its arrivals before any run; `run_warnings` what
the runs show. `compare`, `learn` and the report print both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import polars as pl

from parcae.base.texts import s_from_ms
from parcae.policies.names import PolicyName
from parcae.simulation.config import SimulationConfig, WorldName, offered_load
from parcae.simulation.faults import resolve_faults
from parcae.workloads.describe import MEASURED_ALONE
from parcae.workloads.workload import Workload

#: Keys of a workload's provenance that only measurements of one job at a time have: those of
#: benchmarks/spark/measure.py, and event logs in which hardly two jobs overlap.
_MEASURED_ALONE = {"measured", MEASURED_ALONE}
#: A load is an expectation: only one clearly above 1 means that queues grow without end.
FULL = 1.001
#: Below this load, few jobs meet.
_IDLE = 0.1
#: Share of jobs that failing tasks may end before a warning.
_MANY_ENDED = 0.01


def setting_warnings(workload: Workload, config: SimulationConfig, arrivals: str) -> list[str]:
    """What makes conclusions about this setting wrong, in sentences."""
    found = (
        delay_warning(workload, config),
        _load_warning(workload, config, arrivals),
        measured_alone_warning(workload),
        _ended_by_failures(workload, config),
    )
    return [text for text in found if text]


def promise_warnings(policies: Mapping[str, PolicyName]) -> list[str]:
    """What a guard's promise is not, under pools and priorities, in sentences; policies by name."""
    return [
        f"{name}: the guard compares with equal shares of all cores for all "
        "jobs, and moves a job only inside its pool and priority, so jobs of a pool with a small "
        "share, and of a low priority, may end later than the guard promises"
        for name, text in policies.items()
        if text.guard is not None and (text.has_tenants or text.own_pools)
    ]


def run_warnings(jobs: pl.DataFrame) -> list[str]:
    """What makes intervals over these runs wrong, in sentences; the jobs are those of all seeds."""
    # Names need no look: equal jobs have equal arrivals and completions.
    seeds = jobs.select("seed", "arrival_ms", "completion_ms").partition_by(
        "seed", include_key=False
    )
    if len(seeds) < 2 or not all(seeds[0].equals(other) for other in seeds[1:]):
        return []
    return [
        f"all {len(seeds)} seeds gave the same run: arrivals and durations have no randomness, so "
        "the intervals say nothing about other days; draw arrivals (--arrivals load:0.85) or "
        "compare recorded days one by one"
    ]


def delay_warning(workload: Workload, config: SimulationConfig) -> str:
    """A sentence if executors take longer to move than tasks take; else no text."""
    task_ms = mean_task_ms(workload)
    if config.world is WorldName.CORES or config.moving_delay_ms <= task_ms:
        return ""
    delay_s = s_from_ms(config.moving_delay_ms)
    # The world of cores has no executor classes.
    other = "" if config.executor_classes else ", or --world cores"
    return (
        f"an executor takes {delay_s:,.3g} s to move between jobs, a task only "
        f"{s_from_ms(task_ms):,.3g} s on average: results show the delay more than the order of "
        f"jobs; choose --moving-delay-ms for your cluster{other}"
    )


def _load_warning(workload: Workload, config: SimulationConfig, arrivals: str) -> str:
    """A sentence if arrivals overload the cluster, or leave it almost idle; else no text."""
    load = offered_load(workload, config, arrivals)
    unit = "cores" if config.world is WorldName.CORES else "executors"
    if load < _IDLE:
        return (
            f"arrivals bring {load:.2g} times the work that {config.total_executors} {unit} can "
            "do: few jobs run at the same time, so the order of jobs hardly matters; give "
            "--arrivals load:0.8"
        )
    # A batch has no rate.
    if load <= FULL or math.isinf(load):
        return ""
    return (
        f"arrivals bring {load:.2f} times the work that {config.total_executors} {unit} can do: "
        "the queue grows as long as jobs arrive, so averages depend on the number of jobs; take "
        "fewer arrivals or a larger cluster"
    )


def measured_alone_warning(workload: Workload) -> str:
    """A sentence if the durations were measured with one job at a time; else no text."""
    if not _MEASURED_ALONE & workload.provenance.keys():
        return ""
    return (
        f"the durations of {workload.name} were measured with one job at a time: they do not show "
        "how tasks slow down when jobs share a cluster"
    )


def _ended_by_failures(workload: Workload, config: SimulationConfig) -> str:
    faults = resolve_faults(config.faults, workload)
    if faults is None or faults.failure_rate == 0:
        return ""
    # A task that fails `max_failures` times in a row ends its job in Spark, but not here.
    survives = 1.0 - faults.failure_rate**faults.max_failures
    ended = [1.0 - survives**job.num_tasks for job in workload.jobs]
    share = float(np.average(ended, weights=workload.weights))
    if share < _MANY_ENDED:
        return ""
    return (
        f"with failures={faults.failure_rate:g} and {faults.max_failures} failures allowed, Spark "
        f"would end {share:.0%} of the jobs; here the last attempt of a task succeeds, so the "
        "times are those of jobs that Spark would not complete"
    )


def mean_task_ms(workload: Workload) -> float:
    """Expected duration of a task of a drawn job, in ms.

    Example: jobs of 2 tasks of 3 s and of 1 task of 6 s, equally frequent: 12 s / 3 tasks = 4 s.
    """
    return workload.mean_work_ms / workload.mean_tasks
