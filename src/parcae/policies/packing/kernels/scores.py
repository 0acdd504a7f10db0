"""Policies that start the waiting job of the best score, as long as any fits; all see a `View` alone."""

from __future__ import annotations

import math

from parcae.kernels import inlined
from parcae.packing.layout import VOID
from parcae.policies.packing.layout import PackingKind, WithholdParameter

_SJF = int(PackingKind.SJF)
_PACKER = int(PackingKind.PACKER)
_TETRIS = int(PackingKind.TETRIS)
_AREA = int(PackingKind.AREA)
_ALIGNMENT = int(WithholdParameter.ALIGNMENT)
_AGE = int(WithholdParameter.AGE)
_RESERVE = int(WithholdParameter.RESERVE)
_STEEPNESS = int(WithholdParameter.STEEPNESS)
_LENGTH = int(WithholdParameter.LENGTH)
_PATIENCE = int(WithholdParameter.PATIENCE)
_CROWD = int(WithholdParameter.CROWD)
_PAUSE = int(WithholdParameter.PAUSE)
#: Alignment counts as in a cluster of 10 units a resource, which is DeepRM's.
_UNITS = 100.0


@inlined
def alignment(view, row):  # type: ignore[no-untyped-def]
    """Dot product of what is free and what is asked, as shares of the capacities (Tetris; DeepRM, section 4.1)."""
    total = 0.0
    for resource in range(view.free.shape[0]):
        capacity = view.capacity[resource]
        total += view.free[resource] * view.demand[row, resource] * (_UNITS / (capacity * capacity))
    return total


@inlined
def dot_product(view, row):  # type: ignore[no-untyped-def]
    """Of free and asked units, as in DeepRM's code; with exact times `alignment`, for units of logs differ widely."""
    if view.head.is_exact[0] == 1:
        return alignment(view, row)
    total = 0.0
    for resource in range(view.free.shape[0]):
        total += float(view.free[resource] * view.demand[row, resource])
    return total


@inlined
def largest_share(view, row):  # type: ignore[no-untyped-def]
    """The largest share of a resource that a job asks for."""
    share = 0.0
    for resource in range(view.free.shape[0]):
        share = max(share, view.demand[row, resource] / view.capacity[resource])
    return share


@inlined
def score(view, row, kind, params):  # type: ignore[no-untyped-def]
    """The larger, the sooner."""
    told = view.jobs.told[row]
    if kind == _SJF:
        return 1.0 / told
    if kind == _PACKER:
        return dot_product(view, row)
    if kind == _AREA:
        return -told * largest_share(view, row)
    return float(params[0] * dot_product(view, row) + (1.0 - params[0]) / told)


@inlined
def best_score(view, kind, params):  # type: ignore[no-untyped-def]
    """Slot of the best job that can start now; the first of equals; VOID if there is none."""
    best = VOID
    best_score = 0.0
    for row in range(view.head.num_jobs[0]):
        if view.jobs.can_start[row] == 1:
            own = score(view, row, kind, params)
            if best == VOID or own > best_score:
                best = view.jobs.slot[row]
                best_score = own
    return best


@inlined
def reserve(view, row, params, waiting):  # type: ignore[no-untyped-def]
    """Share of every resource that should stay free when the job starts (see `withholding`)."""
    need = params[_RESERVE] / (
        1.0 + math.exp(-params[_STEEPNESS] * (view.jobs.log_told[row] - params[_LENGTH]))
    )
    return (
        need
        - params[_PATIENCE] * math.log1p(view.jobs.age[row] / view.jobs.told[row])
        - params[_CROWD] * waiting
    )


@inlined
def preference(view, row, params):  # type: ignore[no-untyped-def]
    """The withholding rule's score of a job; the larger, the sooner."""
    patience = params[_AGE] * math.log1p(view.jobs.age[row] / view.jobs.told[row])
    return params[_ALIGNMENT] * alignment(view, row) / _UNITS + patience - view.jobs.log_told[row]


@inlined
def withholding(view, params):  # type: ignore[no-untyped-def]
    """Shortest first, with alignment and age; a long job waits while starting it would leave too little free.

    A job is withheld while the least share of a resource that would stay free is below its reserve
        RESERVE / (1 + exp(-STEEPNESS (log duration - LENGTH))) - PATIENCE log(1 + age / duration) - CROWD log(1 + jobs waiting);
    an empty cluster is left empty for PAUSE steps after the last arrival at most.

    Source: what DeepRM was seen to learn (section 4.3), as a rule.
    """
    best = VOID
    best_score = 0.0
    waiting = crowd(view)
    is_forced = must_start(view, params[_PAUSE])
    for row in range(view.head.num_jobs[0]):
        if view.jobs.can_start[row] == 1 and (
            is_forced or left(view, row) >= reserve(view, row, params, waiting)
        ):
            own = preference(view, row, params)
            if best == VOID or own > best_score:
                best = view.jobs.slot[row]
                best_score = own
    return best


@inlined
def must_start(view, pause):  # type: ignore[no-untyped-def]
    """Whether nobody may hold in this empty cluster any more; with exact times at once, for nothing else need ever happen."""
    return view.head.num_running[0] == 0 and (
        view.head.is_exact[0] == 1 or view.head.since_arrival[0] >= pause
    )


@inlined
def crowd(view):  # type: ignore[no-untyped-def]
    """log(1 + jobs waiting)"""
    return math.log1p(view.head.num_jobs[0] + view.head.num_backlog[0])


@inlined
def left(view, row):  # type: ignore[no-untyped-def]
    """Least share of a resource that stays free if the job starts."""
    share = 1.0
    for resource in range(view.free.shape[0]):
        share = min(
            share, (view.free[resource] - view.demand[row, resource]) / view.capacity[resource]
        )
    return share
