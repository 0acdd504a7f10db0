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
from parcae.workloads.durations import TaskDurations
from parcae.workloads.job import JobSpec, StageSpec
from parcae.workloads.stage_cells import as_count, as_duration
from parcae.workloads.tpch_dags import FILES, Edges, dags_beside, parents_by_stage

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

    Args:
        path: the file of the profiles; its DAGs are found by `dags_beside`.
        data: its parsed content.

    Raises:
        FormatError: no file of DAGs, one that has other stages, or stages without the fields.
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
        _stage(f"{where}, stage {index}", raw, of_stage)
        for index, (raw, of_stage) in enumerate(zip(stages, parents, strict=True))
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
