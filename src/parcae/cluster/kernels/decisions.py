"""How a decision is applied: executors are committed, and set off when all that were asked about are.

Source: Decima, section 5.2; the public simulator's step.
"""

from __future__ import annotations

from parcae.cluster.kernels.tables import commit, demand, pool_row
from parcae.cluster.kernels.transitions import fulfil_one, fulfil_pool, offer_larger, offer_pool
from parcae.cluster.state import ANY_CLASS, NO_EXECUTOR, NO_JOB, NO_STAGE, NOT_YET
from parcae.kernels import kernel


@kernel
def _fulfil(state):  # type: ignore[no-untyped-def]
    now, executor, source = state.now, state.now.acting_executor[0], state.now.source[0]
    now.round_id[0] += 1
    if executor == NO_EXECUTOR:
        fulfil_pool(state, source)
    elif state.sources.num_committed[source + state.executors.executor_class[executor]] > 0:
        fulfil_one(state, executor, source)


@kernel
def _commit_class(state, stage, executor_class, count):  # type: ignore[no-untyped-def]
    now = state.now
    source_job = now.source_job[0]
    if now.source[0] == pool_row(state, NO_JOB):
        source_job = NO_JOB
    commit(state, now.source[0] + executor_class, source_job, stage, count)
    state.source_count[executor_class] -= count
    now.num_source[0] -= count


@kernel
def _commit_fitting(state, stage, limit):  # type: ignore[no-untyped-def]
    """Commit up to `limit` executors of the classes that fit, the smallest memory first."""
    given, tried = 0, 0
    while given < limit:
        best = ANY_CLASS
        for executor_class in range(state.classes.shape[0]):
            free = state.source_count[executor_class] > 0 and not (tried >> executor_class) & 1
            fits = (state.stages.fits[stage] >> executor_class) & 1
            smaller = best == ANY_CLASS or state.classes.memory[executor_class] < state.classes.memory[best]
            if free and fits and smaller:
                best = executor_class
        if best == ANY_CLASS:
            return given
        count = min(limit - given, state.source_count[best])
        _commit_class(state, stage, best, count)
        given += count
        tried |= 1 << best
    return given


@kernel
def _hold(state, stage, hold_ms):  # type: ignore[no-untyped-def]
    """Book an idle slot before a stage: the source's executors are asked about again when it ends."""
    now, job, row = state.now, state.now.source_job[0], state.now.num_holds[0]
    if job != NO_JOB and (state.jobs.completion_ms[job] != NOT_YET or state.jobs.num_unstarted[job] == 0):
        job = NO_JOB
    for hold in range(row):
        if state.holds.stage[hold] == stage:
            row = hold
    now.num_holds[0] = max(now.num_holds[0], row + 1)
    state.holds.job[row], state.holds.stage[row] = job, stage
    state.holds.end_ms[row] = state.stages.hold_until_ms[stage] = now.clock_ms[0] + hold_ms


@kernel
def hold_ended(state, row):  # type: ignore[no-untyped-def]
    """An idle slot is over: ask again about the pool that its executors wait in."""
    job, last = state.holds.job[row], state.now.num_holds[0] - 1
    state.stages.hold_until_ms[state.holds.stage[row]] = NOT_YET
    state.holds[row] = state.holds[last]
    state.now.num_holds[0] = last
    if job != NO_JOB and state.jobs.completion_ms[job] != NOT_YET:
        job = NO_JOB
    offer_pool(state, job)


@kernel
def apply_decision(state, stage, limit, executor_class, hold_ms):  # type: ignore[no-untyped-def]
    """Carry out a decision: commit up to `limit` of the source's executors to `stage`; the rest stay in the round.

    NO_STAGE lets all of them idle; so does `hold_ms > 0`, which asks again after that time. When all are committed, the
    executors that are free now set off. Returns how many were committed, or -1 if the decision cannot be carried out (a
    stage that is not schedulable, a limit below 1, a class that does not fit or has no executor left).
    """
    now = state.now
    now.num_decisions[0] += 1
    count = now.num_source[0]
    if stage == NO_STAGE or hold_ms > 0:
        if stage != NO_STAGE:
            _hold(state, stage, hold_ms)
        for c in range(state.classes.shape[0]):
            if state.source_count[c] > 0:
                _commit_class(state, NO_STAGE, c, state.source_count[c])
    else:
        state.stages.selected_round[stage] = now.round_id[0]
        job, is_outside = state.stages.job[stage], now.source_job[0] != state.stages.job[stage]
        count = min(demand(state, stage), limit, now.num_source[0])
        if executor_class == ANY_CLASS:
            count = _commit_fitting(state, stage, count)
        elif (state.stages.fits[stage] >> executor_class) & 1:
            count = min(count, state.source_count[executor_class])
            if count > 0:
                _commit_class(state, stage, executor_class, count)
        else:
            count = 0
        if count < 1:
            return -1
        if is_outside:
            state.jobs.num_granted[job] += count
    if now.num_source[0] == 0:
        was_global = now.source[0] == pool_row(state, NO_JOB) and now.acting_executor[0] == NO_EXECUTOR
        _fulfil(state)
        if not was_global:
            offer_larger(state)
    return count
