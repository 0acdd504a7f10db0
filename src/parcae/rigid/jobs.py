"""Rigid jobs: jobs that hold fixed resources for a fixed time without interruption.

They are the jobs of DeepRM (section 3.1) and of batch clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from parcae.base.arrays import AnyArray, Float64Array, Int64Array
from parcae.base.errors import WorkloadError

#: Times of a run stay below this, so that kernels can add them without an overflow.
_LARGEST_TIME = 2.0**62
#: Columns that only logs have, and not all of them: they may be empty.
_OF_LOGS = ("users", "waits", "partitions")
#: The columns of `RigidJobs` with a row a job.
_PER_JOB = ("arrival", "duration", "estimate", "demand", "ids", "rows", *_OF_LOGS)


def _none() -> Int64Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class RigidJobs:
    """A sequence of rigid jobs and the cluster that they run on.

    Times are whole numbers of `step` ("step" in DeepRM's world, "s" in logs of batch clusters).

    Args:
        name: name of the sequence.
        arrival: int64[num_jobs], ascending, >= 0.
        duration: int64[num_jobs], the true duration, >= 1.
        demand: int64[num_jobs, num_resources], 0 <= demand <= capacity; each job needs some
            resource.
        capacity: int64[num_resources], >= 1.
        estimate: int64[num_jobs], the duration that schedulers see (what the user requested), >= 1;
            the true duration by default.
        resources: a name for each resource.
        step: unit of time.
        ids: int64[num_jobs], identifiers of the jobs in their source, for messages; they may be
            missing or repeated there. 0, 1, ... by default.
        users: int64[num_jobs], the users who submitted the jobs, -1 for an unknown one; empty if
            the source names no users.
        rows: int64[num_jobs], rows of the jobs among all jobs of their source, in order of arrival,
            however the source is filtered and cut; 0, 1, ... by default.
        waits: int64[num_jobs], how long each job waited in the log; empty if it does not say.
        partitions: int64[num_jobs], the partitions on which the jobs ran; empty if they are one.
        user_names: the users' names by their numbers; empty if the source has only numbers.

    Raises:
        WorkloadError: arrays of inconsistent shapes, a negative time, a job larger than the
            cluster, or times whose sum could overflow.

    Example: `RigidJobs("two", [0, 1], [3, 1], [[5, 1], [1, 6]], [10, 10])`
    """

    name: str
    arrival: Int64Array
    duration: Int64Array
    demand: Int64Array
    capacity: Int64Array
    estimate: Int64Array = field(default_factory=_none)
    resources: tuple[str, ...] = ()
    step: str = "step"
    ids: Int64Array = field(default_factory=_none)
    users: Int64Array = field(default_factory=_none)
    rows: Int64Array = field(default_factory=_none)
    waits: Int64Array = field(default_factory=_none)
    partitions: Int64Array = field(default_factory=_none)
    user_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key in (*_PER_JOB, "capacity"):
            object.__setattr__(self, key, _whole(self.name, key, getattr(self, key)))
        numbers = _whole(self.name, "ids", range(len(self.arrival)))
        names = tuple(f"resource {r}" for r in range(len(self.capacity)))
        for key, default in (
            ("estimate", self.duration),
            ("ids", numbers),
            ("rows", numbers),
            ("resources", names),
        ):
            if not len(getattr(self, key)):
                object.__setattr__(self, key, default)
        self._check_shapes()
        self._check_values()

    def _check_shapes(self) -> None:
        count = len(self.arrival)
        num_resources = len(self.capacity)
        if self.demand.shape != (count, num_resources) or not num_resources:
            raise WorkloadError(
                f"{self.name}: demand must be [{count} jobs, {num_resources} resources], "
                f"not {self.demand.shape}"
            )
        lengths = {len(getattr(self, key)) or (count if key in _OF_LOGS else 0) for key in _PER_JOB}
        if lengths != {count} or len(self.resources) != num_resources:
            raise WorkloadError(
                f"{self.name}: {', '.join(_PER_JOB)} must have one entry a job, resources one name "
                "for each entry of capacity"
            )
        if (self.capacity < 1).any():
            raise WorkloadError(
                f"{self.name}: capacity {self.capacity.tolist()}: "
                "every resource needs at least 1 unit"
            )

    def _check_values(self) -> None:
        arrival, duration, estimate, demand = (getattr(self, key) for key in _PER_JOB[:4])
        cluster = self.capacity.tolist()
        for values, is_bad, what in (
            (arrival, arrival < 0, "arrives at {}, before time 0"),
            (
                arrival,
                np.diff(arrival, prepend=0) < 0,
                "arrives at {}, before the job listed above it: sort the jobs by arrival",
            ),
            (duration, duration < 1, "has duration {}: it must be at least 1"),
            (estimate, estimate < 1, "has an estimated duration of {}: it must be at least 1"),
            (demand, demand < 0, "asks for {}: demands must not be negative"),
            (
                demand,
                (demand == 0).all(axis=1),
                "asks for {}: nothing at all, but a job must need some resource",
            ),
            (
                demand,
                demand > self.capacity,
                f"asks for {{}}, more than the cluster's {cluster}",
            ),
        ):
            if is_bad.any():
                row = int(np.argwhere(is_bad)[0, 0])
                raise WorkloadError(
                    f"{self.name}: job {self.ids[row]} (row {row}) "
                    f"{what.format(values[row].tolist())}"
                )
        longest = np.maximum(duration, estimate).astype(np.float64)
        if float(arrival.max(initial=0)) + float(longest.sum()) > _LARGEST_TIME:
            raise WorkloadError(
                f"{self.name}: the jobs would run, one after another, until a time of more than "
                "2^62: use a larger unit of time, and count arrivals from the first one"
            )

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def span(self) -> int:
        """Steps from the first arrival to the last; 0 if all jobs arrive at once."""
        return int(self.arrival[-1] - self.arrival[0]) if len(self) else 0

    @property
    def load(self) -> Float64Array:
        """float64[num_resources]: work that arrives per step, divided by the capacity.

        It is infinite if all jobs arrive at once (a batch has no rate), and 0 without jobs.

        Example: if a job of 2 steps and 5 of 10 units arrives every step, the load is 1.
        """
        if self.span == 0:
            return np.full(len(self.capacity), np.inf if len(self) else 0.0)
        return np.asarray(
            (self.demand / self.capacity * self.duration[:, None]).sum(axis=0) / self.span
        )

    @property
    def never_waits(self) -> bool:
        """Whether the cluster is large enough for every job to start when it arrives."""
        return bool((most_in_use(self.arrival, self.duration, self.demand) <= self.capacity).all())

    @property
    def load_by_resource(self) -> dict[str, float | None]:
        """The load by the resource's name, for JSON; None if all jobs arrive at once."""
        loads = zip(self.resources, self.load.tolist(), strict=True)
        return {name: None if math.isinf(load) else load for name, load in loads}

    def piece(self, first: int, last: int) -> RigidJobs:
        """Jobs first..last-1, with time counted from the first of them."""
        part = {key: getattr(self, key)[first:last] for key in _PER_JOB}
        part["arrival"] = part["arrival"] - part["arrival"][:1]
        return replace(self, name=f"{self.name}[{first}:{last}]", **part)

    def halves(self) -> tuple[RigidJobs, RigidJobs]:
        """The first half of the jobs (for training) and the second half (for evaluation).

        In each half time is counted from its first job.
        """
        if len(self) < 2:
            raise WorkloadError(f"{self.name}: {len(self)} jobs cannot be split into two halves")
        middle = len(self) // 2
        return self.piece(0, middle), self.piece(middle, len(self))


def most_in_use(start: AnyArray, duration: AnyArray, demand: AnyArray) -> Any:
    """The most that jobs with these starts hold at once: a number, or one for each resource."""
    time = np.concatenate([start + duration, start])
    change = np.concatenate([-demand, demand])
    # The sort is stable: where jobs end and start at the same time, the ends come first.
    return np.cumsum(change[np.argsort(time, kind="stable")], axis=0).max(axis=0, initial=0)


def log_name(name: str) -> str:
    """Return the name of a log by that of its jobs, which may be a part or sped up.

    Example: "dost[0:100]" is a part of the log "dost".
    """
    return name.partition("[")[0]


def _whole(name: str, key: str, values: npt.ArrayLike) -> Int64Array:
    """The values as a read-only int64 array; refuses everything that is not a whole number."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise WorkloadError(f"{name}: {key} must be numbers, one entry a job") from None
    if not np.isfinite(array).all() or (array != np.floor(array)).any():
        raise WorkloadError(f"{name}: {key} holds a value that is not a whole number")
    if (np.abs(array) >= 2.0**63).any():
        raise WorkloadError(f"{name}: {key} holds a number that does not fit into 64 bits")
    # An empty list would otherwise become a float64 array.
    whole = np.array(values, np.int64) if array.size else np.zeros(array.shape, np.int64)
    whole.setflags(write=False)
    return whole


def to_steps(
    jobs: RigidJobs,
    *,
    step_s: int,
    num_units: int,
    horizon: int,
    capacity: tuple[int, ...] | None = None,
) -> RigidJobs:
    """Convert a log in seconds to jobs in steps, on a cluster of `num_units` units per resource.

    Durations and demands are rounded up, arrivals are rounded down; longer jobs are cut to the
    horizon. Schedulers see the true durations, as in DeepRM's world. `capacity` makes the cluster
    smaller than the log's, in the log's units; jobs that are larger are left out.

    Example: a job of 4,000 s and 20 of 1,728 processors takes 2 steps of 3,600 s and 1 of 54 units.
    """
    size = np.array(jobs.capacity if capacity is None else capacity, np.int64)
    rows = np.flatnonzero((jobs.demand <= size).all(axis=1))
    if not len(rows):
        raise WorkloadError(
            f"{jobs.name}: none of {len(jobs)} jobs fits a cluster of {size.tolist()}: give it more"
        )
    # -(-a // b) is integer division rounded up.
    arrival = jobs.arrival[rows] // step_s
    return RigidJobs(
        jobs.name,
        arrival - arrival[0],
        np.minimum(-(-jobs.duration[rows] // step_s), horizon),
        -(-jobs.demand[rows] * num_units // size),
        np.full(len(size), num_units),
        resources=jobs.resources,
        ids=jobs.ids[rows],
        rows=jobs.rows[rows],
    )
