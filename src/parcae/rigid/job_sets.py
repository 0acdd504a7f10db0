"""Reads job sets of the packing world from JSON.

A set is a fixed sequence of rigid jobs with the parameters of its world.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from parcae.base.errors import ConfigError, FormatError, WorkloadError, suggestion
from parcae.base.loader import parsed_json, read_file, shown, whole_number
from parcae.rigid.jobs import RigidJobs

_FILE_KEYS = ("sequences", "description")
_SET_KEYS = ("name", "arrival_window", "params", "jobs", "expected", "description")
_PARAMS = ("job_slots", "backlog_size", "time_horizon", "capacity")
#: An unknown key that is at least this similar to a known key is taken for a misspelling.
_MISSPELLING = 0.75
#: Upper bound of durations and demands, so that their product stays far below the largest int64.
_LARGEST = 1 << 31
#: Tables have a row for each job slot, place in the backlog and step of the horizon.
_MOST_PLACES = 1_000_000
_LAYOUT = (
    '{"sequences": [{"name": "a", "arrival_window": 50, "params": {"job_slots": 10, '
    '"backlog_size": 60, "time_horizon": 20, "capacity": 10}, '
    '"jobs": [[arrival, duration, demand, ...], ...]}]}'
)


@dataclass(frozen=True, eq=False)
class PackingSet:
    """A fixed sequence of jobs and the parameters of its world.

    Args:
        jobs: the jobs; `jobs.capacity` is the size of the cluster, `jobs.name` the sequence's name.
        arrival_window: number of steps in which jobs can arrive: all jobs arrive before this step.
        job_slots: number of waiting jobs that a policy sees.
        backlog_size: number of further waiting jobs; a job that arrives when all places are taken
            is lost.
        time_horizon: number of steps ahead for which jobs can be booked.
        expected: expected results by policy, as in the file; empty if there are none.
    """

    jobs: RigidJobs
    arrival_window: int
    job_slots: int
    backlog_size: int
    time_horizon: int
    expected: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The sequence's name."""
        return self.jobs.name


def read_packing_sets(path: Path | str, which: str = "all") -> tuple[PackingSet, ...]:
    """Read the `sequences` of a file.

    A job is [arrival step, duration, demand of each resource ...]; jobs are in order of arrival.
    `capacity` is one number for all resources, or a list. Unknown keys of the file or of a sequence
    are ignored, unless they look like a misspelt key. `params` must not have unknown keys.

    Example: `read_packing_sets("deeprm.json", "single job")[0].jobs.arrival` is [1].
    """
    path = Path(path)
    data = parsed_json(path, read_file(path), _LAYOUT)
    entries = _keys(f"{path}", data, _FILE_KEYS, ("sequences",))["sequences"]
    if not isinstance(entries, list) or not entries:
        raise FormatError(f'{path}: "sequences" must be a list of at least one; expected {_LAYOUT}')
    return select_sets(
        tuple(
            _packing_set(f"{path}: sequences[{row}]", entry) for row, entry in enumerate(entries)
        ),
        which,
        path,
    )


def select_sets(
    sets: Sequence[PackingSet], which: str, source: Path | str = "job sets"
) -> tuple[PackingSet, ...]:
    """Select all sets ("all"), the set of a name, or the set at a position from 0."""
    names = [item.name for item in sets]
    rows = [row for row, name in enumerate(names) if name == which]
    if len(rows) > 1:
        raise ConfigError(
            f"{source}: several sequences have the name {which!r}; "
            f"choose one by its position: {', '.join(map(str, rows))}"
        )
    # A name takes precedence over "all" and over positions.
    if rows:
        return (sets[rows[0]],)
    if which == "all":
        return tuple(sets)
    if which.isdecimal() and int(which) < len(sets):
        return (sets[int(which)],)
    raise ConfigError(
        f"{source}: no sequence {which!r}; {suggestion(which, names)} "
        f"(or all, or a position 0..{len(sets) - 1})"
    )


def _keys(
    where: str, data: Any, known: Sequence[str], needed: Sequence[str], *, is_strict: bool = False
) -> dict[str, Any]:
    """Check that the data is an object with all needed keys and no misspelt keys, and return it.

    If `is_strict`, every unknown key is refused.
    """
    if not isinstance(data, dict):
        raise FormatError(f"{where}: not an object; expected {_LAYOUT}")
    for key in data:
        close = difflib.get_close_matches(key, known, n=1, cutoff=_MISSPELLING)
        if key not in known and (close or is_strict):
            raise FormatError(f"{where}: unknown key {key!r}; {suggestion(key, known)}")
    missing = [key for key in needed if key not in data]
    if missing:
        raise FormatError(f"{where}: {', '.join(map(repr, missing))} missing; expected {_LAYOUT}")
    return data


