"""A custom policy for the world of cores: dashboards first, reports share the remaining cores."""

from __future__ import annotations

import numpy as np

from parcae.cluster.observation import Observation
from parcae.cluster.orders import Orders, first_come
from parcae.policies.additions import named_policy
from parcae.simulation.config import SimulationConfig
from parcae.simulation.simulator import simulate
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import JobSequence, Workload

CORES = 8
SMALL_MS = 60_000.0
PATIENCE_MS = 45_000


class DashboardsFirst:
    """Small jobs first; large jobs share the rest, on at most 6 cores each, until they are 45 s
    old.
    """

    name = "dashboards-first"

    def plan(self, observation: Observation) -> Orders:
        """The orders from now on."""
        orders = first_come(observation)
        now_ms = int(observation.now.clock_ms[0])
        for job in observation.active_jobs:
            patient_until_ms = int(observation.jobs.arrival_ms[job]) + PATIENCE_MS
            if observation.jobs.work_ms[job] <= SMALL_MS or now_ms >= patient_until_ms:
                orders.jobs.tier[job] = 0.0  # before all others, in order of arrival
                continue
            orders.jobs.tier[job] = 1.0  # behind the small jobs
            orders.jobs.weight[job] = 1.0  # in equal shares
            orders.jobs.limit[job] = 6  # never on all cores
            if orders.wake_ms[0] < 0 or patient_until_ms < orders.wake_ms[0]:
                orders.wake_ms[0] = patient_until_ms  # plan again at this time at the latest
        return orders


def stage(num_tasks: int, task_ms: int, parents: tuple[int, ...] = ()) -> StageSpec:
    """A stage whose every task takes the same time."""
    return StageSpec(num_tasks, TaskDurations.constant(task_ms), parents)


report = JobSpec("report", (stage(40, 5_000), stage(20, 4_000, (0,))))
dashboard = JobSpec("dashboard", (stage(8, 1_000), stage(1, 500, (0,))))
workload = Workload("office", (report, dashboard))
jobs = [0, 0, 1, 1, 1]
arrival_ms = [0, 2_000, 10_000, 30_000, 60_000]
sequence = JobSequence(workload, np.array(jobs), np.array(arrival_ms))
config = SimulationConfig(world="cores", num_executors=CORES)

policies = [named_policy(name, workload, config) for name in ("fifo", "fair", "srpt")]
for policy in (*policies, DashboardsFirst()):
    trace = simulate(sequence, policy, config, seed=1)
    times_s = (trace.completion_ms - trace.arrival_ms) / 1000
    print(
        f"{policy.name:16}  mean {times_s.mean():5.1f} s  "
        f"jobs {' '.join(f'{t:5.1f}' for t in times_s)}"
    )
