"""Summary statistics of a workload: work and its distribution, shape of the DAGs, measured samples.

`parcae workload describe` prints them. `fingerprint` identifies a workload by its content.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import s_from_ms
from parcae.workloads.durations import TaskDurations, Wave
from parcae.workloads.import_report import counted
from parcae.workloads.job import JobSpec
from parcae.workloads.workload import Workload

#: The description reports how much of the work the largest jobs hold, for this share of the jobs,
#: as
#: in "23% of the jobs contain 82% of the total work" (Decima, section 7.2).
TOP_SHARE = 0.23
#: Key in a workload's provenance: event logs in which hardly two jobs ran at the same time.
MEASURED_ALONE = "measured_alone"
#: Keys in a workload's provenance: how much of the logs' task time its jobs have; where the rest
#: is, if it is much; and how many task ends are missing in the logs.
TASK_TIME = "task_time"
TASK_TIME_LEFT_OUT = "task_time_left_out"
LOST_ENDS = "lost_task_ends"
#: Key in a workload's provenance: the number of first runs that the import left out.
FIRST_RUNS_LEFT_OUT = "first_runs_left_out"
#: Keys in a workload's provenance about the logs' own cluster, which `parcae learn` goes by:
#: whether an order can gain anything there, its cores, and an arrival process like its own.
CAN_GAIN = "can_an_order_gain"
CORES_IN_LOGS = "cores_in_logs"
ARRIVALS_IN_LOGS = "arrivals_in_logs"


def _spread(values: list[float]) -> dict[str, float]:
    """Mean, median, 95th percentile and maximum of one quantity over the jobs."""
    return {
        "mean": float(np.mean(values)),
        "median": float(np.median(values)),
        "p95": float(np.percentile(values, 95)),
        "max": float(max(values)),
    }


def _spread_of_runs(jobs: Sequence[JobSpec]) -> dict[str, Any] | None:
    """How much the runs of recurring jobs differ, as standard deviations of logarithms.

    Only jobs that were profiled from several runs count; without such jobs it is None.
    """
    repeated = [job for job in jobs if job.num_runs > 1]
    if not repeated:
        return None
    return {
        "num_jobs": len(repeated),
        "num_runs": sum(job.num_runs for job in repeated),
        "work_sigma": _spread([job.work_sigma for job in repeated]),
        "duration_sigma": _spread(
            [stage.duration_sigma for job in repeated for stage in job.stages]
        ),
    }


def spread_in_words(jobs: Sequence[JobSpec]) -> str:
    """The spread of the runs of recurring jobs in words; "" if it is not known."""
    spread = _spread_of_runs(jobs)
    if spread is None:
        return ""
    work, stage = spread["work_sigma"], spread["duration_sigma"]
    return (
        f"sigma of log work: median {work['median']:.2f}, p95 {work['p95']:.2f}; "
        f"of stages' durations: median {stage['median']:.2f}, p95 {stage['p95']:.2f} "
        f"({spread['num_runs']:,} runs of {counted(spread['num_jobs'], 'job')})"
    )


def fingerprint(workload: Workload) -> str:
    """Hash of everything that a simulation uses.

    This includes DAGs, tasks, durations, demands, weights, spread, pools and users. Attributes that
    were added later (spread, pools, users, bytes, driver time, sessions) enter the hash only where
    they are set, so that older workloads keep their fingerprints.
    """
    digest = hashlib.sha256()

    def add(*values: object) -> None:
        digest.update(repr(values).encode())

    add(len(workload.jobs), workload.weights)
    if workload.cores_per_task > 1:
        add("cores", workload.cores_per_task)
    table_index: dict[TaskDurations, int] = {}
    for job in workload.jobs:
        add(job.name, job.arrival_ms)
        if job.work_sigma > 0 or job.pool:
            add("job", job.work_sigma, job.pool)
        if job.user:
            add("user", job.user)
        if (driver := job.driver_time) is not None:
            for times in (driver.gap_ms, driver.lag_ms, driver.tail_ms):
                digest.update(b"driver:" + times.tobytes())
            digest.update(repr([stage.spark_job for stage in job.stages]).encode())
        if job.session >= 0 or job.pauses_ms:
            add("session", job.session, job.pauses_ms)
        digest.update(job.run_factors.tobytes())
        if job.scan_bytes > 0:
            add("scanned", float(job.scan_bytes))
        for stage in job.stages:
            # Stages may share one duration table. Its samples are hashed once; later stages refer
            # to its number.
            table = stage.durations
            shared = table_index.get(table)
            # Whole numbers, too: files have them as floats.
            amounts = map(float, (stage.cpu, stage.memory, stage.mean_task_ms))
            add(stage.num_tasks, stage.parents, *amounts, shared)
            if stage.duration_sigma > 0 or stage.input_bytes > 0:
                add("stage", float(stage.duration_sigma), float(stage.input_bytes))
            if shared is None:
                table_index[table] = len(table_index)
                add(*table.levels)
                for samples in (*table.fresh, *table.first, *table.rest):
                    digest.update(b"%d:" % len(samples) + samples.tobytes())
    return digest.hexdigest()[:16]


def depth(job: JobSpec) -> int:
    """Number of stages on the longest path of the DAG."""
    return int(max(job.downstream_ms([1.0] * len(job.stages))))


def describe_workload(workload: Workload) -> dict[str, Any]:
    """The summary statistics of a workload, as `parcae workload describe --json` prints them.

    Times are in seconds.
    """
    jobs = workload.jobs
    work = [s_from_ms(job.work_ms) for job in jobs]
    stages = [stage for job in jobs for stage in job.stages]
    tables = {stage.durations for stage in stages}
    largest = sorted(work, reverse=True)[: max(1, round(TOP_SHARE * len(work)))]
    arrivals = [job.arrival_ms for job in jobs if job.arrival_ms is not None]
    spread = spread_in_words(jobs) or "not known (no job is profiled from several runs)"
    left_out = workload.provenance.get(FIRST_RUNS_LEFT_OUT, "0")
    return {
        "name": workload.name,
        "fingerprint": fingerprint(workload),
        "num_jobs": len(jobs),
        "num_stages": len(stages),
        "num_tasks": workload.num_tasks,
        "total_work_s": sum(work),
        "work_s": _spread(work),
        "critical_path_s": _spread([s_from_ms(job.critical_path_ms) for job in jobs]),
        "average_width": _spread([job.average_width for job in jobs]),
        "stages_per_job": _spread([len(job.stages) for job in jobs]),
        "tasks_per_job": _spread([job.num_tasks for job in jobs]),
        "depth": dict(sorted(Counter(depth(job) for job in jobs).items())),
        # A workload of empty tasks has no work.
        "share_of_work_in_top_23_percent": sum(largest) / sum(work) if sum(work) > 0 else 0.0,
        "parallelism_levels": sorted({level for table in tables for level in table.levels}),
        "samples_by_wave": {
            wave.name.lower(): sum(len(one) for table in tables for one in table.by_wave(wave))
            for wave in Wave
        },
        "cpu": [min(stage.cpu for stage in stages), max(stage.cpu for stage in stages)],
        "memory": [min(stage.memory for stage in stages), max(stage.memory for stage in stages)],
        "is_recorded": workload.is_recorded,
        "recorded_span_s": (
            s_from_ms(max(arrivals) - min(arrivals)) if workload.is_recorded else None
        ),
        "runs": _spread_of_runs(jobs),
        "runs_in_words": f"{spread}; first runs left out: {left_out}",
        "faults": None if workload.faults is None else asdict(workload.faults),
        "faults_in_words": str(workload.faults or "not known"),
        "provenance": dict(workload.provenance),
        "jobs": [
            {
                "name": job.name,
                "stages": len(job.stages),
                "tasks": job.num_tasks,
                "depth": depth(job),
                "work_s": s_from_ms(job.work_ms),
                "critical_path_s": s_from_ms(job.critical_path_ms),
                "average_width": job.average_width,
                "work_sigma": job.work_sigma,
                "num_runs": job.num_runs,
                "pool": job.pool,
                "user": job.user,
                "queue": job.queue,
            }
            for job in jobs
        ],
    }


def sample_workload(workload: Workload, num_jobs: int, rng: np.random.Generator) -> Workload:
    """Draw `num_jobs` jobs by weight into a workload of equally likely jobs. Returns a workload of
    the drawn jobs, in the order of the original workload. Unless arrivals are recorded, a job can
    occur several times.

    Jobs are drawn with replacement. Those with recorded arrivals are drawn without, since each of
    them arrived once; they keep their arrivals.
    """
    if num_jobs < 1:
        raise ConfigError(f"draw at least one job, not {num_jobs}")
    probabilities = (
        None if workload.weights is None else np.asarray(workload.weights) / sum(workload.weights)
    )
    num_drawable = len(workload.jobs) if probabilities is None else np.count_nonzero(probabilities)
    if workload.is_recorded and num_jobs > num_drawable:
        raise ConfigError(
            f"{num_jobs} jobs cannot be drawn from the {num_drawable} of {workload.name!r}, whose "
            "arrivals are recorded, since each of them arrived once: draw fewer"
        )
    rows = np.sort(
        rng.choice(len(workload.jobs), num_jobs, replace=not workload.is_recorded, p=probabilities)
    )
    provenance = {**workload.provenance, "sampled": f"{num_jobs} of {len(workload.jobs)} jobs"}
    jobs = tuple(workload.jobs[row] for row in rows)
    return replace(workload, jobs=jobs, weights=None, provenance=provenance)
