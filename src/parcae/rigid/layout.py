"""The tables of the packing world: job sequences, the cluster's state, and the view for policies.

With one more leading axis the same tables hold many clusters. Below them is the compiled arithmetic
on units of resources, arrays with a number for each resource.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined

NO_JOB = -1  # an empty slot
VOID = -1  # the decision to let time pass
NOT_YET = -1  # a time that is not known yet


class Cost(IntEnum):
    """Costs that accrue while time passes (DeepRM, sections 3.2 and 3.4); smaller is better.

    Each entry names an objective; its comment says what accrues per unit of time.
    """

    SLOWDOWN = 0  # sum over jobs in the system of 1 / duration
    BOUNDED_SLOWDOWN = 1  # the same with durations of at least `bound`
    COMPLETION = 2  # jobs in the system
    UTILIZATION = 3  # minus the share of the resources in use, summed over resources
    MAKESPAN = 4  # 1 from the first arrival on, while any job is unfinished
    # BOUNDED_SLOWDOWN and, for every job, MAKESPAN / the shortest makespan that is possible
    SLOWDOWN_MAKESPAN = 5

    @property
    def objective(self) -> str:
        """The name of the objective, such as "bounded-slowdown"."""
        separator = "+" if self is Cost.SLOWDOWN_MAKESPAN else "-"
        return self.name.lower().replace("_", separator)


def _columns(
    integers: Sequence[str], floats: Sequence[str] = (), bits: Sequence[str] = ()
) -> np.dtype[Any]:
    """Return the type of a record of int64, float64 and uint64."""
    return np.dtype(
        [
            (name, kind)
            for names, kind in ((integers, np.int64), (floats, np.float64), (bits, np.uint64))
            for name in names
        ],
        align=True,
    )


#: A job of a sequence. `estimate` is the duration that the scheduler knows, `log_estimate` its
#: logarithm; `duration` is the real one, which only the simulation knows.
SPEC = _columns(("arrival", "estimate", "duration"), ("log_estimate",))
#: Start and finish of each job, NOT_YET until known; `expected` is the finish by the estimate.
JOB = _columns(("start", "finish", "expected", "is_dropped"))
#: The cluster's time, counters and sums. Over all jobs that have arrived, `arrived_work` is the sum
#: of (largest share of a resource x estimated duration), `log_estimate` the sum of the logarithms
#: of the estimates. Over the jobs in the system, `weight` is the sum of 1 / duration,
#: `bounded_weight` the same with bounded durations. `used` is the share of the resources in use,
#: summed over resources (exact times only).
CLOCK = _columns(
    (
        "now",
        "num_arrived",
        "num_waiting",
        "num_backlog",
        "first_backlog",
        "num_running",
        "num_finished",
        "num_dropped",
        "num_decisions",
        "num_placed",
        "last_arrival",
        "is_over",
    ),
    ("arrived_work", "log_estimate", "weight", "bounded_weight", "used"),
)
#: How the world runs; see `PackingConfig`. `makespan_weight` is the number of jobs / the shortest
#: makespan that is possible. With `is_exact`, time goes from event to event, every
#: waiting job is visible, in order of arrival, and only a job that fits now can be placed. Else
#: time goes in steps, and jobs can be booked ahead.
RULES = _columns(
    ("is_exact", "window", "ends_early", "as_coded", "max_decisions"), ("bound", "makespan_weight")
)
#: The part of a view that is not per job; see `View`.
HEAD = _columns(
    (
        "now",
        "num_jobs",
        "num_backlog",
        "num_points",
        "num_running",
        "num_arrived",
        "since_arrival",
        "is_exact",
        "wants_profile",
    ),
    ("arrived_work", "log_estimate"),
    ("random_bits",),
)
#: A waiting job in a view. `age` is the time since its arrival, `can_start` 1 if it fits now.
VISIBLE_JOB = _columns(("slot", "estimate", "age", "can_start"), ("log_estimate",))


class SequenceTables(NamedTuple):
    """The jobs of one sequence (with a leading axis: of many); hidden from policies."""

    specs: Any  # SPEC[num_jobs], by arrival
    demand: Any  # int64[num_jobs, num_resources]
    num_jobs: Any  # int64[1]
    rules: Any  # RULES[1]


class Packing(NamedTuple):
    """The state of one cluster (with a leading axis: of many)."""

    clock: Any  # CLOCK[1]
    jobs: Any  # JOB[num_jobs]
    slots: Any  # int64[num_slots], rows of waiting jobs or NO_JOB
    backlog: Any  # int64[backlog_size], ring of rows in order of arrival
    # int64[num_jobs], rows of jobs that were placed and have not finished: in order of placing,
    # with exact times by expected finish
    running: Any
    # int64[horizon, num_resources], free units from now on, one row per step (exact times: one row)
    free: Any
    capacity: Any  # int64[num_resources]
    costs: Any  # float64[len(Cost)], accrued so far
    seed: Any  # uint64[1], seed of the run's random numbers


class Clusters(NamedTuple):
    """Many clusters; cluster k runs the sequence `sequence_rows[k]`."""

    states: Packing
    sequences: SequenceTables
    sequence_rows: Any  # int64[num_clusters]


class View(NamedTuple):
    """What a policy sees: the visible waiting jobs, and the resources that are free from now on.

    `head.random_bits` are 64 random bits, new at every decision, for policies that draw. The
    profile of free resources is filled if `head.wants_profile` is 1: `free_from[k]` units are free
    from `points[k]` until `points[k + 1]`; the last row holds for ever. Source: DeepRM, section
    3.2, without the detour over images.
    """

    head: Any  # HEAD[1]
    jobs: Any  # VISIBLE_JOB[num_slots]
    demand: Any  # int64[num_slots, num_resources]
    free: Any  # int64[num_resources], free units now
    capacity: Any  # int64[num_resources]
    points: Any  # int64[num_points]
    free_from: Any  # int64[num_points, num_resources]


def records(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return an array of zeroed records whose fields are read like columns."""
    return np.zeros(shape, dtype).view(np.recarray)


