"""Reads job sets of Spark's world from JSON: durations of all tasks, pools, tiers and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, FormatError, WorkloadError
from parcae.base.loader import number, parsed_json, read_file, shown, whole_number
from parcae.workloads.durations import MOST_EXECUTORS, TaskDurations
from parcae.workloads.formats import saying_what_reads
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.pools import DEFAULT_POOL, PoolSpec
from parcae.workloads.workload import Int64Array, JobSequence, Workload

#: Larger times (31 years) are mistakes.
_LARGEST_MS = 10**12
_JOB_SET_LAYOUT = '{"sets": {id: {"exec": 50, "jobs": [[9, "2g", 0]]}}}'


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
        missing = sorted({name for name in self.job_names if name not in index})
        if missing:
            raise WorkloadError(
                f"job set {self.id!r}: workload {workload.name!r} has no job {', '.join(missing)}"
            )
        rows = np.array([index[name] for name in self.job_names], np.int64)
        return JobSequence(workload, rows[self._order], self.arrival_ms[self._order])

    def by_position(self, values: Int64Array) -> list[int]:
        """Reorder results per job from the order of arrival to the order of the file."""
        placed = np.empty(len(values), np.int64)
        placed[self._order] = values
        return [int(v) for v in placed]


@saying_what_reads("job-sets")
def read_job_sets(path: Path) -> dict[str, JobSet]:
    """Read a JSON file of job sets.

    The layout is {"sets": {id: {"exec": E, "jobs": [[query, size, arrival ms], ...]}}}. A set may
    also have `moving_delay` and `warmup_delay` in ms; the defaults are 2000 and 1000.
    """
    data = parsed_json(path, read_file(path), _JOB_SET_LAYOUT)
    sets = data.get("sets") if isinstance(data, dict) else None
    if not isinstance(sets, dict) or not sets:
        raise FormatError(f'{path}: no "sets"; expected {_LAYOUT}')
    return {set_id: _job_set(path, set_id, entry) for set_id, entry in sets.items()}


def _job_set(path: Path, set_id: str, entry: Any) -> JobSet:
    try:
        # Profiles are named by query and input size, as in `tpch_profiles`.
        jobs = [(f"q{int(query)}-{size}", int(arrival)) for query, size, arrival in entry["jobs"]]
        executors = int(entry["exec"])
        moving = int(entry.get("moving_delay", 2_000))
        warmup = int(entry.get("warmup_delay", 1_000))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(
            f"{path}: job set {set_id!r} is not "
            f'{{"exec": E, "jobs": [[query, size, arrival ms], ...]}} ({error!r})'
        ) from None
    where = f"{path}: job set {set_id!r}"
    if not jobs:
        raise FormatError(f"{where} needs jobs")
    whole_number(f"{where}: exec", executors, 1, MOST_EXECUTORS)
    whole_number(f"{where}: moving_delay", moving, 0, _LARGEST_MS)
    whole_number(f"{where}: warmup_delay", warmup, 0, _LARGEST_MS)
    names = tuple(name for name, _ in jobs)
    arrivals = [
        whole_number(f"{where}, job {row}: the arrival", arrival, 0, _LARGEST_MS)
        for row, (_, arrival) in enumerate(jobs)
    ]
    return JobSet(set_id, executors, moving, warmup, names, np.array(arrivals, np.int64))


#: The value of "format" in files of such sets.
SPARK_WORLD_FORMAT = "parcae spark world conformance 1"
_LAYOUT = (
    f'{{"format": "{SPARK_WORLD_FORMAT}", "sets": [{{"name": "a", "cores": 8,'
    ' "pools": {"p": {"weight": 1, "min_share": 0}}, "jobs": [{"arrival_ms": 0, "edges": [[0, 1]],'
    ' "task_ms": [[5, 6], [7]], "pool": "p", "tier": 0, "limits": [2, 2]}]}]}'
)
_POOL_KEYS = ("weight", "min_share", "mode")
#: Upper bound of durations, arrivals and limits, so that sums stay far below the largest int64.
_LARGEST = 1 << 40


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
        placed = np.empty(self.sequence.num_jobs, np.int64)
        placed[self.sequence.job_index] = values
        return [int(value) for value in placed]


def holds_spark_world_sets(path: Path | str) -> bool:
    """Whether a file declares this format; False for any other file.

    Files that are not JSON also give False.
    """
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
    for row, entry in enumerate(_entries(path)):
        job_set = _set(f"{path}", row, entry)
        if job_set.name in sets:
            raise FormatError(f"{path}: several sets have the name {job_set.name!r}; rename one")
        sets[job_set.name] = job_set
    return sets


def _entries(path: Path) -> list[Any]:
    """The file's list of sets, at least one."""
    data = parsed_json(path, read_file(path), _LAYOUT)
    if not isinstance(data, dict) or data.get("format") != SPARK_WORLD_FORMAT:
        given = shown(data.get("format")) if isinstance(data, dict) else "missing"
        raise FormatError(f'{path}: "format" is {given}; expected "{SPARK_WORLD_FORMAT}"')
    entries = data.get("sets")
    if not isinstance(entries, list) or not entries:
        raise FormatError(f'{path}: "sets" must be a list of at least one; expected {_LAYOUT}')
    return entries


