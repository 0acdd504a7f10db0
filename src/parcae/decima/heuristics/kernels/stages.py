"""Helpers that all hand-made policies share: a job's next stage, and the usual decisions.

A decision is (stage, limit, executor class, hold), as in `parcae.cluster.decision.Decision`.
"""

from __future__ import annotations

from parcae.base.compiled.kernels import inlined, kernel
from parcae.cluster.kernels.tables import (
    first_runnable,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
    stages_of,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE


@inlined
def up_to(stage, limit):  # type: ignore[no-untyped-def]
    """Return the decision that gives the stage up to `limit` of the best-fitting executors."""
    return stage, limit, ANY_CLASS, 0


@inlined
def all_to(view, stage):  # type: ignore[no-untyped-def]
    """Return the decision that gives the stage all offered executors; NO_STAGE lets them idle."""
    return stage, view.now.num_source[0], ANY_CLASS, 0


@kernel
def stage_in_order(view, job):  # type: ignore[no-untyped-def]
    """Return the job's next stage in order of becoming runnable, or NO_STAGE.

    If no stage is runnable, this is the schedulable stage with the smallest index.

    # Deviation: Decima, section 7.1, baseline 3 round-robins over a job's runnable stages; here, as
    in the released code, the stage that became runnable first gets all executors that it can use.
    """
    if view.jobs.num_schedulable[job] == 0:
        return NO_STAGE
    stage = first_runnable(view, job)
    return stage if stage != NO_STAGE else first_schedulable(view, job)


@kernel
def stage_by_critical_path(view, job):  # type: ignore[no-untyped-def]
    """Return the job's schedulable stage with the heaviest path to a leaf, or NO_STAGE.

    Runnable stages come before others; of equal paths the smallest index wins.
    """
    best = NO_STAGE
    best_runnable = False
    best_path = 0.0
    if view.jobs.num_schedulable[job] == 0:
        return best
    for stage in stages_of(view, job):
        if not is_schedulable(view, stage):
            continue
        runnable = is_runnable(view, stage)
        path = view.stages.downstream_ms[stage]
        if (
            best == NO_STAGE
            or (runnable and not best_runnable)
            or (runnable == best_runnable and path > best_path)
        ):
            best = stage
            best_runnable = runnable
            best_path = path
    return best


@inlined
def local_stage(view):  # type: ignore[no-untyped-def]
    """Return the next stage of the job whose executors are offered, or NO_STAGE."""
    job = view.now.source_job[0]
    if job == NO_JOB:
        return NO_STAGE
    return stage_in_order(view, job)


@kernel
def when_all_are_capped(view):  # type: ignore[no-untyped-def]
    """Return the decision when every job has reached its cap: let the offered executors idle.

    With several executor classes, the executors that jobs hold may be too small for their stages.
    If no executor would work at all, the first job that can use the offered executors gets them.
    """
    if view.classes.shape[0] > 1 and not may_idle(view):
        for position in range(view.now.num_active[0]):
            stage = stage_in_order(view, view.active[position])
            if stage != NO_STAGE:
                return all_to(view, stage)
    return all_to(view, NO_STAGE)