def allocate(
    count: int, num_jobs: int, num_slots: int, backlog_size: int, horizon: int, num_resources: int
) -> Packing:
    """Allocate the state of `count` clusters.

    Args:
        count: length of the leading axis.
        num_jobs: jobs of a sequence at most.
        num_slots: visible waiting jobs.
        backlog_size: further waiting jobs.
        horizon: steps that are planned ahead; 1 with exact times.
        num_resources: number of resources.
    """
    return Packing(
        records((count, 1), CLOCK),
        records((count, num_jobs), JOB),
        np.full((count, num_slots), NO_JOB, np.int64),
        np.full((count, backlog_size), NO_JOB, np.int64),
        np.full((count, num_jobs), NO_JOB, np.int64),
        np.zeros((count, horizon, num_resources), np.int64),
        np.zeros((count, num_resources), np.int64),
        np.zeros((count, len(Cost)), np.float64),
        np.zeros((count, 1), np.uint64),
    )


def allocate_view(
    count: int, num_slots: int, num_points: int, num_resources: int, wants_profile: bool = False
) -> View:
    """Allocate the views of `count` clusters, which are filled anew before each decision.

    Args:
        count: length of the leading axis.
        num_slots: visible waiting jobs.
        num_points: points of the profile.
        num_resources: number of resources.
        wants_profile: whether the profile is filled.
    """
    head = records((count, 1), HEAD)
    head["wants_profile"] = int(wants_profile)
    return View(
        head,
        records((count, num_slots), VISIBLE_JOB),
        np.zeros((count, num_slots, num_resources), np.int64),
        np.zeros((count, num_resources), np.int64),
        np.zeros((count, num_resources), np.int64),
        np.zeros((count, num_points), np.int64),
        np.zeros((count, num_points, num_resources), np.int64),
    )


def select(tables: Any, row: int) -> Any:
    """Return one cluster's tables (views)."""
    return type(tables)(*(table[row] for table in tables))


@inlined
def copy_units(source, target):  # type: ignore[no-untyped-def]
    """Set target = source."""
    for resource in range(target.shape[0]):
        target[resource] = source[resource]


@inlined
def add_units(free, units, sign):  # type: ignore[no-untyped-def]
    """Add sign x units to the free units."""
    for resource in range(free.shape[0]):
        free[resource] += sign * units[resource]


@inlined
def fits(demand, free):  # type: ignore[no-untyped-def]
    """Return whether a demand fits into the free units."""
    for resource in range(free.shape[0]):
        if free[resource] < demand[resource]:
            return False
    return True
