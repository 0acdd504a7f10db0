"""The tables of the packing world; with one more leading axis, those of many clusters."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

#: No job, no slot; a decision of VOID lets time pass.
NO_JOB = -1
VOID = -1
NOT_YET = -1


class Cost(IntEnum):
    """What accrues while time passes (DeepRM, section 3.4); each job's or step's share of an objective, less is better."""

    SLOWDOWN = 0  # sum over jobs in the system of 1 / duration
    BOUNDED_SLOWDOWN = 1  # the same with durations of at least `bound`
    COMPLETION = 2  # jobs in the system
    UTILIZATION = 3  # minus the share of the resources in use, summed over resources
    MAKESPAN = 4  # 1 while any job is unfinished


#: What a sequence asks for; `told` is what the scheduler is told of `duration`, `log_told` its logarithm.
SPEC = np.dtype(
    [("arrival", np.int64), ("told", np.int64), ("duration", np.int64), ("log_told", np.float64)],
    align=True,
)
#: start and finish of each job, NOT_YET until known; `expected` is the finish as the scheduler expects it.
JOB = np.dtype(
    [("start", np.int64), ("finish", np.int64), ("expected", np.int64), ("is_dropped", np.int64)],
    align=True,
)
#: `arrived_work`: of all jobs so far, the largest share of a resource x told duration; `log_told`: sum of their log durations.
CLOCK = np.dtype(
    [
        ("now", np.int64),
        ("num_arrived", np.int64),
        ("num_waiting", np.int64),
        ("num_backlog", np.int64),
        ("first_backlog", np.int64),
        ("num_running", np.int64),
        ("num_finished", np.int64),
        ("num_dropped", np.int64),
        ("num_decisions", np.int64),
        ("num_placed", np.int64),
        ("last_arrival", np.int64),
        ("arrived_work", np.float64),
        ("log_told", np.float64),
        ("weight", np.float64),
        ("bounded_weight", np.float64),
        ("used", np.float64),
        ("is_over", np.int64),
    ],
    align=True,
)
#: How the world runs. `is_exact`: time goes from event to event, every waiting job is visible, in order of arrival, and only
#: what fits now can be placed; else time goes in steps, and jobs can be booked ahead. `window`: steps that a run lasts at least.
#: `ends_early`: ends with the window, whatever is unfinished. `as_coded`: the released code's quirks (see `config`).
RULES = np.dtype(
    [
        ("is_exact", np.int64),
        ("window", np.int64),
        ("ends_early", np.int64),
        ("as_coded", np.int64),
        ("bound", np.float64),
        ("max_decisions", np.int64),
    ],
    align=True,
)
HEAD = np.dtype(
    [
        ("now", np.int64),
        ("num_jobs", np.int64),
        ("num_backlog", np.int64),
        ("num_points", np.int64),
        ("num_running", np.int64),
        ("num_arrived", np.int64),
        ("arrived_work", np.float64),
        ("log_told", np.float64),
        ("since_arrival", np.int64),
        ("luck", np.uint64),
        ("is_exact", np.int64),
        ("wants_profile", np.int64),
    ],
    align=True,
)
SEEN = np.dtype(
    [
        ("slot", np.int64),
        ("told", np.int64),
        ("age", np.int64),
        ("can_start", np.int64),
        ("log_told", np.float64),
    ],
    align=True,
)


class Asked(NamedTuple):
    """The jobs of one sequence (with a leading axis: of many); a policy never sees it."""

    specs: Any  # SPEC[num_jobs], by arrival
    demand: Any  # int64[num_jobs, num_resources]
    num_jobs: Any  # int64[1]
    rules: Any  # RULES[1]


class Packing(NamedTuple):
    """One cluster (with a leading axis: many)."""

    clock: Any  # CLOCK[1]
    jobs: Any  # JOB[num_jobs]
    slots: Any  # int64[num_slots], rows of waiting jobs or NO_JOB
    backlog: Any  # int64[backlog_size], ring of rows in order of arrival
    running: Any  # int64[num_jobs], rows of jobs that were placed and have not finished; exact: by expected finish
    free: (
        Any  # int64[horizon, num_resources], units free from now on, a row a step (exact: one row)
    )
    capacity: Any  # int64[num_resources]
    costs: Any  # float64[len(Cost)], accrued so far
    luck: Any  # uint64[1], seed of the run's own random numbers


class View(NamedTuple):
    """What a policy sees: the waiting jobs that it may choose from, and what is free from now on.

    `head.luck` are 64 random bits, fresh at every decision, for policies that draw.
    The profile (`wants_profile`) says how many units are free from `points[k]` on, until `points[k + 1]`; the last
    holds for ever. Source: DeepRM, section 3.2, without the detour over images.
    """

    head: Any  # HEAD[1]
    jobs: Any  # SEEN[num_slots]
    demand: Any  # int64[num_slots, num_resources]
    free: Any  # int64[num_resources], now
    capacity: Any  # int64[num_resources]
    points: Any  # int64[num_points]
    free_from: Any  # int64[num_points, num_resources]


def records(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Records whose fields read like columns."""
    return np.zeros(shape, dtype).view(np.recarray)


def allocate(
    count: int, num_jobs: int, num_slots: int, backlog_size: int, horizon: int, num_resources: int
) -> Packing:
    """Tables of `count` clusters."""
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
    """Views of `count` clusters; they hold nothing between decisions."""
    head = records((count, 1), HEAD)
    head["wants_profile"] = int(wants_profile)
    return View(
        head,
        records((count, num_slots), SEEN),
        np.zeros((count, num_slots, num_resources), np.int64),
        np.zeros((count, num_resources), np.int64),
        np.zeros((count, num_resources), np.int64),
        np.zeros((count, num_points), np.int64),
        np.zeros((count, num_points, num_resources), np.int64),
    )


def select(tables: Any, row: int) -> Any:
    """One cluster's tables (views)."""
    return type(tables)(*(table[row] for table in tables))
