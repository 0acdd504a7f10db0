"""Which stage of a job is next, and what is answered where nothing is left to choose."""

from __future__ import annotations

from parcae.cluster.kernels.tables import (
    first_runnable,
    first_schedulable,
    is_runnable,
    is_schedulable,
    may_idle,
)
from parcae.cluster.state import ANY_CLASS, NO_JOB, NO_STAGE
from parcae.kernels import inlined, kernel


@inlined
def up_to(stage, limit):  # type: ignore[no-untyped-def]
    """The decision that gives the stage up to `limit` of the best-fitting executors."""
    return stage, limit, ANY_CLASS, 0


@inlined
def all_to(seen, stage):  # type: ignore[no-untyped-def]
    """The decision that gives the stage all that are asked about; NO_STAGE lets them idle."""
    return stage, seen.now.num_source[0], ANY_CLASS, 0


@kernel
def stage_in_order(seen, job):  # type: ignore[no-untyped-def]
    """The job's schedulable stage that became runnable first, else the schedulable one of the smallest index."""
    if seen.jobs.num_schedulable[job] == 0:
        return NO_STAGE
    stage = first_runnable(seen, job)
    return stage if stage != NO_STAGE else first_schedulable(seen, job)


@kernel
def stage_by_critical_path(seen, job):  # type: ignore[no-untyped-def]
    """The job's schedulable stage: runnable ones first, then by the heaviest path to a leaf, then by index."""
    best = NO_STAGE
    best_runnable = False
    best_path = 0.0
    if seen.jobs.num_schedulable[job] == 0:
        return best
    first = seen.jobs.stage_start[job]
    for stage in range(first, first + seen.jobs.num_stages[job]):
        if not is_schedulable(seen, stage):
            continue
        runnable = is_runnable(seen, stage)
        path = seen.stages.downstream_ms[stage]
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
def local_stage(seen):  # type: ignore[no-untyped-def]
    """The next stage of the job whose executors are asked about, or NO_STAGE."""
    job = seen.now.source_job[0]
    if job == NO_JOB:
        return NO_STAGE
    return stage_in_order(seen, job)


@kernel
def when_all_are_capped(seen):  # type: ignore[no-untyped-def]
    """Let executors idle; but of several classes, those that jobs hold may not fit: if nobody works, caps do not bind."""
    if seen.classes.shape[0] > 1 and not may_idle(seen):
        for position in range(seen.now.num_active[0]):
            stage = stage_in_order(seen, seen.active[position])
            if stage != NO_STAGE:
                return all_to(seen, stage)
    return all_to(seen, NO_STAGE)
