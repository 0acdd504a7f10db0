"""A log of a batch cluster in steps and units: what the slot world of DeepRM and A2cScheduler can show as an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parcae.errors import ConfigError, WorkloadError
from parcae.workloads.rigid import RigidJobs


@dataclass(frozen=True)
class Stepped:
    """A log in steps and units, and what was changed or left out for it.

    Args:
        jobs: the jobs. step_s: seconds of a step. unit: float64[num_resources], what a unit stands for.
        num_clipped: jobs that took longer than the horizon and take just that; clipped_share: share of the work lost with that.
        num_left_out: jobs larger than the cluster.
        growth: work of all jobs, once rounded up to whole steps and units, over what it was (clipping aside).
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
            f"{len(self.jobs):,} jobs in steps of {self.step_s:,} s and units of {unit}; {self.num_left_out:,} jobs larger "
            "than the "
            f"cluster left out; {self.num_clipped:,} jobs longer than the horizon cut to it ({self.clipped_share:.1%} of the "
            "work); "
            f"rounding up makes {self.growth:.2f} of the work"
        )


def to_steps(
    jobs: RigidJobs,
    *,
    step_s: int,
    num_units: int,
    horizon: int,
    capacity: tuple[int, ...] | None = None,
    name: str = "",
) -> Stepped:
    """A log in seconds as jobs in steps, on a cluster of `num_units` units of each resource.

    Durations and demands are rounded up, arrivals down. What a scheduler is told is the true duration, as in DeepRM's world.

    Args:
        step_s: seconds of a step. horizon: longest duration in steps. capacity: a smaller cluster than the log's.

    Raises:
        ConfigError: a step, a number of units, a horizon or a capacity that cannot be.
        WorkloadError: jobs that are in steps already, or none that fits.

    Example: a job of 4,000 s and 20 of 1,728 processors takes 2 steps of 3,600 s and 1 of 54 units.
    """
    size = np.array(jobs.capacity if capacity is None else capacity, np.int64)
    _check(jobs, step_s, num_units, horizon, size)
    fits = (jobs.demand <= size).all(axis=1)
    if not fits.any():
        raise WorkloadError(
            f"{jobs.name}: none of {len(jobs)} jobs fits a cluster of {size.tolist()}: give it more"
        )
    rows = np.flatnonzero(fits)
    demand = -(-jobs.demand[rows] * num_units // size)
    steps = -(-jobs.duration[rows] // step_s)
    duration = np.minimum(steps, horizon)
    arrival = jobs.arrival[rows] // step_s
    stepped = RigidJobs(
        name or jobs.name, arrival - arrival[0], duration, demand, np.full(len(size), num_units, np.int64),
        resources=jobs.resources, ids=jobs.ids[rows],
    )  # fmt: skip
    exact = float((jobs.demand[rows] / size * jobs.duration[rows, None]).sum())
    whole = (demand / num_units * (steps * step_s)[:, None]).sum(axis=1)
    lost = 1.0 - float((whole * duration / steps).sum() / whole.sum())
    unit = tuple(float(share) for share in size / num_units)
    return Stepped(
        stepped, step_s, unit, int((steps > horizon).sum()), lost, len(jobs) - len(rows), float(whole.sum()) / exact
    )  # fmt: skip


def _check(jobs: RigidJobs, step_s: int, num_units: int, horizon: int, size: np.ndarray) -> None:
    if jobs.step != "s":
        raise WorkloadError(
            f"{jobs.name}: its times are {jobs.step}s already; give a log in seconds"
        )
    if step_s < 1 or num_units < 1 or horizon < 1:
        raise ConfigError(
            f"steps of {step_s} s, {num_units} units, a horizon of {horizon} steps: each must be at least 1"
        )
    if size.shape != jobs.capacity.shape or (size < 1).any() or (size > jobs.capacity).any():
        raise ConfigError(
            f"{jobs.name}: a cluster of {size.tolist()} is not one of 1 up to {jobs.capacity.tolist()}, a number for each "
            "resource"
        )
    if (size < num_units).any():
        raise ConfigError(
            f"{jobs.name}: {num_units} units of a cluster of {size.tolist()} would be less than one each; give fewer"
        )
