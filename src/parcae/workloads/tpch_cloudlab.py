"""Reads the TPC-H profiles that the ERDOS simulator was used with: stage means on CloudLab.

The file of profiles has the number of tasks and the mean duration of every stage, but no edges.
These are in a second file beside it. Stages of a query are matched to its DAG by their number.

Source: erdos-project/erdos-scheduling-simulator, profiles/workload/tpch and its loader of profiles.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from parcae.errors import FormatError, WorkloadError
from parcae.workloads.job import JobSpec, StageSpec, TaskDurations
from parcae.workloads.json_file import parsed_json
from parcae.workloads.stage_cells import as_count, as_duration

_KEY = re.compile(r"tpch_q(\d+)_(\d+)g_maxCores_(\d+)$")
_PAIR = re.compile(r"\(\s*(\d+)\s*,\s*(\d+)\s*\)")
#: The file of the DAGs, and where it is, seen from the folder of the profiles.
DAGS = "query_dag.json"
_PLACES = (DAGS, f"../{DAGS}", f"../decima/{DAGS}", f"decima/{DAGS}")
_PROFILE_LAYOUT = '{"tpch_q1_50g_maxCores_50": [{"num_tasks": 3, "average_runtime_ms": 9}, ...]}'
_DAG_LAYOUT = '{"query_number": {"1": "[(0, 1), (1, 2)]", ...}}'

Edges = list[tuple[int, int]]


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

    Args:
        path: the file of the profiles; `query_dag.json` must be beside it, or in `../decima`.
        data: its parsed content.

    Raises:
        FormatError: no file of DAGs, one that has other stages, or stages without the fields.
    """
    dags = _dags(path)
    jobs = []
    for key, stages in data.items():
        match = _KEY.match(key)
        if match is None or not isinstance(stages, list):
            raise FormatError(f"{path}: {key!r}; expected {_PROFILE_LAYOUT}")
        query, size, cores = match.groups()
        where = f"{path}: {key}"
        if query not in dags:
            raise FormatError(f"{where}: the file of DAGs has no query {query}")
        specs = _stages(where, stages, dags[query])
        try:
            jobs.append(JobSpec(f"q{query}-{size}g-{cores}c", specs))
        except WorkloadError as error:
            raise FormatError(f"{where}: {error}") from None
    note = (
        "These profiles have the mean duration of each stage only: all of its tasks take equally "
        "long. Stages are matched to the DAG by their number, as the ERDOS simulator does."
    )
    return jobs, (note,)


def _dags(profiles: Path) -> dict[str, Edges]:
    """The edges of every query, from the file beside the profiles."""
    places = [profiles.parent / place for place in _PLACES]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FormatError(
            f"{profiles}: these profiles have no edges, and there is no {DAGS} beside them "
            "(profiles/workload/tpch/decima of the ERDOS simulator has it); copy it there"
        )
    data = parsed_json(path, path.read_bytes(), _DAG_LAYOUT)
    try:
        return {
            query: [(int(a), int(b)) for a, b in _PAIR.findall(str(edges))]
            for query, edges in data["query_number"].items()
        }
    except (LookupError, TypeError, AttributeError, ValueError):
        raise FormatError(f"{path}: expected {_DAG_LAYOUT}") from None


def _stages(where: str, stages: list[Any], edges: Edges) -> tuple[StageSpec, ...]:
    num_stages = 1 + max((max(edge) for edge in edges), default=0)
    if num_stages != len(stages):
        raise FormatError(
            f"{where}: {len(stages)} stages, but the DAG of this query has {num_stages}"
        )
    return tuple(
        _stage(f"{where}, stage {index}", raw, tuple(a for a, b in edges if b == index))
        for index, raw in enumerate(stages)
    )


def _stage(where: str, raw: Any, parents: tuple[int, ...]) -> StageSpec:
    try:
        mean_ms = as_duration(raw["average_runtime_ms"], lambda: 1.0)
        durations = TaskDurations.constant(round(mean_ms))
        return StageSpec(as_count(raw["num_tasks"]), durations, parents)
    except (LookupError, TypeError, ValueError) as error:
        raise FormatError(
            f"{where}: expected num_tasks and average_runtime_ms, not "
            f"{json.dumps(raw, default=str)[:60]} ({error})"
        ) from None
