"""What packing heuristics know about a job: alignment, shares, and the withholding rule."""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, unit
from parcae.base.compiled.tables import integers
from parcae.cluster.kernels.policies import decide
from parcae.rigid.layout import VOID, largest_share
from parcae.rigid.policies.backfilling import conservative, easy, first_come


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

    `free_from[k]` units are free from `points[k]` until `points[k + 1]`; the last row holds for
    ever.
    """

    points: Any = integers("points")
    free_from: Any = integers("points", "resources")
    num_points: Any = integers(1)


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


class PackingKind(IntEnum):
    """A packing heuristic; the comments name its parameters."""

    SJF = 0  # shortest job first
    PACKER = 1  # best alignment of free resources and demand
    TETRIS = 2  # knob: weight of alignment, 0 to 1; 1 - knob is the weight of 1 / duration
    RANDOM = 3  # is_greedy: only jobs that can start now
    FCFS = 4  # first come, first served, without overtaking
    EASY = 5  # two Orders: of the jobs, and of backfilling
    CONSERVATIVE = 6  # depth: number of oldest jobs that are considered
    WITHHOLD = 7  # the WithholdParameter
    AREA = 8  # least duration x share of the resources first


@inlined
def score(view, row, kind, params):  # type: ignore[no-untyped-def]
    """Return a job's score; the job with the largest score starts first."""
    estimate = view.jobs.estimate[row]
    if kind == PackingKind.SJF:
        return 1.0 / estimate
    if kind == PackingKind.PACKER:
        return dot_product(view, row)
    if kind == PackingKind.AREA:
        return -estimate * largest_share(view.demand[row], view.capacity)
    return float(params[0] * dot_product(view, row) + (1.0 - params[0]) / estimate)


@inlined
def best_score(view, kind, params):  # type: ignore[no-untyped-def]
    """Return the slot of the job with the best score that can start now, or VOID.

    Of equal scores the first row wins.
    """
    best = VOID
    best_score = 0.0
    for row in range(view.head[0].num_jobs):
        if view.jobs.can_start[row] == 1:
            job_score = score(view, row, kind, params)
            if best == VOID or job_score > best_score:
                best = view.jobs.slot[row]
                best_score = job_score
    return best


@inlined
def _random(view, is_greedy):  # type: ignore[no-untyped-def]
    """Return a random slot or VOID, with equal probability.

    If `is_greedy`, return a random job that can start now.
    """
    head = view.head[0]
    uniform_draw = unit(head.random_bits)
    if not is_greedy:
        # With exact times, there are as many slots as waiting jobs.
        num_slots = view.jobs.shape[0]
        if head.is_exact == 1:
            num_slots = head.num_jobs
        slot = np.int64(uniform_draw * (num_slots + 1))
        return VOID if slot == num_slots else slot
    count = 0
    for row in range(head.num_jobs):
        count += view.jobs.can_start[row]
    remaining = np.int64(uniform_draw * count)
    for row in range(head.num_jobs):
        if view.jobs.can_start[row] == 1:
            if remaining == 0:
                return int(view.jobs.slot[row])
            remaining -= 1
    return VOID


class HandMade(NamedTuple):
    """A heuristic as a policy."""

    plan: ReservationPlan
    kind: Any  # int64, PackingKind
    params: Any  # float64[...], see PackingKind


@decide.of(HandMade)
@kernel
def decide_by_hand(view, policy):  # type: ignore[no-untyped-def]
    """Return the slot whose job to place, or VOID."""
    plan, kind, params = policy
    if kind == PackingKind.RANDOM:
        return _random(view, params[0] > 0)
    if kind == PackingKind.FCFS:
        return first_come(view)
    if kind == PackingKind.EASY:
        return easy(view, np.int64(params[0]), np.int64(params[1]))
    if kind == PackingKind.CONSERVATIVE:
        return conservative(view, plan, np.int64(params[0]))
    if kind == PackingKind.WITHHOLD:
        return withholding(view, params)
    return best_score(view, kind, params)
