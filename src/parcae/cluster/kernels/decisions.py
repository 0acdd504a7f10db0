"""Applying decisions in the world of executors.

A decision commits offered executors to a stage. When all offered executors are committed, those
that are free start or move.

Source: Decima, section 5.2; the public simulator's step.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.executors import (
    fulfil_one,
    fulfil_pool,
    offer_all,
    offer_larger,
    offer_next,
)
from parcae.cluster.kernels.tables import commit, demand, pool_row
from parcae.cluster.state import ANY_CLASS, NO_EXECUTOR, NO_JOB, NO_STAGE, NOT_YET


@inlined
def _fulfil(state):  # type: ignore[no-untyped-def]
    """Close the round and carry out the commitments of the executors that are free now."""
    now = state.now
    executor = state.now.acting_executor[0]
    source = state.now.source[0]
    now.round_id[0] += 1
    if executor == NO_EXECUTOR:
        fulfil_pool(state, source)
    elif state.sources.num_committed[source + state.executors.executor_class[executor]] > 0:
        fulfil_one(state, executor, source)


@kernel
def _commit_class(state, stage, executor_class, count):  # type: ignore[no-untyped-def]
    now = state.now
    source_job = now.source_job[0]
    # The job completed during the round: its executors belong to the global pool now.
    if now.source[0] == pool_row(state, NO_JOB):
        source_job = NO_JOB
    commit(state, now.source[0] + executor_class, source_job, stage, count)
    state.source_count[executor_class] -= count
    now.num_source[0] -= count


@inlined
def _commit_fitting(state, stage, destination, limit):  # type: ignore[no-untyped-def]
    """Commit up to `limit` offered executors that fit `stage` to `destination`.

    Classes with the smallest memory are used first. Returns the number of executors.
    """
    given = 0
    tried = 0
    while given < limit:
        best = ANY_CLASS
        for executor_class in range(state.classes.shape[0]):
            free = state.source_count[executor_class] > 0 and not (tried >> executor_class) & 1
            fits = (state.stages.fits[stage] >> executor_class) & 1
            smaller = (
                best == ANY_CLASS
                or state.classes.memory[executor_class] < state.classes.memory[best]
            )
            if free and fits and smaller:
                best = executor_class
        if best == ANY_CLASS:
            return given
        count = min(limit - given, state.source_count[best])
        _commit_class(state, destination, best, count)
        given += count
        tried |= 1 << best
    return given


@inlined
def _commit_to(state, stage, destination, limit, executor_class):  # type: ignore[no-untyped-def]
    """Commit up to `limit` offered executors that fit `stage` to `destination`.

    They are of the given class, or of any. Returns their number. `destination` is the stage, or
    NO_STAGE to let them wait for it.
    """
    count = min(demand(state, stage), limit, state.now.num_source[0])
    if executor_class == ANY_CLASS:
        return _commit_fitting(state, stage, destination, count)
    if (
        not 0 <= executor_class < state.classes.shape[0]
        or not (state.stages.fits[stage] >> executor_class) & 1
    ):
        return 0
    count = min(count, state.source_count[executor_class])
    if count > 0:
        _commit_class(state, destination, executor_class, count)
    return count


@kernel
def _end_hold(state, stage):  # type: ignore[no-untyped-def]
    """End the stage's idle slot, if it is running."""
    for row in range(state.now.num_holds[0]):
        if state.holds.stage[row] == stage:
            state.now.num_holds[0] -= 1
            # The list has no order: fill the gap with the last row.
            state.holds[row] = state.holds[state.now.num_holds[0]]
            state.stages.hold_until_ms[stage] = state.now.clock_ms[0]
            return


