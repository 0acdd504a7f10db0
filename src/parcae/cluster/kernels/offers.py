"""Rounds of the world of executors: which idle executors are offered to the policy, and when."""

from __future__ import annotations

from parcae.cluster.kernels.tables import pool_row, stage_row
from parcae.cluster.state import NO_EXECUTOR, NO_JOB
from parcae.kernels import inlined, kernel


@kernel
def offer_pool(state, job):  # type: ignore[no-untyped-def]
    """Open a round for all idle executors of a job's pool (NO_JOB: the global pool).

    If the pool is empty, no round is open afterwards.
    """
    now = state.now
    first = pool_row(state, job)
    now.source_job[0] = job
    now.source[0] = first
    now.acting_executor[0] = NO_EXECUTOR
    now.num_source[0] = 0
    for executor_class in range(state.classes.shape[0]):
        state.source_count[executor_class] = state.sources.num_idle[first + executor_class]
        now.num_source[0] += state.source_count[executor_class]
    if job == NO_JOB:
        now.is_reoffer_due[0] = 0


@kernel
def offer_all(state):  # type: ignore[no-untyped-def]
    """Offer every pool with idle executors, one after another, the global pool last.

    Opens the first of these rounds; `offer_next` opens the others.
    """
    state.now.next_offer[0] = 0
    state.now.num_source[0] = 0
    offer_next(state)


@kernel
def offer_next(state):  # type: ignore[no-untyped-def]
    """Open the next round of the sequence that `offer_all` began.

    The sequence ends when all pools were offered or no stage is schedulable.
    """
    now = state.now
    while now.next_offer[0] >= 0 and now.num_source[0] == 0:
        position = now.next_offer[0]
        now.next_offer[0] = position + 1
        if position > now.num_active[0] or now.num_schedulable[0] == 0:
            now.next_offer[0] = -1
        else:
            offer_pool(state, state.active[position] if position < now.num_active[0] else NO_JOB)


@kernel
def offer_to_newcomers(state):  # type: ignore[no-untyped-def]
    """Offer idle executors after jobs arrived.

    Normally the global pool is offered. All pools are offered while idle slots run (Duan & Wu,
    section IV-B) and if there are several executor classes.

    # Deviation: Decima, section 7.3 does not say which executors are offered if there are several
    classes. Here all idle executors are, also at the end of a job. Otherwise two jobs could each
    keep idle the executors that the other needs, and the cluster would work with a few executors
    only.
    """
    if state.now.num_holds[0] > 0 or state.classes.shape[0] > 1:
        offer_all(state)
    else:
        offer_pool(state, NO_JOB)


@inlined
def offer_stage(state, executor, stage):  # type: ignore[no-untyped-def]
    """Open a round for an executor that finished a task, together with all bound to its stage.

    Args:
        state: the cluster's tables; `now` and `source_count` are written.
        executor: row of the executor.
        stage: row of the stage of the finished task.
    """
    now = state.now
    job = state.stages.job[stage]
    executor_class = state.executors.executor_class[executor]
    now.source_job[0] = job
    now.source[0] = stage_row(state, stage)
    now.acting_executor[0] = executor
    now.num_source[0] = state.stages.num_bound[stage]
    state.source_count[:] = 0
    if state.classes.shape[0] == 1:
        state.source_count[0] = now.num_source[0]
    else:  # the bound executors may be of different classes: offer only the one that is free now
        now.num_source[0] = state.source_count[executor_class] = 1


@inlined
def offer_larger(state):  # type: ignore[no-untyped-def]
    """With several classes, offer the global pool again if it can get work now.

    The acting executor may be too small for the remaining stages. The pool is offered only if
    something changed since its last offer (a stage became schedulable, another executor became
    idle, a job ended) and one of its executors is large enough for a schedulable stage.

    # Deviation: Decima, section 7.3 does not say when idle executors of other classes are offered.
    Without this rule a stage that fits only them could wait for ever.
    """
    now = state.now
    classes = state.classes
    if classes.shape[0] > 1 and now.num_source[0] == 0 and now.is_reoffer_due[0]:
        for executor_class in range(classes.shape[0]):
            if (
                state.sources.num_idle[executor_class] > 0
                and classes.num_schedulable[executor_class] > 0
            ):
                offer_pool(state, NO_JOB)
                return
