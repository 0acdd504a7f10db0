"""What packing heuristics know about a job: alignment, shares, and the withholding rule."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined
from parcae.rigid.layout import VOID


class WithholdParameter(IntEnum):
    """Parameters of the withholding rule (see `kernels.scores.withholding`)."""

    ALIGNMENT = 0  # weight of alignment in a job's score
    AGE = 1  # weight of log(1 + age / duration) in a job's score
    RESERVE = 2  # share that the longest jobs must leave free
    STEEPNESS = 3  # how fast the reserve grows with the log duration
    LENGTH = 4  # log duration at which half the reserve is required
    PATIENCE = 5  # how fast the reserve shrinks with log(1 + age / duration)
    CROWD = 6  # how fast the reserve shrinks with log(1 + jobs waiting)
    PAUSE = 7  # steps for which an empty cluster may stay empty after the last arrival


#: Steps after the last arrival for which a network may leave an empty cluster empty. It does not
#: apply to DeepRM, which may always do so.
LONGEST_PAUSE = 10


class ReservationPlan(NamedTuple):
    """Buffers for a profile of free resources with reservations.

    With a leading axis, they are for many clusters.

    `free_from[k]` units are free from `points[k]` until `points[k + 1]`; the last row holds for
    ever.
    """

    points: Any  # int64[num_points]
    free_from: Any  # int64[num_points, num_resources]
    num_points: Any  # int64[1]


def allocate_plan(count: int, num_points: int, num_resources: int) -> ReservationPlan:
    """Allocate plans for `count` clusters."""
    points = np.zeros((count, num_points), np.int64)
    free_from = np.zeros((count, num_points, num_resources), np.int64)
    return ReservationPlan(points, free_from, np.zeros((count, 1), np.int64))


#: Alignment is scaled to a cluster with 10 units of each resource, like DeepRM's.
_UNITS = 100.0


@inlined
def alignment(view, row):  # type: ignore[no-untyped-def]
    """Return the dot product of free resources and demand, as shares of the capacities.

    Source: Tetris; DeepRM, section 4.1.
    """
    total = 0.0
    for resource in range(view.free.shape[0]):
        capacity = float(view.capacity[resource])
        total += _product(view, row, resource) * (_UNITS / (capacity * capacity))
    return total


@inlined
def _product(view, row, resource):  # type: ignore[no-untyped-def]
    """Return free units x demanded units of a resource, which may exceed the largest int64."""
    return float(view.free[resource]) * float(view.demand[row, resource])


@inlined
def dot_product(view, row):  # type: ignore[no-untyped-def]
    """Return the dot product of free and demanded units, as in DeepRM's code.

    With exact times it is `alignment`, because the units of a log's resources differ widely.
    """
    if view.head[0].is_exact == 1:
        return alignment(view, row)
    total = 0.0
    for resource in range(view.free.shape[0]):
        total += _product(view, row, resource)
    return total


@inlined
def largest_share(view, row):  # type: ignore[no-untyped-def]
    """Return the largest share of a resource that a job demands."""
    share = 0.0
    for resource in range(view.free.shape[0]):
        share = max(share, view.demand[row, resource] / view.capacity[resource])
    return share


@inlined
def reserve(view, row, params, waiting):  # type: ignore[no-untyped-def]
    """Return the share of every resource that should stay free when the job starts.

    See `withholding`.
    """
    need = params[WithholdParameter.RESERVE] / (
        1.0
        + math.exp(
            -params[WithholdParameter.STEEPNESS]
            * (view.jobs.log_estimate[row] - params[WithholdParameter.LENGTH])
        )
    )
    return (
        need
        - params[WithholdParameter.PATIENCE]
        * math.log1p(view.jobs.age[row] / view.jobs.estimate[row])
        - params[WithholdParameter.CROWD] * waiting
    )


@inlined
def preference(view, row, params):  # type: ignore[no-untyped-def]
    """Return the withholding rule's score of a job; the job with the largest score starts first."""
    patience = params[WithholdParameter.AGE] * math.log1p(
        view.jobs.age[row] / view.jobs.estimate[row]
    )
    return (
        params[WithholdParameter.ALIGNMENT] * alignment(view, row) / _UNITS
        + patience
        - view.jobs.log_estimate[row]
    )


@inlined
def withholding(view, params):  # type: ignore[no-untyped-def]
    """Return the slot that the withholding rule chooses, or VOID.

    Short jobs go first, corrected by alignment and age. A long job waits while starting it would
    leave too little free. A job is withheld while the least share of a resource that would stay
    free is below its reserve

        RESERVE / (1 + exp(-STEEPNESS (log duration - LENGTH)))
            - PATIENCE log(1 + age / duration) - CROWD log(1 + jobs waiting)

    An empty cluster stays empty for at most PAUSE steps after the last arrival.

    Source: the behaviour that DeepRM was observed to learn (section 4.3), as a rule.
    """
    best = VOID
    best_score = 0.0
    waiting = log_num_waiting(view)
    is_forced = must_start(view, params[WithholdParameter.PAUSE])
    for row in range(view.head[0].num_jobs):
        if view.jobs.can_start[row] == 1 and (
            is_forced or free_after_start(view, row) >= reserve(view, row, params, waiting)
        ):
            job_score = preference(view, row, params)
            if best == VOID or job_score > best_score:
                best = view.jobs.slot[row]
                best_score = job_score
    return best


@inlined
def must_start(view, pause):  # type: ignore[no-untyped-def]
    """Return whether the cluster is empty and no more time may pass without starting a job.

    With exact times this holds at once, because no further event need ever happen.
    """
    head = view.head[0]
    return head.num_running == 0 and (head.is_exact == 1 or head.since_arrival >= pause)


@inlined
def log_num_waiting(view):  # type: ignore[no-untyped-def]
    """Return log(1 + jobs waiting)."""
    head = view.head[0]
    return math.log1p(head.num_jobs + head.num_backlog)


@inlined
def free_after_start(view, row):  # type: ignore[no-untyped-def]
    """Return the least share of a resource that stays free if the job starts."""
    share = 1.0
    for resource in range(view.free.shape[0]):
        share = min(
            share, (view.free[resource] - view.demand[row, resource]) / view.capacity[resource]
        )
    return share
