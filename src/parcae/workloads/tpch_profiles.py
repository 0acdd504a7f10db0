"""Reads TPC-H profiles in the Decima authors' layout: a folder of npy files, or the data as JSON.

Source: Decima, section 6.2; hongzimao/decima-sim, spark_env/tpch and its preprocessing of task
durations.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parcae.errors import FormatError, WorkloadError
from parcae.files import check_regular
from parcae.loader import parsed_json, read_file, whole_number
from parcae.workloads.durations import TaskDurations
from parcae.workloads.import_report import ImportReport
from parcae.workloads.job import JobSpec, StageSpec, Workload
from parcae.workloads.limits import LARGEST_DURATION_MS
from parcae.workloads.npy_folder import NpyFolder
from parcae.workloads.pickle_free import read_object_array
from parcae.workloads.tpch_cloudlab import cloudlab_jobs, is_cloudlab, profiles_in

QUERIES = range(1, 23)
SIZES = ("2g", "5g", "10g", "20g", "50g", "80g", "100g")
#: Degrees of parallelism between which the released simulator interpolates. The profiles also have
#: samples at 2, which are used only to count tasks.
LEVELS = (5, 10, 20, 40, 50, 60, 80, 100)

_DECIMA = {
    "source": "TPC-H profiles in the Decima authors' layout",
    "measured": "Spark 2.2, by the Decima authors",
}

Lists = dict[int, list[int]]
#: Entries named in a note.
_MOST_NAMES = 6


def read_tpch_profiles(
    path: Path, *, name: str = "tpch-decima", progress: Callable[[int, int], None] | None = None
) -> tuple[Workload, ImportReport]:
    """Read the profiles of up to 22 queries x 7 input sizes; jobs are called "q9-100g".

    Args:
        path: the npy folder of Decima's authors (also a folder above it, or a zip archive), the
            same as JSON, or profiles of the ERDOS simulator (`parcae.workloads.tpch_cloudlab`).
        name: name of the workload.
        progress: called with (jobs read, jobs in total) at the end.

    Raises:
        FormatError: not such a folder or file; the message names the query and the stage.
    """
    found = _found_in(path)
    jobs = found.jobs
    if not jobs:
        raise FormatError(
            f"{path}: no profiles; expected folders 2g..100g "
            "with adj_mat_Q.npy and task_duration_Q.npy"
        )
    workload = Workload(name, tuple(jobs), provenance=found.provenance)
    if progress is not None:
        progress(len(jobs), len(jobs))
    counts = (found.num_files, workload.num_stages, 0)
    return workload, ImportReport(str(path), *counts, (), found.notes, len(jobs))


class _Found(NamedTuple):
    """What a path contains."""

    jobs: list[JobSpec]
    num_files: int
    provenance: dict[str, str]
    notes: tuple[str, ...] = ()


def _found_in(path: Path) -> _Found:
    check_regular(path)
    cloudlab = profiles_in(path) if path.is_dir() else None
    if cloudlab is None and (path.is_dir() or zipfile.is_zipfile(path)):
        jobs = _jobs_from_npy(NpyFolder(path))
        return _Found(jobs, 2 * len(jobs), _DECIMA)
    path = cloudlab or path
    data = parsed_json(path, read_file(path), "(gzipped) JSON of TPC-H profiles")
    if not is_cloudlab(data):
        return _jobs_from_json(path, data)
    jobs, notes = cloudlab_jobs(path, data)
    return _Found(jobs, 1, {"source": "TPC-H profiles of the ERDOS simulator (CloudLab)"}, notes)


def _jobs_from_json(path: Path, data: Any) -> _Found:
    keys = {f"{size}/q{query}": f"q{query}-{size}" for query in QUERIES for size in SIZES}
    if not isinstance(data, dict) or not data.keys() & keys.keys():
        raise FormatError(
            f'{path}: expected an object with keys such as "10g/q1", of the queries 1 to '
            f"{QUERIES[-1]} at the sizes {', '.join(SIZES)}"
        )
    # An entry without content counts as absent.
    jobs = [
        _json_job(f"{path}: {key}", name, data[key])
        for key, name in keys.items()
        if data.get(key) is not None
    ]
    others = sorted(data.keys() - keys.keys())
    names = ", ".join(map(repr, others[:_MOST_NAMES])) + (", ..." if others[_MOST_NAMES:] else "")
    notes = (f"Left out {len(others)} entries that are no such query and size: {names}.",)
    return _Found(jobs, 1, _DECIMA, notes if others else ())


def _json_job(where: str, name: str, entry: Any) -> JobSpec:
    try:
        num_stages = int(entry["num_stages"])
        edges = [(int(a), int(b)) for a, b in entry["edges"]]
        durations = entry["task_durations_ms"]
        stages = [durations[str(stage)] for stage in range(num_stages)]
        num_durations = len(durations)
        parents = [tuple(a for a, b in edges if b == stage) for stage in range(num_stages)]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{where}: expected num_stages, edges and task_durations_ms ({error!r})"
        ) from None
    if num_durations != num_stages or any(not 0 <= b < num_stages for _, b in edges):
        raise FormatError(f"{where}: expected durations and edges of stages 0..{num_stages - 1}")
    return _job(where, name, stages, parents)


def _jobs_from_npy(folder: NpyFolder) -> list[JobSpec]:
    found = (_job_from_npy(folder, query, size) for query in QUERIES for size in SIZES)
    return [job for job in found if job is not None]


def _job_from_npy(folder: NpyFolder, query: int, size: str) -> JobSpec | None:
    matrix_path = f"{size}/adj_mat_{query}.npy"
    duration_path = f"{size}/task_duration_{query}.npy"
    if matrix_path not in folder and duration_path not in folder:
        return None
    content, duration_path = folder.read(duration_path)
    durations = read_object_array(content, duration_path)
    parents = _parents_by_matrix(*folder.read(matrix_path))
    if not isinstance(durations, dict) or set(durations) != set(range(len(parents))):
        raise FormatError(f"{duration_path}: expected durations of stages 0..{len(parents) - 1}")
    stages = [durations[stage] for stage in range(len(parents))]
    return _job(duration_path, f"q{query}-{size}", stages, parents)


def _parents_by_matrix(content: bytes, where: str) -> list[tuple[int, ...]]:
    """The parents of every stage, from a file with an adjacency matrix."""
    # Row: parent stage, column: child stage.
    matrix = np.asarray(read_object_array(content, where))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise FormatError(f"{where}: expected a square adjacency matrix, not shape {matrix.shape}")
    return [tuple(int(p) for p in np.flatnonzero(column)) for column in matrix.T]


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
        lists = {int(level): [int(ms) for ms in samples] for level, samples in raw[wave].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(
            f"{where}: expected {wave} as parallelism -> list of ms ({error!r})"
        ) from None
    for samples in lists.values():
        for ms in (min(samples, default=0), max(samples, default=0)):
            whole_number(f"{where}: a duration of {wave}", ms, 0, LARGEST_DURATION_MS)
    return lists


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
