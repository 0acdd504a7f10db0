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
from parcae.base.compiled.tables import FieldSpec, allocate_tables, doubles, integers, records

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
    whole: Sequence[str], real: Sequence[str] = (), bits: Sequence[str] = ()
) -> np.dtype[Any]:
    """Return the type of a record of int64, float64 and uint64."""
    kinds = [*["i8"] * len(whole), *["f8"] * len(real), *["u8"] * len(bits)]
    return np.dtype(list(zip((*whole, *real, *bits), kinds, strict=True)), align=True)


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
    """The jobs of one sequence (with a leading axis: of many), by arrival; hidden from policies."""

    specs: Any = records(SPEC, "jobs")
    demand: Any = integers("jobs", "resources")
    num_jobs: Any = integers(1)
    rules: Any = records(RULES, 1)


class Packing(NamedTuple):
    """The state of one cluster (with a leading axis: of many).

    With exact times a cluster has a slot for each job, no backlog, and a horizon of 1.
    """

    clock: Any = records(CLOCK, 1)
    jobs: Any = records(JOB, "jobs")
    slots: Any = integers("slots", fill=NO_JOB)  # rows of waiting jobs or NO_JOB
    backlog: Any = integers("backlog", fill=NO_JOB)  # ring of rows in order of arrival
    # Rows of jobs that were placed and have not finished: in order of placing, with exact times by
    # expected finish.
    running: Any = integers("jobs", fill=NO_JOB)
    free: Any = integers("horizon", "resources")  # free units from now on, one row per step
    capacity: Any = integers("resources")
    costs: Any = doubles(len(Cost))  # accrued so far
    seed: Any = FieldSpec("u8", (1,))  # of the run's random numbers


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

    head: Any = records(HEAD, 1)
    jobs: Any = records(VISIBLE_JOB, "slots")
    demand: Any = integers("slots", "resources")
    free: Any = integers("resources")  # free units now
    capacity: Any = integers("resources")
    points: Any = integers("points")
    free_from: Any = integers("points", "resources")


def allocate_view(count: int, wants_profile: bool = False, **sizes: int) -> View:
    """Allocate the views of clusters, which are filled anew before each decision."""
    views = allocate_tables(View, count, **sizes)
    views.head["wants_profile"] = int(wants_profile)
    return views


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


@inlined
def largest_share(units, capacity):  # type: ignore[no-untyped-def]
    """Return the largest share of a resource that units of each are."""
    share = 0.0
    for resource in range(capacity.shape[0]):
        share = max(share, units[resource] / capacity[resource])
    return share