def _packing_set(where: str, entry: Any) -> PackingSet:
    data = _keys(where, entry, _SET_KEYS, _SET_KEYS[:4])
    name = data["name"]
    if not isinstance(name, str) or not name:
        raise FormatError(f"{where}: the name {shown(name)} is not a text")
    where = f"{where} ({name!r})"
    params = _keys(f"{where} params", data["params"], _PARAMS, _PARAMS, is_strict=True)
    sizes = {
        # Only the backlog may be empty (0); the other sizes are at least 1.
        key: whole_number(
            f"{where} params.{key}", params[key], int(key != "backlog_size"), _MOST_PLACES
        )
        for key in _PARAMS[:3]
    }
    window = whole_number(f"{where} arrival_window", data["arrival_window"], 1, _LARGEST)
    rows = _rows(where, data["jobs"])
    num_resources = len(rows[0]) - 2 if rows else None
    capacity = _capacity(f"{where} params.capacity", params["capacity"], num_resources)
    # Checked before RigidJobs, so that messages name the place in the file.
    _check_jobs(where, rows, capacity, window, sizes["time_horizon"])
    expected = data.get("expected", {})
    if not isinstance(expected, dict):
        raise FormatError(f"{where} expected: not an object of results by policy")
    jobs = _rigid_jobs(name, rows, capacity)
    return PackingSet(jobs, window, **sizes, expected=MappingProxyType(expected))


def _rigid_jobs(name: str, rows: list[list[int]], capacity: Sequence[int]) -> RigidJobs:
    """The jobs of rows with the arrival, the duration and the demand of each resource."""
    table = np.array(rows, np.int64).reshape(-1, 2 + len(capacity))
    arrival = table[:, 0]
    duration = table[:, 1]
    return RigidJobs(name, arrival, duration, table[:, 2:], np.array(capacity, np.int64))


def _rows(where: str, jobs: Any) -> list[list[int]]:
    """Check that the jobs are lists of whole numbers, all with the same number of resources."""
    if not isinstance(jobs, list):
        raise FormatError(
            f'{where}: "jobs" must be a list of [arrival, duration, demand of each resource, ...]'
        )
    for row, job in enumerate(jobs):
        place = f"{where} jobs[{row}]"
        if not isinstance(job, list) or len(job) < 3 or len(job) != len(jobs[0]):
            raise FormatError(
                f"{place}: {shown(job)} is not [arrival, duration, demand of each "
                "resource, ...] with as many entries as the first job"
            )
        for value, what, least in zip(
            job,
            ("arrival", "duration", *["demand"] * (len(job) - 2)),
            (0, 1, *[0] * len(job)),
            strict=False,
        ):
            whole_number(f"{place} {what}", value, least, _LARGEST)
    return jobs


def _capacity(where: str, value: Any, num_resources: int | None) -> list[int]:
    """Units of each resource.

    A single number applies to every resource; without any job (`num_resources` is None) it means
    one resource.
    """
    values = (
        value
        if isinstance(value, list)
        else [value] * (1 if num_resources is None else num_resources)
    )
    if not values or (num_resources is not None and len(values) != num_resources):
        raise FormatError(
            f"{where}: {len(values)} resources, but the jobs have {num_resources or 'some'}"
        )
    return [whole_number(where, units, 1, _LARGEST) for units in values]


def _check_jobs(
    where: str, rows: list[list[int]], capacity: list[int], window: int, horizon: int
) -> None:
    last = 0
    for row, (arrival, duration, *demand) in enumerate(rows):
        place = f"{where} jobs[{row}]"
        if arrival < last:
            raise WorkloadError(
                f"{place}: arrives at {arrival}, before the job above it; sort the jobs by arrival"
            )
        if arrival >= window:
            raise WorkloadError(
                f"{place}: arrives at {arrival}, but jobs must arrive before step {window} "
                "(arrival_window)"
            )
        if duration > horizon:
            raise WorkloadError(
                f"{place}: takes {duration} steps, more than the horizon of {horizon} "
                "(time_horizon)"
            )
        if any(d > c for d, c in zip(demand, capacity, strict=True)):
            raise WorkloadError(f"{place}: asks for {demand}, more than the cluster's {capacity}")
        if not any(demand):
            raise WorkloadError(
                f"{place}: asks for {demand}: nothing at all, but a job must need some resource"
            )
        last = arrival
