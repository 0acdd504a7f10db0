"""Converts a batch cluster's log to steps and resource units, for the packing world.

The world of DeepRM and A2cScheduler shows the cluster as an image, so that times and demands have
to be small whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parcae.errors import ConfigError, WorkloadError
from parcae.workloads.rigid import IntArray, RigidJobs


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
