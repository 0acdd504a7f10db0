"""Reads TPC-H profiles in the Decima authors' layout: a folder of npy files, or the data as JSON.

Source: Decima, section 6.2; hongzimao/decima-sim, spark_env/tpch and its preprocessing of task
durations.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parcae.base.errors import FormatError, WorkloadError
from parcae.base.files import check_regular
from parcae.base.loader import members, parsed_json, read_file, read_member, whole_number
from parcae.base.texts import BYTES_PER_MIB
from parcae.decima.pickle_free import read_object_array
from parcae.workloads.durations import LARGEST_DURATION_MS, TaskDurations
from parcae.workloads.import_report import ImportReport
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.stage_table import as_count, as_duration
from parcae.workloads.workload import Workload

#: The folders of TPC-H profiles: one for each input size.
_SIZED_FILE = re.compile(r"(?:^|(.*)/)(\d+g/[\w-]+\.npy)$")
_DEEPEST = 6
#: The released profiles have files of less than 1 MiB.
_MAX_FILE_BYTES = 32 * BYTES_PER_MIB


class NpyFolder:
    """The files `2g/NAME.npy` and so on, wherever they are in a folder or a zip archive.

    Raises:
        FormatError: several folders have such files.
        OSError: the path cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_zip = path.is_file()
        names = self._names()
        found = [(match[1] or "", name) for name in names if (match := _SIZED_FILE.search(name))]
        folders = sorted({folder for folder, _ in found})
        if len(folders) > 1:
            raise FormatError(
                f"{path}: several folders have profiles ({', '.join(folders[:3])}); give one"
            )
        self._prefix = f"{folders[0]}/" if folders and folders[0] else ""
        self._files = {name.removeprefix(self._prefix) for _, name in found}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> tuple[bytes, str]:
        """The content of a file, and what it is called in messages."""
        label = f"{self.path}{'!' if self._is_zip else '/'}{self._prefix}{name}"
        if name not in self:
            raise FormatError(f"{label}: no such file")
        if not self._is_zip:
            return read_file(self.path / f"{self._prefix}{name}", _MAX_FILE_BYTES), label
        return read_member(self.path, self._prefix + name, _MAX_FILE_BYTES), label

    def _names(self) -> list[str]:
        """The npy files, relative to the path."""
        if not self._is_zip:
            patterns = ("*/" * depth + "*.npy" for depth in range(1, _DEEPEST))
            found = [file for pattern in patterns for file in self.path.glob(pattern)]
            return [file.relative_to(self.path).as_posix() for file in found]
        return [info.filename for info in members(self.path)]


#: The files, and where they are, seen from the folder of the profiles.
FILES = ("queries.yaml", "query_dag.json")
_FOLDERS = (".", "..", "../decima", "decima")
_PAIR = re.compile(r"\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)")
_LAYOUT = '{"query_number": {"1": "[(0, 1), (1, 2)]", ...}}'
# The lines of queries.yaml: a query, one of its stages, the stages that follow this one.
_QUERY_LINE = re.compile(r"\s*- name: Q(\d{1,9})\s*$")
_STAGE_LINE = re.compile(r"\s*- name: (\d{1,9})\s*$")
_CHILDREN_LINE = re.compile(r"\s*children: \[(\s*(?:\d{1,9}\s*(?:,\s*|(?=\])))*)\]\s*$")
_OTHER_LINE = re.compile(r"\s*(#.*|graphs?:\s*)?$")

#: No query has nearly as many stages.
MAX_STAGES = 10_000

Edges = list[tuple[int, int]]


