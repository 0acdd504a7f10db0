"""Summary statistics of a workload: work and its distribution, shape of the DAGs, measured samples.

`parcae workload describe` prints them. `fingerprint` identifies a workload by its content.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError
from parcae.base.texts import s_from_ms
from parcae.workloads.durations import TaskDurations, Wave
from parcae.workloads.import_report import counted
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.workload import Workload

#: The description reports how much of the work the largest jobs hold, for this share of the jobs,
#: as
#: in "23% of the jobs contain 82% of the total work" (Decima, section 7.2).
TOP_SHARE = 0.23
#: Key in a workload's provenance: event logs in which hardly two jobs ran at the same time.
MEASURED_ALONE = "measured_alone"
#: Key in a workload's provenance: the number of first runs that the import left out.
FIRST_RUNS_LEFT_OUT = "first_runs_left_out"


@dataclass(frozen=True)
class Spread:
    """Mean, median, 95th percentile and maximum of one quantity over the jobs."""

    mean: float
    median: float
    p95: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Compute the spread of `values`."""
        array = np.asarray(values, np.float64)
        return cls(
            float(array.mean()),
            float(np.median(array)),
            float(np.percentile(array, 95)),
            float(array.max()),
        )


@dataclass(frozen=True)
class SpreadOfRuns:
    """How much the runs of recurring jobs differ, as standard deviations of logarithms."""

    num_jobs: int
    num_runs: int
    work_sigma: Spread
    duration_sigma: Spread

    def __str__(self) -> str:
        work = self.work_sigma
        stage = self.duration_sigma
        return (
            f"sigma of log work: median {work.median:.2f}, p95 {work.p95:.2f}; "
            f"of stages' durations: median {stage.median:.2f}, p95 {stage.p95:.2f} "
            f"({self.num_runs:,} runs of {counted(self.num_jobs, 'job')})"
        )


def spread_of_recurring_jobs(jobs: Sequence[JobSpec]) -> SpreadOfRuns | None:
    """The spread of the runs of the jobs that were profiled from several runs; None without such
    jobs.
    """
    repeated = [job for job in jobs if job.num_runs > 1]
    if not repeated:
        return None
    return SpreadOfRuns(
        num_jobs=len(repeated),
        num_runs=sum(job.num_runs for job in repeated),
        work_sigma=Spread.of([job.work_sigma for job in repeated]),
        duration_sigma=Spread.of(
            [stage.duration_sigma for job in repeated for stage in job.stages]
        ),
    )


