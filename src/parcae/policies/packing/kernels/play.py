"""A hand-made policy decides, once or a whole run in one call."""

from __future__ import annotations

import numpy as np

from parcae.kernels import inlined, kernel, unit
from parcae.packing.kernels.transitions import begin, take
from parcae.packing.kernels.views import cluster, sequence_of, show, view_of
from parcae.packing.layout import VOID
from parcae.policies.packing.kernels.backfilling import conservative, easy, first_come
from parcae.policies.packing.kernels.scores import best_score, withholding
from parcae.policies.packing.layout import PackingKind

_RANDOM = int(PackingKind.RANDOM)
_FCFS = int(PackingKind.FCFS)
_EASY = int(PackingKind.EASY)
_CONSERVATIVE = int(PackingKind.CONSERVATIVE)
_WITHHOLD = int(PackingKind.WITHHOLD)


@inlined
def _random(view, is_greedy):  # type: ignore[no-untyped-def]
    """Any slot or VOID, all alike; greedy: any job that can start now."""
    luck = unit(view.head.luck[0])
    if not is_greedy:
        slot = np.int64(luck * (view.jobs.shape[0] + 1))
        return VOID if slot == view.jobs.shape[0] else slot
    count = 0
    for row in range(view.head.num_jobs[0]):
        count += view.jobs.can_start[row]
    left = np.int64(luck * count)
    for row in range(view.head.num_jobs[0]):
        if view.jobs.can_start[row] == 1:
            if left == 0:
                return int(view.jobs.slot[row])
            left -= 1
    return VOID


@inlined
def choose(view, plan, kind, params):  # type: ignore[no-untyped-def]
    """The slot whose job to place, or VOID."""
    if kind == _RANDOM:
        return _random(view, params[0] > 0)
    if kind == _FCFS:
        return first_come(view)
    if kind == _EASY:
        return easy(view, params[0] > 0)
    if kind == _CONSERVATIVE:
        return conservative(view, plan, np.int64(params[0]))
    if kind == _WITHHOLD:
        return withholding(view, params)
    return best_score(view, kind, params)


@kernel
def decide(view, plan, kind, params):  # type: ignore[no-untyped-def]
    """The slot whose job to place, or VOID; for callers outside."""
    return choose(view, plan, kind, params)


@kernel
def play(state, asked, view, plan, kind, params):  # type: ignore[no-untyped-def]
    """Run from start to end."""
    begin(state, asked)
    while state.clock.is_over[0] == 0:
        show(state, asked, view)
        take(state, asked, choose(view, plan, kind, params))


@kernel
def play_many(states, asked, sequence, views, plan, kind, params, first, last):  # type: ignore[no-untyped-def]
    """Run clusters first..last-1; they share one plan, for each is run alone."""
    for row in range(first, last):
        play(
            cluster(states, row),
            sequence_of(asked, sequence[row]),
            view_of(views, row),
            plan,
            kind,
            params,
        )