class _SetJob(NamedTuple):
    """A job of a set, its pool, its tier, and the limits of its stages."""

    spec: JobSpec
    pool: str
    tier: float
    limits: tuple[int, ...] | None


def _set(path: str, row: int, entry: Any) -> SparkWorldSet:
    if not isinstance(entry, dict):
        raise FormatError(f"{path}: set {row}: not an object; expected {_LAYOUT}")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise FormatError(
            f"{path}: set {row}: the name is {shown(name)}; it must be a non-empty text"
        )
    where = f"{path}: set {name!r}"
    cores = whole_number(f"{where}: cores", entry.get("cores"), 1, MOST_EXECUTORS)
    pools = _pools(where, entry.get("pools", {}))
    defined = {pool.name for pool in pools}
    jobs = _set_jobs(where, entry.get("jobs"), defined)
    # `default` comes last, as in Spark's list of pools when the file does not define it.
    if DEFAULT_POOL in {job.pool for job in jobs} - defined:
        pools = (*pools, PoolSpec(DEFAULT_POOL))  # Spark always has this pool
    workload = Workload(
        name, tuple(job.spec for job in jobs), provenance={"source": Path(path).name}
    )
    arrivals = np.array([job.spec.arrival_ms for job in jobs], np.int64)
    order: Int64Array = np.argsort(arrivals, kind="stable").astype(np.int64)
    return SparkWorldSet(
        name,
        cores,
        workload,
        JobSequence(workload, order, arrivals[order]),
        pools,
        tuple(job.pool for job in jobs),
        tuple(job.tier for job in jobs),
        tuple(job.limits for job in jobs),
        _expected(where, entry.get("expected", {})),
    )


def _set_jobs(where: str, entries: Any, pools: set[str]) -> list[_SetJob]:
    if not isinstance(entries, list) or not entries:
        raise WorkloadError(f"{where}: no jobs; a set needs at least one")
    return [
        _job(f"{where}, job {position}", position, entry, pools)
        for position, entry in enumerate(entries)
    ]


