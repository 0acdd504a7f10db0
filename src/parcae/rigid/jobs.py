"""Rigid jobs: jobs that hold fixed resources for a fixed time without interruption.

They are the jobs of DeepRM (section 3.1) and of batch clusters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from parcae.base.errors import ConfigError, WorkloadError

IntArray = npt.NDArray[np.int64]
#: Times of a run stay below this, so that kernels can add them without an overflow.
_LARGEST_TIME = 2.0**62


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

    Raises:
        WorkloadError: arrays of inconsistent shapes, a negative time, a job larger than the
            cluster, or times whose sum could overflow.

    Example: `RigidJobs("two", [0, 1], [3, 1], [[5, 1], [1, 6]], [10, 10])`
    """

    name: str
    arrival: IntArray
    duration: IntArray
    demand: IntArray
    capacity: IntArray
    estimate: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    resources: tuple[str, ...] = ()
    step: str = "step"
    ids: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    users: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def __post_init__(self) -> None:
        per_job = ("arrival", "duration", "demand", "estimate", "ids", "users", "rows")
        for key in (*per_job, "capacity"):
            object.__setattr__(self, key, _whole(self.name, key, getattr(self, key)))
        self._set_defaults()
        self._check_shapes()
        self._check_values()

    def _set_defaults(self) -> None:
        """True durations as estimates, ids and rows from 0, and numbered resource names."""
        if not len(self.estimate):
            object.__setattr__(self, "estimate", self.duration)
        for key in ("ids", "rows"):
            if not len(getattr(self, key)):
                numbers = np.arange(len(self.arrival), dtype=np.int64)
                object.__setattr__(self, key, _frozen(numbers))
        if not self.resources:
            resources = tuple(f"resource {r}" for r in range(len(self.capacity)))
            object.__setattr__(self, "resources", resources)

    def _check_shapes(self) -> None:
        count = len(self.arrival)
        num_resources = len(self.capacity)
        if self.demand.shape != (count, num_resources) or not num_resources:
            raise WorkloadError(
                f"{self.name}: demand must be [{count} jobs, {num_resources} resources], "
                f"not {self.demand.shape}"
            )
        lengths = {count, len(self.duration), len(self.estimate), len(self.ids), len(self.rows)}
        if len(self.users):
            lengths.add(len(self.users))
        if len(lengths) != 1 or len(self.resources) != num_resources:
            raise WorkloadError(
                f"{self.name}: arrival, duration, demand, estimate, ids, users and rows must have "
                "one entry a job, resources one name for each entry of capacity"
            )

    def _check_values(self) -> None:
        self._refuse(self.arrival < 0, "arrives at {}, before time 0", self.arrival)
        self._refuse(
            np.diff(self.arrival, prepend=0) < 0,
            "arrives at {}, before the job listed above it: sort the jobs by arrival",
            self.arrival,
        )
        self._refuse(self.duration < 1, "has duration {}: it must be at least 1", self.duration)
        self._refuse(
            self.estimate < 1,
            "has an estimated duration of {}: it must be at least 1",
            self.estimate,
        )
        longest = np.maximum(self.duration, self.estimate).astype(np.float64)
        if float(self.arrival.max(initial=0)) + float(longest.sum()) > _LARGEST_TIME:
            raise WorkloadError(
                f"{self.name}: the jobs would run, one after another, until a time of more than "
                "2^62: use a larger unit of time, and count arrivals from the first one"
            )
        if (self.capacity < 1).any():
            raise WorkloadError(
                f"{self.name}: capacity {self.capacity.tolist()}: "
                "every resource needs at least 1 unit"
            )
        self._check_demands()

    def _check_demands(self) -> None:
        self._refuse(
            (self.demand < 0).any(axis=1), "asks for {}: demands must not be negative", self.demand
        )
        self._refuse(
            (self.demand == 0).all(axis=1),
            "asks for {}: nothing at all, but a job must need some resource",
            self.demand,
        )
        self._refuse(
            (self.demand > self.capacity).any(axis=1),
            f"asks for {{}}, more than the cluster's {self.capacity.tolist()}",
            self.demand,
        )

    def _refuse(
        self, is_bad: npt.NDArray[np.bool_] | np.bool_, what: str, values: IntArray
    ) -> None:
        """Raise an error for the first bad job; `what` is formatted with its value."""
        if is_bad.any():
            row = int(np.flatnonzero(is_bad)[0])
            raise WorkloadError(
                f"{self.name}: job {self.ids[row]} (row {row}) {what.format(values[row].tolist())}"
            )

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def span(self) -> int:
        """Steps from the first arrival to the last; 0 if all jobs arrive at once."""
        return int(self.arrival[-1] - self.arrival[0]) if len(self) else 0

    @property
    def load(self) -> npt.NDArray[np.float64]:
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
        time = np.concatenate([self.arrival + self.duration, self.arrival])
        change = np.concatenate([-self.demand, self.demand])
        # The sort is stable: where jobs end and start at the same time, the ends come first.
        used = np.cumsum(change[np.argsort(time, kind="stable")], axis=0)
        return bool((used <= self.capacity).all())

    @property
    def load_by_resource(self) -> dict[str, float | None]:
        """The load by the resource's name, for JSON; None if all jobs arrive at once."""
        loads = zip(self.resources, self.load.tolist(), strict=True)
        return {name: None if math.isinf(load) else load for name, load in loads}

    def piece(self, first: int, last: int) -> RigidJobs:
        """Jobs first..last-1, with time counted from the first of them."""
        rows = slice(first, last)
        start = self.arrival[first] if first < len(self) else 0
        return RigidJobs(
            f"{self.name}[{first}:{last}]",
            self.arrival[rows] - start,
            self.duration[rows],
            self.demand[rows],
            self.capacity,
            self.estimate[rows],
            self.resources,
            self.step,
            self.ids[rows],
            self.users[rows],
            self.rows[rows],
        )

    def halves(self) -> tuple[RigidJobs, RigidJobs]:
        """The first half of the jobs (for training) and the second half (for evaluation).

        In each half time is counted from its first job.
        """
        if len(self) < 2:
            raise WorkloadError(f"{self.name}: {len(self)} jobs cannot be split into two halves")
        middle = len(self) // 2
        return self.piece(0, middle), self.piece(middle, len(self))


