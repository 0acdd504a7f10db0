"""Reads job sets of the packing world from JSON.

A set is a fixed sequence of rigid jobs with the parameters of its world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from parcae.base.errors import ConfigError, FormatError, WorkloadError, suggestion
from parcae.rigid.config import PackingConfig
from parcae.rigid.jobs import RigidJobs
from parcae.workloads.job_sets import Whole
from parcae.workloads.tables import read_model

#: Upper bound of durations and demands, so that their product stays far below the largest int64.
_LARGEST = 1 << 31
#: Tables have a row for each job slot, place in the backlog and step of the horizon.
_MOST_PLACES = 1_000_000
_LAYOUT = (
    '{"sequences": [{"name": "a", "arrival_window": 50, "params": {"job_slots": 10, '
    '"backlog_size": 60, "time_horizon": 20, "capacity": 10}, '
    '"jobs": [[arrival, duration, demand of each resource, ...], ...]}]}'
)
_Count = Annotated[Whole, Field(ge=0, le=_LARGEST)]
_Positive = Annotated[_Count, Field(ge=1)]
_Places = Annotated[Whole, Field(ge=1, le=_MOST_PLACES)]


@dataclass(frozen=True, eq=False)
class PackingSet:
    """A fixed sequence of jobs and the parameters of its world.

    Args:
        jobs: the jobs; `jobs.capacity` is the size of the cluster, `jobs.name` the sequence's name.
            All arrive before step `config.window`.
        config: the cluster.
        expected: expected results by policy, as in the file; empty if there are none.
    """

    jobs: RigidJobs
    config: PackingConfig
    expected: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The sequence's name."""
        return self.jobs.name


class _Params(BaseModel):
    model_config = ConfigDict(extra="forbid")

    job_slots: _Places
    backlog_size: Annotated[Whole, Field(ge=0, le=_MOST_PLACES)]
    time_horizon: _Places
    capacity: Annotated[
        list[_Positive],
        BeforeValidator(lambda given: given if isinstance(given, list) else [given]),
        Field(min_length=1),
    ]


class _Entry(BaseModel):
    name: str = Field(min_length=1)
    arrival_window: _Positive
    params: _Params
    jobs: list[Annotated[list[_Count], Field(min_length=3)]]
    expected: dict[str, Any] = {}


class _File(BaseModel):
    sequences: list[_Entry] = Field(min_length=1)


def read_packing_sets(path: Path | str, which: str = "all") -> tuple[PackingSet, ...]:
    """Read the `sequences` of a file: all, that of a name, or that at a position from 0.

    A job is [arrival step, duration, demand of each resource ...]; jobs are in order of arrival.
    `capacity` is one number for all resources, or a list.

    Example: `read_packing_sets("deeprm.json", "single job")[0].jobs.arrival` is [1].
    """
    path = Path(path)
    entries = read_model(path, _File, _LAYOUT).sequences
    sets = [
        _packing_set(f"{path}: sequences[{row}] ({entry.name!r})", entry)
        for row, entry in enumerate(entries)
    ]
    names = [one.name for one in sets]
    rows = [row for row, name in enumerate(names) if name == which]
    if len(rows) > 1:
        raise ConfigError(
            f"{path}: several sequences have the name {which!r}; "
            f"choose one by its position: {', '.join(map(str, rows))}"
        )
    # A name takes precedence over "all" and over positions.
    if not rows and which == "all":
        return tuple(sets)
    if not rows and which.isdecimal() and int(which) < len(sets):
        rows = [int(which)]
    if not rows:
        raise ConfigError(
            f"{path}: no sequence {which!r}; {suggestion(which, names)} "
            f"(or all, or a position 0..{len(sets) - 1})"
        )
    return (sets[rows[0]],)


def _packing_set(where: str, entry: _Entry) -> PackingSet:
    params = entry.params
    width = len(entry.jobs[0]) if entry.jobs else 2 + len(params.capacity)
    for row, job in enumerate(entry.jobs):
        if len(job) != width:
            raise FormatError(f"{where} jobs[{row}]: {job} has not as many numbers as the first")
    if len(params.capacity) not in (1, width - 2):
        raise FormatError(
            f"{where} params.capacity: {len(params.capacity)} resources, but the jobs have "
            f"{width - 2}"
        )
    arrival, duration, *demand = np.array(entry.jobs, np.int64).reshape(-1, width).T
    for values, most, key in (
        (arrival, entry.arrival_window - 1, "arrival_window"),
        (duration, params.time_horizon, "time_horizon"),
    ):
        if late := np.flatnonzero(values > most).tolist():
            raise WorkloadError(
                f"{where} jobs[{late[0]}]: {key} has no room for {values[late[0]]}: "
                f"give at most {most}"
            )
    try:
        jobs = RigidJobs(
            entry.name,
            arrival,
            duration,
            np.stack(demand, axis=1),
            np.full(width - 2, params.capacity),
        )
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from None
    config = PackingConfig(
        num_slots=params.job_slots,
        backlog_size=params.backlog_size,
        horizon=params.time_horizon,
        window=entry.arrival_window,
    )
    return PackingSet(jobs, config, entry.expected)
