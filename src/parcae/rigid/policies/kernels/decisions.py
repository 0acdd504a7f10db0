"""Compiled decisions of the packing heuristics.

A heuristic of a score starts the waiting job with the best score, as long as any job fits.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from parcae.base.compiled.kernels import inlined, kernel, unit
from parcae.cluster.kernels.policies import decide
from parcae.rigid.layout import VOID
from parcae.rigid.policies.kernels.backfilling import conservative, easy, first_come
from parcae.rigid.policies.kernels.scores import (
    ReservationPlan,
    dot_product,
    largest_share,
    withholding,
)


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
        return -estimate * largest_share(view, row)
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