def dags_beside(folder: Path) -> dict[int, Edges] | None:
    """The edges (parent, child) of every query, from a file in or beside a folder of profiles.
    Returns the edges by the number of the query; None if there is no such file.
    """
    places = [folder / place / name for place in _FOLDERS for name in FILES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        return None
    return _of_yaml(path) if path.suffix == ".yaml" else _of_json(path)


def parents_by_stage(where: str, edges: Edges) -> list[tuple[int, ...]]:
    """The parents of every stage; the stages are those that the edges name."""
    num_stages = 1 + max((max(edge) for edge in edges), default=0)
    if num_stages > MAX_STAGES:
        raise FormatError(
            f"{where}: a DAG of {num_stages:,} stages; at most {MAX_STAGES:,} are read"
        )
    parents: list[list[int]] = [[] for _ in range(num_stages)]
    for parent, child in edges:
        parents[child].append(parent)
    return [tuple(of_stage) for of_stage in parents]


def _of_json(path: Path) -> dict[int, Edges]:
    data = parsed_json(path, read_file(path), _LAYOUT)
    try:
        return {
            int(query): [(int(a), int(b)) for a, b in _PAIR.findall(str(edges))]
            for query, edges in data["query_number"].items()
        }
    except (LookupError, TypeError, AttributeError, ValueError):
        raise FormatError(f"{path}: expected {_LAYOUT}") from None


def _of_yaml(path: Path) -> dict[int, Edges]:
    """Read the few forms of lines that the file has; no library of YAML is needed for them."""
    dags: dict[int, Edges] = {}
    query = stage = -1
    for number, line in enumerate(read_file(path).decode(errors="replace").splitlines(), 1):
        if found := _QUERY_LINE.match(line):
            query = int(found[1])
            dags[query] = []
        elif query >= 0 and (found := _STAGE_LINE.match(line)):
            stage = int(found[1])
        elif query >= 0 and (found := _CHILDREN_LINE.match(line)):
            dags[query] += [(stage, int(child)) for child in found[1].split(",") if child.strip()]
        elif not _OTHER_LINE.match(line):
            raise FormatError(
                f"{path}:{number}: {line.strip()[:40]!r}; expected '- name: Q1', '- name: 0' or "
                "'children: [1, 2]'"
            )
    return dags


_KEY = re.compile(r"tpch_q(\d+)_(\d+)g_maxCores_(\d+)$")
_PROFILE_LAYOUT = '{"tpch_q1_50g_maxCores_50": [{"num_tasks": 3, "average_runtime_ms": 9}, ...]}'


def is_cloudlab(data: Any) -> bool:
    """Whether parsed JSON has the layout of the profiles."""
    return isinstance(data, dict) and bool(data) and all(_KEY.match(key) for key in data)


def profiles_in(folder: Path) -> Path | None:
    """The file of profiles in a folder or in its folder `cloudlab`; None if there is none."""
    found = sorted([*folder.glob("*tpch_profiles.json"), *folder.glob("cloudlab/*profiles.json")])
    return found[0] if found else None


def cloudlab_jobs(path: Path, data: dict[str, Any]) -> tuple[list[JobSpec], tuple[str, ...]]:
    """The jobs of parsed profiles, called "q9-100g-75c", and notes for the user.

    Profiles of one query that were measured with another number of cores are jobs of their own,
    since they have other task counts.
    """
    dags = dags_beside(path.parent)
    if dags is None:
        raise FormatError(
            f"{path}: these profiles have no edges, and there is no {' or '.join(FILES)} in or "
            "beside their folder; copy it there (profiles/workload/tpch of the ERDOS simulator)"
        )
    jobs = []
    for key, stages in data.items():
        match = _KEY.match(key)
        if match is None or not isinstance(stages, list):
            raise FormatError(f"{path}: {key!r}; expected {_PROFILE_LAYOUT}")
        query, size, cores = match.groups()
        where = f"{path}: {key}"
        if int(query) not in dags:
            raise FormatError(f"{where}: the file of DAGs has no query {query}")
        specs = _stages(where, stages, dags[int(query)])
        try:
            jobs.append(JobSpec(f"q{query}-{size}g-{cores}c", specs))
        except WorkloadError as error:
            raise FormatError(f"{where}: {error}") from None
    note = (
        "These profiles have the mean duration of each stage only: all of its tasks take equally "
        "long. Stages are matched to the DAG by their number, as the ERDOS simulator does."
    )
    return jobs, (note,)


def _stages(where: str, stages: list[Any], edges: Edges) -> tuple[StageSpec, ...]:
    parents = parents_by_stage(where, edges)
    if len(parents) != len(stages):
        raise FormatError(
            f"{where}: {len(stages)} stages, but the DAG of this query has {len(parents)}"
        )
    return tuple(
        _cloudlab_stage(f"{where}, stage {index}", raw, of_stage)
        for index, (raw, of_stage) in enumerate(zip(stages, parents, strict=True))
    )


def _cloudlab_stage(where: str, raw: Any, parents: tuple[int, ...]) -> StageSpec:
    try:
        mean_ms = as_duration(raw["average_runtime_ms"], lambda: 1.0)
        durations = TaskDurations.constant(round(mean_ms))
        return StageSpec(as_count(raw["num_tasks"]), durations, parents)
    except (LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"{where}: expected num_tasks and average_runtime_ms, not "
            f"{json.dumps(raw, default=str)[:60]} ({error})"
        ) from None


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
    """Read the profiles of up to 22 queries x 7 input sizes; jobs are called "q9-100g"."""
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