@kernel
def _hold(state, stage, limit, executor_class, hold_ms):  # type: ignore[no-untyped-def]
    """Begin the stage's idle slot, or change its end, and let up to `limit` executors wait.

    Of executors bound to a stage, only the one that is free now waits; the others are offered when
    they are free. Returns the number of executors, or -1 if the stage's only slot is over.
    """
    # Deviation: Duan & Wu, section IV-B does not change the slot of the stage that is the next one
    # to be processed. Here every decision may change or end it, because stages have no list: which
    # one is next is known only when it gets executors. Stages do not starve, since each has one
    # slot, which the policies do not let last longer than the stage.
    now = state.now
    stages = state.stages
    clock_ms = state.now.clock_ms[0]
    if stages.hold_from_ms[stage] == NOT_YET:
        stages.hold_from_ms[stage] = clock_ms
    elif stages.hold_until_ms[stage] <= clock_ms:
        return -1
    _end_hold(state, stage)
    row = now.num_holds[0]
    state.holds.stage[row] = stage
    state.holds.end_ms[row] = stages.hold_until_ms[stage] = clock_ms + hold_ms
    now.num_holds[0] = row + 1
    if now.acting_executor[0] == NO_EXECUTOR:
        return _commit_to(state, stage, NO_STAGE, limit, executor_class)
    count = _commit_to(
        state, stage, NO_STAGE, 1, state.executors.executor_class[now.acting_executor[0]]
    )
    now.num_source[0] = 0
    state.source_count[:] = 0
    return count


@kernel
def hold_ended(state, row):  # type: ignore[no-untyped-def]
    """Handle the end of an idle slot: offer all idle executors."""
    _end_hold(state, state.holds.stage[row])
    offer_all(state)


@kernel
def _idle(state):  # type: ignore[no-untyped-def]
    """Commit all offered executors to idle. Returns their number."""
    count = state.now.num_source[0]
    for executor_class in range(state.classes.shape[0]):
        if state.source_count[executor_class] > 0:
            _commit_class(state, NO_STAGE, executor_class, state.source_count[executor_class])
    return count


@inlined
def _give(state, stage, limit, executor_class):  # type: ignore[no-untyped-def]
    """Commit executors to the stage, which ends its idle slot. Returns their number."""
    is_outside = state.now.source_job[0] != state.stages.job[stage]
    if state.now.num_holds[0] > 0:
        _end_hold(state, stage)
    if executor_class == ANY_CLASS:
        state.stages.selected_round[stage] = state.now.round_id[0]
    count = _commit_to(state, stage, stage, limit, executor_class)
    if is_outside and count > 0:
        state.jobs.num_granted[state.stages.job[stage]] += count
    return count


@inlined
def apply_decision(state, stage, limit, executor_class, hold_ms):  # type: ignore[no-untyped-def]
    """Apply a decision: commit up to `limit` of the offered executors to `stage`. Returns the
    number of committed executors, or -1 if the decision cannot be carried out: a limit below 1, a
    class that does not fit or has no offered executor left, a second idle slot.

    Executors that are not committed stay offered, and the policy decides again. When all are
    committed, those that are free now start or move, and the next round may open.

    - NO_STAGE lets all offered executors idle.
    - With `hold_ms > 0` they wait for the stage in its idle slot (at most one per stage). All idle
      executors are offered again when it ends.
    - A stage that got executors of any class, or that executors wait for, cannot be chosen again in
      this round. A stage that got executors of one given class can get those of others.
    """
    now = state.now
    now.num_decisions[0] += 1
    if stage == NO_STAGE:
        count = _idle(state)
    elif hold_ms > 0:
        state.stages.selected_round[stage] = now.round_id[0]
        count = _hold(state, stage, limit, executor_class, hold_ms)
    else:
        count = _give(state, stage, limit, executor_class)
    if count < 1:
        return -1
    if now.num_source[0] == 0:
        was_global = (
            now.source[0] == pool_row(state, NO_JOB) and now.acting_executor[0] == NO_EXECUTOR
        )
        _fulfil(state)
        if not was_global:
            offer_larger(state)
        offer_next(state)
    return count