def _expected(where: str, entry: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(entry, dict) or not all(isinstance(value, dict) for value in entry.values()):
        raise FormatError(f'{where}: "expected" is not an object of results by order')
    return MappingProxyType({order: MappingProxyType(value) for order, value in entry.items()})


def _pools(where: str, entry: Any) -> tuple[PoolSpec, ...]:
    if not isinstance(entry, dict):
        raise FormatError(
            f'{where}: "pools" is {shown(entry)}; expected {{"p": {{"weight": 1, "min_share": 0}}}}'
        )
    pools = []
    for name, values in entry.items():
        if not isinstance(values, dict) or set(values) - set(_POOL_KEYS):
            raise FormatError(
                f"{where}: pool {name!r} is {shown(values)}; known are {', '.join(_POOL_KEYS)}"
            )
        try:
            pools.append(PoolSpec(name, **values))
        except ConfigError as error:
            raise FormatError(f"{where}: {error}") from None
    return tuple(pools)


def _job(where: str, position: int, entry: Any, pools: set[str]) -> _SetJob:
    if not isinstance(entry, dict):
        raise FormatError(f"{where}: not an object; expected {_LAYOUT}")
    arrival = whole_number(f"{where}: arrival_ms", entry.get("arrival_ms"), 0, _LARGEST)
    stages = _stages(where, entry)
    pool = entry.get("pool", DEFAULT_POOL)
    if not isinstance(pool, str) or pool not in pools | {DEFAULT_POOL}:
        known = ", ".join(sorted(pools | {DEFAULT_POOL}))
        raise FormatError(f"{where}: pool {shown(pool)} is not defined; known are {known}")
    tier = entry.get("tier", 0)
    if isinstance(tier, str):
        raise FormatError(f"{where}: tier is {shown(tier)}; it must be a number")
    tier = number(f"{where}: tier", tier, -_LARGEST, _LARGEST)
    limits = _limits(where, entry["limits"], len(stages)) if "limits" in entry else None
    try:
        spec = JobSpec(f"job-{position:03d}", stages, arrival)
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from None
    return _SetJob(spec, pool, float(tier), limits)


def _stages(where: str, entry: dict[str, Any]) -> tuple[StageSpec, ...]:
    task_ms = entry.get("task_ms")
    if not isinstance(task_ms, list) or not task_ms:
        raise WorkloadError(
            f'{where}: no stages; "task_ms" must list the durations of every stage\'s tasks'
        )
    parents = _parents(where, entry.get("edges", []), len(task_ms))
    return tuple(
        _stage(f"{where}, stage {index}", tasks, tuple(parents[index]))
        for index, tasks in enumerate(task_ms)
    )


def _parents(where: str, edges: Any, num_stages: int) -> list[list[int]]:
    if not isinstance(edges, list):
        raise FormatError(
            f"{where}: edges are {shown(edges)}; expected [[parent stage, child stage], ...]"
        )
    parents: list[list[int]] = [[] for _ in range(num_stages)]
    for edge in edges:
        if (
            not isinstance(edge, list)
            or len(edge) != 2
            or not all(type(end) is int for end in edge)
        ):
            raise FormatError(f"{where}: edge {shown(edge)} is not [parent stage, child stage]")
        if not all(0 <= end < num_stages for end in edge):
            raise WorkloadError(
                f"{where}: edge {shown(edge)} names a stage that does not exist "
                f"(0..{num_stages - 1})"
            )
        parents[edge[1]].append(edge[0])
    return parents


def _stage(where: str, tasks: Any, parents: tuple[int, ...]) -> StageSpec:
    if not isinstance(tasks, list) or not tasks:
        raise WorkloadError(
            f"{where}: no tasks ({shown(tasks)}); a stage needs the duration of at least one task"
        )
    # Fast check for valid lists; only otherwise look for the task that is wrong.
    if not all(type(task) is int and 0 <= task <= _LARGEST for task in tasks):
        tasks = [_duration(f"{where}, task {row}", task) for row, task in enumerate(tasks)]
    durations = TaskDurations.of(np.array(tasks, np.int64))
    return StageSpec(len(tasks), durations, parents, mean_task_ms=sum(tasks) / len(tasks))


def _duration(where: str, value: Any) -> int:
    if value is None:
        raise WorkloadError(f"{where}: the duration is missing")
    return whole_number(f"{where}: the duration", value, 0, _LARGEST)


def _limits(where: str, entry: Any, num_stages: int) -> tuple[int, ...]:
    if not isinstance(entry, list) or len(entry) != num_stages:
        raise FormatError(
            f"{where}: limits are {shown(entry)}; expected one for each of {num_stages} stages"
        )
    for stage, limit in enumerate(entry):
        if limit == 0 and not isinstance(limit, bool):
            raise WorkloadError(
                f"{where}, stage {stage}: a limit of 0 would stall the cluster for ever; "
                "it must be >= 1"
            )
    return tuple(
        whole_number(f"{where}, stage {stage}: limit", limit, 1, _LARGEST)
        for stage, limit in enumerate(entry)
    )