def log_name(name: str) -> str:
    """Return the name of a log by that of its jobs, which may be a part or sped up.

    Example: "dost[0:100]" is a part of the log "dost".
    """
    return name.partition("[")[0]


def _whole(name: str, key: str, values: npt.ArrayLike) -> IntArray:
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
    return _frozen(np.array(values, np.int64) if array.size else np.zeros(array.shape, np.int64))


def _frozen(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array


@dataclass(frozen=True)
class SteppedJobs:
    """A log in steps and units, and what the conversion changed or left out.

    Args:
        jobs: the jobs in steps and units.
        step_s: length of a step in seconds.
        unit: for each resource, the amount that one unit stands for.
        num_clipped: number of jobs that took longer than the horizon and were cut to it.
        clipped_share: share of the work that was lost by cutting.
        num_left_out: number of jobs that were larger than the cluster.
        growth: work of all jobs after rounding up to whole steps and units, divided by the exact
            work (before cutting to the horizon).
    """

    jobs: RigidJobs
    step_s: int
    unit: tuple[float, ...]
    num_clipped: int
    clipped_share: float
    num_left_out: int
    growth: float

    def __str__(self) -> str:
        unit = " and ".join(
            f"{size:g} of {name}" for size, name in zip(self.unit, self.jobs.resources, strict=True)
        )
        return (
            f"{len(self.jobs):,} jobs in steps of {self.step_s:,} s and units of {unit}; "
            f"{self.num_left_out:,} jobs larger than the cluster left out; "
            f"{self.num_clipped:,} jobs longer than the horizon cut to it "
            f"({self.clipped_share:.1%} of the work); "
            f"rounding up multiplies the work by {self.growth:.2f}"
        )


def to_steps(
    jobs: RigidJobs,
    *,
    step_s: int,
    num_units: int,
    horizon: int,
    capacity: tuple[int, ...] | None = None,
    name: str = "",
) -> SteppedJobs:
    """Convert a log in seconds to jobs in steps, on a cluster of `num_units` units per resource.

    Durations and demands are rounded up, arrivals are rounded down. Schedulers see the true
    durations, as in DeepRM's world.

    Args:
        jobs: the log in seconds.
        step_s: length of a step in seconds.
        num_units: units of each resource of the resulting cluster.
        horizon: longest duration in steps; longer jobs are cut to it.
        capacity: size of the cluster in the log's units, if it should be smaller than the log's.
        name: name of the result; the log's name by default.

    Raises:
        ConfigError: a step, number of units, horizon or capacity that is out of range.
        WorkloadError: the jobs are in steps already, or no job fits the cluster.

    Example: a job of 4,000 s and 20 of 1,728 processors takes 2 steps of 3,600 s and 1 of 54 units.
    """
    size = np.array(jobs.capacity if capacity is None else capacity, np.int64)
    _check(jobs, step_s, num_units, horizon, size)
    rows = _fitting_rows(jobs, size)
    # -(-a // b) is integer division rounded up.
    demand = -(-jobs.demand[rows] * num_units // size)
    steps = -(-jobs.duration[rows] // step_s)
    duration = np.minimum(steps, horizon)
    arrival = jobs.arrival[rows] // step_s
    stepped = RigidJobs(
        name or jobs.name,
        arrival - arrival[0],
        duration,
        demand,
        np.full(len(size), num_units, np.int64),
        resources=jobs.resources,
        ids=jobs.ids[rows],
        rows=jobs.rows[rows],
    )
    # Work is measured as (share of each resource) x (seconds), summed over resources.
    exact_work = float((jobs.demand[rows] / size * jobs.duration[rows, None]).sum())
    rounded_work = (demand / num_units * (steps * step_s)[:, None]).sum(axis=1)
    clipped_share = 1.0 - float((rounded_work * duration / steps).sum() / rounded_work.sum())
    unit = tuple(float(share) for share in size / num_units)
    return SteppedJobs(
        stepped,
        step_s,
        unit,
        int((steps > horizon).sum()),
        clipped_share,
        len(jobs) - len(rows),
        float(rounded_work.sum()) / exact_work,
    )


def _fitting_rows(jobs: RigidJobs, size: IntArray) -> IntArray:
    """The rows of the jobs that fit the cluster; there is at least one."""
    fits = (jobs.demand <= size).all(axis=1)
    if not fits.any():
        raise WorkloadError(
            f"{jobs.name}: none of {len(jobs)} jobs fits a cluster of {size.tolist()}: give it more"
        )
    return np.flatnonzero(fits)


def _check(jobs: RigidJobs, step_s: int, num_units: int, horizon: int, size: IntArray) -> None:
    if jobs.step != "s":
        raise WorkloadError(
            f"{jobs.name}: its times are in {jobs.step}s already; give a log in seconds"
        )
    if step_s < 1 or num_units < 1 or horizon < 1:
        raise ConfigError(
            f"steps of {step_s} s, {num_units} units, a horizon of {horizon} steps: "
            "each must be at least 1"
        )
    if size.shape != jobs.capacity.shape or (size < 1).any() or (size > jobs.capacity).any():
        raise ConfigError(
            f"{jobs.name}: the capacity {size.tolist()} must have one number for each resource, "
            f"from 1 up to the log's {jobs.capacity.tolist()}"
        )
    if (size < num_units).any():
        raise ConfigError(
            f"{jobs.name}: a cluster of {size.tolist()} cannot be divided into {num_units} units "
            "of at least one each; give fewer units"
        )
