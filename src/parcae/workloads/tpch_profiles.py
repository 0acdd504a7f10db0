"""Reads TPC-H profiles in the Decima authors' layout: a folder of npy files, or the data as JSON.

Source: Decima, section 6.2; hongzimao/decima-sim, spark_env/tpch and its preprocessing of task
durations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from parcae.errors import FormatError, WorkloadError
from parcae.files import read_file
from parcae.workloads.import_report import ImportReport
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations, Workload
from parcae.workloads.json_file import parsed_json
from parcae.workloads.pickle_free import read_object_array

QUERIES = range(1, 23)
SIZES = ("2g", "5g", "10g", "20g", "50g", "80g", "100g")
#: Degrees of parallelism between which the released simulator interpolates. The profiles also have
#: samples at 2, which are used only to count tasks.
LEVELS = (5, 10, 20, 40, 50, 60, 80, 100)

Lists = dict[int, list[int]]


def read_tpch_profiles(
    path: Path, *, name: str = "tpch-decima", progress: Callable[[int, int], None] | None = None
) -> tuple[Workload, ImportReport]:
    """Read the profiles of up to 22 queries x 7 input sizes; jobs are called "q9-100g".

    Args:
        path: the npy folder of Decima's authors, or the same as JSON.
        name: name of the workload.
        progress: called with (jobs read, jobs in total) at the end.

    Raises:
        FormatError: not such a folder or file; the message names the query and the stage.
    """
    if path.is_dir():
        jobs = [
            job
            for q in QUERIES
            for size in SIZES
            if (job := _job_from_npy(path, q, size)) is not None
        ]
        num_files = 2 * len(jobs)
    else:
        jobs = _jobs_from_json(path)
        num_files = 1
    if not jobs:
        raise FormatError(
            f"{path}: no profiles; expected folders 2g..100g "
            "with adj_mat_Q.npy and task_duration_Q.npy"
        )
    provenance = {
        "source": "TPC-H profiles in the Decima authors' layout",
        "measured": "Spark 2.2, by the Decima authors",
    }
    workload = Workload(name, tuple(jobs), provenance=provenance)
    if progress is not None:
        progress(len(jobs), len(jobs))
    return workload, ImportReport(str(path), num_files, workload.num_stages, 0, (), (), len(jobs))


def _jobs_from_json(path: Path) -> list[JobSpec]:
    data = parsed_json(path, read_file(path), "(gzipped) JSON of TPC-H profiles")
    if not isinstance(data, dict):
        raise FormatError(f'{path}: expected an object with keys such as "10g/q1"')
    jobs = []
    for query in QUERIES:
        for size in SIZES:
            entry = data.get(f"{size}/q{query}")
            if entry is not None:
                jobs.append(_json_job(f"{path}: {size}/q{query}", f"q{query}-{size}", entry))
    return jobs


def _json_job(where: str, name: str, entry: Any) -> JobSpec:
    try:
        num_stages = int(entry["num_stages"])
        edges = entry["edges"]
        durations = entry["task_durations_ms"]
        stages = [durations[str(stage)] for stage in range(num_stages)]
        parents = [
            tuple(int(a) for a, b in edges if int(b) == stage) for stage in range(num_stages)
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{where}: expected num_stages, edges and task_durations_ms ({error!r})"
        ) from None
    return _job(where, name, stages, parents)


def _job_from_npy(folder: Path, query: int, size: str) -> JobSpec | None:
    base = folder / size
    matrix_path = base / f"adj_mat_{query}.npy"
    duration_path = base / f"task_duration_{query}.npy"
    if not matrix_path.exists() and not duration_path.exists():
        return None
    # Row: parent stage, column: child stage.
    matrix = np.asarray(read_object_array(matrix_path.read_bytes(), str(matrix_path)))
    durations = read_object_array(duration_path.read_bytes(), str(duration_path))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise FormatError(
            f"{matrix_path}: expected a square adjacency matrix, not shape {matrix.shape}"
        )
    if not isinstance(durations, dict) or set(durations) != set(range(len(matrix))):
        raise FormatError(f"{duration_path}: expected durations of stages 0..{len(matrix) - 1}")
    parents = [
        tuple(int(p) for p in np.flatnonzero(matrix[:, stage])) for stage in range(len(matrix))
    ]
    stages = [durations[stage] for stage in range(len(matrix))]
    return _job(str(duration_path), f"q{query}-{size}", stages, parents)


def _job(
    where: str, name: str, stages: Sequence[Any], parents: Sequence[tuple[int, ...]]
) -> JobSpec:
    try:
        specs = [
            _stage(f"{where}, stage {i}", raw, p)
            for i, (raw, p) in enumerate(zip(stages, parents, strict=True))
        ]
        return JobSpec(name, tuple(specs))
    except WorkloadError as error:
        raise FormatError(f"{where}: {error}") from None


def _lists(where: str, raw: Mapping[Any, Any], wave: str) -> Lists:
    try:
        return {int(level): [int(ms) for ms in samples] for level, samples in raw[wave].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(
            f"{where}: expected {wave} as parallelism -> list of ms ({error!r})"
        ) from None


def _stage(where: str, raw: Any, parents: tuple[int, ...]) -> StageSpec:
    """One stage, with the same preprocessing of the samples as in the released simulator."""
    fresh, first, rest = (
        _lists(where, raw, wave) for wave in ("fresh_durations", "first_wave", "rest_wave")
    )
    if not first or first.keys() != fresh.keys() or first.keys() != rest.keys():
        raise FormatError(
            f"{where}: the three waves must have the same parallelism levels, at least one"
        )
    # Every level holds all tasks of the stage: the released simulator counts those of the first.
    count_level = next(iter(first))
    num_tasks = len(first[count_level]) + len(rest[count_level])
    first = _without_fresh(first, fresh)
    all_samples = [
        ms for lists in (first, rest, fresh) for samples in lists.values() for ms in samples
    ]
    if not all_samples:
        raise FormatError(f"{where}: no task durations")
    durations = TaskDurations(LEVELS, *(_at_levels(lists) for lists in (fresh, first, rest)))
    return StageSpec(num_tasks, durations, parents, mean_task_ms=float(np.mean(all_samples)))


def _without_fresh(first: Lists, fresh: Lists) -> Lists:
    """First-wave samples without those of fresh executors.

    The profiles list a fresh executor's first task in both waves. An empty level uses the next
    lower level's list.
    """
    result: Lists = {}
    below: list[int] = []
    for level in sorted(first):
        remaining = list(first[level])
        for ms in fresh[level]:
            if ms in remaining:
                remaining.remove(ms)
        below = result[level] = remaining or below
    return result


def _at_levels(lists: Lists) -> tuple[np.ndarray[Any, np.dtype[np.int64]], ...]:
    """The lists at LEVELS; a level that was not measured uses the largest measured level's list."""
    largest = max(lists)
    return tuple(np.array(lists.get(level, lists[largest]), np.int64) for level in LEVELS)
