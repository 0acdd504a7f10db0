"""Reads job sets of Spark's world from JSON: durations of all tasks, pools, tiers and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from parcae.base.arrays import Int64Array
from parcae.base.errors import FormatError, WorkloadError
from parcae.base.loader import parsed_json, read_file, shown
from parcae.workloads.durations import MOST_EXECUTORS, TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.pools import DEFAULT_POOL, PoolSpec, PoolValues
from parcae.workloads.readers import saying_what_reads
from parcae.workloads.tables import NOT_TEXT, read_model
from parcae.workloads.workload import JobSequence, Workload

#: Larger times (35 years), durations and limits are mistakes; their sums stay far below the largest
#: int64.
_LARGEST = 1 << 40


#: A whole number in a file; 5.0 is accepted as 5.
Whole = Annotated[int, NOT_TEXT]
_Count = Annotated[Whole, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[_Count, Field(ge=1)]
_Cores = Annotated[_Positive, Field(le=MOST_EXECUTORS)]
_Tier = Annotated[float, NOT_TEXT, Field(ge=-_LARGEST, le=_LARGEST)]


def _in_order_of_file(job_of_row: Int64Array, values: npt.ArrayLike) -> list[int]:
    """Values per job in order of arrival, in the order of the file instead."""
    placed = np.empty(len(job_of_row), np.int64)
    placed[job_of_row] = values
    return placed.tolist()


@dataclass(frozen=True, eq=False)
class JobSet:
    """A fixed list of jobs and the cluster on which it runs.

    Args:
        id: name of the job set in the file.
        num_executors: number of executors of the cluster.
        moving_delay_ms: time in ms that an executor takes to move to another job.
        warmup_delay_ms: warm-up time in ms of an executor that starts on a job.
        job_names: name of each job's profile, by position in the file.
        arrival_ms: int64[num_jobs], arrival times by position in the file.
    """

    id: str
    num_executors: int
    moving_delay_ms: int
    warmup_delay_ms: int
    job_names: tuple[str, ...]
    arrival_ms: Int64Array

    @property
    def _order(self) -> Int64Array:
        return np.argsort(self.arrival_ms, kind="stable")

    def sequence(self, workload: Workload) -> JobSequence:
        """The job sequence in order of arrival (ties: by position in the file)."""
        index = {job.name: row for row, job in enumerate(workload.jobs)}
        # Name all missing jobs in one message.
        missing = sorted(set(self.job_names) - index.keys())
        if missing:
            raise WorkloadError(
                f"job set {self.id!r}: workload {workload.name!r} has no job {', '.join(missing)}"
            )
        rows = np.array([index[name] for name in self.job_names], np.int64)
        return JobSequence(workload, rows[self._order], self.arrival_ms[self._order])

    def by_position(self, values: npt.ArrayLike) -> list[int]:
        """Reorder results per job from the order of arrival to the order of the file."""
        return _in_order_of_file(self._order, values)


class _SetEntry(BaseModel):
    exec: _Cores
    jobs: list[tuple[int, str, _Count]] = Field(min_length=1)
    moving_delay: _Count = 2_000
    warmup_delay: _Count = 1_000


class _SetFile(BaseModel):
    sets: dict[str, _SetEntry] = Field(min_length=1)


@saying_what_reads("job-sets")
def read_job_sets(path: Path) -> dict[str, JobSet]:
    """Read a JSON file of job sets.

    The layout is {"sets": {id: {"exec": E, "jobs": [[query, size, arrival ms], ...]}}}. A set may
    also have `moving_delay` and `warmup_delay` in ms; the defaults are 2000 and 1000.
    """
    file = read_model(path, _SetFile, '{"sets": {id: {"exec": 50, "jobs": [[9, "2g", 0]]}}}')
    return {
        name: JobSet(
            name,
            entry.exec,
            entry.moving_delay,
            entry.warmup_delay,
            # Profiles are named by query and input size, as in `tpch_profiles`.
            tuple(f"q{query}-{size}" for query, size, _ in entry.jobs),
            np.array([arrival for *_, arrival in entry.jobs], np.int64),
        )
        for name, entry in file.sets.items()
    }


#: The value of "format" in files of such sets.
SPARK_WORLD_FORMAT = "parcae spark world conformance 1"
_LAYOUT = (
    f'{{"format": "{SPARK_WORLD_FORMAT}", "sets": [{{"name": "a", "cores": 8,'
    ' "pools": {"p": {"weight": 1, "min_share": 0}}, "jobs": [{"arrival_ms": 0, "edges": [[0, 1]],'
    ' "task_ms": [[5, 6], [7]], "pool": "p", "tier": 0, "limits": [2, 2]}]}]}'
)


class _JobEntry(BaseModel):
    arrival_ms: _Count
    task_ms: list[Annotated[list[_Count], Field(min_length=1)]] = Field(min_length=1)
    edges: list[tuple[_Count, _Count]] = []
    pool: str = DEFAULT_POOL
    tier: _Tier = 0.0
    limits: tuple[_Positive, ...] | None = None

    def stages(self) -> tuple[StageSpec, ...]:
        """The stages with their tasks in the order of the file."""
        parents: list[list[int]] = [[] for _ in self.task_ms]
        for parent, child in self.edges:
            if max(parent, child) >= len(parents):
                raise WorkloadError(
                    f"edge {[parent, child]} names a stage that does not exist "
                    f"(0..{len(parents) - 1})"
                )
            parents[child].append(parent)
        if self.limits is not None and len(self.limits) != len(parents):
            raise WorkloadError(
                f"limits are {list(self.limits)}; expected one for each of {len(parents)} stages"
            )
        return tuple(
            StageSpec(
                len(tasks),
                TaskDurations.of(np.array(tasks, np.int64)),
                tuple(parents_of_stage),
                mean_task_ms=sum(tasks) / len(tasks),
            )
            for tasks, parents_of_stage in zip(self.task_ms, parents, strict=True)
        )


class _WorldEntry(BaseModel):
    name: str = Field(min_length=1)
    cores: _Cores
    jobs: list[_JobEntry] = Field(min_length=1)
    pools: dict[str, PoolValues] = {}
    expected: dict[str, dict[str, Any]] = {}


class _WorldFile(BaseModel):
    format: Literal["parcae spark world conformance 1"]
    sets: list[_WorldEntry] = Field(min_length=1)


@dataclass(frozen=True, eq=False)
class SparkWorldSet:
    """A fixed list of jobs on the cores of one Spark application.

    Tuples with one entry per job are in the order of the file.

    Args:
        name: name of the set in the file.
        cores: cores of the application.
        workload: the jobs, named job-000, job-001, ...; the samples of a stage are the durations of
            its tasks, in the order of the tasks.
        sequence: the jobs in order of arrival (ties: by position in the file); its `job_index`
            contains their positions.
        pools: the pools that the set defines, possibly without jobs, followed by `default` if a job
            uses it and the file does not define it.
        job_pools: name of each job's pool.
        tiers: each job's tier under standing orders; smaller tiers first.
        limits: for each job, how many tasks of each stage may run at once under standing orders;
            None means no limit.
        expected: expected results by order, as in the file; empty if there are none.
    """

    name: str
    cores: int
    workload: Workload
    sequence: JobSequence
    pools: tuple[PoolSpec, ...]
    job_pools: tuple[str, ...]
    tiers: tuple[float, ...]
    limits: tuple[tuple[int, ...] | None, ...]
    expected: Mapping[str, Mapping[str, Any]]

    def by_position(self, values: npt.ArrayLike) -> list[int]:
        """Reorder results per job from the order of arrival to the order of the file."""
        return _in_order_of_file(self.sequence.job_index, values)


def holds_spark_world_sets(path: Path | str) -> bool:
    """Whether a file declares this format; False for any other file, JSON or not."""
    try:
        data = parsed_json(path, read_file(Path(path)), _LAYOUT)
    except FormatError:
        return False
    return isinstance(data, dict) and str(data.get("format", "")).startswith("parcae spark world")


def read_spark_world_sets(path: Path | str) -> dict[str, SparkWorldSet]:
    """Read the `sets` of a file: a dict by name, in the file's order.

    Durations, arrivals, limits and cores are whole numbers (ms, tasks). The optional keys `edges`,
    `pools`, `pool`, `tier` and `limits` default to no edges, no pools, the pool `default`, tier 0
    and no limits.

    Example: `read_spark_world_sets("spark-world.json")["set-4001"].cores` is 8.
    """
    path = Path(path)
    sets: dict[str, SparkWorldSet] = {}
    for entry in read_model(path, _WorldFile, _LAYOUT).sets:
        if entry.name in sets:
            raise FormatError(f"{path}: several sets have the name {entry.name!r}; rename one")
        sets[entry.name] = _world_set(path, entry)
    return sets


def _world_set(path: Path, entry: _WorldEntry) -> SparkWorldSet:
    where = f"{path}: set {entry.name!r}"
    pools = tuple(values.named(name) for name, values in entry.pools.items())
    known = [DEFAULT_POOL, *entry.pools]
    jobs = []
    for position, job in enumerate(entry.jobs):
        if job.pool not in known:
            raise FormatError(
                f"{where}, job {position}: pool {shown(job.pool)} is not defined; known are "
                f"{', '.join(sorted(known))}"
            )
        try:
            jobs.append(JobSpec(f"job-{position:03d}", job.stages(), job.arrival_ms))
        except WorkloadError as error:
            raise WorkloadError(f"{where}, job {position}: {error}") from None
    # `default` comes last, as in Spark's list of pools when the file does not define it.
    if DEFAULT_POOL not in entry.pools and any(job.pool == DEFAULT_POOL for job in entry.jobs):
        pools = (*pools, PoolSpec(DEFAULT_POOL))
    workload = Workload(entry.name, tuple(jobs), provenance={"source": path.name})
    arrivals = np.array([job.arrival_ms for job in jobs], np.int64)
    order: Int64Array = np.argsort(arrivals, kind="stable").astype(np.int64)
    return SparkWorldSet(
        entry.name,
        entry.cores,
        workload,
        JobSequence(workload, order, arrivals[order]),
        pools,
        tuple(job.pool for job in entry.jobs),
        tuple(job.tier for job in entry.jobs),
        tuple(job.limits for job in entry.jobs),
        entry.expected,
    )