@dataclass(frozen=True)
class WorkloadDescription:
    """The output of `parcae workload describe`; times are in seconds."""

    name: str
    fingerprint: str
    num_jobs: int
    num_stages: int
    num_tasks: int
    total_work_s: float
    work_s: Spread
    critical_path_s: Spread
    average_width: Spread
    stages_per_job: Spread
    tasks_per_job: Spread
    depth: dict[int, int]
    share_of_work_in_top_23_percent: float
    parallelism_levels: tuple[int, ...]
    samples_by_wave: dict[str, int]
    cpu: tuple[float, float]
    memory: tuple[float, float]
    is_recorded: bool
    recorded_span_s: float | None
    runs: SpreadOfRuns | None
    runs_in_words: str
    faults: dict[str, Any] | None
    faults_in_words: str
    provenance: dict[str, str]
    jobs: tuple[dict[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """The description as plain dicts, lists and numbers."""
        return asdict(self)


def fingerprint(workload: Workload) -> str:
    """Hash of everything that a simulation uses.

    This includes DAGs, tasks, durations, demands, weights, spread and pools. Attributes that were
    added later (spread, pools, input bytes) enter the hash only where they are set, so that older
    workloads keep their fingerprints.
    """
    digest = hashlib.sha256(repr((len(workload.jobs), workload.weights)).encode())
    table_index: dict[int, int] = {}
    for job in workload.jobs:
        digest.update(repr((job.name, job.arrival_ms)).encode())
        if job.work_sigma > 0 or job.pool:
            digest.update(repr(("job", job.work_sigma, job.pool)).encode())
        for stage in job.stages:
            # Stages may share one duration table. Its samples are hashed once; later stages refer
            # to its number.
            shared = table_index.get(id(stage.durations))
            digest.update(_stage_bytes(stage, shared))
            if shared is None:
                table_index[id(stage.durations)] = len(table_index)
                digest.update(_duration_bytes(stage.durations))
    return digest.hexdigest()[:16]


def _stage_bytes(stage: StageSpec, shared: int | None) -> bytes:
    """What a stage adds to the fingerprint; `shared` is the number of its duration table."""
    # Whole numbers, too: files have them as floats.
    cpu, memory, task_ms = (float(x) for x in (stage.cpu, stage.memory, stage.mean_task_ms))
    facts = (stage.num_tasks, stage.parents, cpu, memory, task_ms, shared)
    text = repr(facts)
    if stage.duration_sigma > 0 or stage.input_bytes > 0:
        text += repr(("stage", float(stage.duration_sigma), float(stage.input_bytes)))
    return text.encode()


def _duration_bytes(durations: TaskDurations) -> bytes:
    """What a duration table adds to the fingerprint."""
    parts = [repr(durations.levels).encode()]
    for wave in Wave:
        for samples in durations.by_wave(wave):
            parts.append(b"%d:" % len(samples) + samples.tobytes())
    return b"".join(parts)


def depth(job: JobSpec) -> int:
    """Number of stages on the longest path of the DAG."""
    return int(max(job.downstream_ms([1.0] * len(job.stages))))


def describe_workload(workload: Workload) -> WorkloadDescription:
    """Compute the summary statistics of a workload."""
    jobs = workload.jobs
    work = [s_from_ms(job.work_ms) for job in jobs]
    stages = [stage for job in jobs for stage in job.stages]
    tables = list({id(stage.durations): stage.durations for stage in stages}.values())
    return WorkloadDescription(
        name=workload.name,
        fingerprint=fingerprint(workload),
        num_jobs=len(jobs),
        num_stages=len(stages),
        num_tasks=workload.num_tasks,
        total_work_s=sum(work),
        work_s=Spread.of(work),
        critical_path_s=Spread.of([s_from_ms(job.critical_path_ms) for job in jobs]),
        average_width=Spread.of([job.average_width for job in jobs]),
        stages_per_job=Spread.of([len(job.stages) for job in jobs]),
        tasks_per_job=Spread.of([job.num_tasks for job in jobs]),
        depth=dict(sorted(Counter(depth(job) for job in jobs).items())),
        share_of_work_in_top_23_percent=_top_share(work),
        parallelism_levels=tuple(sorted({level for table in tables for level in table.levels})),
        samples_by_wave={wave.name.lower(): _num_samples(tables, wave) for wave in Wave},
        cpu=_range([stage.cpu for stage in stages]),
        memory=_range([stage.memory for stage in stages]),
        is_recorded=workload.is_recorded,
        recorded_span_s=_recorded_span_s(workload),
        runs=spread_of_recurring_jobs(jobs),
        runs_in_words=_runs_in_words(workload),
        faults=None if workload.faults is None else asdict(workload.faults),
        faults_in_words=str(workload.faults or "not known"),
        provenance=dict(workload.provenance),
        jobs=tuple(_row(job) for job in jobs),
    )


def _top_share(work: list[float]) -> float:
    """Share of the work in the largest jobs; a workload of empty tasks has no work and gets 0."""
    top = sorted(work, reverse=True)[: max(1, round(TOP_SHARE * len(work)))]
    return sum(top) / sum(work) if sum(work) > 0 else 0.0


def _num_samples(tables: list[TaskDurations], wave: Wave) -> int:
    return sum(len(samples) for table in tables for samples in table.by_wave(wave))


def _range(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _recorded_span_s(workload: Workload) -> float | None:
    """Seconds between the first and the last recorded arrival, if all arrivals are recorded."""
    if not workload.is_recorded:
        return None
    arrivals = [job.arrival_ms for job in workload.jobs if job.arrival_ms is not None]
    return s_from_ms(max(arrivals) - min(arrivals))


def _runs_in_words(workload: Workload) -> str:
    spread = spread_of_recurring_jobs(workload.jobs)
    kept = str(spread) if spread else "not known (no job is profiled from several runs)"
    left_out = workload.provenance.get(FIRST_RUNS_LEFT_OUT, "0")
    return f"{kept}; first runs left out: {left_out}"


def _row(job: JobSpec) -> dict[str, Any]:
    return {
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
